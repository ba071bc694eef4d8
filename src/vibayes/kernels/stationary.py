r"""Kernels of the difference of two rows: squared exponential, Matern, rational quadratic, periodic.

All of them are functions of a scaled squared distance `sum_d (x_d - z_d)^2 / l_d^2`, which `_squares` gets
from one matrix product over `D + 2` columns: the N x M matrix is written once before a kernel's function
of it. The expansion `|x|^2 + |z|^2 - 2 x.z` costs digits when rows are far from the origin, so both sets are
first shifted by a common centre; what remains is an error of about machine epsilon times
`(range of the rows / lengthscale)^2`. On a GPU the squared exponential kernel sums squared differences instead.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.kernels.base import Kernel
from vibayes.kernels.exponential import exponential, pulled, suits
from vibayes.parameters import Positive, positive

__all__ = ["Matern12", "Matern32", "Matern52", "Periodic", "RationalQuadratic", "SquaredExponential"]

# Below it a squared distance counts as zero and gives no gradient. The square root 1e-18 and its inverse are
# normal numbers in float32 too, and adding 1e-18 to 1 changes nothing in either precision.
_TINY = 1e-36


def _centred(
    x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None, scale: Tensor
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "m d"] | None]:
    """Both sets of rows around a common centre and multiplied by `scale`.

    Distances do not depend on the centre, so neither do their gradients, and it can be detached.
    """
    centre = x.detach().mean(0)
    return (x - centre) * scale, None if z is None else (z - centre) * scale


def _squares(
    x: Float[Tensor, "n d"],
    z: Float[Tensor, "m d"] | None,
    factor: float = 1.0,
    offset: Float[Tensor, ""] | None = None,
) -> Float[Tensor, "n m"]:
    """`factor |x_i - z_j|^2 + offset`; with z None symmetric to the last bit, its diagonal exactly `offset`.

    Elsewhere rounding may turn a zero distance into a small one of either sign.
    """
    offset = x.new_zeros(()) if offset is None else offset
    x_norms = factor * x.square().sum(-1, keepdim=True)
    if z is None:
        left = torch.cat((-factor * x, x_norms + 0.5 * offset), -1)
        right = torch.cat((x, torch.ones_like(x_norms)), -1)
        half = left @ right.mT  # matrix products of a matrix with its own transpose are not exactly symmetric
        return torch.diagonal_scatter(half + half.mT, offset.expand(x.shape[0]))
    z_norms = factor * z.square().sum(-1, keepdim=True)
    left = torch.cat((-2.0 * factor * x, x_norms + offset, torch.ones_like(x_norms)), -1)
    right = torch.cat((z, torch.ones_like(z_norms), z_norms), -1)
    return left @ right.mT


class _Exponential(torch.autograd.Function):
    """`exp(log_variance - 1/2 |scale x_i - scale z_j|^2)` with a backward pass of few operations.

    With `H = g K`, the gradients of the scaled rows are `H z - (H 1) x` and `H^T x - (H^T 1) z`: one matrix product
    each over the rows and a column of ones.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, z: Tensor | None, scale: Tensor, log_variance: Tensor) -> Tensor:
        x, z = _centred(x, z, scale)
        return _squares(x, z, factor=-0.5, offset=log_variance).exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor | None, Tensor, Tensor], output: Tensor) -> None:
        x, z, scale, _ = inputs
        ctx.symmetric = z is None
        ctx.save_for_backward(x, scale, output, *(() if z is None else (z,)))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
        x, scale, K, *others = ctx.saved_tensors
        x, z = _centred(x, None if ctx.symmetric else others[0], scale)
        if z is None:
            d_x, total = pulled((g + g.mT) * K, x, x)
            d_z, d_scale, total = None, d_x * x, 0.5 * total
        else:
            H = g * K
            d_x, total = pulled(H, x, z)
            d_z, _ = pulled(H.mT, z, x)
            d_scale = torch.cat((d_x * x, d_z * z))
        d_scale = (d_scale.sum(0) if scale.ndim else d_scale.sum()) / scale
        return d_x * scale, None if d_z is None else d_z * scale, d_scale, total


