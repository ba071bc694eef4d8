"""Reading a table: which separator, which encoding, which names, and what was decided on the way."""

import csv
import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vibayes.errors import ConfigurationError, DataError

__all__ = ["MISSING", "Table", "needs_pandas", "read_table"]

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
# Cells that mean "nothing known here", beside what pandas takes as missing (empty, NA, NaN, null, None, ...).
MISSING = ("?", "-", "--", ".", "na", "n.a.", "missing", "unknown", "Na")
_SNIFF_LINES = 50
_CHUNK = 1 << 20


@dataclass
class Table:
    """A table in memory.

    Attributes:
        frame: the pandas DataFrame, columns with unique names.
        path: where it came from.
        notes: what was decided while reading, in sentences.
        repeated: names that stood over several columns, whose later columns were renamed.
    """

    frame: Any
    path: Path
    notes: list[str] = field(default_factory=list)
    repeated: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.frame)


def needs_pandas() -> Any:
    """The module pandas, or an error that says what to install."""
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise ConfigurationError('Tables need pandas: pip install "vibayes[tables]".') from error


def read_table(path: str | Path) -> Table:
    r"""Read a CSV or Parquet file.

    The separator of a CSV file is the one of comma, semicolon, tab and bar that cuts its first lines into equally
    many cells; with semicolons, numbers may have decimal commas. The encoding is UTF-8 (a mark at the beginning or
    UTF-16 is recognised), and Latin-1 where the bytes are not UTF-8. The first line must hold names; a name that
    comes twice gets a number.

    Args:
        path: a file ending in `.parquet` or `.pq`, or a CSV file, which may be compressed (`.gz`, `.bz2`, `.xz`).

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = file.write_text("size;price\n1,5;10\n2;20\n")
    >>> table = read_table(file)
    >>> table.frame["size"].tolist(), table.notes
    ([1.5, 2.0], ['Cells are separated by semicolons; numbers have decimal commas.'])
    """
    pandas = needs_pandas()
    path = Path(path)
    if not path.exists():
        raise DataError(f"There is no file {path}.")
    if path.is_dir():
        raise DataError(f"{path} is a folder; give a CSV or Parquet file.")
    table = _read_parquet(pandas, path) if path.suffix.lower() in (".parquet", ".pq") else _read_csv(pandas, path)
    if len(table.frame.columns) == 0:
        raise DataError(f"{path} has no columns.")
    if len(table.frame) == 0:
        names = ", ".join(map(str, list(table.frame.columns)[:5]))
        raise DataError(f"{path} has names of columns ({names}) but no rows under them.")
    return table


def _read_parquet(pandas: Any, path: Path) -> Table:
    try:
        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise ConfigurationError('Parquet files need pyarrow: pip install "vibayes[tables]".') from error
    except Exception as error:
        raise DataError(f"{path} cannot be read as a Parquet file ({_first_line(error)}).") from error
    names, repeated, notes = _unique([str(name) for name in frame.columns])
    frame.columns = names
    return Table(frame.reset_index(drop=True), path, notes, repeated)


