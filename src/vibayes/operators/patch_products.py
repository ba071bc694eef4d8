"""Image patches and the products of their normal equations, as one operator.

Patches of a few images at a time are extracted, forward and again in the backward pass, so that memory does not grow by
the number of places of a kernel. A library operator keeps that under `torch.compile`, alone and under `vmap`.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.operators.base import batch_first, register

__all__ = ["cut", "patch_products"]

# Patches of so many numbers are extracted at once.
_PATCH_NUMBERS = 2**23


def patch_products(
    x: Float[Tensor, "*batch m c h w"],
    y: Float[Tensor, "*batch m p locations"],
    precision: Float[Tensor, "*batch m"],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    circular: bool,
) -> Float[Tensor, "*batch k k_and_1_and_p"]:
    """`(Lambda D)^T [D, 1, Y]` for the patches `D` of images, with one precision per image.

    Axes of the batch may have size 1 in some of the arguments.

    >>> patch_products(torch.ones(2, 1, 1, 3), torch.ones(2, 1, 3), torch.ones(2), (1, 1), (1, 1), (0, 0), False)
    tensor([[6., 6., 6.]])
    """
    found: Tensor = torch.ops.vibayes.patch_products(x, y, precision, kernel, stride, padding, circular)
    return found


def cut(
    x: Float[Tensor, "*batch c h w"],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    circular: bool,
) -> Float[Tensor, "*batch locations k"]:
    """All patches of each image, flattened in the order of `torch`'s weights: channel, row, column."""
    images = x.reshape(-1, *x.shape[-3:])
    if circular:
        rows, columns = _around(x, *padding)
        images, padding = images.index_select(-2, rows).index_select(-1, columns), (0, 0)
    found = torch.nn.functional.unfold(images, kernel, padding=padding, stride=stride).mT  # [N, H' W', C kh kw]
    return found.reshape(*x.shape[:-3], *found.shape[1:])


def _around(x: Tensor, ph: int, pw: int) -> tuple[Tensor, Tensor]:
    """Which pixels continue images periodically; unlike `pad(mode="circular")`, by more than their size if need be."""
    H, W = x.shape[-2:]
    return torch.arange(-ph, H + ph, device=x.device) % H, torch.arange(-pw, W + pw, device=x.device) % W


def _put_back(
    D: Tensor, x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], circular: bool
) -> Tensor:
    """The adjoint of `cut`: patches are added up where they were cut from images like `x`."""
    (H, W), (ph, pw) = x.shape[-2:], padding
    flat = D.reshape(-1, *D.shape[-2:]).mT  # [N, K, locations]
    if not circular:
        found = torch.nn.functional.fold(flat, (H, W), kernel, padding=padding, stride=stride)
    else:
        wide = torch.nn.functional.fold(flat, (H + 2 * ph, W + 2 * pw), kernel, stride=stride)
        rows, columns = _around(x, ph, pw)
        tall = wide.new_zeros(*wide.shape[:-1], W).index_add(-1, columns, wide)
        found = tall.new_zeros(*tall.shape[:-2], H, W).index_add(-2, rows, tall)
    return found.reshape(*D.shape[:-2], *x.shape[-3:])


