"""Exponentials of squared distances, the heart of the squared exponential kernel, as one pass on a GPU.

A library operator for the same reasons as `factorize`: opaque to `torch.compile`, with rules of its own.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes import cuda_kernels

__all__ = ["exponential", "pulled", "suits"]


def suits(x: Tensor) -> bool:
    """Whether `exponential` is the way to go for rows like these."""
    return x.is_cuda and cuda_kernels.available() and 0 < x.shape[-1] <= cuda_kernels.WIDEST


def exponential(
    x: Float[Tensor, "*batch n d"], z: Float[Tensor, "*batch m d"] | None, offset: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch n m"]:
    """`exp(offset - |x_i - z_j|^2 / 2)`; with z None that of the rows `x` among themselves.

    >>> exponential(torch.tensor([[0.0], [2.0]]), None, torch.tensor(0.0)).exp()
    tensor([[2.7183, 1.1449],
            [1.1449, 2.7183]])
    """
    found: Tensor = torch.ops.vibayes.exponential(x, z, offset)
    return found


def _exponential(x: Tensor, z: Tensor | None, offset: Tensor) -> Tensor:
    other = x if z is None else z
    if not x.is_cuda:
        squares = (x[..., :, None, :] - other[..., None, :, :]).square().sum(-1)
        return (offset[..., None, None] - 0.5 * squares).exp()
    batch, b = x.shape[:-2], math.prod(x.shape[:-2])
    rows, others = (part.reshape(b, *part.shape[-2:]) for part in (x, other))
    return cuda_kernels.exponential(rows, others, offset.reshape(b)).view(*batch, x.shape[-2], other.shape[-2])


def _shape(x: Tensor, z: Tensor | None, offset: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], (x if z is None else z).shape[-2])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor | None, Tensor], output: Tensor) -> None:
    x, z, _ = inputs
    ctx.save_for_backward(x, z, output)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    """With `H = g K`, `dx = H z - (H 1) x` and `dz = H^T x - (H^T 1) z`: products with a column of ones beside."""
    x, z, K = ctx.saved_tensors
    if z is None:
        d_x, sums = pulled((g + g.mT) * K, x, x)
        return d_x, None, 0.5 * sums
    H = g * K
    d_x, sums = pulled(H, x, z)
    return d_x, pulled(H.mT, z, x)[0], sums


def pulled(
    H: Float[Tensor, "*batch n m"], x: Float[Tensor, "*batch n d"], z: Float[Tensor, "*batch m d"]
) -> tuple[Float[Tensor, "*batch n d"], Float[Tensor, "*batch"]]:
    """`sum_j H_ij (z_j - x_i)` for every row `i`, and the sum of `H`.

    >>> pulled(torch.ones(1, 2), torch.zeros(1, 1), torch.tensor([[1.0], [2.0]]))
    (tensor([[3.]]), tensor(2.))
    """
    product = H @ torch.cat((z, torch.ones_like(z[..., :1])), -1)
    sums = product[..., -1:]
    return product[..., :-1] - sums * x, sums.sum((-2, -1))


def _vmap(info: Any, in_dims: tuple[int | None, ...], *given: Tensor | None) -> tuple[Tensor, int]:
    """Every part gets the axis in front."""
    moved = [
        t if t is None else t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(given, in_dims, strict=True)
    ]
    return torch.ops.vibayes.exponential(*moved), 0


torch.library.define("vibayes::exponential", "(Tensor x, Tensor? z, Tensor offset) -> Tensor")
torch.library.impl("vibayes::exponential", ("cpu", "cuda"), _exponential)
torch.library.register_fake("vibayes::exponential", _shape)
torch.library.register_autograd("vibayes::exponential", _backward, setup_context=_save)
torch.library.register_vmap("vibayes::exponential", _vmap)
