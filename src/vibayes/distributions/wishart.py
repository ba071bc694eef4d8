"""The Wishart distribution, singular or not."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from vibayes import linalg
from vibayes.distributions.bartlett import (
    FactorSample,
    bartlett_factor,
    log_multigamma,
    multidigamma,
    standard_shapes,
    trapezoid,
    triangularize,
)
from vibayes.distributions.gram import GramDistribution
from vibayes.errors import ConfigurationError

__all__ = ["Wishart"]


class Wishart(GramDistribution):
    r"""`G = F F^T`, where the `nu` columns of `F` are independent draws of `N(0, scale)`.

    With `nt = min(nu, N)` the density is (thesis, Eq. `eq:dwp:wishdens`)

        p(G) = pi^(nu (nt - N) / 2) |G[:nt, :nt]|^((nu - N - 1) / 2) exp(-tr(S^-1 G) / 2)
               / ( 2^(nu N / 2) |S|^(nu / 2) Gamma_nt(nu / 2) )

    with respect to the elements `G_ij`, `j <= min(i, nt)`. For `nu < N` it is singular, the other elements follow from
    these, and densities compare only between distributions of the same `nu` and the same order of rows.

    Args:
        scale: `S`, `[*batch, N, N]`; or None, with `scale_tril` in its place.
        nu: degrees of freedom: any real number `> N - 1` (a tensor of the batch's shape can be learned), or a positive
            integer `< N` for the singular distribution.
        scale_tril: lower Cholesky factor of the scale.
        validate_args: whether to check values; see `MatrixDistribution`.

    >>> import torch
    >>> wishart = Wishart(torch.eye(3), 2)
    >>> G = wishart.rsample()
    >>> G.shape, int(torch.linalg.matrix_rank(G, rtol=1e-3)), wishart.log_prob(G).shape
    (torch.Size([3, 3]), 2, torch.Size([]))
    """

    arg_constraints = {  # noqa: RUF012
        "scale_tril": constraints.lower_cholesky,
        "nu": constraints.positive,
    }
    _item_axes = {"scale_tril": 2, "nu": 0}  # noqa: RUF012

    def __init__(
        self,
        scale: Float[Tensor, "*batch n n"] | None,
        nu: float | Tensor,
        *,
        scale_tril: Float[Tensor, "*batch n n"] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        n = self._take(scale, nu, scale_tril, validate_args)
        self._finish((n, n), validate_args)

    def rsample_factor(self, sample_shape: Sequence[int] = (), noise: Tensor | None = None) -> FactorSample:
        """A draw of the factor `F = L T`, lower triangular `[N, nt]`, with `T` and `log |G_{:nt, :nt}|`."""
        noise = self._noise(self.scale_tril, sample_shape, noise)
        T = bartlett_factor(standard_shapes(self.nu, self.rank, self.scale_tril), noise)
        F = self.scale_tril @ T
        return FactorSample(F, T, 2.0 * F.diagonal(dim1=-2, dim2=-1).log().sum(-1))

    def log_prob(self, value: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
        """Log density of `G`, from its elements `G_ij`, `j <= nt`; that a singular `G` has rank `nt` is not checked."""
        self._check_event(value)
        F = trapezoid(value, self.rank)
        return self.log_prob_factor(F, 2.0 * F.diagonal(dim1=-2, dim2=-1).log().sum(-1))

    def log_prob_factor(
        self,
        F: Float[Tensor, "*batch n w"],
        log_det: Float[Tensor, "*batch"] | float | None = None,
        *,
        whitened: Float[Tensor, "*batch n w"] | None = None,
        scale_log_det: Float[Tensor, "*batch"] | None = None,
    ) -> Float[Tensor, "*batch"]:
        """Log density of `G = F F^T`, without forming `G`.

        Args:
            F: any factor, `w >= nt`: the factor another distribution drew (rotated and zero-padded as it may be).
            log_det: `log |G_{:nt, :nt}|`, where it is known (`FactorSample.log_det`).
            whitened: `L^-1 F`, where it is known.
            scale_log_det: the log determinant of the scale matrix, where it is known.
        """
        self._check_factor(F, self.rank)
        n, nu, L = self.event_shape[0], self.nu, self.scale_tril
        if log_det is None:
            log_det = 2.0 * triangularize(F, self.rank).diagonal(dim1=-2, dim2=-1).log().sum(-1)
        if whitened is None:
            whitened = linalg.solve_lower(L, F)
        if scale_log_det is None:
            scale_log_det = linalg.logdet_factor(L)
        constants = log_multigamma(nu, self.rank) + 0.5 * nu * (n * math.log(2.0) + (n - self.rank) * math.log(math.pi))
        trace = whitened.square().sum((-2, -1))  # tr(S^-1 G)
        return (0.5 * (nu - n - 1) * log_det - constants) - 0.5 * (trace + nu * scale_log_det)

    @property
    def mean(self) -> Float[Tensor, "*batch n n"]:
        """`nu S`."""
        return self._nu * self.scale.expand(self._extended_shape())

    @property
    def mode(self) -> Float[Tensor, "*batch n n"]:
        """`(nu - N - 1) S`, NaN where `nu <= N + 1` and the density has no largest value."""
        S: Tensor = self.scale.expand(self._extended_shape())
        excess = torch.as_tensor(self._nu, dtype=S.dtype, device=S.device) - self.event_shape[0] - 1
        return torch.where(excess > 0, excess * S, math.nan)

    @property
    def variance(self) -> Float[Tensor, "*batch n n"]:
        """`nu (S_ij^2 + S_ii S_jj)`."""
        S = self.scale.expand(self._extended_shape())
        diagonal = S.diagonal(dim1=-2, dim2=-1)
        return self._nu * (S.square() + diagonal[..., :, None] * diagonal[..., None, :])

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The mean of `-log p(G)`; there is none of singular matrices, whose densities are of some elements only."""
        n, nu = self.event_shape[0], self.nu
        if self.rank < n:
            raise ConfigurationError(f"A singular Wishart (nu = {nu} < N = {n}) has no entropy: use kl_divergence.")
        log_det = linalg.logdet_factor(self.scale_tril) + n * math.log(2.0)
        rest = log_multigamma(nu, n) - 0.5 * (nu - n - 1) * multidigamma(nu, n, log_det) + 0.5 * nu * n
        return (0.5 * (n + 1) * log_det + rest).expand(self.batch_shape)

    @property
    def _nu(self) -> float | Tensor:
        return self.nu[..., None, None] if isinstance(self.nu, Tensor) else self.nu
