"""Predictive mixtures of real numbers: densities, distribution functions and exact quantiles."""

import dataclasses
import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.likelihoods.mixtures import (
    Mixture,
    Moments,
    node_count,
    on_nodes,
    standard_normal,
    weighted_mean,
)
from vibayes.likelihoods.special import lgamma_half_step, ndtr, student_t_cdf
from vibayes.likelihoods.targets import real_targets
from vibayes.quadrature import log_gamma_grid, standard_deviation

__all__ = ["ContinuousMixture", "GaussianMixture", "HeteroscedasticMixture", "StudentTMixture"]


@dataclass(frozen=True, eq=False)
class ContinuousMixture(Mixture):
    """Components `loc + scale * z` with `z` of one standard form.

    Attributes:
        mean: mean of the function given each draw, `[S, N, P]`.
        variance: its variance given each draw, `[S, N, P]`; zero where the draw fixes it.
    """

    mean: Float[Tensor, "s n p"]
    variance: Float[Tensor, "s n p"]

    kind: ClassVar[str] = "regression"
    scalable: ClassVar[bool] = True
    ROWS: ClassVar[tuple[str, ...]] = ("mean", "variance")

    check_targets = staticmethod(real_targets)

    @abstractmethod
    def location_scale(self) -> tuple[Tensor, Tensor, Tensor]:
        """Location and scale, broadcastable to `[S, Q, N, P]`, and the nodes' log weights, `[Q]` or `[S, Q]`."""

    @abstractmethod
    def _standard_log_prob(self, z: Tensor) -> Tensor:
        """Log density of `z`, element by element."""

    @abstractmethod
    def _standard_cdf(self, z: Tensor) -> Tensor:
        """Distribution function of `z`, element by element."""

    @cached_property
    def _components(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.location_scale()

    def draw_log_prob(self, y: Float[Tensor, "n p"]) -> Float[Tensor, "s n"]:
        """`log p(y | draw)`, summed over targets."""
        loc, scale, log_nodes = self._components
        log_density = self._standard_log_prob((y - loc) / scale) - scale.log()  # [S, Q, N, P]
        return torch.logsumexp(log_density + log_nodes[..., None, None], 1).sum(-1)

    def cdf(self, y: Float[Tensor, "n p"]) -> Float[Tensor, "n p"]:
        """Distribution function of each target, marginally."""
        loc, scale, log_nodes = self._components
        return self._average(self._standard_cdf((y - loc) / scale), log_nodes)

    def _average(self, values: Tensor, log_nodes: Tensor) -> Tensor:
        """Mean over draws and nodes, `[S, Q, N, P] -> [N, P]`."""
        log_weights = self.log_weights[:, None] + log_nodes  # [S, Q]
        return weighted_mean(log_weights, values.expand(*log_weights.shape, *values.shape[2:]))

    def _typical_scale(self) -> Tensor:
        """The geometric mean of the scales, `[N, P]`: under heavy tails their mean is infinite."""
        _, scale, log_nodes = self._components
        return self._average(scale.log(), log_nodes).exp()

    def quantile(self, q: float) -> Float[Tensor, "n p"]:
        """The value below which a share `q` of each target lies: Newton's method, kept inside a bracket."""
        loc, scale, log_nodes = self._components
        eps = torch.finfo(self.dtype).eps
        lower, upper = self._bracket(q)
        x = self._average(loc, log_nodes).clamp(lower, upper)
        # 1.5e-11 of a scale in float64; float32 has no digits for more than 2e-6
        tolerance = max(1e-3 * eps**0.5, 16 * eps) * self._typical_scale()
        last_step = upper - lower
        for iteration in range(400):
            z = (x - loc) / scale
            excess = self._average(self._standard_cdf(z), log_nodes) - q
            density = self._average(self._standard_log_prob(z).exp() / scale, log_nodes)
            lower, upper = torch.where(excess < 0, x, lower), torch.where(excess < 0, upper, x)
            step = excess / density
            small = tolerance + 2 * eps * x.abs()
            # a small step alone is no proof: inside a needle of a component the density is huge anywhere
            done = (step.abs() <= small) & (excess.abs() <= eps**0.5)
            done = done | (upper - lower <= small)
            if bool(done.all()):
                break
            newton = x - step
            good = (newton > lower) & (newton < upper) & (step.abs() < 0.5 * last_step)
            if iteration >= 100:  # bisection always ends
                good = torch.zeros_like(good)
            following = torch.where(good, newton, 0.5 * (lower + upper))
            following = torch.where(done, x, following)
            last_step = (following - x).abs()
            x = following
        return x

    def with_functions(
        self, covariance: Float[Tensor, "p n n"], draws: Tensor, generator: torch.Generator | None
    ) -> Self:
        """The mixture with equal weights over K functions that are known exactly, each with its draw's noise.

        One comes from each of the named draws: the draw's mean, and a Gaussian with what the means' spread leaves of
        the covariance between rows. Mean and covariance over draws are then those of the prediction. Given a draw, the
        covariance is the average one.
        """
        centred = self.mean - self.over_draws(self.mean)
        between = torch.einsum("s,snp,smp->pnm", self.log_weights.exp(), centred, centred)
        # the symmetric root: close rows make the matrix singular to rounding
        values, vectors = torch.linalg.eigh(covariance.to(between) - between)
        root = vectors * values.clamp(min=0).sqrt()[:, None]  # [P, N, N]
        mean = self.mean[draws]
        f = mean + torch.einsum("pnm,kmp->knp", root, standard_normal(mean, generator))
        noise = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor) and field.name not in ("log_weights", "mean", "variance"):
                noise[field.name] = value.expand(self.n_draws, *[-1] * (value.ndim - 1))[draws]
        equal = f.new_full((len(f),), -math.log(len(f)))
        return dataclasses.replace(self, log_weights=equal, mean=f, variance=torch.zeros_like(f), **noise)

    def _bracket(self, q: float) -> tuple[Tensor, Tensor]:
        loc = self._components[0]
        lowest, highest = loc.amin((0, 1)), loc.amax((0, 1))  # [N, P]
        reach = self._typical_scale()
        lower, upper = lowest - reach, highest + reach
        for _ in range(1000):
            too_high, too_low = self.cdf(lower) >= q, self.cdf(upper) < q
            if not bool((too_high | too_low).any()):
                break
            reach = 2 * reach
            lower = torch.where(too_high, lowest - reach, lower)
            upper = torch.where(too_low, highest + reach, upper)
        return lower, upper


