"""Kernels of inner products: linear, polynomial, arc-cosine.

Inner products are divided by `in_features`, so that a kernel's scale does not depend on its width.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.data import check_count
from vibayes.errors import ConfigurationError
from vibayes.kernels.base import Kernel
from vibayes.parameters import Positive, positive

__all__ = ["ArcCosine", "LinearKernel", "Polynomial"]

# Squares below it count as zero and give no gradient; its root and their inverses are normal float32 numbers.
_TINY = 1e-36


def _inner_products(
    x: Float[Tensor, "n d"],
    z: Float[Tensor, "m d"] | None,
    weight: float | Tensor = 1.0,
    bias: Tensor | None = None,
) -> Float[Tensor, "n m"]:
    """`weight x z^T + bias`; with z None symmetric to the last bit, which a plain `x @ x.mT` is not."""
    share = 0.5 if z is None else 1.0
    left = x * (share * weight)
    right = x if z is None else z
    if bias is not None:
        left = torch.cat((left, (share * bias).expand(x.shape[0], 1)), -1)
        right = torch.cat((right, right.new_ones(right.shape[0], 1)), -1)
    product = left @ right.mT
    return product + product.mT if z is None else product


class LinearKernel(Kernel):
    """The kernel of linear functions with Gaussian weights.

    `k(x, z) = variance * x.z / in_features + bias`

    The weights of such a function have variance `variance / in_features`, and its constant variance `bias`.
    A weight layer that counts its constant in the fan-in has `variance = in_features / (in_features + 1)` and
    `bias = 1 / (in_features + 1)`.

    Args:
        in_features: the width of the rows.
        variance: a number or a `Positive`.
        bias: the variance of the constant, a number or a `Positive`; None for functions through the origin.

    >>> LinearKernel(2, bias=1.0)(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])).item()
    6.5
    """

    depends_on = "inner_product"
    variance: Positive
    bias: Positive | None

    def __init__(
        self,
        in_features: int,
        *,
        variance: float | Tensor | Positive = 1.0,
        bias: float | Tensor | Positive | None = None,
    ) -> None:
        super().__init__(in_features)
        self.variance = positive(variance)
        self.bias = None if bias is None else positive(bias)

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        bias = None if self.bias is None else self.bias.value
        return _inner_products(x, z, self.variance.value / self.in_features, bias)

    def _diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        diagonal = x.square().sum(-1) * (self.variance.value / self.in_features)
        return diagonal if self.bias is None else diagonal + self.bias.value


class Polynomial(Kernel):
    """The kernel of polynomials up to a degree.

    `k(x, z) = variance * (x.z / in_features + offset)^degree`

    Args:
        in_features: the width of the rows.
        degree: the highest power, a positive whole number.
        variance: a number or a `Positive`.
        offset: the weight of lower powers, a number or a `Positive`.

    >>> Polynomial(2, 2)(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])).item()
    42.25
    """

    depends_on = "inner_product"
    variance: Positive
    offset: Positive

    def __init__(
        self,
        in_features: int,
        degree: int,
        *,
        variance: float | Tensor | Positive = 1.0,
        offset: float | Tensor | Positive = 1.0,
    ) -> None:
        super().__init__(in_features)
        self.degree = check_count(degree, "degree")
        self.variance = positive(variance)
        self.offset = positive(offset)

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        inner = _inner_products(x, z, 1.0 / self.in_features, self.offset.value)
        return self.variance.value * inner**self.degree

    def _diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        inner = x.square().sum(-1) / self.in_features + self.offset.value
        return self.variance.value * inner**self.degree

    def extra_repr(self) -> str:
        """The width and the degree."""
        return f"{super().extra_repr()}, degree={self.degree}"


class ArcCosine(Kernel):
    r"""The arc-cosine kernel of Cho & Saul (2009): an infinitely wide layer of steps or rectified units.

    With `s(x, z) = x.z / in_features + bias`, `n(x) = sqrt(s(x, x))` and the angle
    `theta = arccos(s(x, z) / (n(x) n(z)))`,

    - order 0: `k(x, z) = variance * (1 - theta / pi)`
    - order 1: `k(x, z) = variance * n(x) n(z) (sin theta + (pi - theta) cos theta) / pi`

    This is `2 variance E[phi(f(x)) phi(f(z))]` for a Gaussian function `f` with covariance `s`, that is for
    weights `w ~ N(0, I / in_features)` and a constant of variance `bias`, with `phi` the step (order 0) or
    `relu` (order 1). The factor 2 gives `k(x, x) = variance` in order 0 and `variance * s(x, x)` in order 1.

    At the zero row without a bias the step counts as 1/2, so that order 0 is `variance / 2` there with every
    row, itself included. Order 0 has no derivative where two rows point the same or opposite ways, nor at the
    zero row; its gradient there is taken as zero.

    Args:
        in_features: the width of the rows.
        order: 0 (step) or 1 (relu).
        variance: a number or a `Positive`.
        bias: the variance of the constant, a number or a `Positive`; None for none.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> ArcCosine(2, order=0)(x)[0, 1].item()
    0.5
    >>> ArcCosine(2, order=1).diag(x).tolist()
    [0.5, 2.0]
    """

    depends_on = "inner_product"
    variance: Positive
    bias: Positive | None

    def __init__(
        self,
        in_features: int,
        order: int = 1,
        *,
        variance: float | Tensor | Positive = 1.0,
        bias: float | Tensor | Positive | None = None,
    ) -> None:
        super().__init__(in_features)
        if isinstance(order, bool) or order not in (0, 1):
            raise ConfigurationError(f"order must be 0 (step) or 1 (relu), got {order!r}.")
        self.order = order
        self.variance = positive(variance)
        self.bias = None if bias is None else positive(bias)

    def _squares(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        squares = x.square().sum(-1) / self.in_features
        return squares if self.bias is None else squares + self.bias.value

    def _directions(self, x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n e"], Float[Tensor, "n 1"]]:
        """Unit rows and their norms. The zero row has direction zero, at right angles to every row."""
        rows = x / math.sqrt(self.in_features)
        if self.bias is not None:
            rows = torch.cat((rows, self.bias.value.sqrt().expand(x.shape[0], 1)), -1)
        squares = rows.square().sum(-1, keepdim=True)
        norms = squares.clamp_min(_TINY).sqrt()
        unit = rows / norms
        if self.order == 0:  # in order 1 the norm 1e-18 cancels in the gradient, and gives relu'(0) = 1/2
            unit = torch.where(squares > _TINY, unit, 0.0)
        return unit, norms

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        dtype = x.dtype
        if self.order == 0:  # small angles are roots of rounding errors, and float32 has too large ones
            x, z = x.double(), None if z is None else z.double()
        u, u_norms = self._directions(x)
        v, v_norms = (u, u_norms) if z is None else self._directions(z)
        cosine = _inner_products(u, None if z is None else v)  # [N, M]
        if z is None:  # the angle of a row with itself is exactly zero, and does not move with the row
            cosine = torch.diagonal_scatter(cosine, (u_norms[:, 0] > math.sqrt(_TINY)).to(cosine.dtype))
        # atan2 of a sine without gradient at zero, instead of arccos, whose slope is infinite at 1.
        sine = (1.0 - cosine.square()).clamp_min(_TINY).sqrt()
        theta = torch.atan2(sine, cosine)
        if self.order == 0:
            return self.variance.value * (1.0 - theta / math.pi).to(dtype)
        shape = torch.addcmul(sine, math.pi - theta, cosine)
        root = (self.variance.value / math.pi).sqrt()  # in both factors, to keep the product symmetric
        return (root * u_norms) * (root * v_norms).mT * shape

    def _diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        squares = self._squares(x)
        if self.order == 0:
            return self.variance.value * torch.where(squares > _TINY, 1.0, 0.5).to(x.dtype)
        return self.variance.value * squares

    def extra_repr(self) -> str:
        """The width and the order."""
        return f"{super().extra_repr()}, order={self.order}"
