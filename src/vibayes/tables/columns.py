"""One column of a table: what it holds, and how it becomes numbers."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vibayes.errors import DataError
from vibayes.tables.reading import MISSING, needs_pandas

__all__ = ["KINDS", "Column", "as_dates", "as_numbers", "as_text", "count", "learn_column"]

F64 = NDArray[np.float64]
KINDS = ("number", "category", "date", "dropped")
# A column of text whose known cells are numbers (or dates) to at least this share is one of numbers (dates).
MOSTLY = 0.95
# A category keeps this many levels at most; rarer ones share one level.
MAX_LEVELS = 30
# Text that differs in more than this share of the rows is taken for an identifier.
IDENTIFIER = 0.7
OTHER = "(other)"
NOTHING = "(missing)"
_YEAR = 365.2425


@dataclass(frozen=True)
class Column:
    """How one column is encoded; plain values, so that it goes to JSON and back.

    Attributes:
        name: its name in the table.
        kind: `"number"`, `"category"`, `"date"` or `"dropped"`.
        features: names of the numbers it becomes.
        fill: what stands for a missing number (the median), or a missing date (the median, days since 1970).
        flags_missing: whether a feature says that the value was missing.
        levels: of a category.
        first: of a date, the day (since 1970) from which time is counted.
        parts: of a date, which periodic parts it has: `"season"`, `"week"`, `"day"`.
        note: what was done, in a sentence.
    """

    name: str
    kind: str
    features: tuple[str, ...] = ()
    fill: float = 0.0
    flags_missing: bool = False
    levels: tuple[str, ...] = ()
    first: float = 0.0
    parts: tuple[str, ...] = ()
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
        except TypeError as error:
            raise DataError(f"This is not the description of a column: {error}.") from error
        if made.kind not in KINDS:
            raise DataError(f"A column's kind must be one of {', '.join(KINDS)}; found {made.kind!r}.")
        return made

    def encode(self, series: Any) -> tuple[F64, list[str]]:
        """The numbers `[N, features]` of a column, and what is worth saying about it."""
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
        values, odd = as_numbers(series)
        if len(odd) and odd.size > 0.5 * max(int(series.notna().sum()), 1):
            raise DataError(
                f"Column {self.name!r} held numbers in training, but here most of its entries are not numbers, such "
                f"as {str(odd[0])!r}. Give the same quantity in the same form."
            )
        filled, flag, notes = self._filled(values)
        if len(odd):
            notes.append(f"{self.name!r}: {count(len(odd), 'entry', 'entries')} not a number, such as {str(odd[0])!r}.")
        return np.column_stack([filled, *flag]), notes

    def _encode_dates(self, series: Any) -> tuple[F64, list[str]]:
        days, odd = as_dates(series)
        if len(odd) > 0.5 * max(int(series.notna().sum()), 1):
            raise DataError(
                f"Column {self.name!r} held dates in training, but here most entries are not dates, such as "
                f"{str(odd[0])!r}. Write dates as 2024-12-31."
            )
        filled, flag, notes = self._filled(days)
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
        unseen = sorted({value for value, code in zip(text, codes, strict=True) if code == -1})
        if unseen:
            many = int((codes == -1).sum())
            shown = ", ".join(repr(str(value)) for value in unseen[:3])
            notes.append(f"{self.name!r}: {count(many, 'row')} with a value not seen in training ({shown}).")
        if len(self.levels) == 2 and len(self.features) == 1:
            return np.where(codes == -1, 0.5, codes.astype(float))[:, None], notes
        return (codes[:, None] == np.arange(len(self.levels))).astype(float), notes


def learn_column(name: str, series: Any) -> Column:
    """Decide what a column holds and how it is encoded, from the rows of the training table.

    >>> import pandas
    >>> learn_column("colour", pandas.Series(["red", "blue", "red", None])).features
    ('colour=(missing)', 'colour=blue', 'colour=red')
    """
    known = int(series.notna().sum())
    if known == 0:
        return Column(name, "dropped", note="left out: every value is missing")
    if series.dtype.kind in "iuf":
        return _learn_number(name, series)
    if series.dtype.kind == "M":
        return _learn_date(name, series)
    if series.dtype.kind in "mc":
        return Column(name, "dropped", note=f"left out: values of type {series.dtype} are not supported")
    if series.dtype.kind != "b":
        if np.isfinite(as_numbers(series)[0]).sum() >= MOSTLY * known:
            return _learn_number(name, series)
        if _looks_like_dates(series) and np.isfinite(as_dates(series)[0]).sum() >= MOSTLY * known:
            return _learn_date(name, series)
    return _learn_category(name, series)


def _learn_number(name: str, series: Any) -> Column:
    values, odd = as_numbers(series)
    there = values[np.isfinite(values)]
    if len(there) == 0:
        return Column(name, "dropped", note="left out: no value is a finite number")
    missing = len(values) - len(there)
    if there.min() == there.max() and not missing:
        return Column(name, "dropped", note=f"left out: every value is {there[0]:g}")
    notes = [f"number, {there.min():.4g} to {there.max():.4g}"]
    if len(odd):
        shown = ", ".join(repr(str(value)) for value in dict.fromkeys(odd[:3]))
        notes.append(f"{count(len(odd), 'entry', 'entries')} that are no finite numbers ({shown}) count as missing")
    if missing:
        notes.append(
            f"{count(missing, 'missing value')} replaced by the median {float(np.median(there)):.4g}, and marked in a "
            "column of its own"
        )
    features = (name, f"{name} is missing") if missing else (name,)
    return Column(
        name, "number", features, fill=float(np.median(there)), flags_missing=bool(missing), note="; ".join(notes)
    )


def _learn_date(name: str, series: Any) -> Column:
    days, odd = as_dates(series)
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
        first=float(there.min()), parts=tuple(parts), note=note,
    )  # fmt: skip


def _learn_category(name: str, series: Any) -> Column:
    text = as_text(series)
    values, counts = np.unique(text, return_counts=True)
    if len(values) == 1:
        return Column(name, "dropped", note=f"left out: every value is {str(values[0])!r}")
    if len(values) > MAX_LEVELS and len(values) > IDENTIFIER * len(text):
        return Column(
            name, "dropped", note=f"left out: {len(values)} different texts in {len(text)} rows, so it names the rows"
        )
    note = f"category of {len(values)} levels"
    if len(values) > MAX_LEVELS:
        order = np.argsort(-counts, kind="stable")
        kept = sorted(str(value) for value in values[order[: MAX_LEVELS - 1]])
        levels = (*kept, OTHER)
        note += f", the {MAX_LEVELS - 1} most frequent ones kept and the others joined"
    else:
        levels = tuple(str(value) for value in values)
    if NOTHING in levels:
        note += f"; {count(int(counts[list(values).index(NOTHING)]), 'missing value')} as a level of its own"
    features = (f"{name}={levels[1]}",) if len(levels) == 2 else tuple(f"{name}={level}" for level in levels)
    return Column(name, "category", features, levels=levels, note=note)


# -- cells ------------------------------------------------------------------------------------------------------


def as_numbers(series: Any) -> tuple[F64, NDArray[Any]]:
    """The numbers of a column, NaN where there is none, and the entries that are there but are no finite numbers."""
    pandas = needs_pandas()
    plain = series.astype(object) if str(series.dtype) == "category" else series
    values: F64 = pandas.to_numeric(plain, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    values = np.where(np.isfinite(values), values, np.nan)
    odd = series[np.isnan(values) & series.notna().to_numpy()].to_numpy()
    return values, odd


def as_dates(series: Any) -> tuple[F64, NDArray[Any]]:
    """Days since 1970 (NaN where there is no date), and the entries that are there but are no dates.

    Text is read as year-month-day; with the year last, the first number is the day where some first number exceeds
    12, else the month.
    """
    pandas = needs_pandas()
    if series.dtype.kind == "M":
        stamps = series
    else:
        text = series.astype("string").str.strip()
        year_first = text.str.match(r"\d{4}").fillna(False).all() or text.dropna().str.match(r"\d{4}").all()
        if year_first:
            stamps = pandas.to_datetime(text, format="ISO8601", errors="coerce", utc=True)
            if stamps.notna().sum() < MOSTLY * text.notna().sum():
                stamps = pandas.to_datetime(text, format="mixed", errors="coerce", utc=True)
        else:
            first = pandas.to_numeric(text.str.extract(r"^(\d{1,2})[./-]")[0], errors="coerce")
            day_first = bool((first > 12).any()) or bool(text.str.match(r"\d{1,2}\.\d{1,2}\.").fillna(False).any())
            stamps = pandas.to_datetime(text, format="mixed", dayfirst=day_first, errors="coerce", utc=True)
    if getattr(stamps.dt, "tz", None) is not None:
        stamps = stamps.dt.tz_convert("UTC").dt.tz_localize(None)
    nothing = stamps.isna().to_numpy()
    nanoseconds = stamps.to_numpy(dtype="datetime64[ns]").astype("int64").astype(float)
    days = np.where(nothing, np.nan, nanoseconds / 86_400e9)
    return days, series[nothing & series.notna().to_numpy()].to_numpy()


def _looks_like_dates(series: Any) -> bool:
    """Whether the first known cells have the shape of dates; keeps words such as "may" from becoming dates."""
    sample = series.dropna().astype("string").head(200)
    shape = r"\s*(\d{4}[-/.]?\d{1,2}[-/.]?\d{1,2}|\d{1,2}[-/. ](\d{1,2}|[A-Za-z]{3,9})[-/. ]\d{2,4})\b"
    return bool(sample.str.match(shape).mean() >= MOSTLY)


def as_text(series: Any) -> NDArray[Any]:
    """The cells of a category as text; a whole number reads the same whether pandas holds it as 1 or 1.0."""
    gone = series.isna().to_numpy()

    def words(value: Any) -> str:
        if isinstance(value, float | np.floating) and float(value).is_integer():
            return str(int(value))
        return str(value).strip()

    plain = series.astype(object).to_numpy()
    unique = {value: words(value) for value in {v for v, g in zip(plain, gone, strict=True) if not g}}
    found = np.array([NOTHING if g else unique[v] for v, g in zip(plain, gone, strict=True)], dtype=object)
    found[np.isin(found.astype(str), ["", *MISSING])] = NOTHING
    return found.astype(str)


def count(number: Any, what: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> count(1, "row"), count(3, "entry", "entries")
    ('1 row', '3 entries')
    """
    return f"{int(number):,} {what if int(number) == 1 else plural or what + 's'}"
