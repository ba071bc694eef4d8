"""Our library operators: how they are made known to torch, and how batches reach them."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

try:
    from torch._functorch.utils import enable_single_level_autograd_function
    from torch.autograd.function import _SingleLevelFunction
except ImportError:  # names of torch's own: without them only `torch.func.grad` and its kin are missing
    _SingleLevelFunction = None  # type: ignore[assignment, misc]

__all__ = ["batch_first", "flat", "register"]

_LIBRARY: Any = torch.library.Library("vibayes", "FRAGMENT")  # type: ignore[no-untyped-call]


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
        assert save is not None
        if _SingleLevelFunction is None:
            torch.library.register_autograd(name, backward, setup_context=save)
        else:
            _differentiate(name, save, backward)
    if vmap is not None:
        torch.library.register_vmap(name, vmap)


def _differentiate(name: str, save: Callable[..., None], backward: Callable[..., Any]) -> None:
    """What `torch.library.register_autograd` does, for `torch.func.grad` and its kin as well.

    That makes an `autograd.Function`, which they refuse inside of an operator: there one level of them runs at a time,
    as for operators of torch's own, and takes a function of one level.
    """
    operator = getattr(torch.ops.vibayes, name.removeprefix("vibayes::")).default

    def run(keys: Any, given: tuple[Any, ...]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *given)

    def forward(ctx: Any, keys: Any, *given: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            with torch.enable_grad():  # it is off in here, and levels further out want it
                found = run(keys, given)
        else:
            found = run(keys, given)
        save(ctx, given, found)
        return found

    def gradients(ctx: Any, *g: Tensor | None) -> tuple[Any, ...]:
        found = backward(ctx, *g)
        return (None, *found) if isinstance(found, tuple) else (None, found)

    parts = {"forward": staticmethod(forward), "backward": staticmethod(gradients)}
    function: Any = type(f"{operator._opname}_function", (_SingleLevelFunction,), parts)

    def dispatch(keys: Any, *given: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(given)
        if not (torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in given)):
            return run(keys, given)
        if not torch._C._are_functorch_transforms_active():
            return function.apply(keys, *given)
        with enable_single_level_autograd_function():
            return function.apply(keys, *given)

    _LIBRARY.impl(operator, dispatch, "Autograd", with_keyset=True)


def _refuse_tangents(given: tuple[Any, ...]) -> None:
    """Forward-mode differentiation would take what an operator makes for constant."""
    unpack: Any = forward_ad.unpack_dual
    if any(isinstance(t, Tensor) and unpack(t).tangent is not None for t in given):
        raise NotImplementedError(
            "vibayes models are differentiated backwards: use torch.func.grad, vjp or jacrev instead of jvp or jacfwd, "
            "and jacrev(jacrev(f)) instead of hessian(f)."
        )


def batch_first(info: Any, in_dims: tuple[int | None, ...], *given: Tensor | None) -> list[Any]:
    """The arguments of an operator, in its rule for `vmap`, all with the axis in front; what has none is repeated."""
    return [
        t if t is None else t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(given, in_dims, strict=True)
    ]


def flat(*given: Tensor, axes: int = 2) -> list[Tensor]:
    """With one axis for all of the batch; `axes` are those behind it."""
    return [t.reshape(math.prod(t.shape[:-axes]), *t.shape[-axes:]) for t in given]
