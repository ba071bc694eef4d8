// Data rows given inducing values: A = L^-1 K, A^T v and diag(A^T A) in one pass, and their gradients in another.
// A block of four warps takes 64 columns of K, 16 to a warp.
//
// Defined by the caller: M, the size of W = L^-1 (lower triangular, float64); P, the columns of v; NUMBER, float or double.
//
// Products with W are made by tensor cores in float64, whatever NUMBER is: with W rounded to float32 the errors of A would
// be no small change of K. Tiles of W that are zero cost nothing. W and K lie in shared memory in the order in which the
// threads of a warp hold them: lane 4 g + t has element (g, t) of 8 x 4 elements of W and element (t, g) of 4 x 8 of K.

constexpr int THREADS = 128, COLUMNS = 64;
constexpr int TILES = (M + 15) / 16, STEPS = (M + 3) / 4;  // of 16 rows of the result, and of 4 of K

struct alignas(2 * sizeof(NUMBER)) Pair {
  NUMBER x, y;
};

#include "tensor_cores.cuh"

// Steps of the block b of 16 columns of the left factor, of which the last may have fewer than four.
__device__ constexpr int steps(int b) { return STEPS - 4 * b < 4 ? STEPS - 4 * b : 4; }

// Tiles of the result that block takes part in: W is lower triangular, its transpose upper.
__device__ constexpr int first_tile(int b, bool transposed) { return transposed ? 0 : b; }
__device__ constexpr int end_tile(int b, bool transposed) { return transposed ? b + 1 : TILES; }

// How many pieces of 16 x 4 elements are stored before those of block b.
__device__ constexpr int pieces(int b, bool transposed) {
  int count = 0;
  for (int i = 0; i < b; ++i) count += steps(i) * (end_tile(i, transposed) - first_tile(i, transposed));
  return count;
}

template <bool TRANSPOSED>
__device__ void load_left(double* left, const double* W) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int b = 0; b < TILES; ++b) {
    constexpr bool T = TRANSPOSED;
    const int first = first_tile(b, T), width = end_tile(b, T) - first, count = steps(b) * width;
    double* to = left + 64 * pieces(b, T) + 2 * lane;
    for (int e = warp; e < count; e += THREADS / 32) {
      const int k = 16 * b + 4 * (e / width) + t, i = 16 * (first + e % width) + g;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = T ? k : i + 8 * half, column = T ? i + 8 * half : k;
        const bool given = row < M && column <= row;
        copy(to + 64 * e + half, given ? W + row * M + column : W, given);
      }
    }
  }
}

// Where element (k, column) of the right factor lies.
__device__ int place(int k, int column) {
  const int tile = column / 8, lane = 4 * (column % 8) + k % 4;
  return ((k / 4 * 4 + tile / 2) * 32 + lane) * 2 + tile % 2;
}

// The product of the left factor with a warp's 16 columns: c[a][h] has columns 8 h to 8 h + 7 of rows 16 a to 16 a + 15.
template <bool TRANSPOSED>
__device__ void product(double (&c)[TILES][2][4], const double* left, const NUMBER* right) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int b = 0; b < TILES; ++b) {
    constexpr bool T = TRANSPOSED;
    const int first = first_tile(b, T), end = end_tile(b, T);
#pragma unroll
    for (int s = 0; s < steps(b); ++s) {
      const Pair columns = ((const Pair*)right)[((4 * b + s) * 4 + warp) * 32 + lane];
      const double2* piece = (const double2*)left + (pieces(b, T) + s * (end - first)) * 32 + lane;
#pragma unroll
      for (int a = first; a < end; ++a) {
        const double2 rows = piece[(a - first) * 32];
        multiply_add(c[a][0], rows, (double)columns.x);
        multiply_add(c[a][1], rows, (double)columns.y);
      }
    }
  }
}

// The row of c[a][q / 2][2 * half + q % 2], and its column among the block's.
__device__ int row_of(int a, int half) { return 16 * a + 8 * half + threadIdx.x % 32 / 4; }
__device__ int column_of(int q) { return threadIdx.x / 32 * 16 + 8 * (q / 2) + 2 * (threadIdx.x % 4) + q % 2; }