@dataclass(frozen=True, eq=False)
class GaussianMixture(ContinuousMixture):
    """`y | draw ~ N(mean, variance + noise)`; `noise` broadcasts to `[S, N, P]` and has one row."""

    noise: Float[Tensor, "#s 1 #p"]

    def location_scale(self) -> tuple[Tensor, Tensor, Tensor]:
        """One component for each draw: the function's Gaussian is integrated in closed form."""
        scale = (self.variance + self.noise).sqrt()
        return self.mean[:, None], scale[:, None], self.mean.new_zeros(1)

    def _standard_log_prob(self, z: Tensor) -> Tensor:
        return _log_normal(z)

    def _standard_cdf(self, z: Tensor) -> Tensor:
        return ndtr(z)

    def crps(self, y: Float[Tensor, "n p"]) -> Float[Tensor, "n p"]:
        """`E|Y - y| - E|Y - Y'| / 2` for independent `Y` and `Y'` (Grimit et al. 2006)."""
        mean, variance = self.mean.double(), (self.variance + self.noise).double()
        log_weights = self.log_weights.double()
        spread = torch.zeros_like(mean[0])
        for weight, m, v in zip(log_weights.exp(), mean, variance, strict=True):
            spread = spread + weight * weighted_mean(log_weights, _mean_size(mean - m, variance + v))
        return weighted_mean(log_weights, _mean_size(y.double() - mean, variance)) - 0.5 * spread

    def moments(self) -> Moments:
        """First two moments given each draw."""
        return Moments(self.mean, self.variance, self.noise.expand_as(self.mean))

    def sample(self, draws: Tensor, generator: torch.Generator | None) -> Tensor:
        """Targets of all rows, one set from each of the named draws."""
        variance = (self.variance + self.noise)[draws]
        return self.mean[draws] + variance.sqrt() * standard_normal(variance, generator)


