"""The matrix normal distribution."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from vibayes import linalg
from vibayes.distributions.base import MatrixDistribution, check_dtypes, check_finite, check_lower
from vibayes.errors import ConfigurationError, ShapeError

__all__ = ["MatrixNormal"]


class MatrixNormal(MatrixDistribution):
    r"""`X = mean + R Z C^T` with independent standard normals `Z`.

    Rows have covariance `R R^T` and columns `C C^T`: `cov(X_ij, X_kl) = (R R^T)_ik (C C^T)_jl`.

    Args:
        mean: `[*batch, n, p]`.
        row_factor: `R`, lower triangular `[*batch, n, n]` with positive diagonal.
        column_factor: `C`, lower triangular `[*batch, p, p]` with positive diagonal.
        validate_args: whether to check values; see `MatrixDistribution`.

    >>> normal = MatrixNormal(torch.zeros(3, 2), 2 * torch.eye(3), torch.eye(2))
    >>> normal.rsample((5,)).shape, normal.variance[0].tolist()
    (torch.Size([5, 3, 2]), [4.0, 4.0])
    """

    arg_constraints = {  # noqa: RUF012
        "loc": constraints.real,
        "row_factor": constraints.lower_cholesky,
        "column_factor": constraints.lower_cholesky,
    }
    support = constraints.independent(constraints.real, 2)  # type: ignore[no-untyped-call]
    _item_axes = {"loc": 2, "row_factor": 2, "column_factor": 2}  # noqa: RUF012

    def __init__(
        self,
        mean: Float[Tensor, "*batch n p"],
        row_factor: Float[Tensor, "*batch n n"],
        column_factor: Float[Tensor, "*batch p p"],
        *,
        validate_args: bool | None = None,
    ) -> None:
        check_lower(validate_args, "row_factor", row_factor)
        check_lower(validate_args, "column_factor", column_factor)
        if not isinstance(mean, Tensor):
            raise ConfigurationError(f"mean must be a tensor, got {type(mean).__name__}.")
        check_dtypes(mean=mean, row_factor=row_factor, column_factor=column_factor)
        expected = (row_factor.shape[-1], column_factor.shape[-1])
        if mean.shape[-2:] != expected:
            raise ShapeError(
                f"A row factor of size {expected[0]} and a column factor of size {expected[1]} need a mean of shape "
                f"{expected} after any batch axes, got {tuple(mean.shape)}."
            )
        check_finite(validate_args, "mean", mean)
        self.loc, self.row_factor, self.column_factor = mean, row_factor, column_factor
        self._finish(expected, validate_args)

    @property
    def noise_shape(self) -> torch.Size:
        """`[*batch, n, p]`."""
        return self._extended_shape()

    def rsample(
        self, sample_shape: Sequence[int] = (), noise: Tensor | None = None
    ) -> Float[Tensor, "*sample_and_batch n p"]:
        """A draw, differentiable with respect to all parameters.

        Args:
            sample_shape: how many draws.
            noise: standard normals of shape `[*sample_shape, *noise_shape]`; fresh ones where None.
        """
        Z = self._noise(self.loc, sample_shape, noise)
        return self.loc + self.row_factor @ Z @ self.column_factor.mT

    def log_prob(self, value: Float[Tensor, "*batch n p"]) -> Float[Tensor, "*batch"]:
        """Log density of a matrix."""
        self._check_event(value)
        n, p = self.event_shape
        Z = linalg.solve_lower(self.row_factor, value - self.loc)
        Z = linalg.solve_lower(self.column_factor, Z.mT)  # transposed
        return (
            -0.5 * Z.square().sum((-2, -1))
            - 0.5 * p * linalg.logdet_factor(self.row_factor)
            - 0.5 * n * linalg.logdet_factor(self.column_factor)
            - 0.5 * n * p * math.log(2 * math.pi)
        )

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The mean of `-log p(X)`."""
        n, p = self.event_shape
        log_det = p * linalg.logdet_factor(self.row_factor) + n * linalg.logdet_factor(self.column_factor)
        return (0.5 * (log_det + n * p * (1.0 + math.log(2 * math.pi)))).expand(self.batch_shape)

    @property
    def mean(self) -> Float[Tensor, "*batch n p"]:
        """The mean."""
        return self.loc.expand(self._extended_shape())

    @property
    def mode(self) -> Float[Tensor, "*batch n p"]:
        """The mean."""
        return self.mean

    @property
    def variance(self) -> Float[Tensor, "*batch n p"]:
        """`(R R^T)_ii (C C^T)_jj`."""
        rows, columns = self.row_factor.square().sum(-1), self.column_factor.square().sum(-1)
        return (rows[..., :, None] * columns[..., None, :]).expand(self._extended_shape())
