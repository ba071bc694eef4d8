"""Likelihoods of real numbers: Gaussian noise, noise that depends on the input, and heavy tails."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.likelihoods.base import Likelihood, positive_per_target
from vibayes.likelihoods.mixtures import Mixture
from vibayes.likelihoods.regression_mixtures import GaussianMixture, HeteroscedasticMixture, StudentTMixture
from vibayes.likelihoods.special import lgamma_half_step
from vibayes.likelihoods.targets import real_targets
from vibayes.parameters import Positive
from vibayes.quadrature import GaussHermite, expected_log1p_square

__all__ = ["Gaussian", "HeteroscedasticGaussian", "StudentT"]

_LOG_2PI = math.log(2 * math.pi)


class _RealTargets(Likelihood):
    """Targets that are real numbers, and may be standardised."""

    kind: ClassVar[str] = "regression"
    scalable: ClassVar[bool] = True

    def check_targets(self, y: Tensor, n_targets: int | None = None) -> Float[Tensor, "n p"]:
        """Finite numbers `[N]` or `[N, P]`, returned as floating `[N, P]`."""
        return real_targets(y, n_targets)


class Gaussian(_RealTargets):
    r"""Gaussian noise, `y = f + e` with `e ~ N(0, noise)`.

    `E[log p(y | f)] = log N(y; mean, noise) - variance / (2 noise)`.

    Args:
        noise: the *variance* of the noise to start from, or a `Positive` (used as it is, may be shared).
        learn: whether training changes it.
        out_features: None for one noise shared by all targets, or the number of targets for separate ones.

    >>> Gaussian(0.1).noise, Gaussian(0.1, learn=False).noise, Gaussian(0.1, out_features=2).noise
    (Positive(0.1), Positive(0.1, fixed), Positive(0.1, 0.1))
    """

    per_target: ClassVar[tuple[str, ...]] = ("noise",)

    def __init__(
        self,
        noise: float | Tensor | Positive = 1.0,
        *,
        learn: bool = True,
        out_features: int | None = None,
    ) -> None:
        super().__init__()
        self.noise = positive_per_target(noise, learn, out_features, "noise")

    def _log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        noise = self.noise.value
        return -0.5 * ((y - f).square() / noise + noise.log() + _LOG_2PI).sum(-1)

    def _expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, eps: Tensor | None) -> Tensor:
        noise = self.noise.value
        return -0.5 * (((y - mean).square() + variance) / noise + noise.log() + _LOG_2PI).sum(-1)

    def _predictive(self, mean: Tensor, variance: Tensor | None, eps: Tensor | None, log_weights: Tensor) -> Mixture:
        noise = _frozen(self.noise, mean)
        return GaussianMixture(log_weights, mean, _or_zero(variance, mean), noise)


class HeteroscedasticGaussian(_RealTargets):
    r"""Gaussian noise whose variance is an output of the network, `y ~ N(f, exp(g))`.

    The network's output has `2 P` columns: P means `f`, then P log variances `g`. With `g ~ N(m_g, v_g)`,
    `E[log p(y | f, g)] = -(log 2 pi + m_g + ((y - m_f)^2 + v_f) exp(-m_g + v_g / 2)) / 2`.

    >>> import vibayes as vb
    >>> x = torch.linspace(0, 3, 100)[:, None]
    >>> y = torch.sin(x[:, 0]) + 0.3 * x[:, 0] * torch.cos(50 * x[:, 0])  # ever noisier
    >>> layer = vb.GP(2, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(10))  # for one target
    >>> model = vb.Model(layer, HeteroscedasticGaussian())
    >>> history = vb.fit(model, (x, y), steps=100, lr=0.05, progress=False)
    >>> noise = model.predict(torch.tensor([[0.5], [2.5]])).aleatoric
    >>> bool(noise[1] > 2 * noise[0])
    True
    """

    latent_per_target: ClassVar[int] = 2

    def _log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        f, g = f.chunk(2, -1)
        return -0.5 * ((y - f).square() * (-g).exp() + g + _LOG_2PI).sum(-1)

    def _expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, eps: Tensor | None) -> Tensor:
        mean, log_noise = mean.chunk(2, -1)
        variance, log_noise_variance = variance.chunk(2, -1)
        precision = (-log_noise + 0.5 * log_noise_variance).exp()  # E[exp(-g)]
        return -0.5 * (((y - mean).square() + variance) * precision + log_noise + _LOG_2PI).sum(-1)

    def _predictive(self, mean: Tensor, variance: Tensor | None, eps: Tensor | None, log_weights: Tensor) -> Mixture:
        mean, log_noise = mean.chunk(2, -1)
        variance, log_noise_variance = _or_zero(variance, torch.cat([mean, log_noise], -1)).chunk(2, -1)
        widest = float(log_noise_variance.max().sqrt()) if log_noise_variance.numel() else 0.0
        spacing = 0.3 / widest if widest > 0 else math.inf  # exp(-g) oscillates at pi / 2 off the real axis
        return HeteroscedasticMixture(log_weights, mean, variance, log_noise, log_noise_variance, spacing)


class StudentT(_RealTargets):
    r"""Noise with heavy tails, `y = f + scale * t` with `t` of Student's distribution.

    The expected log density uses `vibayes.quadrature.expected_log1p_square`, which holds for any ratio of the
    function's width to the scale: with 20 nodes its error is about `(df + 1) 1e-4` at a ratio of 100, and 40 nodes
    make it negligible. The prediction has infinite variance for `df <= 2`
    and no mean (NaN) for `df <= 1`; its quantiles and densities are always there.

    Args:
        df: degrees of freedom, positive; a number, or a `Positive`.
        scale: scale of the noise (not its variance), a number, one per target, or a `Positive`.
        learn: whether training changes the scale.
        learn_df: whether training changes the degrees of freedom.
        out_features: None for one scale shared by all targets, or the number of targets for separate ones.
        n_quadrature: number of quadrature nodes.

    >>> import vibayes as vb
    >>> x = torch.linspace(-3, 3, 40)[:, None]
    >>> y = torch.where(torch.arange(40) == 20, 10.0, 0.0)  # zero, but for one outlier
    >>> layer = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(10))
    >>> model = vb.Model(layer, StudentT(scale=0.1))
    >>> history = vb.fit(model, (x, y), steps=30, progress=False)
    >>> bool(model.predict(x).mean.abs().max() < 0.1)  # the outlier is ignored
    True
    """

    per_target: ClassVar[tuple[str, ...]] = ("scale",)

    def __init__(
        self,
        df: float | Tensor | Positive = 4.0,
        scale: float | Tensor | Positive = 1.0,
        learn: bool = True,
        *,
        learn_df: bool = False,
        out_features: int | None = None,
        n_quadrature: int = 20,
    ) -> None:
        super().__init__()
        self.df = positive_per_target(df, learn_df, None, "df")
        self.scale = positive_per_target(scale, learn, out_features, "scale")
        self.quadrature = GaussHermite(n_quadrature)  # for its number of nodes, which saved models have there

    def _log_density(self, log1p_square: Tensor) -> Tensor:
        """From `log(1 + ((y - f) / scale)^2 / df)`, in which it is linear."""
        df, scale = self.df.value, self.scale.value
        constant = lgamma_half_step(0.5 * df) - 0.5 * (math.pi * df).log() - scale.log()
        return (constant - 0.5 * (df + 1) * log1p_square).sum(-1)

    def _log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return self._log_density(torch.log1p(((y - f) / self.scale.value).square() / self.df.value))

    def _expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, eps: Tensor | None) -> Tensor:
        width = self.scale.value * self.df.value.sqrt()
        expected = expected_log1p_square((y - mean) / width, variance / width.square(), self.quadrature.n)
        return self._log_density(expected)

    def _predictive(self, mean: Tensor, variance: Tensor | None, eps: Tensor | None, log_weights: Tensor) -> Mixture:
        exact = variance is None
        df, scale = self.df.value.detach().double().to(mean.device).reshape(1, 1, 1), _frozen(self.scale, mean)
        return StudentTMixture(log_weights, mean, _or_zero(variance, mean), df, scale, exact)


def _frozen(hyperparameter: Positive, like: Tensor) -> Tensor:
    """A copy of the value as `[1, 1, P]` or `[1, 1, 1]`: a prediction does not change with later training."""
    value = hyperparameter.value.detach().clone().to(like.device, like.dtype)
    return value.reshape(1, 1, -1)


def _or_zero(variance: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if variance is None else variance
