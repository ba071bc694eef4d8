"""Starting values from data: which rows they look at, what they refuse, and function values that fit targets."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vibayes.kernels.deep import check_features
from vibayes.layers.base import Layer
from vibayes.trainable import Batch

__all__ = ["checking_features", "latent_targets", "some_rows"]

# How many training rows data-dependent starts look at.
_START_ROWS = 20_000


def some_rows(batch: Batch) -> tuple[Tensor, Tensor]:
    """Inputs and targets of so many rows as starts need, chosen at random, since rows may be sorted."""
    x, y = batch.x, batch.y
    if len(x) <= _START_ROWS:
        return x, y
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:_START_ROWS].to(x.device)
    return x[chosen], y[chosen]


@contextmanager
def checking_features(entry: Layer, first: nn.Module, x: Tensor) -> Iterator[None]:
    """Refuse what a plain network in front of the first Bayesian layer makes of the rows, where it is of no use."""

    def check(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        check_features(arguments[0], f"the network in front of layer {entry.name!r}", x)

    hook = None if entry is first else entry.register_forward_pre_hook(check)
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


def latent_targets(y: Tensor, kind: str, width: int) -> Tensor:
    """Function values `[M, F]` that fit targets of this kind."""
    if kind == "classes":
        return nn.functional.one_hot(y, width).to(torch.get_default_dtype())
    if kind == "binary":
        return 2.0 * y - 1.0
    return (y + 0.5).log() if kind == "counts" else y
