"""Kernels that do not look at the rows: white noise and a constant."""

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.kernels.base import Kernel
from vibayes.parameters import Positive, positive

__all__ = ["Constant", "White"]


class White(Kernel):
    """Independent noise on every row.

    `kernel(x) = variance * I`, and `kernel(x, z) = 0`: noise belongs to a row and not to its location, so two
    sets of rows share none even where they coincide.

    Args:
        in_features: the width of the rows.
        variance: the variance of the noise, a number or a `Positive`.

    >>> noise = White(1, variance=0.5)
    >>> noise(torch.zeros(2, 1)).tolist(), noise(torch.zeros(1, 1), torch.zeros(2, 1)).tolist()
    ([[0.5, 0.0], [0.0, 0.5]], [[0.0, 0.0]])
    """

    depends_on = "distance"
    variance: Positive

    def __init__(self, in_features: int, *, variance: float | Tensor | Positive = 1.0) -> None:
        super().__init__(in_features)
        self.variance = positive(variance)

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        if z is not None:
            return x.new_zeros(x.shape[0], z.shape[0])
        return self.variance.value * torch.eye(x.shape[0], dtype=x.dtype, device=x.device)

    def _diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.variance.value.expand(x.shape[0])


class Constant(Kernel):
    """The kernel of an unknown constant: `k(x, z) = variance` for all rows.

    Args:
        in_features: the width of the rows.
        variance: a number or a `Positive`.

    >>> Constant(1, variance=2.0)(torch.zeros(1, 1), torch.ones(2, 1)).tolist()
    [[2.0, 2.0]]
    """

    depends_on = "distance"
    variance: Positive

    def __init__(self, in_features: int, *, variance: float | Tensor | Positive = 1.0) -> None:
        super().__init__(in_features)
        self.variance = positive(variance)

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        return self.variance.value.expand(x.shape[0], x.shape[0] if z is None else z.shape[0])

    def _diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.variance.value.expand(x.shape[0])
