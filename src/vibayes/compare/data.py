"""A table ready for a comparison: encoded, with rows held out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vibayes.compare.families import Problem, rounding
from vibayes.errors import ConfigurationError, DataError
from vibayes.families import ROWS_PER_LENGTHSCALE
from vibayes.tables import Encoder, Table, Target
from vibayes.tables.cells import count
from vibayes.tables.numbers import read_as
from vibayes.tables.reading import did_you_mean
from vibayes.tables.targets import COUNT_AS_EMPTY, learn_target

__all__ = ["MAX_TEST_ROWS", "Data", "prepare"]

MIN_ROWS = 10
MAX_TEST_ROWS = 10_000
# A column whose correlation with a target is this close to one is the target, in other units.
SAME = 1e-6
# Steps of a target beyond this share of its standard deviation are worth a note.
COARSE = 0.1
# Whole numbers with at most so many different values may be names of classes, which is worth a note, too.
FEW = 10


@dataclass
class Data:
    """A table ready for models.

    Attributes:
        table: the table.
        encoder: how inputs become numbers; learned from rows that train, and nothing else.
        target: what is predicted.
        x: `[rows, D]`, every row of the table.
        y: the targets of all rows; rows without a target hold zeros.
        known: which rows have a target.
        train: numbers of the rows that train.
        test: numbers of the held-out rows.
        notes: what was decided, in sentences.
    """

    table: Table
    encoder: Encoder
    target: Target
    x: Tensor
    y: Tensor
    known: NDArray[np.bool_]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    notes: list[str] = field(default_factory=list)

    def part(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some rows."""
        chosen = torch.as_tensor(rows)
        return self.x[chosen], self.y[chosen]

    def problem(self, rows: NDArray[np.int64], minutes: float = math.inf) -> Problem:
        """What models learn from some rows."""
        x, y = self.part(rows)
        return Problem(x, y, self.target.kind, self.target.width, minutes)


def prepare(
    table: Table,
    targets: Sequence[str],
    *,
    task: str | None = None,
    ignore: Sequence[str] = (),
    test: float | NDArray[np.int64] | None = None,
    seed: int = 0,
) -> Data:
    """Encode a table and hold out rows.

    Args:
        table: the table.
        targets: the columns to predict.
        task: `"regression"` or `"classification"`, where it should not be guessed.
        ignore: columns not to be used.
        test: the share of rows to hold out, or their numbers; by default a tenth, at least 20 and at most 10,000 rows,
            and a fifth of tables with fewer than 100 rows. Zero holds out nothing.
        seed: which rows.
    """
    frame = table.frame
    for name in (*targets, *ignore):
        if name in table.repeated:
            raise DataError(
                f"The name {name!r} stands over several columns, so it does not say which one is meant. Rename them."
            )
    for name in ignore:
        if name in targets:
            raise ConfigurationError(f"The column {name!r} cannot be both the target and ignored.")
        if name not in frame.columns:
            hint = did_you_mean(name, [str(column) for column in frame.columns])
            raise DataError(f"The table has no column {name!r} to ignore.{hint}")
    target = learn_target(frame, list(targets), task, table.decimal)
    y, known = target.encode(frame)
    notes = list(table.notes)
    notes += [
        f"{name}: {read_as(frame[name], form)}." for name, form in zip(targets, target.forms, strict=False) if form
    ]
    if not known.all():
        notes.append(
            f"{count((~known).sum(), 'row')} without a target{target.odd(frame)} cannot train or test, but predictions "
            f"are made.{COUNT_AS_EMPTY if target.task == 'classification' else ''}"
        )
    rows = np.flatnonzero(known)
    if len(rows) < MIN_ROWS:
        raise DataError(f"The table has {count(len(rows), 'row')} with a target; at least {MIN_ROWS} are needed.")
    train_rows, test_rows = _split(rows, y, target.kind, test, seed)
    encoder = Encoder.learn(frame.iloc[train_rows], leave_out=(*targets, *ignore), decimal=table.decimal)
    encoded = encoder.encode(frame)
    notes += encoded.notes + _copies(encoded.x, y, train_rows, test_rows)
    notes += _leaks(encoder, encoded.x[train_rows], y[train_rows], target)
    notes += _wide(encoded.x[train_rows])
    if target.kind == "regression":
        notes += _coarse(y[train_rows], target.names)
        notes += _few(y[known], target.names) if task is None else []
    return Data(
        table, encoder, target, torch.as_tensor(encoded.x), torch.as_tensor(y), known, train_rows, test_rows, notes
    )


def _wide(x: NDArray[Any]) -> list[str]:
    """A note where there are too few rows for a lengthscale of every input."""
    n, d = x.shape
    if d < 2 or n >= ROWS_PER_LENGTHSCALE * d:
        return []
    return [
        f"{count(n, 'row')} for {d:,} inputs: kernels have one lengthscale for all of them, as one for each takes "
        f"{ROWS_PER_LENGTHSCALE} rows per input, or a prior (gp-two-scales). Columns that are known to say nothing are "
        "best left out with --ignore."
    ]