class _Stationary(Kernel):
    """Lengthscales and the variance `k(x, x)`, which all stationary kernels have."""

    lengthscale: Positive
    variance: Positive

    def __init__(
        self,
        in_features: int,
        *,
        ard: bool = False,
        lengthscale: float | Tensor | Positive = 1.0,
        variance: float | Tensor | Positive = 1.0,
    ) -> None:
        super().__init__(in_features)
        self.lengthscale = positive(lengthscale, (in_features,) if ard else ())
        self.variance = positive(variance)
        self.depends_on = "inputs" if ard else "distance"

    def _exponential(
        self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None, scale: Tensor
    ) -> Float[Tensor, "n m"]:
        """`variance exp(-1/2 |scale x - scale z|^2)`; the variance's logarithm rides along in the product."""
        if suits(x):
            x, z = _centred(x, z, scale)
            return exponential(x, z, self.variance.log.to(x.dtype))
        if torch.compiler.is_compiling():  # which fails on a Function inside vmap, and fuses these by itself
            x, z = _centred(x, z, scale)
            return _squares(x, z, factor=-0.5, offset=self.variance.log).exp()
        K: Tensor = _Exponential.apply(x, z, scale, self.variance.log)  # type: ignore[no-untyped-call]
        return K

    def _distance(
        self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None, multiple: float
    ) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        """`multiple` times the scaled distance `r`, and its square; zero gradients where it is zero."""
        x, z = _centred(x, z, multiple / self.lengthscale.value)
        square = _squares(x, z).clamp_min(_TINY)
        return square.sqrt(), square

    def _diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.variance.value.expand(x.shape[0])


class SquaredExponential(_Stationary):
    r"""The squared exponential (RBF, Gaussian) kernel.

    `k(x, z) = variance * exp(-1/2 sum_d (x_d - z_d)^2 / lengthscale_d^2)`

    Args:
        in_features: the width of the rows.
        ard: one lengthscale per input (automatic relevance determination) instead of one for all.
        lengthscale: a number, a tensor of shape `[in_features]` (with `ard`), or a `Positive`.
        variance: `k(x, x)`; a number or a `Positive`.

    >>> kernel = SquaredExponential(1, lengthscale=2.0)
    >>> kernel(torch.tensor([[0.0], [2.0]])).detach()
    tensor([[1.0000, 0.6065],
            [0.6065, 1.0000]])
    >>> kernel.lengthscale.fix(0.3)
    Positive(0.3, fixed)
    """

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        return self._exponential(x, z, 1.0 / self.lengthscale.value)


class Matern12(_Stationary):
    r"""The Matern kernel with nu = 1/2 (exponential, Ornstein-Uhlenbeck): continuous, rough functions.

    `k(x, z) = variance * exp(-r)`, `r = sqrt(sum_d (x_d - z_d)^2 / lengthscale_d^2)`

    It has no derivative where rows coincide; its gradient there is taken as zero. Rows that coincide in two
    *different* sets come out as `r` of about `sqrt(eps) |x| / lengthscale` instead of zero.

    Args:
        in_features: the width of the rows.
        ard: one lengthscale per input instead of one for all.
        lengthscale: a number, a tensor of shape `[in_features]` (with `ard`), or a `Positive`.
        variance: `k(x, x)`; a number or a `Positive`.

    >>> Matern12(2)(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])).item()
    0.006737...
    """

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        r, _ = self._distance(x, z, 1.0)
        return (self.variance.log - r).exp()


class Matern32(_Stationary):
    r"""The Matern kernel with nu = 3/2: functions with one derivative.

    `k(x, z) = variance * (1 + a) exp(-a)`, `a = sqrt(3) r`, `r = sqrt(sum_d (x_d - z_d)^2 / lengthscale_d^2)`

    Args:
        in_features: the width of the rows.
        ard: one lengthscale per input instead of one for all.
        lengthscale: a number, a tensor of shape `[in_features]` (with `ard`), or a `Positive`.
        variance: `k(x, x)`; a number or a `Positive`.

    >>> Matern32(1)(torch.zeros(1, 1), torch.ones(1, 1)).item()
    0.48335...
    """

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        a, _ = self._distance(x, z, math.sqrt(3.0))
        decay = (self.variance.log - a).exp()
        return torch.addcmul(decay, a, decay)


