"""Products with Cholesky factors and their inverses, and Gram matrices, with backward passes of few products.

They are library operators for the same reasons as `factorize`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.operators.base import register

__all__ = ["factor_product", "gram"]


def factor_product(
    matrix: Float[Tensor, "*batch m m"],
    change: Float[Tensor, "*batch m m"],
    B: Float[Tensor, "*batch m k"],
    *,
    inverse: bool,
    transposed: bool,
) -> Float[Tensor, "*batch m k"]:
    """`L B`, `L^T B`, `L^-1 B` or `L^-T B`, where `matrix` is the `L` or `L^-1` that `factorize` gave.

    Gradients go to `change`, which `factorize` gave with it, and not to `matrix`: that takes a product of M x M
    matrices less for each of them. A backward pass that is differentiated itself gives them to `matrix`.

    >>> from vibayes.operators.factorization import factorize
    >>> L, _, _, _, change = factorize(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
    >>> factor_product(L, change, torch.tensor([[1.0], [1.0]]), inverse=False, transposed=True).tolist()
    [[3.0], [2.0]]
    """
    found: Tensor = torch.ops.vibayes.factor_product(matrix, change, B, inverse, transposed)
    return found


def gram(F: Float[Tensor, "*batch k m"]) -> Float[Tensor, "*batch m m"]:
    """`F^T F`, whose backward pass takes one product and not two.

    >>> gram(torch.tensor([[1.0, 2.0]])).tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    found: Tensor = torch.ops.vibayes.gram(F)
    return found


def _factor_product(matrix: Tensor, change: Tensor, B: Tensor, inverse: bool, transposed: bool) -> Tensor:
    return (matrix.mT if transposed else matrix) @ B


def _save_product(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool, bool], output: Tensor) -> None:
    matrix, change, B, ctx.inverse, ctx.transposed = inputs
    ctx.save_for_backward(matrix, B, output)
    ctx.change_shape, ctx.change_dtype = change.shape, change.dtype


def _product_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    matrix, B, X = ctx.saved_tensors
    d_B = (matrix if ctx.transposed else matrix.mT) @ g
    if torch.is_grad_enabled():  # differentiated again: `change` has no value, and what depends on it would be lost
        d_matrix = B @ g.mT if ctx.transposed else g @ B.mT
        return d_matrix.sum_to_size(matrix.shape), None, d_B.sum_to_size(B.shape), None, None
    # with L = L0 (I - E), L^-1 = (I + E) L0^-1 and `change` E
    if ctx.inverse:
        d_change = B @ d_B.mT if ctx.transposed else g @ X.mT
    else:
        d_change = -(X @ g.mT) if ctx.transposed else -d_B @ B.mT
    d_change = d_change.sum_to_size(ctx.change_shape).to(ctx.change_dtype)
    return None, d_change, d_B.sum_to_size(B.shape), None, None


def _product_vmap(
    info: Any, in_dims: tuple[int | None, ...], matrix: Tensor, change: Tensor, B: Tensor, *flags: bool
) -> tuple[Tensor, int]:
    """The axis of a vmap goes in front, where the batches of those that have it line up."""
    given = list(zip((matrix, change, B), in_dims, strict=False))
    axes = max(t.ndim - (dim is not None) for t, dim in given)
    moved = []
    for t, dim in given:
        if dim is not None:
            t = t.movedim(dim, 0)
            t = t[:, *[None] * (axes + 1 - t.ndim)]
        moved.append(t)
    return torch.ops.vibayes.factor_product(*moved, *flags), 0


def _gram(F: Tensor) -> Tensor:
    return F.mT @ F


def _save_gram(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _gram_backward(ctx: Any, g: Tensor) -> Tensor:
    F: Tensor = ctx.saved_tensors[0]
    return F @ (g + g.mT)


def _gram_vmap(info: Any, in_dims: tuple[int], F: Tensor) -> tuple[Tensor, int]:
    return torch.ops.vibayes.gram(F.movedim(in_dims[0], 0)), 0


register(
    "factor_product(Tensor matrix, Tensor change, Tensor B, bool inverse, bool transposed) -> Tensor",
    _factor_product,
    _factor_product,
    save=_save_product,
    backward=_product_backward,
    vmap=_product_vmap,
)
register("gram(Tensor F) -> Tensor", _gram, _gram, save=_save_gram, backward=_gram_backward, vmap=_gram_vmap)