def _copies(x: NDArray[Any], y: NDArray[Any], train: NDArray[np.int64], test: NDArray[np.int64]) -> list[str]:
    """A note where held-out rows are copies of rows that train."""
    rows = np.ascontiguousarray(np.column_stack([x, y]))
    seen = {row.tobytes() for row in rows[train]}
    copies = sum(row.tobytes() in seen for row in rows[test])
    if not copies:
        return []
    what = "is a copy" if copies == 1 else "are copies"
    return [
        f"{copies} of the {count(len(test), 'held-out row')} {what} of rows that train, target included; for rows that "
        "are new, expect lower scores."
    ]


def _leaks(encoder: Encoder, x: NDArray[Any], y: NDArray[Any], target: Target) -> list[str]:
    """Notes on columns that are a target under another name: up to scale, or class by class."""
    same = _proportional if target.kind == "regression" else _one_to_one
    return [
        f"Column {column!r} alone tells {name} exactly. If it is made from {name}, or known only after it, scores say "
        "nothing about new rows: leave it out with --ignore."
        for column, where in encoder.slices().items()
        for name, values in zip(target.names, y.reshape(len(y), -1).T, strict=True)
        if same(x[:, where], values)
    ]


def _proportional(x: NDArray[Any], y: NDArray[Any]) -> bool:
    """Whether some column of `[N, D]` is `[N]` in other units."""
    with np.errstate(all="ignore"):  # of constants, and numbers beyond all measure
        x, y = x - x.mean(0), y - y.mean()
        correlations = (y @ x) / (np.linalg.norm(x, axis=0) * np.linalg.norm(y))
    return bool((np.abs(correlations) > 1.0 - SAME).any())


def _one_to_one(x: NDArray[Any], y: NDArray[Any]) -> bool:
    """Whether the rows of `[N, D]` are names of the classes `[N]`."""
    classes = len(np.unique(y))
    if len(np.unique(x[:1_000], axis=0)) > classes:  # most columns, of large tables, without sorting all rows
        return False
    return classes == len(np.unique(x, axis=0)) == len(np.unique(np.column_stack([x, y]), axis=0))


def _coarse(y: NDArray[Any], names: Sequence[str]) -> list[str]:
    """A note where a target was recorded in steps that are not small beside its spread."""
    notes = []
    for name, column in zip(names, torch.as_tensor(y).reshape(len(y), -1).unbind(1), strict=True):
        step = rounding(column)
        if step > COARSE * float(column.std()):
            notes.append(
                f"{name} is recorded in steps of {step:g}: no model's noise is let below the rounding error, a "
                f"standard deviation of {step / math.sqrt(12.0):.3g}."
            )
    return notes


def _few(y: NDArray[Any], names: Sequence[str]) -> list[str]:
    """A note where the numbers of a target may be names of classes."""
    values = np.unique(y)
    if len(names) > 1 or len(values) > FEW or (values % 1.0).any():
        return []
    shown = ", ".join(f"{value:g}" for value in values)
    return [f"{names[0]} is one of {shown}, taken as numbers; if they name classes, give --task classification."]


def _split(
    rows: NDArray[np.int64], y: NDArray[Any], kind: str, test: float | NDArray[np.int64] | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that train and rows that test; every class has its share of both."""
    if isinstance(test, np.ndarray):
        held = np.intersect1d(rows, test)
        rest = np.setdiff1d(rows, test)
        if len(held) == 0 or len(rest) < MIN_ROWS // 2:
            raise ConfigurationError("The numbers of test rows leave nothing to train on or nothing to test.")
        return rest, held
    n = len(rows)
    if test is None:
        size = min(max(20, round(0.1 * n)), MAX_TEST_ROWS) if n >= 100 else max(2, round(0.2 * n))
    else:
        if not 0.0 <= test < 1.0:
            raise ConfigurationError(f"The share of test rows must be at least 0 and below 1, got {test}.")
        size = round(test * n)
    random = np.random.RandomState(seed)
    if kind == "regression":
        order = random.permutation(rows)
        return np.sort(order[size:]), np.sort(order[:size])
    labels, counts = np.unique(y[rows], return_counts=True)
    members = [random.permutation(rows[y[rows] == label]) for label in labels]
    share = size * counts / n
    most = np.minimum(np.ceil(share).astype(int), counts - 1)
    sizes = np.minimum(share.astype(int), most)
    order = np.lexsort((random.permutation(len(labels)), sizes - share))  # largest remainders first, ties at random
    for place in order[sizes[order] < most[order]][: max(size - sizes.sum(), 0)]:
        sizes[place] += 1
    held = np.sort(np.concatenate([chosen[:some] for chosen, some in zip(members, sizes, strict=True)]))
    return np.setdiff1d(rows, held), held
