"""A Gaussian fitted to a mixture of two (thesis, Fig. "symm_vi"): the KL by quadrature, its minimum, quantiles."""

import math
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal

from vibayes.quadrature import normal_grid

__all__ = ["BestGaussian", "FoldedNormal", "best_gaussian", "kl_to_mixture"]


def _log_mixture(w: Tensor, c: float, std: float) -> Tensor:
    """`log p(w)` of `p = 0.5 N(c, std^2) + 0.5 N(-c, std^2)`."""
    modes = torch.stack([Normal(mode, std).log_prob(w) for mode in (c, -c)])
    return modes.logsumexp(0) - math.log(2.0)


def kl_to_mixture(m: Tensor, s: Tensor, c: float, std: float) -> Float[Tensor, ""]:
    """`KL(N(m, s^2) || 0.5 N(c, std^2) + 0.5 N(-c, std^2))` in nats, by quadrature over q.

    >>> far = kl_to_mixture(torch.tensor(9.0), torch.tensor(1.0), c=9.0, std=1.0)  # one of two separate modes
    >>> round(float(far), 4)
    0.6931
    """
    z, log_weights = normal_grid(0.05, m.dtype, m.device)
    cross_entropy = -(log_weights.exp() * _log_mixture(m + s * z, c, std)).sum()
    entropy = 0.5 * math.log(2.0 * math.pi * math.e) + s.log()
    return cross_entropy - entropy


@dataclass(frozen=True)
class BestGaussian:
    """The Gaussian `N(m, s^2)` nearest to the mixture of modes at `c` and `-c`."""

    c: float
    std: float
    m: float
    s: float
    kl: float

    def target(self, w: Tensor) -> Tensor:
        """The mixture's density."""
        return _log_mixture(w, self.c, self.std).exp()

    def density(self, w: Tensor) -> Tensor:
        """The Gaussian's density."""
        return Normal(self.m, self.s).log_prob(w).exp()


@cache
def best_gaussian(c: float, std: float = 0.5) -> BestGaussian:
    """Minimise `KL(q || p)` over Gaussians q, from a start between the modes and one on the right mode.

    >>> round(best_gaussian(0.4).kl, 4)
    0.0031
    """
    found = [_descend(m, s, c, std) for m, s in ((0.1 * c, c + std), (c, std))]
    return min(found, key=lambda fitted: fitted.kl)


def _descend(m: float, s: float, c: float, std: float) -> BestGaussian:
    point = torch.tensor([m, math.log(s)], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [point], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = kl_to_mixture(point[0], point[1].exp(), c, std)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    kl = kl_to_mixture(point[0], point[1].exp(), c, std)
    mean, log_scale = point.detach().tolist()
    return BestGaussian(c, std, mean, math.exp(log_scale), float(kl.detach()))


@dataclass(frozen=True)
class FoldedNormal:
    """The distribution of `|w|`, `w ~ N(m, s^2)`; of the symmetric mixture it is that of either mode."""

    m: float
    s: float

    def cdf(self, t: Tensor) -> Tensor:
        """`P(|w| <= t)` for `t >= 0`."""
        normal = Normal(self.m, self.s)
        return normal.cdf(t) - normal.cdf(-t)

    def quantile(self, levels: Float[Tensor, " q"]) -> Float[Tensor, " q"]:
        """Quantiles by bisection, to rounding.

        >>> half = FoldedNormal(0.0, 1.0).quantile(torch.tensor([0.5], dtype=torch.float64))
        >>> round(half.item(), 6)  # the 75% point of the standard normal
        0.67449
        """
        low, high = torch.zeros_like(levels), torch.full_like(levels, abs(self.m) + 40.0 * self.s)
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = self.cdf(middle) < levels
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return 0.5 * (low + high)
