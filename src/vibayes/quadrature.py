"""One-dimensional integrals: Gauss-Hermite nodes for training, finer trapezoid rules for prediction."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.data import check_count
from vibayes.errors import ConfigurationError

__all__ = [
    "GaussHermite",
    "LogSigmoid",
    "expected_log1p_square",
    "log_gamma_grid",
    "normal_grid",
    "standard_deviation",
    "stretched_grid",
]

_REACH = 8.5  # standard deviations; the mass beyond is 2e-17
_WIDEST = 0.6  # error exp(-2 pi^2 / h^2) = 2e-24 on the Gaussian itself
_MOST_NODES = 1025


@lru_cache
def _hermite(n: int) -> tuple[list[float], list[float]]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes.tolist(), np.log(weights / weights.sum()).tolist()


def standard_deviation(variance: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The square root, with gradient 0 in place of infinity where the variance is exactly zero.

    A negative variance still gives NaN, so that it cannot pass unnoticed.

    >>> standard_deviation(torch.tensor([4.0, 0.0])).tolist()
    [2.0, 0.0]
    """
    nothing = variance == 0
    return torch.where(nothing, 0.0, torch.where(nothing, 1.0, variance).sqrt())


class _Rule(nn.Module, ABC):
    """Nodes and log weights as buffers outside the state dict.

    They follow the module to its device, and are computed afresh when the dtype changes.

    Args:
        n: number of nodes.
    """

    nodes: Tensor
    log_weights: Tensor

    def __init__(self, n: int = 20) -> None:
        super().__init__()
        self.n = check_count(n, "The number of quadrature nodes")
        if self.n > 200:
            raise ConfigurationError(f"The number of quadrature nodes must be between 1 and 200, got {n!r}.")
        nodes, log_weights = self._table(self.n)
        self.register_buffer("nodes", torch.tensor(nodes), persistent=False)
        self.register_buffer("log_weights", torch.tensor(log_weights), persistent=False)

    @staticmethod
    @abstractmethod
    def _table(n: int) -> tuple[list[float], list[float]]:
        """Nodes and log weights."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if not self.nodes.is_meta:  # float32 nodes cast to float64 would stay wrong in the eighth digit
            nodes, log_weights = self._table(self.n)
            options: dict[str, Any] = {"dtype": self.nodes.dtype, "device": self.nodes.device}
            self.nodes = torch.tensor(nodes, **options)
            self.log_weights = torch.tensor(log_weights, **options)
        return self

    def _columns(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes and weights along a new first axis."""
        column = (-1,) + (1,) * like.ndim
        return self.nodes.to(like.dtype).reshape(column), self.log_weights.to(like.dtype).exp().reshape(column)

    def extra_repr(self) -> str:
        """The number of nodes, for `print(model)`."""
        return str(self.n)


class GaussHermite(_Rule):
    r"""Gauss-Hermite rule, `E_{f ~ N(mean, variance)}[g(f)] = sum_q w_q g(mean + sqrt(variance) x_q)`.

    Exact for polynomials of degree below `2 n`.

    Args:
        n: number of nodes.

    >>> rule = GaussHermite(20).double()
    >>> mean, variance = torch.zeros(1, dtype=torch.float64), torch.full((1,), 2.0, dtype=torch.float64)
    >>> round(rule(lambda f: f**4, mean, variance).item(), 10)  # 3 variance^2
    12.0
    """

    @staticmethod
    def _table(n: int) -> tuple[list[float], list[float]]:
        return _hermite(n)

    def forward(
        self,
        function: Callable[[Tensor], Tensor],
        mean: Float[Tensor, "*shape"],
        variance: Float[Tensor, "*shape"],
    ) -> Float[Tensor, "*shape"]:
        """The expectation of `function`, which is called once with all nodes along a new first axis."""
        nodes, weights = self._columns(mean)
        return (weights * function(mean + standard_deviation(variance) * nodes)).sum(0)


