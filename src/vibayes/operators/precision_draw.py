"""Draws of Gaussians that are given by their precisions, as one operator: what regressions onto pseudo-outputs end in.

A regression with a precision for each output has a matrix for each output and draw, hundreds of small ones in every
step. Made of factors and products that autograd knows one by one, the backward pass costs twice what it does in one
piece. Why it is a library operator: `base.register`.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.operators.base import batch_first, flat, register
from vibayes.operators.factorization import inverse_factor

__all__ = ["precision_draw"]

# How many numbers of matrices a CPU works on at once, a megabyte of them.
_NUMBERS = 2**17


def precision_draw(
    B: Float[Tensor, "*batch k k"], b: Float[Tensor, "*batch k c"], noise: Float[Tensor, "*batch k c"]
) -> tuple[Float[Tensor, "*batch k c"], Float[Tensor, "*batch"], Tensor]:
    """`v = C^-T (C^-1 b + noise)` with `B = C C^T`, so that its columns are draws of `N(B^-1 b, B^-1)`.

    Args:
        B: positive definite; only the lower triangle is read.
        b: `B` times the means, one column for each draw.
        noise: standard normal.

    Returns:
        `v`; `log |B|`; and `info`, 0 where the factorization succeeded. Where it failed the rest is NaN.

    >>> B, b = torch.tensor([[4.0, 2.0], [2.0, 5.0]]), torch.tensor([[6.0], [7.0]])
    >>> v, log_det, info = precision_draw(B, b, torch.zeros(2, 1))
    >>> v.tolist(), round(log_det.exp().item(), 4), info.item()
    ([[1.0], [1.0]], 16.0, 0)
    """
    v, log_det, info, _ = torch.ops.vibayes.precision_draw(B, b, noise)
    return v, log_det, info


def _draw(B: Tensor, b: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    """With `C^-1`, which the backward pass needs."""
    v, log_det, info, root = _few_at_a_time(_draw_flat, *flat(B, b, noise))
    batch = B.shape[:-2]
    return v.view(b.shape), log_det.view(batch), info.view(batch), root.view(B.shape)


def _draw_flat(B: Tensor, b: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    root, log_det, info = inverse_factor(B)
    return root.mT @ (root @ b + noise), log_det, info, root


def _shapes(B: Tensor, b: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    batch = B.shape[:-2]
    return b.new_empty(b.shape), B.new_empty(batch), B.new_empty(batch, dtype=torch.int32), B.new_empty(B.shape)


def _gradients(root: Tensor, b: Tensor, noise: Tensor, g_v: Tensor, g_log_det: Tensor) -> tuple[Tensor, ...]:
    """Those of `B`, `b` and the noise.

    With `a = C^-1 g_v` and `h = C^-1 b` that of `B` is `C^-T (g_log_det I - a h^T - Phi(noise a^T)) C^-1`, where `Phi`
    takes the lower triangle and halves the diagonal: `dC = C Phi(C^-1 dB C^-T)` (Murray 2016). It is not symmetric:
    what made `B` symmetric adds the two halves up.
    """
    a, h = root @ g_v, root @ b
    if b.shape[-1] == 1:  # products with the triangle of an outer product are running sums
        rows = a * root
        triangle = noise * (rows.cumsum(-2) - 0.5 * rows)
    else:
        outer = (noise @ a.mT).tril()
        triangle = (outer - 0.5 * torch.diag_embed(outer.diagonal(dim1=-2, dim2=-1))) @ root
    inner = g_log_det[..., None, None] * root - triangle - a @ (h.mT @ root)
    return root.mT @ inner, root.mT @ a, a


def _flat_gradients(root: Tensor, b: Tensor, noise: Tensor, g_v: Tensor, g_log_det: Tensor) -> tuple[Tensor, ...]:
    given = (*flat(root, b, noise, g_v), g_log_det.flatten())
    found = _few_at_a_time(_gradients, *given)
    return tuple(t.view(like.shape) for t, like in zip(found, (root, b, b), strict=True))


def _gradient_shapes(root: Tensor, b: Tensor, noise: Tensor, g_v: Tensor, g_log_det: Tensor) -> tuple[Tensor, ...]:
    return root.new_empty(root.shape), b.new_empty(b.shape), b.new_empty(b.shape)


def _few_at_a_time(function: Callable[..., tuple[Tensor, ...]], *given: Tensor) -> tuple[Tensor, ...]:
    """On a CPU as many matrices `[b, k, k]` at a time as its cache holds."""
    few = max(1, _NUMBERS // max(1, given[0][:1].numel()))
    if given[0].is_cuda or len(given[0]) <= few:
        return function(*given)
    parts = [function(*part) for part in zip(*(torch.split(t, few) for t in given), strict=True)]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, output[-1])


def _backward(
    ctx: Any, g_v: Tensor, g_log_det: Tensor, _info: Tensor | None, _root: Tensor | None
) -> tuple[Tensor, ...]:
    B, b, noise, root = ctx.saved_tensors
    if not torch.is_grad_enabled():
        found: tuple[Tensor, ...] = torch.ops.vibayes.precision_draw_backward(root, b, noise, g_v, g_log_det)
        return found
    # differentiated again: what was saved must depend on the inputs
    eye = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
    root = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(B).L, eye, upper=False)
    return _gradients(root, b, noise, g_v, g_log_det)


def _vmap(
    info: Any, in_dims: tuple[int | None, ...], *given: Tensor
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    if in_dims[0] is not None:
        return torch.ops.vibayes.precision_draw(*batch_first(info, in_dims, *given)), (0, 0, 0, 0)
    # one matrix for all: more columns
    B, (b, noise) = given[0], batch_first(info, in_dims[1:], *given[1:])
    c = b.shape[-1]
    columns = (t.movedim(0, -2).flatten(-2) for t in (b, noise))  # [*batch, k, S c]
    v, *rest = torch.ops.vibayes.precision_draw(B, *columns)
    return (v.unflatten(-1, (info.batch_size, c)).movedim(-2, 0), *rest), (0, None, None, None)


register(
    "precision_draw(Tensor B, Tensor b, Tensor noise) -> (Tensor, Tensor, Tensor, Tensor)",
    _draw,
    _shapes,
    save=_save,
    backward=_backward,
    vmap=_vmap,
)
register(
    "precision_draw_backward(Tensor root, Tensor b, Tensor noise, Tensor g_v, Tensor g_log_det) "
    "-> (Tensor, Tensor, Tensor)",
    _flat_gradients,
    _gradient_shapes,
)
