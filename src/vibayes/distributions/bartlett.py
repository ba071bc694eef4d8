"""Bartlett factors: the triangular matrices that Wishart draws are made of."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes import linalg
from vibayes.operators.gamma import NOISE_PER_GAMMA, gamma_from_normals

__all__ = [
    "FactorSample",
    "bartlett_factor",
    "log_multigamma",
    "multidigamma",
    "split_noise",
    "standard_shapes",
    "trapezoid",
    "triangularize",
]


class FactorSample(NamedTuple):
    """A draw of `G = F F^T` by its factor, with what was computed on the way.

    Attributes:
        factor: `F`, `[*, N, nt]`.
        bartlett: `T`, the Bartlett factor of *the distribution that drew it*, `[*, N, nt]`.
        log_det: `log |G_{:nt, :nt}|`, `[*]`.
    """

    factor: Tensor
    bartlett: Tensor
    log_det: Tensor


def bartlett_factor(
    alpha: Float[Tensor, "*#batch nt"],
    noise: Float[Tensor, "*batch k nt"],
    beta: Float[Tensor, "*#batch nt"] | float = 0.5,
    mu: Float[Tensor, "*#batch n nt"] | float = 0.0,
    sigma: Float[Tensor, "*#batch n nt"] | float = 1.0,
) -> Float[Tensor, "*batch n nt"]:
    """`T` with `T_jj^2 ~ Gamma(alpha_j, rate beta_j)` and `T_ij ~ N(mu_ij, sigma_ij^2)` below the diagonal.

    Args:
        alpha: shapes of the gammas.
        noise: standard normals, `N + NOISE_PER_GAMMA` rows: the first `N` make the normal entries (those on and above
            the diagonal are not used), the rest the gammas.
        beta: rates of the gammas.
        mu: means of the normal entries.
        sigma: their standard deviations.

    >>> bartlett_factor(torch.tensor([1.0, 0.5]), torch.randn(3 + NOISE_PER_GAMMA, 2)).shape
    torch.Size([3, 2])
    """
    squares, normals = split_noise(alpha, noise)
    n, nt = normals.shape[-2:]
    diagonal = torch.eye(n, nt, dtype=noise.dtype, device=noise.device) * (squares / beta).sqrt()[..., None, :]
    return diagonal + (mu + sigma * normals).tril(-1)


def split_noise(
    alpha: Float[Tensor, "*#batch nt"], noise: Float[Tensor, "*batch k nt"]
) -> tuple[Float[Tensor, "*batch nt"], Float[Tensor, "*batch n nt"]]:
    """Draws of `Gamma(alpha, 1)` and the normals of a Bartlett factor, of its noise."""
    n = noise.shape[-2] - NOISE_PER_GAMMA
    proposals = noise[..., n:, :].movedim(-2, 0)  # [17, *batch, nt]
    return gamma_from_normals(alpha.expand(proposals.shape[1:]), proposals), noise[..., :n, :]


def standard_shapes(nu: float | Tensor, nt: int, like: Tensor) -> Float[Tensor, "*batch nt"]:
    """Shapes `(nu - j + 1) / 2`, j = 1..nt, of the gammas of a standard Wishart."""
    j = torch.arange(nt, dtype=like.dtype, device=like.device)
    return 0.5 * ((nu[..., None] if isinstance(nu, Tensor) else nu) - j)


def log_multigamma(nu: float | Tensor, p: int) -> Tensor | float:
    """`log Gamma_p(nu / 2)`, the multivariate gamma function.

    >>> round(log_multigamma(3.0, 2), 6) == round(math.log(math.pi / 2), 6)
    True
    """
    constant = 0.25 * p * (p - 1) * math.log(math.pi)
    if isinstance(nu, Tensor):
        return constant + torch.lgamma(standard_shapes(nu, p, nu)).sum(-1)
    return constant + sum(math.lgamma(0.5 * (nu - j)) for j in range(p))


def multidigamma(nu: float | Tensor, p: int, like: Tensor) -> Tensor:
    """`psi_p(nu / 2)`, the derivative of the logarithm of the multivariate gamma function at `nu / 2`."""
    return torch.digamma(standard_shapes(nu, p, like)).sum(-1)


def trapezoid(G: Float[Tensor, "*batch n n"], nt: int) -> Float[Tensor, "*batch n nt"]:
    """The lower triangular `F` with `F F^T = G` for `G` of rank `nt`, from the elements `G_ij`, `j <= min(i, nt)`.

    NaN where the leading block of `G` is not positive definite.
    """
    block, _ = linalg.cholesky(G[..., :nt, :nt])
    if nt == G.shape[-1]:
        return block
    below = linalg.solve_lower(block, G[..., nt:, :nt].mT).mT  # G_21 block^-T
    return torch.cat([block, below], -2)


def triangularize(F: Float[Tensor, "*batch n w"], nt: int) -> Float[Tensor, "*batch n nt"]:
    """`F Q` with orthonormal columns of `Q` that make it lower triangular, with positive diagonal.

    For `F F^T` of rank `nt`, `(F Q)(F Q)^T = F F^T`. It works on the factor, and so does not square its condition
    number as the Cholesky factorization of `F F^T` would.
    """
    Q, R = torch.linalg.qr(F[..., :nt, :].mT)  # [w, nt], [nt, nt]
    signs = R.diagonal(dim1=-2, dim2=-1).sign().detach()
    turned: Tensor = F @ (Q * signs[..., None, :])
    return turned.tril()
