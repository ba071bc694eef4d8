// D^T diag(w_p) D for many w_p, and its gradients, without ever writing down diag(w_p) D.
//
// Defined by the caller: K, the columns of D, at most 64; NUMBER, float or double. D has m rows, and w one row for each of
// P outputs. Products are made by tensor cores in float64, whatever NUMBER is.

#include "tensor_cores.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr int TILES = (K + 7) / 8, BANDS = (K + 15) / 16, STEPS = (K + 3) / 4;  // of 8 columns, 16 rows, 4 terms
constexpr int STRIDE = 8 * TILES + 4;  // of rows in shared memory: four rows of four columns lie in different banks

constexpr int CHUNK = 32;  // rows of D that a block has at once

// A warp has one output and its whole matrix, of which tiles above the diagonal are mirrored. What lane 4 g + t reads of D,
// its row t at columns g, 8 + g, ..., serves both factors.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
grams(const NUMBER* __restrict__ D, const NUMBER* __restrict__ w, NUMBER* __restrict__ G, int m, int outputs) {
  extern __shared__ double memory[];
  NUMBER *rows = (NUMBER*)memory, *weights = rows + 2 * CHUNK * STRIDE;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int groups = (outputs + WARPS - 1) / WARPS, first = WARPS * (blockIdx.x % groups), output = first + warp;
  const long long matrix = blockIdx.x / groups;
  D += matrix * m * K, w += matrix * outputs * m, G += (matrix * outputs + output) * K * K;

  auto load = [&](int chunk) {
    const int start = chunk * CHUNK, buffer = chunk % 2;
    for (int e = threadIdx.x; e < CHUNK * 8 * TILES; e += THREADS) {
      const int i = e / (8 * TILES), j = e % (8 * TILES);
      const bool given = start + i < m && j < K;
      copy(rows + (buffer * CHUNK + i) * STRIDE + j, given ? D + (long long)(start + i) * K + j : D, given);
    }
    for (int e = threadIdx.x; e < WARPS * CHUNK; e += THREADS) {
      const int p = first + e / CHUNK, i = start + e % CHUNK;
      const bool given = p < outputs && i < m;
      copy(weights + buffer * WARPS * CHUNK + e, given ? w + (long long)p * m + i : w, given);
    }
  };

  double c[BANDS][TILES][4] = {};
  const int chunks = (m + CHUNK - 1) / CHUNK;
  load(0);
  wait_for_copies();
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (chunk + 1 < chunks) load(chunk + 1);
    const NUMBER* from = rows + (chunk % 2 * CHUNK + t) * STRIDE + g;
    const NUMBER* weight = weights + (chunk % 2 * WARPS + warp) * CHUNK + t;
    if (output < outputs) {
#pragma unroll 2
      for (int s = 0; s < CHUNK; s += 4) {
        const double scale = (double)weight[s];
        double right[2 * BANDS] = {}, left[2 * BANDS];
#pragma unroll
        for (int j = 0; j < TILES; ++j) right[j] = (double)from[s * STRIDE + 8 * j];
#pragma unroll
        for (int j = 0; j < 2 * BANDS; ++j) left[j] = scale * right[j];
#pragma unroll
        for (int a = 0; a < BANDS; ++a)
#pragma unroll
          for (int j = 0; j < TILES; ++j)
            if (j <= 2 * a + 1) multiply_add(c[a][j], double2{left[2 * a], left[2 * a + 1]}, right[j]);
      }
    }
    wait_for_copies();
  }
  if (output >= outputs) return;
#pragma unroll
  for (int a = 0; a < BANDS; ++a)
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int row = 16 * a + 8 * (q / 2) + g, column = 8 * j + 2 * t + q % 2;
        if (j <= 2 * a + 1 && row < K && column <= row) {
          G[row * K + column] = (NUMBER)c[a][j][q];
          G[column * K + row] = (NUMBER)c[a][j][q];
        }
      }
}

// With H_p = D (g_p + g_p^T): dD = sum_p diag(w_p) H_p, and dw_p = diag(H_p D^T) / 2. A block has 64 rows of D, 16 to a warp,
// and takes one output after the other.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
grams_backward(const NUMBER* __restrict__ D, const NUMBER* __restrict__ w, const NUMBER* __restrict__ gradient,
               NUMBER* __restrict__ d_D, NUMBER* __restrict__ d_w, int m, int outputs) {
  constexpr int ROWS = 16 * WARPS;
  extern __shared__ double memory[];
  double* both = memory;  // g + g^T
  NUMBER *rows = (NUMBER*)(both + 4 * STEPS * STRIDE), *given = rows + ROWS * 8 * TILES, *weights = given + K * K;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int blocks = (m + ROWS - 1) / ROWS, first = ROWS * (blockIdx.x % blocks);
  const long long matrix = blockIdx.x / blocks;
  D += matrix * m * K, d_D += matrix * m * K, w += matrix * outputs * m, d_w += matrix * outputs * m;
  gradient += matrix * outputs * K * K;

  auto load = [&](int p) {
    for (int e = threadIdx.x; e < K * K; e += THREADS) copy(given + e, gradient + (long long)p * K * K + e, true);
    for (int i = threadIdx.x; i < ROWS; i += THREADS) {
      const bool inside = first + i < m;
      copy(weights + p % 2 * ROWS + i, inside ? w + (long long)p * m + first + i : w, inside);
    }
  };

  for (int e = threadIdx.x; e < ROWS * 8 * TILES; e += THREADS) {
    const int i = first + e / (8 * TILES), j = e % (8 * TILES);
    const bool inside = i < m && j < K;
    copy(rows + e, inside ? D + (long long)i * K + j : D, inside);
  }
  load(0);
  for (int e = threadIdx.x; e < 4 * STEPS * STRIDE; e += THREADS) both[e] = 0.0;
  wait_for_copies();
  const NUMBER* mine = rows + (16 * warp + g) * 8 * TILES;  // of the first of my two rows
  double2 left[STEPS];
#pragma unroll
  for (int s = 0; s < STEPS; ++s) left[s] = double2{(double)mine[4 * s + t], (double)mine[64 * TILES + 4 * s + t]};

  double sums[TILES][4] = {};
  for (int p = 0; p < outputs; ++p) {
    for (int e = threadIdx.x; e < K * K; e += THREADS) {
      const int i = e / K, j = e % K;
      both[i * STRIDE + j] = (double)given[e] + (double)given[j * K + i];
    }
    __syncthreads();
    if (p + 1 < outputs) load(p + 1);
    const NUMBER* weight = weights + p % 2 * ROWS + 16 * warp + g;
    const double scales[2] = {(double)weight[0], (double)weight[8]};
    double products[2] = {};
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      double h[4] = {};
#pragma unroll
      for (int s = 0; s < STEPS; ++s) multiply_add(h, left[s], both[(4 * s + t) * STRIDE + 8 * j + g]);
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        sums[j][q] += scales[q / 2] * h[q];
        products[q / 2] += h[q] * (double)mine[64 * TILES * (q / 2) + 8 * j + 2 * t + q % 2];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      double total = products[half];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const int row = first + 16 * warp + 8 * half + g;
      if (t == 0 && row < m) d_w[(long long)p * m + row] = (NUMBER)(0.5 * total);
    }
    wait_for_copies();
  }
#pragma unroll
  for (int j = 0; j < TILES; ++j)
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int row = first + 16 * warp + 8 * (q / 2) + g, column = 8 * j + 2 * t + q % 2;
      if (row < m && column < K) d_D[(long long)row * K + column] = (NUMBER)sums[j][q];
    }
}
