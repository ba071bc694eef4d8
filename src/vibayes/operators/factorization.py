"""Cholesky factors that come with their inverse, batched, on any device, under any number of vmaps.

Deep models factorize hundreds of small kernel matrices in every step. With the inverse of the factor at hand, every
triangular solve of the forward and the backward pass is a matrix product, which is what GPUs (and CPUs) are best at.
On CUDA one kernel makes both for matrices up to 128 (`factorization.cu`), larger ones are assembled from such blocks by
matrix products. Inside, everything is float64 whatever the dtype of the matrix.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.operators import cuda_kernels
from vibayes.operators.base import register

__all__ = ["factorize", "inverse_factor"]

# The largest matrix whose factor is inverted by one call; larger ones are put together from blocks of this size.
_BLOCK = cuda_kernels.LARGEST


def factorize(K: Float[Tensor, "*batch n n"]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The Cholesky factor `L` of `K`, its inverse, `log |K|`, `info` (0 where it succeeded; NaN elsewhere), and `E`.

    Only the lower triangle of `K` is read. Gradients are matrix products: with `P = Phi(L^T dL - dL^-1 L^-T - dE)`,
    where `Phi` takes the lower triangle and halves the diagonal (Murray 2016), and the determinant's gradient on its
    diagonal, `dK = L^-T P L^-1`. It is not symmetric: what made `K` symmetric adds the two halves up.

    `E` stands for a relative change of the factor, `L (I - E)` and `(I + E) L^-1`. It has no value, and takes gradients
    only, those of `factor_product`: products with the factor know `dE` from fewer products than `dL` or `dL^-1`, which
    make it here.

    >>> L, inverse, log_det, info, change = factorize(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
    >>> L.tolist(), inverse.tolist(), round(log_det.exp().item(), 4)
    ([[2.0, 0.0], [1.0, 2.0]], [[0.5, 0.0], [-0.25, 0.5]], 16.0)
    """
    found: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = torch.ops.vibayes.factorize(K)
    return found


def _factorize(K: Tensor) -> tuple[Tensor, ...]:
    n = K.shape[-1]
    flat = K.reshape(math.prod(K.shape[:-2]), n, n)
    if n <= _BLOCK:
        L, inverse, log_det, info = _leaf(flat)
    else:
        L, inverse, log_det, info = (part.to(K.dtype) if part.is_floating_point() else part for part in _blocked(flat))
    batch = K.shape[:-2]
    return L.view(K.shape), inverse.view(K.shape), log_det.view(batch), info.view(batch), K.new_empty(K.shape)


def _leaf(K: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Factor, inverse, log determinant and info of a batch `[b, n, n]` of small matrices."""
    if K.is_cuda and cuda_kernels.available():
        return cuda_kernels.factorize(K)
    U, inverse, info = _lapack(K.double())
    return U.mT.to(K.dtype).contiguous(), inverse.to(K.dtype).contiguous(), _log_det(U).to(K.dtype), info


def _lapack(K: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The factor's transpose, its inverse and info of a batch `[b, n, n]`, by the library."""
    # LAPACK works column by column: what it writes as an upper factor is our lower one, row by row, without a copy
    U, info = torch.linalg.cholesky_ex(K.mT, upper=True)
    if K.is_cuda or bool(info.any()):  # looking costs nothing on a CPU, where the result is there already
        U = torch.where((info == 0)[:, None, None], U, math.nan)
    eye = torch.eye(K.shape[-1], dtype=U.dtype, device=U.device)
    return U, torch.linalg.solve_triangular(U.mT, eye, upper=False), info  # so that L L^-1 is I to rounding


def inverse_factor(K: Float[Tensor, "b n n"]) -> tuple[Tensor, Tensor, Tensor]:
    """What `factorize` gives but for the factor itself: `L^-1`, `log |K|` and `info`; without gradients.

    Large float32 matrices are factorized as they are on a CPU, where float64 would take twice as long.
    """
    if K.is_cuda:
        _, inverse, log_det, info, _ = _factorize(K)
        return inverse, log_det, info
    U, inverse, info = _lapack(K.double() if K.shape[-1] <= _BLOCK else K)
    return inverse.to(K.dtype).contiguous(), _log_det(U).to(K.dtype), info


def _log_det(L: Tensor) -> Tensor:
    return 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _blocked(K: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Right-looking block Cholesky in float64: the diagonal blocks' inverses turn all the rest into matrix products."""
    n = K.shape[-1]
    L = K.double().tril()
    inverse = torch.zeros_like(L)
    info = torch.zeros(len(K), dtype=torch.int32, device=K.device)
    for start in range(0, n, _BLOCK):
        end = min(start + _BLOCK, n)
        rows, below = slice(start, end), slice(end, n)
        block, block_inverse, _, failed = _leaf(L[:, rows, rows])
        info = torch.where((info == 0) & (failed != 0), failed + start, info)
        L[:, rows, rows] = block
        inverse[:, rows, rows] = block_inverse
        if start > 0:
            inverse[:, rows, :start] = -block_inverse @ (L[:, rows, :start] @ inverse[:, :start, :start])
        if end < n:
            panel = L[:, below, rows] @ block_inverse.mT
            L[:, below, rows] = panel
            L[:, below, below] -= panel @ panel.mT
    failed = (info != 0)[:, None, None]
    L = L.tril_().masked_fill_(failed, math.nan)
    return L, inverse.masked_fill_(failed, math.nan), _log_det(L), info


def _shapes(K: Tensor) -> tuple[Tensor, ...]:
    batch = K.shape[:-2]
    L, inverse, change = (K.new_empty(K.shape) for _ in range(3))
    return L, inverse, K.new_empty(batch), K.new_empty(batch, dtype=torch.int32), change


def _save(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(output[0], output[1])
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any,
    g_lower: Tensor | None,
    g_inverse: Tensor | None,
    g_log_det: Tensor | None,
    _: Tensor | None,
    g_change: Tensor | None,
) -> Tensor | None:
    L, inverse = ctx.saved_tensors
    W = g_change  # dE + dL^-1 L^-T - L^T dL
    if g_inverse is not None:
        W = g_inverse @ inverse.mT if W is None else W + g_inverse @ inverse.mT
    if g_lower is not None:
        W = -(L.mT @ g_lower) if W is None else W - L.mT @ g_lower
    P: Tensor | None = None
    if W is not None:
        P = W.tril().neg_()
        P.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    if g_log_det is not None:  # not in place: it may be batched where W is not
        eye, on_diagonal = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device), g_log_det[..., None, None]
        P = on_diagonal * eye if P is None else torch.addcmul(P, on_diagonal, eye)
    return None if P is None else inverse.mT @ P @ inverse


def _vmap(info: Any, in_dims: tuple[int | None], K: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    # only called with a batched argument
    assert in_dims[0] is not None
    return torch.ops.vibayes.factorize(K.movedim(in_dims[0], 0)), (0, 0, 0, 0, 0)


register(
    "factorize(Tensor K) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _factorize,
    _shapes,
    save=_save,
    backward=_backward,
    vmap=_vmap,
)
