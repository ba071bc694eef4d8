// The Cholesky factor L of a small matrix K, its inverse and log |K|, one block of 256 threads per matrix.
//
// Defined by the caller: N, the size of the matrix; T = ceil(N / 16); NUMBER, float or double. Inside, all is double.
//
// A thread (ty, tx) of 16 x 16 holds the elements (ty + 16 a, tx + 16 b) of the matrix in registers. In step j the
// owners of column j show it to the others through shared memory, and every thread subtracts its part of the outer
// product: one barrier per column, and no element of the trailing matrix leaves its register. The inverse follows by
// the same eliminations on the identity. All loops over tiles are unrolled, so that tiles above the diagonal and those
// already finished cost nothing. What is computed in place of elements above the diagonal is never read.

constexpr int ROWS = 16 * T, STRIDE = ROWS + 1;  // a stride that spreads columns over the banks

extern "C" __global__ void __launch_bounds__(256)
factorize(const NUMBER* __restrict__ K, NUMBER* __restrict__ lower, NUMBER* __restrict__ inverse,
          NUMBER* __restrict__ log_det, int* __restrict__ info) {
  extern __shared__ double L[];  // column j begins at j * STRIDE
  __shared__ double line[2][ROWS], reciprocal[ROWS];
  const int tx = threadIdx.x & 15, ty = threadIdx.x >> 4;
  const long long offset = (long long)blockIdx.x * N * N;
  bool failed = false;

  double A[T][T];
#pragma unroll
  for (int a = 0; a < T; ++a)
#pragma unroll
    for (int b = 0; b <= a; ++b) {
      const int i = ty + 16 * a, k = tx + 16 * b;
      A[a][b] = i < N && k < N ? (double)K[offset + i * N + k] : (i == k ? 1.0 : 0.0);
    }

#pragma unroll
  for (int step = 0; step < T; ++step)
    for (int jj = 0; jj < 16; ++jj) {
      const int j = 16 * step + jj;
      double* column = line[jj & 1];  // two, so that slow readers of the last one need not be waited for
      if (tx == jj)
#pragma unroll
        for (int a = step; a < T; ++a) column[ty + 16 * a] = A[a][step];
      __syncthreads();
      const double pivot = column[j];
      failed |= !(pivot > 0.0);
      const double scale = rsqrt(pivot);
      double rows[T];
#pragma unroll
      for (int a = step; a < T; ++a) rows[a] = column[ty + 16 * a] * scale;
      if (tx == jj) {
#pragma unroll
        for (int a = 0; a < T; ++a) L[j * STRIDE + ty + 16 * a] = a >= step && ty + 16 * a >= j ? rows[a] : 0.0;
        if (ty == 0) reciprocal[j] = scale;
      }
#pragma unroll
      for (int b = step; b < T; ++b) {
        const double other = column[tx + 16 * b] * scale;
#pragma unroll
        for (int a = b; a < T; ++a) A[a][b] -= rows[a] * other;
      }
    }
  __syncthreads();

#pragma unroll
  for (int a = 0; a < T; ++a)
#pragma unroll
    for (int b = 0; b <= a; ++b) A[a][b] = ty + 16 * a == tx + 16 * b ? 1.0 : 0.0;
#pragma unroll
  for (int step = 0; step < T; ++step)
    for (int jj = 0; jj < 16; ++jj) {
      const int j = 16 * step + jj;
      double* row = line[jj & 1];
      if (ty == jj)
#pragma unroll
        for (int b = 0; b <= step; ++b) row[tx + 16 * b] = A[step][b] *= reciprocal[j];
      __syncthreads();
      double factors[T];
#pragma unroll
      for (int a = step; a < T; ++a) factors[a] = ty + 16 * a > j ? L[j * STRIDE + ty + 16 * a] : 0.0;
#pragma unroll
      for (int b = 0; b <= step; ++b) {
        const double other = row[tx + 16 * b];
#pragma unroll
        for (int a = step; a < T; ++a) A[a][b] -= factors[a] * other;
      }
    }

  const double poison = failed ? nan("") : 0.0;
#pragma unroll
  for (int a = 0; a < T; ++a)
#pragma unroll
    for (int b = 0; b < T; ++b) {
      const int i = ty + 16 * a, k = tx + 16 * b;
      if (i < N && k < N) {
        lower[offset + i * N + k] = (NUMBER)(L[k * STRIDE + i] + poison);
        inverse[offset + i * N + k] = (NUMBER)((b <= a && k <= i ? A[a][b] : 0.0) + poison);
      }
    }
  if (threadIdx.x < 32) {  // the pivots' logarithms, summed by one warp
    double sum = 0.0;
    for (int j = threadIdx.x; j < N; j += 32) sum -= 2.0 * log(reciprocal[j]);
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    if (threadIdx.x == 0) {
      log_det[blockIdx.x] = (NUMBER)(sum + poison);
      info[blockIdx.x] = failed;
    }
  }
}