template <typename T>
__device__ T over_rows(T value) {  // summed over the threads of a warp that have the same columns
#pragma unroll
  for (int other = 4; other < 32; other *= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
rows(const double* __restrict__ W, const NUMBER* __restrict__ K, const NUMBER* __restrict__ v, NUMBER* __restrict__ A,
     NUMBER* __restrict__ mean, NUMBER* __restrict__ loss, int n) {
  extern __shared__ double memory[];
  double* left = memory;
  NUMBER *right = (NUMBER*)(left + 64 * pieces(TILES, false)), *values = right;
  const int tiles = (n + COLUMNS - 1) / COLUMNS, first = COLUMNS * (blockIdx.x % tiles);
  const long long matrix = blockIdx.x / tiles;
  K += matrix * M * n + first, A += matrix * M * n + first, v += matrix * M * P;
  mean += (matrix * n + first) * P, loss += matrix * n + first;
  const int width = min(COLUMNS, n - first);
  load_left<false>(left, W + matrix * M * M);
  for (int k = threadIdx.x / COLUMNS, j = threadIdx.x % COLUMNS; k < 4 * STEPS; k += THREADS / COLUMNS) {
    const bool given = k < M && j < width;
    copy(right + place(k, j), given ? K + (long long)k * n + j : K, given);
  }
  wait_for_copies();
  double c[TILES][2][4] = {};
  product<false>(c, left, right);
  __syncthreads();  // all have read K, and v takes its place
  for (int e = threadIdx.x; e < M * P; e += THREADS) copy(values + e, v + e, true);

  double squares[4] = {};
#pragma unroll
  for (int a = 0; a < TILES; ++a)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const double value = c[a][q / 2][2 * half + q % 2];
        const int i = row_of(a, half), j = column_of(q);
        if (i < M && j < width) A[(long long)i * n + j] = (NUMBER)value;
        squares[q] += value * value;  // rows from M on are zero
      }
  wait_for_copies();
#pragma unroll
  for (int p = 0; p < P; p += 4) {  // four outputs at once
    NUMBER sums[4][4] = {};
#pragma unroll
    for (int a = 0; a < TILES; ++a)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row_of(a, half);
#pragma unroll
        for (int o = 0; o < 4; ++o)
          if (p + o < P) {
            const NUMBER value = i < M ? values[i * P + p + o] : (NUMBER)0;
#pragma unroll
            for (int q = 0; q < 4; ++q) sums[o][q] += value * (NUMBER)c[a][q / 2][2 * half + q % 2];
          }
      }
#pragma unroll
    for (int o = 0; o < 4; ++o)
#pragma unroll
      for (int q = 0; q < 4; ++q)
        if (p + o < P) {
          const NUMBER total = over_rows(sums[o][q]);
          if (threadIdx.x % 32 < 4 && column_of(q) < width) mean[column_of(q) * P + p + o] = total;
        }
  }
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const double total = over_rows(squares[q]);
    if (threadIdx.x % 32 < 4 && column_of(q) < width) loss[column_of(q)] = (NUMBER)total;
  }
}

// dA = v g^T + 2 A diag(g_loss) and dK = L^-T dA
extern "C" __global__ void __launch_bounds__(THREADS, 2)
rows_backward(const double* __restrict__ W, const NUMBER* __restrict__ A, const NUMBER* __restrict__ v,
              const NUMBER* __restrict__ g_mean, const NUMBER* __restrict__ g_loss, NUMBER* __restrict__ d_A,
              NUMBER* __restrict__ d_K, int n) {
  extern __shared__ double memory[];
  double* left = memory;
  NUMBER *right = (NUMBER*)(left + 64 * pieces(TILES, true)), *values = right + 256 * STEPS;
  const int tiles = (n + COLUMNS - 1) / COLUMNS, first = COLUMNS * (blockIdx.x % tiles);
  const long long matrix = blockIdx.x / tiles;
  A += matrix * M * n + first, d_A += matrix * M * n + first, d_K += matrix * M * n + first, v += matrix * M * P;
  g_mean += (matrix * n + first) * P, g_loss += matrix * n + first;
  const int width = min(COLUMNS, n - first);
  for (int e = threadIdx.x; e < M * P; e += THREADS) copy(values + e, v + e, true);
  const int j = threadIdx.x % COLUMNS;
  for (int k = threadIdx.x / COLUMNS; k < 4 * STEPS; k += THREADS / COLUMNS) {
    const bool given = k < M && j < width;
    copy(right + place(k, j), given ? A + (long long)k * n + j : A, given);
  }
  wait_for_copies();
  load_left<true>(left, W + matrix * M * M);  // arrives while dA is made
  NUMBER g[P];
#pragma unroll
  for (int p = 0; p < P; ++p) g[p] = j < width ? g_mean[j * P + p] : (NUMBER)0;
  const NUMBER twice = j < width ? 2 * g_loss[j] : (NUMBER)0;
#pragma unroll 4
  for (int k = threadIdx.x / COLUMNS; k < M; k += THREADS / COLUMNS) {
    NUMBER value = twice * right[place(k, j)];
#pragma unroll
    for (int p = 0; p < P; ++p) value += values[k * P + p] * g[p];
    right[place(k, j)] = value;
    if (j < width) d_A[(long long)k * n + j] = value;
  }
  wait_for_copies();
  double c[TILES][2][4] = {};
  product<true>(c, left, right);
#pragma unroll
  for (int a = 0; a < TILES; ++a)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int i = row_of(a, half), column = column_of(q);
        if (i < M && column < width) d_K[(long long)i * n + column] = (NUMBER)c[a][q / 2][2 * half + q % 2];
      }
}
