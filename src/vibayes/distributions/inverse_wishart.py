"""The inverse Wishart distribution."""

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
)
from vibayes.distributions.gram import GramDistribution
from vibayes.errors import ConfigurationError

__all__ = ["InverseWishart"]


class InverseWishart(GramDistribution):
    r"""`G` with `G^-1 ~ Wishart(scale^-1, nu)`, for real `nu > N - 1`.

    The density is that of the thesis (App. A) and of `scipy.stats.invwishart(df=nu, scale=scale)`:

        p(G) = |S|^(nu / 2) |G|^(-(nu + N + 1) / 2) exp(-tr(S G^-1) / 2) / ( 2^(nu N / 2) Gamma_N(nu / 2) )

    with respect to the elements `G_ij`, `j <= i`. Its mean is `S / (nu - N - 1)`. Where a text counts
    `delta = nu - N + 1` degrees of freedom instead, `delta` does not change when rows are left out.

    Args:
        scale: `S`, `[*batch, N, N]`; or None, with `scale_tril` in its place.
        nu: degrees of freedom, a number or a tensor of the batch's shape, `> N - 1`.
        scale_tril: lower Cholesky factor of the scale.
        validate_args: whether to check values; see `MatrixDistribution`.

    >>> InverseWishart(torch.eye(2), 5.0).mean.tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """

    arg_constraints = {  # noqa: RUF012
        "scale_tril": constraints.lower_cholesky,
        "nu": constraints.positive,
    }
    support = constraints.positive_definite
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
        if self.rank < n:
            raise ConfigurationError(
                f"An inverse Wishart needs nu > N - 1 = {n - 1}, since a singular matrix has no inverse; got nu = {nu}."
            )
        self._finish((n, n), validate_args)

    def rsample_factor(self, sample_shape: Sequence[int] = (), noise: Tensor | None = None) -> FactorSample:
        """A draw of the Cholesky factor `F` of `G`, with `T` and `log |G|`.

        A standard Wishart matrix is also `U U^T` for the upper triangular `U` that is `T` with rows and columns
        reversed. Then `G = L (U U^T)^-1 L^T`, whose Cholesky factor is `L U^-T`.
        """
        noise = self._noise(self.scale_tril, sample_shape, noise)
        T = bartlett_factor(standard_shapes(self.nu, self.event_shape[0], self.scale_tril), noise)
        U = T.flip(-2, -1)
        F: Tensor = torch.linalg.solve_triangular(U.mT, self.scale_tril, upper=False, left=False)
        return FactorSample(F, T, linalg.logdet_factor(F))

    def log_prob(self, value: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
        """Log density of `G`."""
        self._check_event(value)
        return self.log_prob_factor(linalg.cholesky(value)[0])

    def log_prob_factor(self, F: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
        """Log density of `G = F F^T` by its Cholesky factor `F`, as `rsample_factor` draws it."""
        self._check_event_shape(F)
        n, nu, L = self.event_shape[0], self.nu, self.scale_tril
        return (
            0.5 * nu * linalg.logdet_factor(L)
            - 0.5 * (nu + n + 1) * linalg.logdet_factor(F)
            - 0.5 * linalg.solve_lower(F, L).square().sum((-2, -1))  # tr(S G^-1)
            - log_multigamma(nu, n)
            - 0.5 * nu * n * math.log(2.0)
        )

    @property
    def mean(self) -> Float[Tensor, "*batch n n"]:
        """`S / (nu - N - 1)`, NaN where `nu <= N + 1` and there is none."""
        S, excess = self._moments()
        return torch.where(excess > 1, S / (excess - 1), math.nan)

    @property
    def variance(self) -> Float[Tensor, "*batch n n"]:
        """With `e = nu - N`: `((e + 1) S_ij^2 + (e - 1) S_ii S_jj) / (e (e - 1)^2 (e - 3))`, NaN where `e <= 3`."""
        S, e = self._moments()
        diagonal = S.diagonal(dim1=-2, dim2=-1)
        product = diagonal[..., :, None] * diagonal[..., None, :]
        variance = ((e + 1) * S.square() + (e - 1) * product) / (e * (e - 1).square() * (e - 3))
        return torch.where(e > 3, variance, math.nan)

    @property
    def mode(self) -> Float[Tensor, "*batch n n"]:
        """`S / (nu + N + 1)`."""
        S, excess = self._moments()
        return S / (excess + 2 * self.event_shape[0] + 1)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The mean of `-log p(G)`."""
        n, nu = self.event_shape[0], self.nu
        log_det = linalg.logdet_factor(self.scale_tril) - n * math.log(2.0)
        rest = log_multigamma(nu, n) - 0.5 * (nu + n + 1) * multidigamma(nu, n, log_det) + 0.5 * nu * n
        return (0.5 * (n + 1) * log_det + rest).expand(self.batch_shape)

    def _moments(self) -> tuple[Tensor, Tensor]:
        nu = torch.as_tensor(self.nu, dtype=self.scale_tril.dtype, device=self.scale_tril.device)
        return self.scale.expand(self._extended_shape()), nu[..., None, None] - self.event_shape[0]
