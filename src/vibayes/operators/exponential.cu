// exp(offset - |x_i - z_j|^2 / 2) for all pairs of rows of two sets, a block of 128 threads for 16 rows and 256 columns.
//
// Defined by the caller: D, the width of the rows; NUMBER, float or double. Blocks run over the tiles of 16 rows of all
// matrices, and over those of 256 columns.
//
// A thread keeps two rows of z in registers and meets the 16 rows of x in shared memory. Differences are squared as they
// are, so that equal rows have a distance of exactly zero, and a matrix of one set with itself is symmetric to the last
// bit. Matrix products would do the same with more than twice as many passes over the result.

constexpr int ROWS = 16, THREADS = 128;

extern "C" __global__ void __launch_bounds__(THREADS)
exponential(const NUMBER* __restrict__ x, const NUMBER* __restrict__ z, const NUMBER* __restrict__ offset,
            NUMBER* __restrict__ found, int n, int m) {
  __shared__ NUMBER rows[ROWS][D];
  const int tiles = (n + ROWS - 1) / ROWS, matrix = blockIdx.x / tiles, first = ROWS * (blockIdx.x % tiles);
  const int j = 2 * THREADS * blockIdx.y + threadIdx.x, k = j + THREADS;
  x += ((long long)matrix * n + first) * D;
  z += (long long)matrix * m * D;
  found += ((long long)matrix * n + first) * m;
  const int count = min(ROWS, n - first);
  for (int e = threadIdx.x; e < count * D; e += THREADS) rows[e / D][e % D] = x[e];
  NUMBER left[D], right[D];
#pragma unroll
  for (int d = 0; d < D; ++d) {
    left[d] = j < m ? z[(long long)j * D + d] : 0;
    right[d] = k < m ? z[(long long)k * D + d] : 0;
  }
  const NUMBER start = offset[matrix];
  __syncthreads();
  for (int i = 0; i < count; ++i) {
    NUMBER a = 0, b = 0;
#pragma unroll
    for (int d = 0; d < D; ++d) {
      const NUMBER value = rows[i][d], to_left = value - left[d], to_right = value - right[d];
      a += to_left * to_left;
      b += to_right * to_right;
    }
    if (j < m) found[(long long)i * m + j] = exp(start - (NUMBER)0.5 * a);
    if (k < m) found[(long long)i * m + k] = exp(start - (NUMBER)0.5 * b);
  }
}
