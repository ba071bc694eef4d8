// Generalized Bartlett factors with their densities, and the gradients: the steps of `bartlett.py` in one pass each way.
//
// Defined by the caller: ROWS and COLUMNS of a factor, NUMBER, float or double. All is reckoned in float64. Draws often
// share their parameters: a step is how far those of the next draw are from those of the last, 0 where they are the same.

constexpr int THREADS = 128, SIZE = ROWS * COLUMNS;

// A block for each draw.
extern "C" __global__ void __launch_bounds__(THREADS)
bartlett(const NUMBER* __restrict__ squares, const NUMBER* __restrict__ alpha, const NUMBER* __restrict__ beta,
         const NUMBER* __restrict__ mu, const NUMBER* __restrict__ sigma, const NUMBER* __restrict__ noise,
         NUMBER* __restrict__ factor, NUMBER* __restrict__ density, int alpha_step, int beta_step, int mu_step,
         int sigma_step, int noise_step) {
  __shared__ double parts[THREADS / 32];
  const long long draw = blockIdx.x;
  squares += draw * COLUMNS, factor += draw * SIZE;
  alpha += draw * alpha_step, beta += draw * beta_step;
  mu += draw * mu_step, sigma += draw * sigma_step, noise += draw * noise_step;
  double sum = 0.0;
  for (int e = threadIdx.x; e < SIZE; e += THREADS) {
    const int i = e / COLUMNS, j = e % COLUMNS;
    double value = 0.0;
    if (i == j) {
      const double a = alpha[j], b = beta[j], square = squares[j];
      value = sqrt(square / b);
      sum += (2.0 * a - (COLUMNS - j)) * log(value) - square + a * log(b) - lgamma(a);
    } else if (i > j) {
      const double z = noise[e], s = sigma[e];
      value = mu[e] + s * z;
      sum -= 0.5 * z * z + log(s);
    }
    factor[e] = value;
  }
  for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < THREADS / 32; ++w) sum += parts[w];
    density[draw] = sum;
  }
}

// A thread for each entry of each factor.
extern "C" __global__ void __launch_bounds__(THREADS)
bartlett_backward(const NUMBER* __restrict__ squares, const NUMBER* __restrict__ alpha, const NUMBER* __restrict__ beta,
                  const NUMBER* __restrict__ sigma, const NUMBER* __restrict__ noise,
                  const NUMBER* __restrict__ g_factor, const NUMBER* __restrict__ g_density,
                  NUMBER* __restrict__ d_squares, NUMBER* __restrict__ d_beta, NUMBER* __restrict__ d_mu,
                  NUMBER* __restrict__ d_sigma, int alpha_step, int beta_step, int sigma_step, int noise_step, int draws) {
  const long long at = (long long)THREADS * blockIdx.x + threadIdx.x, draw = at / SIZE;
  if (draw >= draws) return;
  const int e = at % SIZE, i = e / COLUMNS, j = e % COLUMNS;
  const double g = g_density[draw];
  double change = 0.0, spread = 0.0;
  if (i == j) {
    const double a = alpha[draw * alpha_step + j], b = beta[draw * beta_step + j], square = squares[draw * COLUMNS + j];
    const double value = sqrt(square / b);
    const double half = 0.5 * value * (g_factor[at] + g * ((2.0 * a - (COLUMNS - j)) / value - 2.0 * b * value));
    d_squares[draw * COLUMNS + j] = half / square;
    d_beta[draw * COLUMNS + j] = -half / b;
  } else if (i > j) {
    const double z = noise[draw * noise_step + e];
    change = g_factor[at] - g * z / sigma[draw * sigma_step + e];
    spread = change * z;
  }
  d_mu[at] = change;
  d_sigma[at] = spread;
}
