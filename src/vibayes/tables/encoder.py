"""From a table to a matrix of numbers, and the same way again for new rows."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vibayes.errors import DataError
from vibayes.tables.cells import needs_text
from vibayes.tables.columns import Column, learn_column

__all__ = ["Encoded", "Encoder"]


@dataclass
class Encoded:
    """The numbers of a table's inputs.

    Attributes:
        x: `[N, D]`, finite.
        notes: what had to be decided for these rows, in sentences.
    """

    x: NDArray[np.float64]
    notes: list[str] = field(default_factory=list)


class Encoder:
    """How the input columns of a table become numbers; learned once, kept as JSON, applied to new rows by name.

    - A *number* stays, without marks between thousands, signs of money and per cent. Missing ones get the training
      median and a column that marks them.
    - A *category* (text, yes or no) becomes one column of zeros and ones per level; a missing value is a level, the
      rarest levels beyond 29 share one. A value not seen in training belongs to no level.
    - A *date* becomes the years since the first one, and sine and cosine of the time of year, the day of the week and
      the time of day, where the training rows span them.
    - A column without information (constant, all missing, a different text in most rows) is left out.

    Text counts as numbers (dates) if at least 95% of the known cells are; the others then count as missing.

    >>> import pandas
    >>> frame = pandas.DataFrame({"size": [1.0, None, 3.0], "colour": ["red", "blue", "red"]})
    >>> encoder = Encoder.learn(frame)
    >>> encoder.features
    ('size', 'size is missing', 'colour=red')
    >>> encoder.encode(frame).x.tolist()
    [[1.0, 0.0, 1.0], [2.0, 1.0, 0.0], [3.0, 0.0, 1.0]]
    >>> Encoder.from_dict(encoder.to_dict()) == encoder
    True
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)

    @classmethod
    def learn(cls, frame: Any, leave_out: Sequence[str] = (), decimal: str = "") -> "Encoder":
        """Decide for every column of a training table, but those named in `leave_out` (the targets, say).

        `decimal` is the decimal mark of its numbers, where it is known (`Table.decimal`).
        """
        columns = [learn_column(str(name), frame[name], decimal) for name in frame.columns if name not in leave_out]
        made = cls(columns)
        if not made.features:
            why = "; ".join(f"{column.name!r} {column.note}" for column in columns) or "there is no other column"
            raise DataError(f"No input column is left to predict from: {why}.")
        return made

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the numbers, in their order."""
        return tuple(feature for column in self.columns for feature in column.features)

    @property
    def used(self) -> tuple[Column, ...]:
        """The columns that become numbers."""
        return tuple(column for column in self.columns if column.kind != "dropped")

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that `read_table` must read as text, for their levels or marked numbers to be found."""
        return tuple(column.name for column in self.used if column.form or needs_text(column.levels))

    def slices(self) -> dict[str, slice]:
        """Where the numbers of every used column stand."""
        found, start = {}, 0
        for column in self.used:
            found[column.name] = slice(start, start + len(column.features))
            start += len(column.features)
        return found

    def encode(self, frame: Any) -> Encoded:
        """The numbers of a table's rows; columns are found by name, others than those learned are not looked at."""
        lost = [column.name for column in self.used if column.name not in frame.columns]
        if lost:
            raise DataError(self._lost(lost, [str(name) for name in frame.columns]))
        if len(frame) == 0:
            raise DataError("The table has no rows.")
        parts, notes = [], []
        for column in self.used:
            numbers, more = column.encode(frame[column.name])
            parts.append(numbers)
            notes += more
        return Encoded(np.concatenate(parts, 1), notes)

    def _lost(self, lost: Sequence[str], there: Sequence[str]) -> str:
        hints = []
        for name in lost[:5]:
            near = difflib.get_close_matches(name.lower(), [other.lower() for other in there], 1, 0.8)
            if near:
                meant = next(other for other in there if other.lower() == near[0])
                hints.append(f"{name!r} (is it {meant!r}?)")
            else:
                hints.append(repr(name))
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        return (
            f"The table lacks {'the column' if len(lost) == 1 else 'columns'} {', '.join(hints)}{more}, which the "
            "model was trained with. Add them under the same names; empty cells stand for unknown values."
        )

    def summary(self) -> list[tuple[str, str]]:
        """For every column its name and what is done with it."""
        return [(column.name, column.note) for column in self.columns]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"columns": [column.to_dict() for column in self.columns]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Encoder":
        """The inverse of `to_dict`."""
        if not isinstance(values.get("columns"), list):
            raise DataError("This is not the description of an encoder: it has no list of columns.")
        return cls([Column.from_dict(column) for column in values["columns"]])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encoder) and other.columns == self.columns

    def __hash__(self) -> int:
        return hash(self.columns)

    def __repr__(self) -> str:
        return f"Encoder({len(self.used)} of {len(self.columns)} columns, {len(self.features)} numbers)"
