"""Squared distances between rows, and exponentials of them, the heart of the squared exponential kernel.

Distances come from one matrix product over `D + 2` columns, so that the N x M matrix is written once before a kernel's
function of it. The expansion `|x|^2 + |z|^2 - 2 x.z` costs digits when rows are far from the origin, so both sets are
first shifted by a common centre; what remains is an error of about machine epsilon times `(range of the rows)^2`, rows
being measured in lengthscales.

Exponentials are a library operator, opaque to `torch.compile`, with a backward pass of few operations. On a GPU, for
rows of few columns, they are one pass that sums squared differences.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.operators import cuda_kernels
from vibayes.operators.base import batch_first, register

__all__ = ["centred", "exponential", "squares"]


def centred(
    x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None, scale: Tensor
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "m d"] | None]:
    """Both sets of rows around a common centre and multiplied by `scale`.

    Distances do not depend on the centre, so neither do their gradients, and it can be detached.

    >>> centred(torch.tensor([[1.0], [3.0]]), None, torch.tensor(2.0))[0].tolist()
    [[-2.0], [2.0]]
    """
    centre = x.detach().mean(0)
    return (x - centre) * scale, None if z is None else (z - centre) * scale


def squares(x: Float[Tensor, "*batch n d"], z: Float[Tensor, "*batch m d"] | None) -> Float[Tensor, "*batch n m"]:
    """`|x_i - z_j|^2`; with z None symmetric to the last bit, and zero on the diagonal.

    Elsewhere rounding may turn a zero distance into a small one of either sign.

    >>> squares(torch.tensor([[0.0], [2.0]]), None).tolist()
    [[0.0, 4.0], [4.0, 0.0]]
    """
    found = _affine_squares(x, z, 1.0, x.new_zeros(x.shape[:-2]))
    return found if z is not None else torch.diagonal_scatter(found, found.new_zeros(x.shape[:-1]), dim1=-2, dim2=-1)


def _affine_squares(x: Tensor, z: Tensor | None, factor: float, offset: Tensor) -> Tensor:
    """`factor |x_i - z_j|^2 + offset`, the diagonal to rounding."""
    offset = offset[..., None, None]
    x_norms = factor * x.square().sum(-1, keepdim=True)
    if z is None:
        left = torch.cat((-factor * x, x_norms + 0.5 * offset), -1)
        right = torch.cat((x, torch.ones_like(x_norms)), -1)
        half = left @ right.mT  # matrix products of a matrix with its own transpose are not exactly symmetric
        return half + half.mT
    z_norms = factor * z.square().sum(-1, keepdim=True)
    left = torch.cat((-2.0 * factor * x, x_norms + offset, torch.ones_like(x_norms)), -1)
    right = torch.cat((z, torch.ones_like(z_norms), z_norms), -1)
    return left @ right.mT


def exponential(
    x: Float[Tensor, "*batch n d"], z: Float[Tensor, "*batch m d"] | None, offset: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch n m"]:
    """`exp(offset - |x_i - z_j|^2 / 2)`; with z None that of the rows `x` among themselves.

    >>> exponential(torch.tensor([[0.0], [2.0]]), None, torch.tensor(0.0))
    tensor([[1.0000, 0.1353],
            [0.1353, 1.0000]])
    """
    found: Tensor = torch.ops.vibayes.exponential(x, z, offset)
    return found


def _exponential(x: Tensor, z: Tensor | None, offset: Tensor) -> Tensor:
    other = x if z is None else z
    fits = 0 < x.shape[-1] <= cuda_kernels.WIDEST and other.shape[-2] <= cuda_kernels.MOST
    if fits and x.is_cuda and cuda_kernels.available():
        batch, b = x.shape[:-2], math.prod(x.shape[:-2])
        rows, others = (part.reshape(b, *part.shape[-2:]) for part in (x, other))
        return cuda_kernels.exponential(rows, others, offset.reshape(b)).view(*batch, x.shape[-2], other.shape[-2])
    found = _affine_squares(x, z, -0.5, offset)
    if z is None:
        found.diagonal(dim1=-2, dim2=-1).copy_(offset[..., None])
    # rounding makes distances of rows far from zero negative, and no covariance may exceed the variance
    return torch.minimum(found, offset[..., None, None], out=found).exp_()


def _shape(x: Tensor, z: Tensor | None, offset: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], (x if z is None else z).shape[-2])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor | None, Tensor], output: Tensor) -> None:
    x, z, _ = inputs
    ctx.save_for_backward(x, z, output)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    """With `H = g K`, `dx = H z - (H 1) x` and `dz = H^T x - (H^T 1) z`: products with a column of ones beside."""
    x, z, K = ctx.saved_tensors
    if z is None:
        d_x, sums = _pulled((g + g.mT) * K, x, x)
        return d_x, None, 0.5 * sums
    H = g * K
    d_x, sums = _pulled(H, x, z)
    return d_x, _pulled(H.mT, z, x)[0], sums


def _pulled(H: Tensor, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """`sum_j H_ij (z_j - x_i)` for every row `i`, and the sum of `H`."""
    product = H @ torch.cat((z, torch.ones_like(z[..., :1])), -1)  # [N, D + 1]
    sums = product[..., -1:]
    return product[..., :-1] - sums * x, sums.sum((-2, -1))


def _vmap(info: Any, in_dims: tuple[int | None, ...], *given: Tensor | None) -> tuple[Tensor, int]:
    return torch.ops.vibayes.exponential(*batch_first(info, in_dims, *given)), 0


register(
    "exponential(Tensor x, Tensor? z, Tensor offset) -> Tensor",
    _exponential,
    _shape,
    save=_save,
    backward=_backward,
    vmap=_vmap,
)
