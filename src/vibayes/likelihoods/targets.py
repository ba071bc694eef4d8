"""Checks of targets: what a likelihood can explain, and errors that say which rows it cannot."""

import torch
from torch import Tensor

from vibayes.errors import DataError, ShapeError

__all__ = ["binary_targets", "class_targets", "count_targets", "real_targets"]


def _as_columns(y: Tensor, n_targets: int | None) -> Tensor:
    """`[N]` or `[N, P]` as a floating `[N, P]`, with NaN and infinity refused."""
    y = torch.as_tensor(y)
    if y.is_complex():
        raise DataError(f"Targets must be real numbers, got dtype {y.dtype}. Pass y.real or two columns.")
    if y.ndim not in (1, 2):
        raise ShapeError(f"Targets must have shape [N] or [N, P], got {list(y.shape)}. Reshape with y.reshape(N, -1).")
    if y.numel() == 0:
        raise DataError(f"Targets are empty: shape {list(y.shape)}. Pass at least one row.")
    if not y.is_floating_point():
        y = y.to(torch.get_default_dtype())
    columns = y if y.ndim == 2 else y[:, None]
    if n_targets is not None and columns.shape[1] != n_targets:
        raise ShapeError(
            f"Expected {n_targets} target(s) per row, got targets of shape {list(y.shape)}. "
            "Change the width of the network's last layer or the columns of y."
        )
    _refuse(
        columns,
        ~torch.isfinite(columns),
        "NaN or infinite",
        "Remove those rows or fill in the missing values.",
    )
    return columns


def _refuse(y: Tensor, bad: Tensor, what: str, remedy: str) -> None:
    rows = bad.reshape(len(bad), -1).any(1).nonzero()
    if len(rows):
        row = int(rows[0])
        raise DataError(
            f"{int(bad.sum())} of {y.numel()} targets are {what}, first in row {row}: {y[row].tolist()}. " + remedy
        )


def real_targets(y: Tensor, n_targets: int | None = None) -> Tensor:
    """Finite numbers, `[N]` or `[N, P]` -> floating `[N, P]`.

    >>> real_targets(torch.tensor([1, 2])).shape
    torch.Size([2, 1])
    """
    return _as_columns(y, n_targets)


def binary_targets(y: Tensor, n_targets: int | None = None) -> Tensor:
    """Booleans or zeros and ones, `[N]` or `[N, P]` -> floating `[N, P]` of 0 and 1."""
    columns = _as_columns(y, n_targets)
    remedy = "Code the outcomes as 0 and 1, for instance y > 0 for -1 and 1; Categorical() takes more classes."
    _refuse(columns, (columns != 0) & (columns != 1), "neither 0 nor 1", remedy)
    return columns


def class_targets(y: Tensor, n_targets: int | None = None) -> Tensor:
    """Class numbers `0, ..., C - 1`, one per row: `[N]` -> long `[N]`."""
    y = torch.as_tensor(y)
    if y.ndim != 1:
        raise ShapeError(
            f"Class targets must have shape [N], got {list(y.shape)}. "
            "Use y.squeeze(1) for a single column, y.argmax(1) for one-hot rows."
        )
    columns = _as_columns(y, None)[:, 0]
    _refuse(columns, columns != columns.round(), "not whole numbers", "Classes are numbered 0, 1, ..., C - 1.")
    _refuse(columns, columns < 0, "negative", "Number the classes from 0; drop the rows without a label.")
    if n_targets is not None:
        remedy = f"Number them 0 to {n_targets - 1}, or widen the network's last layer."
        _refuse(columns, columns >= n_targets, f"beyond the {n_targets} classes of the model", remedy)
    return y.long()


def count_targets(y: Tensor, n_targets: int | None = None) -> Tensor:
    """Counts `0, 1, 2, ...`, `[N]` or `[N, P]` -> floating `[N, P]`."""
    columns = _as_columns(y, n_targets)
    _refuse(
        columns,
        (columns < 0) | (columns != columns.round()),
        "not counts (whole numbers from 0)",
        "Use Gaussian() or StudentT() for targets that are not counts.",
    )
    return columns
