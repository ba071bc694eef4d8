"""Linear algebra with Cholesky factors, safe inside `vmap`, CUDA graphs and `torch.compile`.

Nothing here branches on data or waits for the device. A factorization that fails yields NaN, so that it cannot
pass unnoticed, and its `info` (0 is success) so that the culprit can be named.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.errors import ConfigurationError

__all__ = [
    "add_jitter",
    "cholesky",
    "default_jitter",
    "gaussian_kl",
    "log_normal",
    "logdet_factor",
    "lower_factor",
    "solve_lower",
    "solve_lower_transposed",
]

_JITTER = {torch.float64: 1e-6, torch.float32: 1e-4}


def default_jitter(dtype: torch.dtype) -> float:
    """How much of its mean diagonal a kernel matrix of this dtype needs added to stay positive definite.

    >>> default_jitter(torch.float64)
    1e-06
    """
    try:
        return _JITTER[dtype]
    except KeyError:
        raise ConfigurationError(
            f"Models work in float32 or float64, not {dtype}. Convert with model.double() or model.float()."
        ) from None


def add_jitter(K: Float[Tensor, "*batch n n"], jitter: float | Float[Tensor, ""]) -> Float[Tensor, "*batch n n"]:
    """`K + jitter * mean(diag K) * I`."""
    diagonal = K.diagonal(dim1=-2, dim2=-1)
    eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    return K + (jitter * diagonal.mean(-1))[..., None, None] * eye


def cholesky(
    K: Float[Tensor, "*batch n n"], jitter: float | Float[Tensor, ""] = 0.0
) -> tuple[Float[Tensor, "*batch n n"], Tensor]:
    """Lower Cholesky factor of `K` plus relative jitter, and `info` (0 where it succeeded).

    Where it failed the factor is all NaN.

    >>> L, info = cholesky(torch.tensor([[4.0, 2.0], [2.0, 3.0]]))
    >>> (L @ L.T).tolist(), info.item()
    ([[4.0, 2.0], [2.0, 3.0]], 0)
    """
    if not (isinstance(jitter, float) and jitter == 0.0):
        K = add_jitter(K, jitter)
    L, info = torch.linalg.cholesky_ex(K)
    return torch.where((info == 0)[..., None, None], L, math.nan), info


def solve_lower(L: Float[Tensor, "*batch n n"], B: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
    """`L^-1 B` for lower triangular `L`."""
    solved: Tensor = torch.linalg.solve_triangular(L, B, upper=False)
    return solved


def solve_lower_transposed(
    L: Float[Tensor, "*batch n n"], B: Float[Tensor, "*batch n k"]
) -> Float[Tensor, "*batch n k"]:
    """`L^-T B` for lower triangular `L`."""
    solved: Tensor = torch.linalg.solve_triangular(L.mT, B, upper=True)
    return solved


def logdet_factor(L: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    """`log |L L^T|` from the triangular factor."""
    return 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def log_normal(residual: Float[Tensor, "n p"], L: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Log density of the columns of `residual` under N(0, L L^T), summed over columns.

    >>> value = log_normal(torch.zeros(3, 1), torch.eye(3))
    >>> bool(torch.isclose(value, torch.tensor(-1.5 * math.log(2 * math.pi))))
    True
    """
    n, p = residual.shape
    white = solve_lower(L, residual)
    return -0.5 * white.square().sum() - 0.5 * p * logdet_factor(L) - 0.5 * n * p * math.log(2 * math.pi)


def lower_factor(raw: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """A lower triangular factor with positive diagonal, from an unconstrained square matrix.

    Entries below the diagonal are taken as they are, the diagonal is `exp` of the raw one, the rest is unused.
    """
    return raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())


def gaussian_kl(
    mean: Float[Tensor, "n p"], factor: Float[Tensor, "q n n"], log_det: Float[Tensor, " q"]
) -> Float[Tensor, ""]:
    """`KL(N(mean_p, R_p R_p^T) || N(0, I))`, summed over outputs p.

    Args:
        mean: one column per output.
        factor: `R`, any square factor of each covariance; `q` is p, or 1 when the outputs share it.
        log_det: `log |R R^T|`, which the caller knows from its parameterisation.
    """
    n, p = mean.shape
    shared = p // factor.shape[0]
    return 0.5 * (shared * (factor.square().sum() - log_det.sum()) + mean.square().sum() - n * p)