class LogSigmoid(_Rule):
    r"""`E[log sigmoid(f)]` under `f ~ N(mean, variance)`, however wide the Gaussian is.

    Gauss-Hermite nodes step over the bend at 0 once the variance is large. But the logistic distribution is a mixture
    of normals, `c z` with `c / 2` of Kolmogorov's distribution (Andrews & Mallows 1974), so that
    `log sigmoid(f) = -E[max(c z - f, 0)]`, and with `s = sqrt(variance + c^2)`

        E[log sigmoid(f)] = E_c[mean Phi(-mean / s) - s phi(mean / s)]

    is a smooth integral over `log c`, here by n equidistant nodes. Its error is largest for variance 0: 2e-4 with 5
    nodes, 2e-8 with 12, and rounding with 20.

    Args:
        n: number of nodes.

    >>> rule = LogSigmoid(20).double()
    >>> none, wide = torch.zeros(1, dtype=torch.float64), torch.full((1,), 1e4, dtype=torch.float64)
    >>> [round(rule(none, variance).item(), 6) for variance in (none, wide)]  # log 1/2; near -sqrt(1e4 / (2 pi))
    [-0.693147, -39.90079]
    """

    @staticmethod
    def _table(n: int) -> tuple[list[float], list[float]]:
        return _logistic_scales(n)

    def forward(self, mean: Float[Tensor, "*shape"], variance: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The expectation."""
        scales, weights = self._columns(mean)
        s = (variance + scales.square()).sqrt()  # [Q, ...]
        z = mean / s
        density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
        below: Tensor = 0.5 * torch.special.erfc(z / math.sqrt(2.0))  # Phi(-z)
        return (weights * (mean * below - s * density)).sum(0)


@lru_cache
def _logistic_scales(n: int) -> tuple[list[float], list[float]]:
    """Values of `c` for which `c z` is logistic, and their log weights.

    The density of `c` falls off as `exp(-c^2 / 2)` above `sqrt(pi)`, and as that of `pi / c` below. Nodes reach so far
    in `log c`, `r` to either side, that what lies beyond, `exp(-pi e^(2 r) / 2)`, is as little as the trapezoid rule
    misses between them, `exp(-pi^2 n / (4 r))`.
    """
    reach = 1.0
    for _ in range(20):  # Newton's method for r e^(2 r) = pi n / 2
        reach -= (reach + 0.5 * math.log(2.0 * reach / (math.pi * n))) / (1.0 + 0.5 / reach)
    c = math.sqrt(math.pi) * np.exp((np.arange(n) - 0.5 * (n - 1)) * 2.0 * reach / n)
    k = np.arange(1, 8)[:, None]
    # two series for one density: the first converges fast where c is large, the other where it is small
    large = 2.0 * c * ((-1.0) ** (k + 1) * k**2 * np.exp(-0.5 * (k * c) ** 2)).sum(0)
    odd = ((2 * k - 1) * math.pi / c) ** 2
    small = 2.0 * math.sqrt(2.0 * math.pi) / c**2 * ((odd - 1.0) * np.exp(-0.5 * odd)).sum(0)
    weights = c * np.where(c**2 > math.pi, large, small)  # of log c
    return c.tolist(), np.log(weights / weights.sum()).tolist()


def expected_log1p_square(
    mean: Float[Tensor, "*shape"], variance: Float[Tensor, "*shape"], n: int
) -> Float[Tensor, "*shape"]:
    r"""`E[log(1 + f^2)]` under `f ~ N(mean, variance)`, however wide the Gaussian is.

    Gauss-Hermite nodes step over the dip at 0 once the variance is large. By Frullani's integral
    `log(1 + a) = \int (1 - e^{-a t}) e^{-t} dt / t`, and `E[e^{-f^2 t}]` is known, so with `A = mean^2 + variance`

        E[log(1 + f^2)] = log(1 + A) + \int e^{-t} (e^{-A t} - e^{-mean^2 t / s} / sqrt(s)) dt / t

    where `s = 1 + 2 variance t`.

    The integral is a smooth one over `log t`, here by n equidistant nodes from where `A t` is 1e-4 to where `t` is 20.
    With 20 nodes the error is about 1e-5 up to `A = 100`, 2e-4 up to 10^4 and 2e-3 up to 10^7; with 40 it is 1e-6.

    >>> none, wide = torch.zeros(1, dtype=torch.float64), torch.full((1,), 1e4, dtype=torch.float64)
    >>> round(expected_log1p_square(none, wide, 60).item(), 6)
    7.964944
    """
    A = mean.square() + variance
    first, last = -torch.log1p(A) - 9.0, 3.0
    step = (last - first) / n
    column = (-1,) + (1,) * mean.ndim
    places = (torch.arange(n, dtype=mean.dtype, device=mean.device) + 0.5).reshape(column)
    t = (first + step * places).exp()  # [Q, ...]
    s = 1 + 2 * variance * t
    rest = (-t).exp() * ((-A * t).exp() - (-mean.square() * t / s).exp() * s.rsqrt())
    return torch.log1p(A) + step * rest.sum(0)


def normal_grid(
    spacing: float, dtype: torch.dtype, device: torch.device | None = None
) -> tuple[Float[Tensor, " q"], Float[Tensor, " q"]]:
    r"""Trapezoid rule for the standard normal: equidistant nodes up to 8.5 and their normalised log weights.

    A predictive density is a mixture over these nodes. Twenty Gauss-Hermite nodes would leave a comb of
    separate bumps wherever the noise is narrower than their gaps; the trapezoid rule converges exponentially
    in `1 / spacing` (the error is `exp(-2 pi a / spacing)` for an integrand analytic within `a` of the real
    axis), so the caller chooses a spacing for its own noise. The spacing used is at most 0.6, and never less
    than what 1025 nodes allow.

    >>> nodes, log_weights = normal_grid(0.5, torch.float64)
    >>> round((log_weights.exp() * nodes**4).sum().item(), 12)
    3.0
    """
    spacing = min(spacing, _WIDEST)
    half = (_MOST_NODES - 1) // 2
    if spacing > 0 and math.ceil(_REACH / spacing) < half:
        half = math.ceil(_REACH / spacing)
    nodes = torch.linspace(-_REACH, _REACH, 2 * half + 1, dtype=torch.float64)
    log_weights = torch.log_softmax(-0.5 * nodes.square(), 0)
    return nodes.to(device, dtype), log_weights.to(device, dtype)


def stretched_grid(
    dtype: torch.dtype, device: torch.device | None = None
) -> tuple[Float[Tensor, " q"], Float[Tensor, " q"]]:
    r"""Nodes `x = 2 sinh(t / 2)` and log weights of `int g(x) dx / sqrt(2 pi)`, for peaks with shoulders.

    Dense within a few units and reaching 25, with the trapezoid rule in `t`. Meant for an integrand that was
    centred and scaled to look like `exp(-x^2 / 2)` at its peak.

    >>> nodes, log_weights = stretched_grid(torch.float64)
    >>> round((log_weights - 0.5 * nodes**2).exp().sum().item(), 12)
    1.0
    """
    t = torch.linspace(-6.5, 6.5, 53, dtype=torch.float64)
    nodes = 2 * torch.sinh(0.5 * t)
    log_weights = torch.cosh(0.5 * t).log()
    log_weights = log_weights - torch.logsumexp(log_weights - 0.5 * nodes.square(), 0)
    return nodes.to(device, dtype), log_weights.to(device, dtype)


def log_gamma_grid(
    shape: float | Float[Tensor, "*batch"], dtype: torch.dtype, device: torch.device | None = None
) -> tuple[Float[Tensor, "*batch q"], Float[Tensor, "*batch q"]]:
    r"""Nodes and normalised log weights for `u = log(lambda)`, with `lambda ~ Gamma(shape, rate=shape)`.

    Trapezoid rule for the density, proportional to `exp(shape (u - e^u))`. It reaches far to the left, beyond
    the last 1e-17 of the mass where that is affordable: small `lambda` are the tails of Student's t. Several shapes
    have nodes of their own, as many as the one that needs most of them.

    >>> nodes, log_weights = log_gamma_grid(2.0, torch.float64)
    >>> round((log_weights + nodes).exp().sum().item(), 12)  # E[lambda]
    1.0
    """
    shapes = torch.as_tensor(shape, dtype=torch.float64).cpu()
    spacing = (0.5 / shapes.sqrt()).clamp(max=0.25)
    # to where shape (e^u - 1 - u) passes 40: a parabola near 0, linear on the left, exponential on the right
    reach = 40 / shapes + 9 / shapes.sqrt()
    left = torch.minimum(torch.maximum(reach, (200 * spacing).clamp(max=30.0)), 4000 * spacing)
    width = left + reach.log1p()
    count = int((width / spacing).max().ceil()) + 1
    steps = torch.linspace(0.0, 1.0, count, dtype=torch.float64)
    nodes = width[..., None] * steps - left[..., None]
    log_weights = torch.log_softmax(shapes[..., None] * (nodes - nodes.exp()), -1)
    return nodes.to(device, dtype), log_weights.to(device, dtype)