class Matern52(_Stationary):
    r"""The Matern kernel with nu = 5/2: functions with two derivatives.

    `k(x, z) = variance * (1 + a + a^2 / 3) exp(-a)`, `a = sqrt(5) r`,
    `r = sqrt(sum_d (x_d - z_d)^2 / lengthscale_d^2)`

    Args:
        in_features: the width of the rows.
        ard: one lengthscale per input instead of one for all.
        lengthscale: a number, a tensor of shape `[in_features]` (with `ard`), or a `Positive`.
        variance: `k(x, x)`; a number or a `Positive`.

    >>> Matern52(1)(torch.zeros(1, 1), torch.ones(1, 1)).item()
    0.52399...
    """

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        a, a_squared = self._distance(x, z, math.sqrt(5.0))
        decay = (self.variance.log - a).exp()
        return torch.addcmul(decay, torch.add(a, a_squared, alpha=1.0 / 3.0), decay)


class RationalQuadratic(_Stationary):
    r"""The rational quadratic kernel, a mixture of squared exponentials of many lengthscales.

    `k(x, z) = variance * (1 + r^2 / (2 alpha))^-alpha`, `r^2 = sum_d (x_d - z_d)^2 / lengthscale_d^2`

    Args:
        in_features: the width of the rows.
        alpha: how alike the lengthscales of the mixture are; the squared exponential for large `alpha`.
        ard: one lengthscale per input instead of one for all.
        lengthscale: a number, a tensor of shape `[in_features]` (with `ard`), or a `Positive`.
        variance: `k(x, x)`; a number or a `Positive`.

    >>> RationalQuadratic(1, alpha=0.5)(torch.zeros(1, 1), torch.ones(1, 1)).item()
    0.70710...
    """

    alpha: Positive

    def __init__(
        self,
        in_features: int,
        *,
        alpha: float | Tensor | Positive = 1.0,
        ard: bool = False,
        lengthscale: float | Tensor | Positive = 1.0,
        variance: float | Tensor | Positive = 1.0,
    ) -> None:
        super().__init__(in_features, ard=ard, lengthscale=lengthscale, variance=variance)
        self.alpha = positive(alpha)

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        alpha = self.alpha.value
        x, z = _centred(x, z, (2.0 * alpha).rsqrt() / self.lengthscale.value)
        base = _squares(x, z).clamp_min(0.0).log1p()  # log(1 + r^2 / (2 alpha))
        return (self.variance.log - alpha * base).exp()


class Periodic(_Stationary):
    r"""The periodic kernel (MacKay 1998): functions that repeat along every input.

    `k(x, z) = variance * exp(-2 sum_d sin^2(pi (x_d - z_d) / period) / lengthscale_d^2)`

    It is the squared exponential on the circle, `(cos, sin)(2 pi x_d / period)`, and computed as such.

    Args:
        in_features: the width of the rows.
        period: the period, one for all inputs (multiply kernels on `ActiveDimensions` for several).
        ard: one lengthscale per input instead of one for all.
        lengthscale: a number, a tensor of shape `[in_features]` (with `ard`), or a `Positive`; relative to
            the circle, so it has no units.
        variance: `k(x, x)`; a number or a `Positive`.

    >>> Periodic(1, period=2.0)(torch.zeros(1, 1), torch.tensor([[2.0], [1.0]])).tolist()
    [[1.0..., 0.13533...]]
    """

    period: Positive

    def __init__(
        self,
        in_features: int,
        *,
        period: float | Tensor | Positive = 1.0,
        ard: bool = False,
        lengthscale: float | Tensor | Positive = 1.0,
        variance: float | Tensor | Positive = 1.0,
    ) -> None:
        super().__init__(in_features, ard=ard, lengthscale=lengthscale, variance=variance)
        self.period = positive(period)
        self.depends_on = "inputs"

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        x, z = _centred(x, z, 2.0 * math.pi / self.period.value)
        scale = 1.0 / self.lengthscale.value.expand(self.in_features)
        circle_z = None if z is None else torch.cat((z.cos(), z.sin()), -1)
        return self._exponential(torch.cat((x.cos(), x.sin()), -1), circle_z, torch.cat((scale, scale)))
