"""What distributions over Gram matrices share: they are drawn as factors."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from vibayes import linalg
from vibayes.distributions.bartlett import FactorSample
from vibayes.distributions.base import (
    MatrixDistribution,
    check_dtypes,
    check_finite,
    check_lower,
    check_square,
    values_visible,
)
from vibayes.errors import ConfigurationError, NotPositiveDefiniteError, ShapeError
from vibayes.operators.gamma import NOISE_PER_GAMMA

__all__ = ["GramDistribution", "GramMatrices", "check_degrees", "scale_factor"]


class GramDistribution(MatrixDistribution):
    """A distribution over `G = F F^T`, whose factor `F` `[*batch, N, rank]` is made of a Bartlett factor."""

    scale_tril: Tensor
    nu: float | Tensor
    rank: int

    def _take(
        self, scale: Tensor | None, nu: float | Tensor, scale_tril: Tensor | None, validate_args: bool | None
    ) -> int:
        """Keep the scale and the degrees of freedom, and the rank they give; the number of rows N."""
        self.scale_tril = scale_factor(scale, scale_tril, validate_args)
        n = self.scale_tril.shape[-1]
        self.rank = check_degrees(nu, n, validate_args)
        if isinstance(nu, Tensor):
            check_dtypes(scale=self.scale_tril, nu=nu)
        self.nu = nu
        return n

    @property
    def scale(self) -> Float[Tensor, "*batch n n"]:
        """The scale matrix."""
        return self.scale_tril @ self.scale_tril.mT

    @constraints.dependent_property(is_discrete=False, event_dim=2)
    def support(self) -> constraints.Constraint:
        """Gram matrices of the rank of a draw."""
        return GramMatrices(self.rank)

    @property
    def noise_shape(self) -> torch.Size:
        """`[*batch, N + NOISE_PER_GAMMA, nt]`; see `bartlett_factor`."""
        return self.batch_shape + torch.Size((self.event_shape[0] + NOISE_PER_GAMMA, self.rank))

    @abstractmethod
    def rsample_factor(self, sample_shape: Sequence[int] = (), noise: Tensor | None = None) -> FactorSample:
        """A draw of the factor `F`."""

    def rsample(
        self, sample_shape: Sequence[int] = (), noise: Tensor | None = None
    ) -> Float[Tensor, "*sample_and_batch n n"]:
        """A draw of `G`, differentiable with respect to all parameters.

        Args:
            sample_shape: how many draws.
            noise: standard normals of shape `[*sample_shape, *noise_shape]`; fresh ones where None.
        """
        F = self.rsample_factor(sample_shape, noise).factor
        return F @ F.mT

    def _check_factor(self, F: Tensor, width: int) -> None:
        rows = self.event_shape[0]
        if F.dim() < 2 or F.shape[-2] != rows or F.shape[-1] < width:
            raise ShapeError(
                f"Expected a factor F with {rows} rows and at least {width} columns, got shape {tuple(F.shape)}."
            )


class GramMatrices(constraints.Constraint):
    """Symmetric matrices whose leading block, of the rank of a draw, is positive definite.

    A singular matrix has eigenvalues that are zero up to rounding, to either side of it.
    """

    event_dim = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def check(self, value: Tensor) -> Tensor:
        """Whether each of them is one."""
        symmetric: Tensor = torch.isclose(value, value.mT, atol=1e-6).all(-1).all(-1)
        info: Tensor = torch.linalg.cholesky_ex(value[..., : self.rank, : self.rank]).info
        return symmetric & (info == 0)

    def __repr__(self) -> str:
        """With the rank; torch drops the first letter of a constraint's class."""
        return f"GramMatrices(rank={self.rank})"


def check_degrees(nu: Any, n: int, validate_args: bool | None) -> int:
    """The rank `nt = min(nu, n)` of a draw, after checking the degrees of freedom."""
    if isinstance(nu, Tensor):
        singular = "A singular Wishart (nu < N) needs a Python integer, since nu then fixes the shapes."
        if not nu.is_floating_point():
            raise ConfigurationError(f"A tensor nu must be floating, got {nu.dtype}. {singular}")
        if values_visible(validate_args, nu) and not bool(((nu > n - 1) & nu.isfinite()).all()):
            raise ConfigurationError(
                f"A tensor nu must be finite and greater than N - 1 = {n - 1}; it has {float(nu.min())} to "
                f"{float(nu.max())}. {singular}"
            )
        return n
    if isinstance(nu, bool) or not isinstance(nu, Real):
        raise ConfigurationError(f"nu must be a number or a tensor, got {nu!r}.")
    degrees = float(nu)
    if math.isfinite(degrees) and degrees > n - 1:
        return n
    if not (degrees > 0 and degrees.is_integer()):
        raise ConfigurationError(
            f"nu must be a real number greater than N - 1 = {n - 1}, or a positive integer (a singular matrix of that "
            f"rank); got nu = {nu}."
        )
    return int(degrees)


def scale_factor(scale: Tensor | None, scale_tril: Tensor | None, validate_args: bool | None) -> Tensor:
    """The lower factor `L` of the scale matrix `L L^T`, given as either of the two."""
    if scale_tril is not None and scale is None:
        check_lower(validate_args, "scale_tril", scale_tril)
        return scale_tril
    if scale is None or scale_tril is not None:
        raise ConfigurationError("Give either scale or, with scale=None, its lower Cholesky factor scale_tril.")
    check_square("scale", scale)
    visible = values_visible(validate_args, scale)
    check_finite(validate_args, "scale", scale)
    rounding = 1e3 * torch.finfo(scale.dtype).eps * scale.abs().amax((-2, -1), keepdim=True)
    if visible and not bool(((scale - scale.mT).abs() <= rounding).all()):
        raise ConfigurationError("scale must be a symmetric matrix.")
    L, info = linalg.cholesky(scale)
    if visible and bool((info != 0).any()):
        raise NotPositiveDefiniteError(
            f"The scale matrix ({scale.shape[-1]} x {scale.shape[-1]}, {scale.dtype}) is not positive definite. "
            "Add jitter to its diagonal (vibayes.linalg.add_jitter), or give its factor as scale_tril."
        )
    return L
