// Standard gamma draws by Marsaglia & Tsang (2000), a thread for each: the steps of `gamma._marsaglia_tsang` in one pass.
//
// Defined by the caller: PROPOSALS, how many there are of each draw; NUMBER, float or double. A draw reads the normals of
// its proposals, then those of their acceptance, then one for shapes below one, each n apart. All is reckoned in float64.

constexpr int THREADS = 128;

__device__ double log_uniform(double normal) { return log(0.5 * erfc(-0.70710678118654752440 * normal)); }

extern "C" __global__ void __launch_bounds__(THREADS)
gamma_draws(const NUMBER* __restrict__ alpha, const NUMBER* __restrict__ normals, NUMBER* __restrict__ found, int n) {
  const int i = THREADS * blockIdx.x + threadIdx.x;
  if (i >= n) return;
  normals += i;
  const double a = alpha[i], d = (a < 1.0 ? a + 1.0 : a) - 1.0 / 3.0, scale = 1.0 / sqrt(9.0 * d);
  double drawn = 0.0;
  for (int p = 0; p < PROPOSALS; ++p) {
    const double z = normals[(long long)p * n], v = 1.0 + scale * z, log_v = v > 0.0 ? 3.0 * log(v) : 0.0;
    if (p == 0) drawn = log_v;  // should all of them be rejected
    const double u = log_uniform(normals[(long long)(PROPOSALS + p) * n]);
    if (v > 0.0 && u < 0.5 * z * z + d - d * exp(log_v) + d * log_v) {
      drawn = log_v;
      break;
    }
  }
  drawn += log(d);
  if (a < 1.0) drawn += log_uniform(normals[(long long)(2 * PROPOSALS) * n]) / a;
  found[i] = exp(drawn);
}
