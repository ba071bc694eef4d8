"""Numbers as people write them: plainly, or with marks between thousands, signs of money and per cent."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vibayes.tables.cells import MOSTLY, count
from vibayes.tables.reading import needs_pandas

__all__ = ["FORMS", "as_numbers", "learn_form", "marked_numbers", "mixed_numbers", "read_as"]

F64 = NDArray[np.float64]
_MONEY = "$€£¥"
# How numbers are written where not plainly: a sign of money or per cent, if there is one, and the decimal mark.
FORMS = re.compile(rf"([{_MONEY}%]?[.,])?")
_IN_FRONT, _BEHIND = rf"^([+-]?)\s*([{_MONEY}])\s*", rf"\s*([{_MONEY}%])$"


def as_numbers(series: Any, form: str = "") -> tuple[F64, NDArray[Any]]:
    """The numbers of a column, NaN where there is none, and the entries that are there but are no finite numbers.

    Args:
        series: the column.
        form: how its numbers are written, from `learn_form`.

    >>> import pandas
    >>> as_numbers(pandas.Series(["1.5", "x"])), as_numbers(pandas.Series(["$1,250", "$0.5"]), "$.")[0]
    ((array([1.5, nan]), array(['x'], dtype=object)), array([1.25e+03, 5.00e-01]))
    """
    pandas = needs_pandas()
    if form and (series.dtype.kind not in "biuf" or "%" in form):  # a plain 0.07 may be seven per cent
        cells, signs = _core(series)
        fits = signs == form[:-1] if "%" in form else signs.isin(["", form[:-1]])
        values = np.where(fits.fillna(False).to_numpy(dtype=bool), _written(cells, form[-1]), np.nan)
    else:
        plain = series.astype(object) if str(series.dtype) == "category" else series
        values = pandas.to_numeric(plain, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    values = np.where(np.isfinite(values), values, np.nan)
    odd = series[np.isnan(values) & series.notna().to_numpy()].to_numpy()
    return values, odd


def learn_form(series: Any, decimal: str = "") -> str:
    """How the numbers of a column are written: nothing where they are plain, or are too few, or it is not clear.

    A number such as 1,250 has its marks between thousands or has three decimals: other numbers of the column tell, such
    as 0,5, or else those of its file.

    Args:
        series: the column.
        decimal: the decimal mark of the file's other numbers, where it is known.

    >>> import pandas
    >>> learn_form(pandas.Series(["$1,250.50", "$990"])), learn_form(pandas.Series(["1,250", "0,5"]))
    ('$.', ',')
    >>> learn_form(pandas.Series(["1,250", "990"])), learn_form(pandas.Series(["1,250", "990"]), ".")
    ('', '.')
    """
    if series.dtype.kind in "biufM":
        return ""
    counts = series.value_counts(sort=False)  # a category of many rows has few different cells
    counts = counts[counts > 0]
    different, rows = counts.index.to_series(), counts.to_numpy()
    plain = as_numbers(different)[0]
    cells, signs = _core(different)
    points, commas = (_written(cells, mark) for mark in ".,")
    only_points = np.isfinite(points) & np.isnan(commas)
    only_commas = np.isfinite(commas) & np.isnan(points)
    if only_points.any() and only_commas.any():
        return ""
    if only_points.any() or only_commas.any():
        decimal = "." if only_points.any() else ","
    elif np.array_equal(points, commas, equal_nan=True):
        decimal = "."
    values = points if decimal == "." else commas
    numbers = np.isfinite(values)
    more = rows[numbers].sum() - rows[np.isfinite(plain)].sum()
    if not decimal or rows[numbers].sum() < MOSTLY * rows.sum() or more < 0:
        return ""
    if more == 0 and np.array_equal(values, plain, equal_nan=True):
        return ""
    found = {*signs[numbers]}
    if len(found - {""}) > 1 or {"", "%"} <= found:  # of two currencies, or shares beside percentages
        return ""
    return "".join(found) + decimal


def _core(series: Any) -> tuple[Any, Any]:
    """Cells without their sign of money or per cent, and that sign."""
    cells = series.astype("string").str.strip().str.replace("\u2212", "-")  # the minus of typesetters
    front, behind = cells.str.extract(_IN_FRONT)[1], cells.str.extract(_BEHIND)[0]
    core = cells.str.replace(_IN_FRONT, r"\1", regex=True).str.replace(_BEHIND, "", regex=True)
    return core, front.fillna("") + behind.fillna("")


def _written(cells: Any, decimal: str) -> F64:
    """The numbers of cells with this decimal mark, and perhaps marks between thousands; NaN for others."""
    pandas = needs_pandas()
    thousands = ("," if decimal == "." else ".") + "'\u2019 \u00a0\u202f"
    mark = re.escape(decimal)
    shape = rf"[+-]?((\d+|[1-9]\d{{0,2}}([{thousands}]\d{{3}})+)({mark}\d*)?|{mark}\d+)"
    fits = cells.str.fullmatch(shape).fillna(False).astype(bool)
    plain = cells.where(fits).str.replace(rf"[{thousands}]", "", regex=True).str.replace(decimal, ".")
    values: F64 = pandas.to_numeric(plain, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    return values


def read_as(series: Any, form: str) -> str:
    """An entry with marks and the number that it stands for; nothing where numbers are plain.

    >>> import pandas
    >>> read_as(pandas.Series(["990", "$1,250.50"]), "$.")
    "'$1,250.50' is read as 1250.5"
    """
    if not form:
        return ""
    values = as_numbers(series, form)[0]
    first = int(np.flatnonzero(np.isfinite(values) & (values != as_numbers(series)[0]))[0])
    value = float(values[first])
    return f"{str(series.iloc[first])!r} is read as {int(value) if value.is_integer() else value!r}"


def marked_numbers(series: Any) -> str:
    """What to do where most cells are numbers but for marks, and it is not clear what the marks mean; else nothing.

    >>> import pandas
    >>> marked_numbers(pandas.Series(["$1,250", "€990"]))[:55], marked_numbers(pandas.Series(["A1", "B2"]))
    ("numbers with marks, such as '$1,250', are read as text:", '')
    """
    known = series.dropna()
    cells = _core(known)[0]
    numbers = np.isfinite(_written(cells, ".")) | np.isfinite(_written(cells, ","))
    marked = numbers & np.isnan(as_numbers(known)[0])
    if not marked.any() or (marked.mean() < 0.5 and numbers.mean() < MOSTLY):
        return ""
    return (
        f"numbers with marks, such as {str(known[marked].iloc[0])!r}, are read as text: write all of them alike, or "
        "without marks, such as 1250.5"
    )


def mixed_numbers(series: Any) -> str:
    """What to do where most cells are numbers, but too few for a column of numbers; else nothing.

    >>> import pandas
    >>> mixed_numbers(pandas.Series(["1.5", "2.5", "n/d"]))
    "1 of 3 entries is no number, such as 'n/d': leave such cells empty if the others are numbers"
    """
    values, odd = as_numbers(series)
    known = int(series.notna().sum())
    if not len(odd) or np.isfinite(values).sum() < 0.5 * known:
        return ""
    verb, what = ("is", "number") if len(odd) == 1 else ("are", "numbers")
    return (
        f"{len(odd):,} of {count(known, 'entry', 'entries')} {verb} no {what}, such as {str(odd[0])!r}: leave such "
        "cells empty if the others are numbers"
    )
