"""The columns to be predicted: numbers, or one column of classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vibayes.errors import ConfigurationError, DataError
from vibayes.tables.cells import (
    MOSTLY,
    NOTHING,
    as_text,
    count,
    is_texts,
    is_yes_no,
    needs_text,
    nested,
)
from vibayes.tables.numbers import FORMS, as_numbers, learn_form, marked_numbers
from vibayes.tables.reading import did_you_mean

__all__ = ["TASKS", "Target", "learn_target"]

TASKS = ("regression", "classification")
KINDS = ("regression", "binary", "classes")
MAX_CLASSES = 100
# Numbers with at most this many different values are taken for classes; 0 and 1, say.
FEW_NUMBERS = 2
# Said where classes have missing values.
COUNT_AS_EMPTY = " Cells that say None, NA or unknown count as empty; if one names a class, write it otherwise."


@dataclass(frozen=True)
class Target:
    """What is to be predicted.

    Attributes:
        names: the columns.
        kind: `"regression"`, `"binary"` or `"classes"`.
        labels: of classes, the name of each, in the order of their numbers.
        note: what was decided, in a sentence.
        forms: of numbers, how each column's are written (`tables.numbers.learn_form`).
    """

    names: tuple[str, ...]
    kind: str
    labels: tuple[str, ...] = ()
    note: str = ""
    forms: tuple[str, ...] = ()

    @property
    def task(self) -> str:
        """`"regression"` or `"classification"`."""
        return "regression" if self.kind == "regression" else "classification"

    @property
    def width(self) -> int:
        """How many functions a model needs for it."""
        return len(self.labels) if self.kind == "classes" else len(self.names)

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that `read_table` must read as text, for their classes or marked numbers to be found."""
        return self.names if needs_text(self.labels) or any(self.forms) else ()

    def numbers(self, frame: Any) -> list[tuple[NDArray[np.float64], NDArray[Any]]]:
        """Of a regression's columns, the numbers (NaN where there is none) and the entries that are no numbers."""
        forms = self.forms or [""] * len(self.names)
        return [as_numbers(frame[name], form) for name, form in zip(self.names, forms, strict=True)]

    def encode(self, frame: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Targets and which rows have them: `[N, P]` numbers (`[N]` for one column), or `[N]` class numbers.

        Where a row has none, the number stands for nothing.
        """
        for name in self.names:
            _refuse_nested(frame, name)
        if self.kind == "regression":
            columns = np.column_stack([values for values, _ in self.numbers(frame)])
            known: NDArray[np.bool_] = np.asarray(np.isfinite(columns).all(1))
            values = np.where(known[:, None], columns, 0.0)
            return (values[:, 0] if len(self.names) == 1 else values), known
        text = as_text(frame[self.names[0]])
        number = {label: code for code, label in enumerate(self.labels)}
        codes = np.array([number.get(value, -1) for value in text], dtype=np.int64)
        return np.where(codes < 0, 0, codes), codes >= 0

    def odd(self, frame: Any) -> str:
        """In brackets, how many entries are there but are no target: no finite numbers, or classes not known."""
        if self.kind == "regression":
            entries = np.concatenate([odd for _, odd in self.numbers(frame)])
            what = "not a finite number"
        else:
            text = as_text(frame[self.names[0]])
            entries = text[~np.isin(text, [*self.labels, NOTHING])]
            what = "not a class of the model"
        if not len(entries):
            return ""
        return f" ({count(len(entries), 'entry', 'entries')} {what}, such as {str(entries[0])!r})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "names": list(self.names),
            "kind": self.kind,
            "labels": list(self.labels),
            "note": self.note,
            "forms": list(self.forms),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Target":
        """The inverse of `to_dict`."""
        names, kind, labels, note = (values.get(key, "") for key in ("names", "kind", "labels", "note"))
        forms = values.get("forms", ())
        fine = is_texts(names) and names and kind in KINDS and is_texts(labels) and isinstance(note, str)
        if not fine or not is_texts(forms) or not all(map(FORMS.fullmatch, forms)):
            raise DataError(f"This is not the description of a target: {values!r}.")
        return cls(tuple(names), kind, tuple(labels), note, tuple(forms))


def learn_target(frame: Any, names: Sequence[str], task: str | None = None, decimal: str = "") -> Target:
    """Find out what kind of target some columns are.

    Text and yes-or-no columns are classes, and so are numbers with two different values; other numbers are regression.
    Several columns must all be numbers.

    Args:
        frame: the table.
        names: the target columns.
        task: `"regression"` or `"classification"`, where it should not be guessed.
        decimal: the decimal mark of the table's numbers, where it is known.

    >>> import pandas
    >>> learn_target(pandas.DataFrame({"y": ["no", "yes", "no"]}), ["y"]).labels
    ('no', 'yes')
    """
    if task is not None and task not in TASKS:
        raise ConfigurationError(f"The task must be regression or classification, got {task!r}.")
    if not names:
        raise ConfigurationError("Name the column to predict: --target NAME.")
    if len(set(names)) < len(names):
        raise ConfigurationError(f"A target was named twice: {', '.join(names)}.")
    for name in names:
        if name not in frame.columns:
            there = [str(column) for column in frame.columns]
            shown = ", ".join(there[:12]) + (", ..." if len(there) > 12 else "")
            hint = did_you_mean(name, there)
            raise DataError(f"The table has no column {name!r} to predict.{hint} Its columns are: {shown}.")
        if int(frame[name].notna().sum()) == 0:
            raise DataError(f"Every value of the target {name!r} is missing.")
        _refuse_nested(frame, name)
    forms = tuple(learn_form(frame[name], decimal) for name in names)
    numeric = [_is_numeric(frame[name], form) for name, form in zip(names, forms, strict=True)]
    if task is None:
        few = len(names) == 1 and numeric[0] and frame[names[0]].nunique() <= FEW_NUMBERS
        task = "classification" if not all(numeric) or few else "regression"
        if few:
            _refuse_constant(frame, names[0], forms[0])
    if task == "classification":
        return _classes(frame, names)
    for name, form, number in zip(names, forms, numeric, strict=True):
        if not number:
            hint = _why_no_numbers(frame[name])
            raise DataError(f"The target {name!r} is not a column of numbers, so it cannot be a regression's.{hint}")
        _refuse_constant(frame, name, form)
    return Target(tuple(names), "regression", note="Numbers, so this is regression.", forms=forms)


def _is_numeric(series: Any, form: str) -> bool:
    if is_yes_no(series):
        return False
    if series.dtype.kind in "iuf":
        return True
    if series.dtype.kind not in "OSU" and str(series.dtype) not in ("string", "str", "category"):
        return False
    values, _ = as_numbers(series, form)
    return bool(np.isfinite(values).sum() >= MOSTLY * int(series.notna().sum()))


def _why_no_numbers(series: Any) -> str:
    """A hint at what keeps a column of text from being numbers; nothing for dates, say."""
    odd, known = as_numbers(series)[1], int(series.notna().sum())
    if not len(odd):
        return ""
    such = repr(str(odd[0]))
    if len(odd) > known / 2:
        return f" If they are numbers with a unit, keep only the numbers in the cells; one is {such}."
    return f" {len(odd):,} of its {known:,} entries are no numbers, such as {such}: correct them or leave them empty."


def _refuse_nested(frame: Any, name: str) -> None:
    if found := nested(frame[name]):
        raise DataError(f"The target {name!r} holds {found}; numbers or classes are expected.")


def _refuse_constant(frame: Any, name: str, form: str) -> None:
    values = as_numbers(frame[name], form)[0]
    values = values[np.isfinite(values)]
    if len(values) == 0:
        raise DataError(f"No value of the target {name!r} is a finite number.")
    if values.min() == values.max():
        raise DataError(f"Every value of the target {name!r} is {values[0]:g}; there is nothing to learn.")


def _classes(frame: Any, names: Sequence[str]) -> Target:
    if len(names) > 1:
        raise DataError(
            f"Several targets must all be numbers; among {', '.join(names)} are classes. Predict one column of classes "
            "at a time."
        )
    name = names[0]
    if frame[name].dtype.kind == "M":
        raise DataError(f"The target {name!r} holds dates. Make them numbers (days since some date) first.")
    text = as_text(frame[name])
    values, counts = np.unique(text[text != NOTHING], return_counts=True)
    if len(values) < 2:
        only = repr(str(values[0])) if len(values) else "nothing"
        hint = COUNT_AS_EMPTY if NOTHING in text else ""
        raise DataError(f"The target {name!r} has one class only, {only}; there is nothing to tell apart.{hint}")
    many = len(values) > MAX_CLASSES or (len(values) > 2 and len(values) > 0.5 * counts.sum())
    if many and (hint := marked_numbers(frame[name])):
        raise DataError(f"The target {name!r} cannot be used: {hint}.")
    if len(values) > MAX_CLASSES:
        numbers = " If they are numbers, give --task regression."
        hint = numbers if _is_numeric(frame[name], learn_form(frame[name], ".")) else _why_no_numbers(frame[name])
        raise DataError(
            f"The target {name!r} has {len(values)} classes ({count(len(text), 'row')}); at most {MAX_CLASSES} are "
            f"supported. Join rare ones.{hint}"
        )
    if len(values) > 2 and len(values) > 0.5 * counts.sum():
        raise DataError(
            f"The target {name!r} has {len(values)} classes in {count(counts.sum(), 'row')}: too few rows for each."
        )
    labels = tuple(str(value) for value in values)
    shown = ", ".join(f"{label} ({number:,})" for label, number in list(zip(labels, counts, strict=True))[:6])
    more = f" and {len(labels) - 6} more" if len(labels) > 6 else ""
    return Target(
        (name,),
        "binary" if len(labels) == 2 else "classes",
        labels,
        f"Classes, so this is classification: {shown}{more}.",
    )
