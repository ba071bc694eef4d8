"""How many rows and draws go through a network at once, so that memory stays bounded."""

from collections.abc import Iterable

from torch import Tensor

from vibayes.layers.base import Layer

__all__ = ["joint_draws", "rows_at_once"]

# How many rows of a table times draws one pass may hold.
_ROWS_PER_PASS = 50_000
# How many numbers the covariances of one layer's weights may take in it.
_NUMBERS_PER_PASS = 20_000_000
# How many those of a layer's values at rows that are drawn jointly may take.
_JOINT_NUMBERS_PER_PASS = 100_000_000


def rows_at_once(
    rows: Tensor, batch_size: int | None, n_samples: int, n_inducing: int, layers: Iterable[Layer]
) -> tuple[int, int | None]:
    """Of rows that need not be drawn jointly: how many go through at once, and how many draws (None: all of them).

    Args:
        rows: all rows.
        batch_size: how many rows are to go through at once; None for as many as there is room for.
        n_samples: how many draws there are.
        n_inducing: how many inducing rows go through in front of them, in every pass.
        layers: the network's.
    """
    wide = max(1, rows[0].numel() // 100)  # images take more room than rows of a table
    if batch_size is None:
        batch_size = max(1, _ROWS_PER_PASS // n_samples // wide, n_inducing)
    # inducing rows may be the most of it: then draws come a few at a time
    few = max(1, _ROWS_PER_PASS // wide // n_inducing) if n_inducing >= batch_size else None
    return batch_size, _least(few, _draws_with_covariances(n_inducing, layers))


def joint_draws(rows: Tensor, n_inducing: int, layers: Iterable[Layer]) -> int | None:
    """How many draws that are joint over all rows go through at once; None for all of them.

    One layer of processes is left alone: what its draws share, such as the factor of one covariance, is then made once.
    Behind it every draw has a covariance of its own.
    """
    layers, size = list(layers), len(rows) + n_inducing
    wide = rows[0].numel() // 100 if rows.ndim > 2 else 0
    few = max(1, _ROWS_PER_PASS // wide // size) if wide else None
    if sum(hasattr(layer, "kernel") for layer in layers) > 1:
        few = _least(few, max(1, _JOINT_NUMBERS_PER_PASS // size**2))
    return _least(few, _draws_with_covariances(n_inducing, layers))


def _draws_with_covariances(n_inducing: int, layers: Iterable[Layer]) -> int | None:
    """How many draws there is room for, each with a covariance of weights; None where these are small."""
    widest = max((layer.covariance_size(n_inducing) for layer in layers), default=0)
    return max(1, _NUMBERS_PER_PASS // widest**2) if widest > 500 else None


def _least(*numbers: int | None) -> int | None:
    return min((n for n in numbers if n is not None), default=None)