def _read_csv(pandas: Any, path: Path) -> Table:
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: it has no bytes at all.")
    compressed = path.suffix.lower() in (".gz", ".bz2", ".xz", ".zip", ".zst")
    encoding, notes = ("utf-8-sig", []) if compressed else _encoding(path)
    try:
        lines = _first_lines(pandas, path, encoding)
    except (OSError, EOFError, UnicodeError, ValueError) as error:
        raise DataError(f"{path} cannot be read as text ({_first_line(error)}).") from error
    if not any(line.strip() for line in lines):
        raise DataError(f"{path} is empty: it has only blank lines.")
    if "\0" in lines[0]:
        raise DataError(f"{path} is not a text file. Save the table as CSV or Parquet.")
    separator = _separator(lines)
    rows = [row for row in csv.reader(lines, delimiter=separator, skipinitialspace=True) if any(c.strip() for c in row)]
    header = [cell.strip() for cell in rows[0]]
    if all(_is_number(cell) for cell in header if cell) and any(header):
        raise DataError(
            f"The first line of {path} holds numbers ({', '.join(header[:4])}) where names of columns are expected. "
            "Add a first line with a name for every column."
        )
    if all(len(row) == len(header) + 1 for row in rows[1:]) and len(rows) > 1:
        header = ["", *header]  # the names of a table written with unnamed row numbers
    names, repeated, more = _unique(header)
    decimal = "," if separator == ";" and _has_decimal_commas(rows[1:]) else "."
    if separator != ",":
        comma = "; numbers have decimal commas" if decimal == "," else ""
        notes.append(f"Cells are separated by {SEPARATORS[separator]}{comma}.")
    try:
        frame = pandas.read_csv(
            path,
            sep=separator,
            encoding=encoding,
            decimal=decimal,
            header=0,
            names=names,
            index_col=False,
            na_values=list(MISSING),
            skipinitialspace=True,
            low_memory=False,  # one type for each column, not one for each part of it
        )
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}). Unpack it first.") from error
    except Exception as error:  # pandas has its own kinds, and the engine's
        raise DataError(f"{path} cannot be read as a table: {_first_line(error)}.") from error
    if names and names[0].startswith("column ") and header[0] == "" and _counts_rows(frame[names[0]]):
        frame = frame.drop(columns=names[0])
        more = [note for note in more if names[0] not in note]
        notes.append("The first column has no name and numbers the rows; it was left out.")
    return Table(frame, path, notes + more, repeated)


def _first_lines(pandas: Any, path: Path, encoding: str) -> list[str]:
    from pandas.io.common import get_handle

    with get_handle(path, "r", encoding=encoding, compression="infer", errors="replace") as handle:
        found = []
        for line in handle.handle:
            if line.strip():
                found.append(line)
            if len(found) >= _SNIFF_LINES:
                break
    return found or [""]


def _encoding(path: Path) -> tuple[str, list[str]]:
    """The encoding, and what to say when it had to be guessed."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        start = file.read(4)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16", ["The file is UTF-16."]
        file.seek(0)
        try:
            while chunk := file.read(_CHUNK):
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "latin-1", ["The file is not UTF-8; it was read as Latin-1, so check letters with accents."]
    return "utf-8-sig", []


def _separator(lines: Sequence[str]) -> str:
    """The separator that cuts most lines into the same number of cells, more than one; comma when none does."""

    def quality(separator: str) -> tuple[float, int]:
        counts = [len(row) for row in csv.reader(lines, delimiter=separator) if row]
        width, agree = Counter(counts).most_common(1)[0] if counts else (1, 0)
        return (agree / len(counts) if width > 1 else 0.0, width)

    return max(SEPARATORS, key=quality)


def _has_decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    cells = [cell.strip() for row in rows for cell in row]
    return any("," in cell and not _is_number(cell) and _is_number(cell.replace(",", ".", 1)) for cell in cells)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.strip().lower() not in ("nan", "inf", "infinity", "-inf")


def _counts_rows(column: Any) -> bool:
    """Whether a column is 0, 1, 2, ... or 1, 2, 3, ..."""
    if column.dtype.kind not in "iu" or len(column) < 2:
        return False
    values = column.to_numpy()
    return bool((values[1:] - values[:-1] == 1).all()) and int(values[0]) in (0, 1)


def _unique(header: Sequence[str]) -> tuple[list[str], tuple[str, ...], list[str]]:
    """Names without gaps and repeats, the repeated ones, and a note where something was renamed."""
    taken = {name for name in header if name}
    names: list[str] = []
    notes: list[str] = []
    repeated: dict[str, int] = {}
    for position, name in enumerate(header, 1):
        new = name
        if not name:
            new = f"column {position}"
            notes.append(f"Column {position} has no name; it is called {new!r}.")
        elif name in names:
            number = 2
            while f"{name}.{number}" in taken:
                number += 1
            new = f"{name}.{number}"
            repeated[name] = number
            notes.append(f"The name {name!r} stands over several columns; column {position} is called {new!r}.")
        taken.add(new)
        names.append(new)
    return names, tuple(repeated), notes


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")