@dataclass(frozen=True, eq=False)
class HeteroscedasticMixture(ContinuousMixture):
    """`y | f, g ~ N(f, exp(g))` with `f` integrated in closed form and `g ~ N(log_noise, ...)` on nodes."""

    log_noise: Float[Tensor, "s n p"]
    log_noise_variance: Float[Tensor, "s n p"]
    spacing: float

    ROWS: ClassVar[tuple[str, ...]] = ("mean", "variance", "log_noise", "log_noise_variance")

    @property
    def n_nodes(self) -> int:
        """Q, the number of nodes for the log variance."""
        return node_count(self.spacing)

    def location_scale(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same location for all nodes of a draw, one scale for each."""
        g, log_nodes = on_nodes(self.log_noise, self.log_noise_variance, self.spacing)
        return self.mean[:, None], (self.variance[:, None] + g.exp()).sqrt(), log_nodes

    def _standard_log_prob(self, z: Tensor) -> Tensor:
        return _log_normal(z)

    def _standard_cdf(self, z: Tensor) -> Tensor:
        return ndtr(z)

    def moments(self) -> Moments:
        """First two moments given each draw; the noise is log-normal."""
        return Moments(self.mean, self.variance, (self.log_noise + 0.5 * self.log_noise_variance).exp())

    def sample(self, draws: Tensor, generator: torch.Generator | None) -> Tensor:
        """Targets of all rows, one set from each of the named draws."""
        g, spread = self.log_noise[draws], standard_deviation(self.log_noise_variance[draws])
        variance = self.variance[draws] + (g + spread * standard_normal(g, generator)).exp()
        return self.mean[draws] + variance.sqrt() * standard_normal(variance, generator)


@dataclass(frozen=True, eq=False)
class StudentTMixture(ContinuousMixture):
    r"""`y | f ~ f + scale * t(df)`; `scale` and `df` broadcast to `[S, N, P]` and have one row.

    Exact draws keep Student's t. Where the function has a variance, the t is written as Gaussians of random
    precision, `t = N(0, 1 / lambda)` with `lambda ~ Gamma(df / 2, df / 2)`: the function is then integrated
    in closed form and `log(lambda)` on nodes, at the same accuracy whatever the ratio of the two widths.
    (Far out, beyond 10^5 scales from the function for df up to 30 and 300 scales for a df of 1,000, those Gaussians
    fall off faster than the t.)
    """

    df: Float[Tensor, "#s 1 1"]  # float64, whatever the dtype of the function
    scale: Float[Tensor, "#s 1 #p"]
    exact: bool

    @property
    def n_nodes(self) -> int:
        """Q, the number of nodes for the precision."""
        return 1 if self.exact else log_gamma_grid(0.5 * self.df[:, 0, 0], torch.float64)[0].shape[-1]

    def location_scale(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same location for all nodes of a draw, one scale for each."""
        scale = self.scale.expand_as(self.mean)[:, None]
        if self.exact:
            return self.mean[:, None], scale, self.mean.new_zeros(1)
        log_precision, log_nodes = log_gamma_grid(0.5 * self.df[:, 0, 0], self.dtype, self.device)  # [S, Q] or [1, Q]
        most = 0.9 * math.log(torch.finfo(self.dtype).max)  # the farthest nodes of a small df lie beyond the dtype
        noise = scale * (-0.5 * log_precision).clamp(max=most).exp()[..., None, None]  # [S, Q, N, P]
        return self.mean[:, None], torch.hypot(standard_deviation(self.variance)[:, None], noise), log_nodes

    def _standard_log_prob(self, z: Tensor) -> Tensor:
        if not self.exact:
            return _log_normal(z)
        df = self.df[:, None]
        constant = lgamma_half_step(0.5 * df) - 0.5 * (math.pi * df).log()
        df, constant = df.to(z.dtype), constant.to(z.dtype)
        return constant - 0.5 * (df + 1) * torch.log1p(z.square() / df)

    def _standard_cdf(self, z: Tensor) -> Tensor:
        return student_t_cdf(z, self.df[:, None]) if self.exact else ndtr(z)

    def moments(self) -> Moments:
        """First two moments given each draw: no mean (NaN) for df <= 1, infinite variance for df <= 2."""
        df = self.df.to(self.dtype)
        factor = torch.where(df > 2, df / (df - 2), math.inf)
        mean = torch.where(df > 1, self.mean, math.nan)
        return Moments(mean, self.variance, (factor * self.scale.square()).expand_as(mean))

    def sample(self, draws: Tensor, generator: torch.Generator | None) -> Tensor:
        """Targets of all rows, one set from each of the named draws."""
        mean = self.mean[draws]
        f = mean + standard_deviation(self.variance[draws]) * standard_normal(mean, generator)
        shape = (0.5 * self.df).to(self.dtype).expand_as(self.mean)[draws]
        precision = torch._standard_gamma(shape, generator=generator) / shape
        return f + self.scale.expand_as(self.mean)[draws] * standard_normal(f, generator) / precision.sqrt()


def _log_normal(z: Tensor) -> Tensor:
    return -0.5 * z.square() - 0.5 * math.log(2 * math.pi)


def _mean_size(mean: Tensor, variance: Tensor) -> Tensor:
    """`E|x|` for `x ~ N(mean, variance)`."""
    scale = variance.sqrt()
    z = mean / scale
    size: Tensor = mean * torch.special.erf(z * 0.5**0.5) + scale * (2 / math.pi) ** 0.5 * (-0.5 * z.square()).exp()
    return size
