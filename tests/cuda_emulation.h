// Enough of CUDA to run a kernel on a CPU, one block after the other: every thread of a block is a thread here, and shared
// memory is static.

#include <barrier>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

struct Index {
  int x = 0, y = 0, z = 0;
};
thread_local Index threadIdx, blockIdx;
std::barrier<>*block_barrier, *warp_barrier;
double dynamic_shared[1 << 15];  // what `extern __shared__` stands for

using std::exp, std::log, std::min, std::nan;
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

#define __global__
#define __launch_bounds__(n)
#define __shared__ static
#define __syncthreads() block_barrier->arrive_and_wait()

inline double __shfl_xor_sync(unsigned, double value, int other) {  // by the first warp only
  static double given[32];
  given[threadIdx.x] = value;
  warp_barrier->arrive_and_wait();
  const double found = given[threadIdx.x ^ other];
  warp_barrier->arrive_and_wait();
  return found;
}

template <typename Kernel>
void run_blocks(int width, int height, int threads, Kernel kernel) {
  std::barrier<> block(threads), warp(32);
  block_barrier = &block, warp_barrier = &warp;
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
