"""Our library operators: how they are made known to torch, and how batches reach them."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["batch_first", "flat", "register"]


def register(
    schema: str,
    run: Callable[..., Any],
    shapes: Callable[..., Any],
    *,
    save: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | None = None,
) -> None:
    """Make `torch.ops.vibayes.NAME` of the functions that it consists of.

    A library operator is opaque to `torch.compile` and has rules of its own for autograd and `vmap`, which an
    `autograd.Function` loses when it is compiled. (`torch.library.custom_op` would import the compiler at first use.)

    Args:
        schema: name, arguments and results, `"name(Tensor x, int n) -> Tensor"`.
        run: what it does, on every device.
        shapes: makes empty results of the right shapes.
        save: keeps what the backward pass needs; see `torch.library.register_autograd`.
        backward: the gradients. Without it there are none, as for operators that a backward pass is made of.
        vmap: the rule for `vmap`; see `torch.library.register_vmap`.
    """
    name = "vibayes::" + schema.partition("(")[0]
    torch.library.define(name, schema[schema.index("(") :])
    torch.library.impl(name, ("cpu", "cuda"), run)
    torch.library.register_fake(name, shapes)
    if backward is not None:
        torch.library.register_autograd(name, backward, setup_context=save)
    if vmap is not None:
        torch.library.register_vmap(name, vmap)


def batch_first(info: Any, in_dims: tuple[int | None, ...], *given: Tensor | None) -> list[Any]:
    """The arguments of an operator, in its rule for `vmap`, all with the axis in front; what has none is repeated."""
    return [
        t if t is None else t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(given, in_dims, strict=True)
    ]


def flat(*given: Tensor, axes: int = 2) -> list[Tensor]:
    """With one axis for all of the batch; `axes` are those behind it."""
    return [t.reshape(math.prod(t.shape[:-axes]), *t.shape[-axes:]) for t in given]
