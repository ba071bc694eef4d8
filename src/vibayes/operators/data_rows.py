"""Data rows given whitened inducing values: `A^T v` and `diag(A^T A)` with `A = L^-1 K`, as one operator.

`A` is made in float64 whatever the dtype of `K`. A product with an inverse that was rounded to float32 leaves an error
in `A` that is no small change of `K`, and so in the variances `k - A^T A` of data rows near inducing rows
(docs/decisions/jitter.md). On a GPU one kernel makes all three in one pass, and another the gradients (`rows.cu`).

Why they are library operators: `operators.register`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.operators import cuda_kernels
from vibayes.operators.base import batch_first, flat, register

__all__ = ["data_rows"]


def data_rows(
    inverse: Float[Tensor, "*batch m m"],
    change: Float[Tensor, "*batch m m"],
    K: Float[Tensor, "*batch m n"],
    v: Float[Tensor, "*batch m p"],
) -> tuple[Float[Tensor, "*batch n p"], Float[Tensor, "*batch n"]]:
    """`A^T v` and `diag(A^T A)` with `A = L^-1 K`.

    The inverse and `change` are float64, as `factorize` gave them. Gradients go to `change` (see `factor_product`),
    from a backward pass that is differentiated itself to the inverse.

    >>> from vibayes.operators.factorization import factorize
    >>> _, inverse, _, _, change = factorize(torch.tensor([[4.0]], dtype=torch.float64))
    >>> mean, loss = data_rows(inverse, change, torch.tensor([[1.0]]), torch.tensor([[3.0]]))
    >>> mean.tolist(), loss.tolist()
    ([[1.5]], [0.25])
    """
    _, mean, loss = torch.ops.vibayes.data_rows(inverse, change, K, v)
    return mean, loss


def _rows(inverse: Tensor, change: Tensor, K: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if cuda_kernels.rows_available(K, v):
        A, mean, loss = cuda_kernels.rows(*flat(inverse, K, v))
        batch, n = K.shape[:-2], K.shape[-1]
        return A.view(K.shape), mean.view(*batch, n, v.shape[-1]), loss.view(*batch, n)
    A = (inverse @ K.to(inverse.dtype)).to(K.dtype)
    return A, (v.mT @ A).mT.contiguous(), A.square().sum(-2)


def _rows_shapes(inverse: Tensor, change: Tensor, K: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, n = K.shape[:-2], K.shape[-1]
    return K.new_empty(K.shape), K.new_empty(*batch, n, v.shape[-1]), K.new_empty(*batch, n)


def _gradients(inverse: Tensor, A: Tensor, v: Tensor, g_mean: Tensor, g_loss: Tensor) -> tuple[Tensor, Tensor]:
    """Those of `A` and `K`."""
    if cuda_kernels.rows_available(A, v):
        d_A, d_K = cuda_kernels.rows_backward(*flat(inverse, A, v, g_mean), *flat(g_loss, axes=1))
        return d_A.view(A.shape), d_K.view(A.shape)
    d_A = torch.addcmul(v @ g_mean.mT, A, 2.0 * g_loss[..., None, :])
    return d_A, inverse.to(A.dtype).mT @ d_A


def _gradients_shapes(inverse: Tensor, A: Tensor, v: Tensor, g_mean: Tensor, g_loss: Tensor) -> tuple[Tensor, Tensor]:
    return A.new_empty(A.shape), A.new_empty(A.shape)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    inverse, _, K, v = inputs
    ctx.save_for_backward(inverse, K, v, output[0])


def _backward(ctx: Any, _: Tensor, g_mean: Tensor, g_loss: Tensor) -> tuple[Tensor | None, ...]:
    inverse, K, v, A = ctx.saved_tensors
    if torch.is_grad_enabled():  # differentiated again: what was saved must depend on the inputs
        exact = K.to(inverse.dtype)
        A = (inverse @ exact).to(K.dtype)
        d_A = (v @ g_mean.mT + 2.0 * A * g_loss[..., None, :]).to(inverse.dtype)
        return d_A @ exact.mT, None, (inverse.mT @ d_A).to(K.dtype), A @ g_mean
    d_A, d_K = torch.ops.vibayes.data_rows_backward(inverse, A, v, g_mean, g_loss)
    return None, (d_A @ A.mT).to(inverse.dtype), d_K, A @ g_mean


def _vmap(
    info: Any, in_dims: tuple[int | None, ...], *given: Tensor
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    """Where only the inducing values take part, they become more columns: `A` is the same for all."""
    operator, size = torch.ops.vibayes.data_rows, info.batch_size
    if all(dim is None for dim in in_dims[:-1]):
        *shared, v = given
        assert in_dims[-1] is not None
        columns = v.movedim(in_dims[-1], -2).flatten(-2)  # [..., M, size * P]
        A, mean, loss = operator(*shared, columns)
        return (A, mean.unflatten(-1, (size, -1)).movedim(-2, 0), loss), (None, 0, None)
    return operator(*batch_first(info, in_dims, *given)), (0, 0, 0)


register(
    "data_rows(Tensor inverse, Tensor change, Tensor K, Tensor v) -> (Tensor, Tensor, Tensor)",
    _rows,
    _rows_shapes,
    save=_save,
    backward=_backward,
    vmap=_vmap,
)
register(
    "data_rows_backward(Tensor inverse, Tensor A, Tensor v, Tensor g_mean, Tensor g_loss) -> (Tensor, Tensor)",
    _gradients,
    _gradients_shapes,
)
