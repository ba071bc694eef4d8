"""One column of a table: what it holds, and how it becomes numbers."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vibayes.errors import DataError
from vibayes.tables.cells import (
    MOSTLY,
    NOTHING,
    OTHER,
    as_dates,
    as_text,
    count,
    is_texts,
    is_written_otherwise,
    is_yes_no,
    learn_day_first,
    looks_like_dates,
    nested,
    with_year_last,
)
from vibayes.tables.numbers import FORMS, as_numbers, learn_form, marked_numbers, mixed_numbers, read_as

__all__ = ["KINDS", "Column", "learn_column"]

F64 = NDArray[np.float64]
KINDS = ("number", "category", "date", "dropped")
# A category keeps this many levels at most; rarer ones share one level.
MAX_LEVELS = 30
# Text that differs in more than this share of the rows is taken for an identifier, but not with so few levels.
IDENTIFIER = 0.7
FEW_LEVELS = 5
_YEAR = 365.2425


@dataclass(frozen=True)
class Column:
    """How one column is encoded; plain values, so that it goes to JSON and back.

    Attributes:
        name: its name in the table.
        kind: `"number"`, `"category"`, `"date"` or `"dropped"`.
        features: names of the numbers it becomes.
        form: of numbers with marks such as "$1,250", how they are written (`tables.numbers.learn_form`).
        fill: what stands for a missing number (the median), or a missing date (the median, days since 1970).
        flags_missing: whether a feature says that the value was missing.
        levels: of a category.
        first: of a date, the day (since 1970) from which time is counted.
        parts: of a date, which periodic parts it has: `"season"`, `"week"`, `"day"`.
        day_first: of a date with the year last, whether the day comes first; None where training did not tell.
        note: what was done, in a sentence.
    """

    name: str
    kind: str
    features: tuple[str, ...] = ()
    form: str = ""
    fill: float = 0.0
    flags_missing: bool = False
    levels: tuple[str, ...] = ()
    first: float = 0.0
    parts: tuple[str, ...] = ()
    day_first: bool | None = None
    note: str = field(default="", compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Column":
        """The inverse of `to_dict`."""
        try:
            given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            made = cls(**given)
        except (AttributeError, TypeError) as error:
            raise DataError(f"This is not the description of a column: {error}.") from error
        wrong = [
            *(key for key in ("name", "kind", "note") if not isinstance(given.get(key, ""), str)),
            *(key for key in ("fill", "first") if not isinstance(given.get(key, 0.0), int | float)),
            *(key for key in ("flags_missing", "day_first") if not isinstance(given.get(key), bool | None)),
            *(key for key in ("features", "levels", "parts") if not is_texts(given.get(key, ()))),
        ]
        if wrong:
            raise DataError(f"This is not the description of a column: {wrong[0]} is {given[wrong[0]]!r}.")
        if not isinstance(made.form, str) or not FORMS.fullmatch(made.form):
            raise DataError(f"This is not the description of a column: form is {made.form!r}.")
        if made.kind not in KINDS:
            raise DataError(f"A column's kind must be one of {', '.join(KINDS)}; found {made.kind!r}.")
        return made

    def encode(self, series: Any) -> tuple[F64, list[str]]:
        """The numbers `[N, features]` of a column, and what is worth saying about it."""
        if found := nested(series):
            raise DataError(f"Column {self.name!r} holds {found}; a {self.kind} is expected in every cell.")
        if self.kind == "number":
            return self._encode_numbers(series)
        if self.kind == "date":
            return self._encode_dates(series)
        if self.kind == "category":
            return self._encode_categories(series)
        return np.empty((len(series), 0)), []

    def _filled(self, values: F64) -> tuple[F64, list[F64], list[str]]:
        """Missing values filled, the flag where there is one, and a note where nobody expected missing values."""
        missing = ~np.isfinite(values)
        notes = []
        if missing.any() and not self.flags_missing:
            notes.append(
                f"{self.name!r}: {count(missing.sum(), 'missing value')}, of which there were none in training, "
                "replaced by the median."
            )
        flag = [missing.astype(float)] if self.flags_missing else []
        return np.where(missing, self.fill, values), flag, notes

    def _encode_numbers(self, series: Any) -> tuple[F64, list[str]]:
        values, odd = as_numbers(series, self.form)
        if len(odd) and odd.size > 0.5 * max(int(series.notna().sum()), 1):
            raise DataError(
                f"Column {self.name!r} held numbers{self._marks()} in training, but here most of its entries are not, "
                f"such as {str(odd[0])!r}. Give the same quantity in the same form."
            )
        filled, flag, notes = self._filled(values)
        if len(odd):
            notes.append(f"{self.name!r}: {count(len(odd), 'entry', 'entries')} not a number, such as {str(odd[0])!r}.")
        return np.column_stack([filled, *flag]), notes

    def _marks(self) -> str:
        """With which signs, in words."""
        return f" with {self.form[:-1]}" if len(self.form) > 1 else ""

    def _encode_dates(self, series: Any) -> tuple[F64, list[str]]:
        days, odd = as_dates(series, self.day_first)
        if len(odd) > 0.5 * max(int(series.notna().sum()), 1):
            raise DataError(
                f"Column {self.name!r} held dates in training, but here most entries are not dates, such as "
                f"{str(odd[0])!r}. Write dates as 2024-12-31."
            )
        filled, flag, notes = self._filled(days)
        if self.day_first is not None and series.dtype.kind != "M":
            parts = with_year_last(series)
            against = series[((parts["second"] if self.day_first else parts["first"]) > 12).to_numpy()]
            if len(against):
                order = "day" if self.day_first else "month"
                notes.append(
                    f"{self.name!r}: {count(len(against), 'date')} such as {str(against.iloc[0])!r} cannot have the "
                    f"{order} first, as training found for this column; others may be misread. Write dates as "
                    "2024-12-31."
                )
        made = [(filled - self.first) / _YEAR]
        for part, period in (("season", _YEAR), ("week", 7.0), ("day", 1.0)):
            if part in self.parts:
                made += [np.sin(2 * np.pi * filled / period), np.cos(2 * np.pi * filled / period)]
        return np.column_stack([*made, *flag]), notes

    def _encode_categories(self, series: Any) -> tuple[F64, list[str]]:
        text = as_text(series)
        known = {level: number for number, level in enumerate(self.levels)}
        elsewhere = known.get(OTHER, -1)
        codes = np.array([known.get(value, elsewhere) for value in text], dtype=int)
        notes = []
        taken = {}
        for value in {str(value) for value in text[codes == -1]}:
            same = [level for level in self.levels if is_written_otherwise(value, level)]
            if len(same) == 1:
                taken[value] = same[0]
        if taken:
            other = np.isin(text, list(taken))
            codes[other] = [known[taken[value]] for value in text[other]]
            shown = ", ".join(f"{value!r} for {level!r}" for value, level in sorted(taken.items())[:3])
            notes.append(f"{self.name!r}: {count(other.sum(), 'row')} with a level written otherwise ({shown}).")
        unseen = sorted({value for value, code in zip(text, codes, strict=True) if code == -1})
        if unseen:
            many = int((codes == -1).sum())
            shown = ", ".join(repr(str(value)) for value in unseen[:3])
            notes.append(f"{self.name!r}: {count(many, 'row')} with a value not seen in training ({shown}).")
        if len(self.levels) == 2 and len(self.features) == 1:
            return np.where(codes == -1, 0.5, codes.astype(float))[:, None], notes
        return (codes[:, None] == np.arange(len(self.levels))).astype(float), notes


def learn_column(name: str, series: Any, decimal: str = "") -> Column:
    """Decide what a column holds and how it is encoded, from the rows of the training table.

    Args:
        name: of the column.
        series: its cells.
        decimal: the decimal mark of the table's numbers, where it is known.

    >>> import pandas
    >>> learn_column("colour", pandas.Series(["red", "blue", "red", None])).features
    ('colour=(missing)', 'colour=blue', 'colour=red')
    """
    known = int(series.notna().sum())
    if known == 0:
        return Column(name, "dropped", note="left out: every value is missing")
    if found := nested(series):
        return Column(name, "dropped", note=f"left out: its cells are {found}, which are not supported")
    if series.dtype.kind in "iuf":
        return _learn_number(name, series)
    if series.dtype.kind == "M":
        return _learn_date(name, series)
    if series.dtype.kind in "mc":
        return Column(name, "dropped", note=f"left out: values of type {series.dtype} are not supported")
    if not is_yes_no(series):
        form = learn_form(series, decimal)
        if np.isfinite(as_numbers(series, form)[0]).sum() >= MOSTLY * known:
            return _learn_number(name, series, form)
        if looks_like_dates(series) and np.isfinite(as_dates(series)[0]).sum() >= MOSTLY * known:
            return _learn_date(name, series)
    return _learn_category(name, series)


def _learn_number(name: str, series: Any, form: str = "") -> Column:
    values, odd = as_numbers(series, form)
    there = values[np.isfinite(values)]
    if len(there) == 0:
        return Column(name, "dropped", note="left out: no value is a finite number")
    missing = len(values) - len(there)
    if there.min() == there.max() and not missing:
        return Column(name, "dropped", note=f"left out: every value is {there[0]:g}")
    notes = [f"number, {there.min():.4g} to {there.max():.4g}"]
    if form:
        notes.append(read_as(series, form))
    if len(odd):
        shown = ", ".join(repr(str(value)) for value in dict.fromkeys(odd[:3]))
        verb = "is no finite number and counts" if len(odd) == 1 else "are no finite numbers and count"
        notes.append(f"{count(len(odd), 'entry', 'entries')} ({shown}) {verb} as missing")
    if missing:
        notes.append(
            f"{count(missing, 'missing value')} replaced by the median {float(np.median(there)):.4g}, and marked in a "
            "column of its own"
        )
    features = (name, f"{name} is missing") if missing else (name,)
    return Column(
        name, "number", features, form=form, fill=float(np.median(there)), flags_missing=bool(missing),
        note="; ".join(notes),
    )  # fmt: skip


def _learn_date(name: str, series: Any) -> Column:
    day_first = None if series.dtype.kind == "M" else learn_day_first(series)
    days, odd = as_dates(series, day_first)
    there = days[np.isfinite(days)]
    missing = len(days) - len(there)
    span = float(there.max() - there.min())
    if span == 0.0 and not missing:
        return Column(name, "dropped", note="left out: every date is the same")
    parts = []
    if span >= _YEAR:
        parts.append("season")
    if span >= 28 and len(np.unique(np.floor(there) % 7)) > 3:
        parts.append("week")
    if len(np.unique(np.round((there % 1.0) * 24.0))) > 3:
        parts.append("day")
    features = [f"{name} (years)"]
    words = {"season": "time of year", "week": "day of week", "day": "time of day"}
    for part in parts:
        features += [f"{name} {words[part]} sin", f"{name} {words[part]} cos"]
    note = "date: years since the first one" + "".join(f", {words[part]}" for part in parts)
    if missing:
        features.append(f"{name} is missing")
        note += f"; {count(missing, 'missing date')} replaced by the median date, and marked in a column of its own"
    if len(odd):
        note += f"; {count(len(odd), 'entry', 'entries')} not readable as a date, such as {str(odd[0])!r}"
    return Column(
        name, "date", tuple(features), fill=float(np.median(there)), flags_missing=bool(missing),
        first=float(there.min()), parts=tuple(parts), day_first=day_first, note=note,
    )  # fmt: skip


def _learn_category(name: str, series: Any) -> Column:
    text = as_text(series)
    values, counts = np.unique(text, return_counts=True)
    if len(values) == 1:
        return Column(name, "dropped", note=f"left out: every value is {str(values[0])!r}")
    if len(values) > FEW_LEVELS and len(values) > IDENTIFIER * len(text):
        why = f"{len(values)} different texts in {len(text)} rows, so it names the rows"
        return Column(name, "dropped", note=f"left out: {marked_numbers(series) or mixed_numbers(series) or why}")
    note, hint = f"category of {len(values)} levels", marked_numbers(series)
    if len(values) > MAX_LEVELS:
        hint = hint or mixed_numbers(series)
        order = np.argsort(-counts, kind="stable")
        kept = sorted(str(value) for value in values[order[: MAX_LEVELS - 1]])
        levels = (*kept, OTHER)
        note += f", the {MAX_LEVELS - 1} most frequent ones kept and the others joined"
    else:
        levels = tuple(str(value) for value in values)
    note += f"; {hint}" if hint else ""
    if NOTHING in levels:
        note += f"; {count(int(counts[list(values).index(NOTHING)]), 'missing value')} as a level of its own"
    features = (f"{name}={levels[1]}",) if len(levels) == 2 else tuple(f"{name}={level}" for level in levels)
    return Column(name, "category", features, levels=levels, note=note)
