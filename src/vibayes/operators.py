"""What our library operators share: how batches reach them."""

import math
from typing import Any

from torch import Tensor

__all__ = ["batch_first", "flat"]


def batch_first(info: Any, in_dims: tuple[int | None, ...], *given: Tensor | None) -> list[Any]:
    """The arguments of an operator, in its rule for `vmap`, all with the axis in front; what has none is repeated."""
    return [
        t if t is None else t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(given, in_dims, strict=True)
    ]


def flat(*given: Tensor, axes: int = 2) -> list[Tensor]:
    """With one axis for all of the batch; `axes` are those behind it."""
    return [t.reshape(math.prod(t.shape[:-axes]), *t.shape[-axes:]) for t in given]
