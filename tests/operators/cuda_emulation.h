// Enough of CUDA to run a kernel on a CPU, one block after the other: every thread of a block is a thread here, and shared
// memory is static.

#include <barrier>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

struct Index {
  int x = 0, y = 0, z = 0;
};
thread_local Index threadIdx, blockIdx;
std::barrier<>* block_barrier;
std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
alignas(16) double dynamic_shared[1 << 15];  // what `extern __shared__` stands for

using std::erfc, std::exp, std::lgamma, std::log, std::min, std::nan, std::sqrt;
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static
#define __syncthreads() block_barrier->arrive_and_wait()

inline void wait_for_warp() { warp_barriers[threadIdx.x / 32]->arrive_and_wait(); }

template <typename Value>
Value __shfl_xor_sync(unsigned, Value value, int other) {
  static Value given[1024];
  given[threadIdx.x] = value;
  wait_for_warp();
  const Value found = given[threadIdx.x ^ other];
  wait_for_warp();
  return found;
}

// What tensor_cores.cuh has in assembly
#define EMULATED

inline void multiply_add(double (&c)[4], double2 a, double b) {
  static double left[1024][2], right[1024];
  const int lane = threadIdx.x % 32, first = threadIdx.x - lane, g = lane / 4, t = lane % 4;
  left[threadIdx.x][0] = a.x, left[threadIdx.x][1] = a.y, right[threadIdx.x] = b;
  wait_for_warp();
  for (int k = 0; k < 4; ++k)
    for (int e = 0; e < 4; ++e) c[e] += left[first + 4 * g + k][e / 2] * right[first + 4 * (2 * t + e % 2) + k];
  wait_for_warp();
}

template <typename Value>
void copy(Value* to, const Value* from, bool given) {
  *to = given ? *from : Value(0);
}

#define wait_for_copies() __syncthreads()

template <typename Kernel>
void run_blocks(int width, int height, int threads, Kernel kernel) {
  std::barrier<> block(threads);
  block_barrier = &block;
  warp_barriers.clear();
  for (int w = 0; w < threads; w += 32) warp_barriers.push_back(std::make_unique<std::barrier<>>(32));
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t)
    all.emplace_back([=, &block] {
      threadIdx.x = t;
      for (blockIdx.x = 0; blockIdx.x < width; ++blockIdx.x)
        for (blockIdx.y = 0; blockIdx.y < height; ++blockIdx.y) {
          kernel();
          block.arrive_and_wait();
        }
    });
  for (auto& thread : all) thread.join();
}