def _chunks(x: Tensor, y: Tensor, precision: Tensor, kernel: tuple[int, int]) -> Iterator[slice]:
    """Images whose patches are extracted together, in all of the batch."""
    M, C = x.shape[-4:-2]
    each = math.prod(_batch(x, y, precision)) * C * math.prod(kernel) * y.shape[-1]
    step = max(1, _PATCH_NUMBERS // each)
    return (slice(a, a + step) for a in range(0, M, step))


def _rows(
    x: Tensor, y: Tensor, precision: Tensor, part: slice, *where: Any
) -> tuple[Tensor, Tensor, Float[Tensor, "*batch rows 1"]]:
    """Of some images: patches `[*, rows, K]`, values there `[*, rows, P]`, and the precision of each row."""
    D = cut(x[..., part, :, :, :], *where).flatten(-3, -2)
    Y = y[..., part, :, :].mT.flatten(-3, -2)
    return D, Y, precision[..., part].repeat_interleave(y.shape[-1], -1)[..., None]


def _products(x: Tensor, y: Tensor, precision: Tensor, kernel: Any, stride: Any, padding: Any, circular: Any) -> Tensor:
    where, batch = (kernel, stride, padding, circular), _batch(x, y, precision)
    total: Tensor | None = None
    for part in _chunks(x, y, precision, kernel):
        D, Y, weights = _rows(x, y, precision, part, *where)
        weighted = weights * D
        products = (weighted.mT @ D, weighted.sum(-2)[..., None], weighted.mT @ Y)
        found = torch.cat([t.expand(*batch, *t.shape[-2:]) for t in products], -1)  # [*, K, K + 1 + P]
        total = found if total is None else total + found
    assert total is not None
    return total


def _gradients(x: Tensor, y: Tensor, precision: Tensor, g: Tensor, *where: Any) -> tuple[Tensor, Tensor, Tensor]:
    kernel, K = where[0], g.shape[-2]
    d_G, d_ones, d_h = g[..., :K], g[..., K], g[..., K + 1 :]
    d_x, d_y, d_precision = [], [], []
    for part in _chunks(x, y, precision, kernel):
        D, Y, weights = _rows(x, y, precision, part, *where)
        d_weighted = D @ d_G.mT + Y @ d_h.mT + d_ones[..., None, :]  # the gradient of Lambda D

        def apart(rows: Tensor) -> Tensor:  # by images
            return rows.reshape(*rows.shape[:-2], -1, y.shape[-1], rows.shape[-1])

        d_x.append(_put_back(apart(weights * (d_weighted + D @ d_G)), x, *where))
        d_y.append(apart(weights * (D @ d_h)).mT)
        d_precision.append(apart((D * d_weighted).sum(-1, keepdim=True)).sum((-2, -1)))
    return (
        torch.cat(d_x, -4).sum_to_size(x.shape),
        torch.cat(d_y, -3).sum_to_size(y.shape),
        torch.cat(d_precision, -1).sum_to_size(precision.shape),
    )


def _batch(x: Tensor, y: Tensor, precision: Tensor) -> tuple[int, ...]:
    sizes = zip(x.shape[:-4], y.shape[:-3], precision.shape[:-1], strict=True)
    return tuple(max(several) for several in sizes)  # the same, or 1


def _shapes(x: Tensor, y: Tensor, precision: Tensor, kernel: Any, *_: Any) -> Tensor:
    K = x.shape[-3] * math.prod(kernel)
    return x.new_empty(*_batch(x, y, precision), K, K + 1 + y.shape[-2])


def _gradients_shapes(x: Tensor, y: Tensor, precision: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), y.new_empty(y.shape), precision.new_empty(precision.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, kernel, stride, padding, circular = inputs
    ctx.save_for_backward(*tensors)
    ctx.where = kernel, stride, padding, circular


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    # differentiated again, it must be made of operators that have gradients
    run = _gradients if torch.is_grad_enabled() else torch.ops.vibayes.patch_products_backward
    return *run(*ctx.saved_tensors, g, *ctx.where), None, None, None, None


def _vmap(
    info: Any, in_dims: tuple[int | None, ...], x: Tensor, y: Tensor, precision: Tensor, *where: Any
) -> tuple[Tensor, int]:
    given = zip((x, y, precision), in_dims[:3], strict=True)
    whole = (t[None] if dim is None else t.movedim(dim, 0) for t, dim in given)  # patches of what is shared: once
    return torch.ops.vibayes.patch_products(*whole, *where), 0


def _backward_vmap(
    info: Any, in_dims: tuple[int | None, ...], x: Tensor, y: Tensor, precision: Tensor, g: Tensor, *where: Any
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
    whole = batch_first(info, in_dims[:4], x, y, precision, g)
    return torch.ops.vibayes.patch_products_backward(*whole, *where), (0, 0, 0)


_WHERE = "int[] kernel, int[] stride, int[] padding, bool circular"
register(
    f"patch_products(Tensor x, Tensor y, Tensor precision, {_WHERE}) -> Tensor",
    _products,
    _shapes,
    save=_save,
    backward=_backward,
    vmap=_vmap,
)
register(
    f"patch_products_backward(Tensor x, Tensor y, Tensor precision, Tensor g, {_WHERE}) -> (Tensor, Tensor, Tensor)",
    _gradients,
    _gradients_shapes,
    vmap=_backward_vmap,
)
