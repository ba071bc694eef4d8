"""The cells of a column as dates or text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vibayes.tables.reading import MISSING, needs_pandas

__all__ = [
    "MOSTLY",
    "NOTHING",
    "OTHER",
    "as_dates",
    "as_number",
    "as_text",
    "count",
    "is_texts",
    "is_written_otherwise",
    "is_yes_no",
    "learn_day_first",
    "looks_like_dates",
    "needs_text",
    "nested",
    "with_year_last",
]

F64 = NDArray[np.float64]
# A column of text whose known cells are numbers (or dates) to at least this share is one of numbers (dates).
MOSTLY = 0.95
OTHER = "(other)"
NOTHING = "(missing)"
_STAMPS = "datetime64[us, UTC]"


def as_dates(series: Any, day_first: bool | None = None) -> tuple[F64, NDArray[Any]]:
    """Days since 1970 (NaN where there is no date), and the entries that are there but are no dates.

    Text is read as year-month-day; with the year last, `day_first` says whether the first number is the day. None
    leaves it to these entries: it is where some first number exceeds 12 or points separate them, else the month.
    """
    pandas = needs_pandas()
    if series.dtype.kind == "M":
        stamps = series
    else:
        if day_first is None:
            day_first = learn_day_first(series)
        text = series.astype("string").str.strip()
        year_first = text.str.match(r"\d{4}").fillna(False).astype(bool)
        stamps = pandas.to_datetime(text.where(year_first), format="ISO8601", errors="coerce", utc=True)
        if stamps.notna().sum() < MOSTLY * year_first.sum():
            stamps = pandas.to_datetime(text.where(year_first), format="mixed", errors="coerce", utc=True)
        if not year_first.all():
            others = text.where(~year_first)  # apart, because day_first would turn 2021-05-12 around, too
            others = pandas.to_datetime(others, format="mixed", dayfirst=bool(day_first), errors="coerce", utc=True)
            stamps = stamps.astype(_STAMPS).where(year_first, others.astype(_STAMPS))
    if getattr(stamps.dt, "tz", None) is not None:
        stamps = stamps.dt.tz_convert("UTC").dt.tz_localize(None)
    nothing = stamps.isna().to_numpy()
    microseconds = stamps.to_numpy(dtype="datetime64[us]").astype("int64").astype(float)  # ns would end in 2262
    days = np.where(nothing, np.nan, microseconds / 86_400e6)
    return days, series[nothing & series.notna().to_numpy()].to_numpy()


def with_year_last(series: Any) -> Any:
    """The first two numbers of dates such as 3/4/2021, and what separates them; NaN where there is no such date."""
    pandas = needs_pandas()
    found = series.astype("string").str.extract(r"^\s*(?P<first>\d{1,2})(?P<mark>[./-])(?P<second>\d{1,2})[./-]")
    return found.assign(**{name: pandas.to_numeric(found[name]).astype(float) for name in ("first", "second")})


def learn_day_first(series: Any) -> bool | None:
    """Whether dates with the year last begin with the day; None where there are no such dates."""
    parts = with_year_last(series)
    if parts["first"].isna().all():
        return None
    return bool((parts["first"] > 12).any() or (parts["mark"] == ".").any())


def looks_like_dates(series: Any) -> bool:
    """Whether the first known cells have the shape of dates; keeps words such as "may" from becoming dates."""
    sample = series.dropna().astype("string").head(200)
    shape = (
        r"\s*(\d{4}[-/.]?\d{1,2}[-/.]?\d{1,2}|\d{1,2}[-/. ](\d{1,2}|[A-Za-z]{3,9})[-/. ]\d{2,4}"
        r"|[A-Za-z]{3,9}\.? \d{1,2},? \d{4})\b"
    )
    return bool(sample.str.match(shape).mean() >= MOSTLY)


def is_yes_no(series: Any) -> bool:
    """Whether the known cells are True and False, also where some are missing, for which pandas has no type of its own.

    >>> import pandas
    >>> is_yes_no(pandas.Series([True, None, False])), is_yes_no(pandas.Series([1, 0]))
    (True, False)
    """
    if series.dtype != object:
        return bool(series.dtype.kind == "b")
    known = series.dropna()
    return len(known) > 0 and all(isinstance(cell, bool | np.bool_) for cell in known)


def as_text(series: Any) -> NDArray[Any]:
    """The cells of a category as text; a whole number reads the same whether pandas holds it as 1 or 1.0."""
    gone = series.isna().to_numpy()
    plain = series.astype(object).to_numpy()
    unique = {value: _words(value) for value in {v for v, g in zip(plain, gone, strict=True) if not g}}
    found = np.array([NOTHING if g else unique[v] for v, g in zip(plain, gone, strict=True)], dtype=object)
    found[np.isin(found.astype(str), ["", *MISSING])] = NOTHING
    return found.astype(str)


def _words(value: Any) -> str:
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def as_number(text: str) -> float | None:
    """A text as a number, None where it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def is_written_otherwise(text: str, level: str) -> bool:
    """Whether two texts are one number, or one of true and false.

    >>> is_written_otherwise("1", "01"), is_written_otherwise("TRUE", "True"), is_written_otherwise("Red", "red")
    (True, True, False)
    """
    number = as_number(text)
    if number is not None:
        return as_number(level) == number
    return text.lower() in ("true", "false") and text.lower() == level.lower()


def needs_text(levels: Sequence[str]) -> bool:
    """Whether a file's column must be read as text to find these levels in it: read as numbers, 01 would become 1.

    >>> needs_text(["01", "1A"]), needs_text(["1", "2.5"]), needs_text(["False", "True"])
    (True, False, False)
    """
    there = [level for level in levels if level not in (NOTHING, "True", "False")]
    return any((number := as_number(level)) is None or _words(number) != level for level in there)


def nested(series: Any) -> str:
    """What the cells are where one of them holds several values: lists or records; nothing where none does."""
    if series.dtype != object:
        return ""
    found = next((cell for cell in series if isinstance(cell, list | dict | set | np.ndarray)), None)
    return "" if found is None else "records" if isinstance(found, dict) else "lists"


def is_texts(values: Any) -> bool:
    """Whether these are texts, in a list or tuple."""
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)


def count(number: Any, what: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> count(1, "row"), count(3, "entry", "entries")
    ('1 row', '3 entries')
    """
    return f"{int(number):,} {what if int(number) == 1 else plural or what + 's'}"
