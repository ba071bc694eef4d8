"""Feature maps for linear regression."""

import numbers
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.data import Units, as_tensor, check_count
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.parameters import Positive

__all__ = ["GaussianBumps", "PolynomialFeatures"]


class GaussianBumps(nn.Module):
    """Gaussian bumps, `phi_i(x) = exp(-|x - c_i|^2 / lengthscale^2)` (thesis, introduction).

    Args:
        centres: `[W]` for one input column, or `[W, D]`; in user units.
        lengthscale: width of the bumps, in the model's units (those of standardised inputs, if they are); a
            number, which training leaves as it is, or a `Positive`.

    Attributes:
        n_features: the number of bumps W.

    >>> bumps = GaussianBumps(torch.linspace(-1, 1, 3), lengthscale=1.0)
    >>> bumps(torch.tensor([[0.0]]))
    tensor([[0.3679, 1.0000, 0.3679]])
    """

    centres: Tensor
    given: Tensor

    def __init__(self, centres: Any, lengthscale: float | Positive = 1.0) -> None:
        super().__init__()
        rows = as_tensor(centres, "centres").to(torch.get_default_dtype())
        rows = rows[:, None] if rows.ndim == 1 else rows
        if rows.ndim != 2 or rows.numel() == 0:
            raise ShapeError(f"centres must be [W] or [W, D], got shape {list(rows.shape)}.")
        self.register_buffer("given", rows.clone())
        self.register_buffer("centres", rows.clone())
        self.lengthscale = lengthscale if isinstance(lengthscale, Positive) else Positive(lengthscale, learn=False)
        self.n_features = len(rows)

    def to_units(self, units: Units) -> None:
        """Take the centres from user units to the model's."""
        if units.of_inputs and units.x_mean.shape != self.given.shape[1:]:  # which would be broadcast
            raise ShapeError(
                f"GaussianBumps has centres of width {self.given.shape[1]}, but inputs have rows of shape "
                f"{list(units.x_mean.shape)}. Give centres [W, D] with a column for each of the inputs'."
            )
        self.centres = units.inputs(self.given)

    def forward(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        """The bumps at the rows."""
        if rows.shape[1] != self.centres.shape[1]:
            raise ShapeError(
                f"GaussianBumps has centres of width {self.centres.shape[1]}, but rows {list(rows.shape)}."
            )
        difference = (rows[:, None, :] - self.centres) / self.lengthscale.value  # [N, W, D]
        return (-difference.square().sum(-1)).exp()


class PolynomialFeatures(nn.Module):
    """Powers of every input column, `1, x_d, ..., x_d^degree`, without products of different columns.

    Args:
        degree: the highest power.
        in_features: the number of input columns D.

    Attributes:
        n_features: `1 + D * degree`.

    >>> PolynomialFeatures(3)(torch.tensor([[2.0]]))
    tensor([[1., 2., 4., 8.]])
    """

    def __init__(self, degree: int, in_features: int = 1) -> None:
        super().__init__()
        given: Any = degree
        if isinstance(given, bool) or not isinstance(given, numbers.Integral) or given < 0:
            raise ConfigurationError(f"degree must be a whole number from 0 on, got {degree!r}.")
        self.degree = int(given)
        self.in_features = check_count(in_features, "in_features")
        self.n_features = 1 + self.in_features * self.degree

    def forward(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        """The powers of the rows."""
        if rows.shape[1] != self.in_features:
            raise ShapeError(
                f"PolynomialFeatures(in_features={self.in_features}) expects rows [N, {self.in_features}], "
                f"got {list(rows.shape)}."
            )
        powers = [rows**k for k in range(1, self.degree + 1)]
        return torch.cat([torch.ones_like(rows[:, :1]), *powers], -1)
