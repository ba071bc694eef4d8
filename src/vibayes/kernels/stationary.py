r"""Kernels of the difference of two rows: squared exponential, Matern, rational quadratic, periodic.

All of them are functions of a scaled squared distance `sum_d (x_d - z_d)^2 / l_d^2`; see `kernels.distances`.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.kernels.base import Kernel
from vibayes.kernels.distances import centred, exponential, squares
from vibayes.parameters import Positive, positive

__all__ = ["Matern12", "Matern32", "Matern52", "Periodic", "RationalQuadratic", "SquaredExponential"]

# Below it a squared distance counts as zero and gives no gradient. The square root 1e-18 and its inverse are
# normal numbers in float32 too, and adding 1e-18 to 1 changes nothing in either precision.
_TINY = 1e-36


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
        x, z = centred(x, z, scale)
        return exponential(x, z, self.variance.log.to(x.dtype))

    def _distance(
        self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None, multiple: float
    ) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        """`multiple` times the scaled distance `r`, and its square; zero gradients where it is zero."""
        x, z = centred(x, z, multiple / self.lengthscale.value)
        square = squares(x, z).clamp_min(_TINY)
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
    *different* sets come out as `r` of about `1e-8 |x| / lengthscale` instead of zero: distances are computed in
    float64 whatever the dtype, since the error of float32 would be as large as the noise of many models.

    Args:
        in_features: the width of the rows.
        ard: one lengthscale per input instead of one for all.
        lengthscale: a number, a tensor of shape `[in_features]` (with `ard`), or a `Positive`.
        variance: `k(x, x)`; a number or a `Positive`.

    >>> Matern12(2)(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])).item()
    0.006737...
    """

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        r, _ = self._distance(x.double(), None if z is None else z.double(), 1.0)
        return (self.variance.log - r.to(x.dtype)).exp()


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
        x, z = centred(x, z, (2.0 * alpha).rsqrt() / self.lengthscale.value)
        base = squares(x, z).clamp_min(0.0).log1p()  # log(1 + r^2 / (2 alpha))
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
        x, z = centred(x, z, 2.0 * math.pi / self.period.value)
        scale = 1.0 / self.lengthscale.value.expand(self.in_features)
        circle_z = None if z is None else torch.cat((z.cos(), z.sin()), -1)
        return self._exponential(torch.cat((x.cos(), x.sin()), -1), circle_z, torch.cat((scale, scale)))
