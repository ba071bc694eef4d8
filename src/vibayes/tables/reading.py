"""Reading a table: which separator, which encoding, which names, and what was decided on the way."""

import csv
import difflib
import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vibayes.errors import ConfigurationError, DataError

__all__ = ["MISSING", "Table", "did_you_mean", "needs_pandas", "read_table", "unique_names"]

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
# Cells that mean "nothing known here", beside what pandas takes as missing (empty, NA, NaN, null, None, ...).
MISSING = ("?", "-", "--", ".", "na", "n.a.", "missing", "unknown", "Na")
_SNIFF_LINES = 50
_LAST = "\0"  # begins names that no header has
_BLANK = "".join(SEPARATORS) + "\"' \r\n\ufeff"  # what a line without any cell consists of
_FOR_EXCEL = re.compile(r'\ufeff?"?sep=[,;|\t]?"?', re.IGNORECASE)
_CHUNK = 1 << 20


@dataclass
class Table:
    """A table in memory.

    Attributes:
        frame: the pandas DataFrame, columns with unique names.
        path: where it came from.
        notes: what was decided while reading, in sentences.
        repeated: names that stood over several columns, whose later columns were renamed.
        decimal: the decimal mark of its numbers, where it is known.
    """

    frame: Any
    path: Path
    notes: list[str] = field(default_factory=list)
    repeated: tuple[str, ...] = ()
    decimal: str = ""

    def __len__(self) -> int:
        return len(self.frame)


def needs_pandas() -> Any:
    """The module pandas, or an error that says what to install."""
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise ConfigurationError('Tables need pandas: pip install "vibayes[tables]".') from error


def read_table(path: str | Path, texts: Sequence[str] = ()) -> Table:
    r"""Read a CSV or Parquet file.

    The separator of a CSV file is the one of comma, semicolon, tab and bar that cuts its first lines into equally
    many cells; where it is no comma, numbers may have decimal commas. The encoding is UTF-8 (a mark at the beginning or
    UTF-16 is recognised), and Latin-1 as Windows writes it where the bytes are not UTF-8. The first line that is not
    blank must hold names, but for lines above it that begin with `#`; a name that comes twice gets a number. Named
    indices of a Parquet file become columns.

    Args:
        path: a file ending in `.parquet` or `.pq`, or a CSV file, which may be compressed (`.gz`, `.bz2`, `.xz`).
        texts: columns of a CSV file to read as text, whatever they look like: codes such as 01 and 02, say.

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
        raise DataError(f"There is no file {path.name} in {path.absolute().parent}.{_near(path)}")
    if path.is_dir():
        raise DataError(f"{path} is a folder; give a CSV or Parquet file.")
    parquet = path.suffix.lower() in (".parquet", ".pq")
    table = _read_parquet(pandas, path) if parquet else _read_csv(pandas, path, texts)
    if len(table.frame.columns) == 0:
        raise DataError(f"{path} has no columns.")
    if len(table.frame) == 0:
        names = ", ".join(map(str, list(table.frame.columns)[:5]))
        raise DataError(f"{path} has names of columns ({names}) but no rows under them.")
    return table


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """A hint at the known name that is nearest to a typed one; nothing where none is near.

    >>> did_you_mean("Pirce", ["size", "price"]), did_you_mean("y", ["size", "price"])
    (" Did you mean 'price'?", '')
    """
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(typed.lower(), lowered, n=1)
    return f" Did you mean {lowered[close[0]]!r}?" if close else ""


def _near(path: Path) -> str:
    try:
        return did_you_mean(path.name, (other.name for other in path.parent.iterdir() if other.is_file()))
    except OSError:  # the folder is not there, or not ours to look into
        return ""


def _read_parquet(pandas: Any, path: Path) -> Table:
    try:
        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise ConfigurationError('Parquet files need pyarrow: pip install "vibayes[tables]".') from error
    except Exception as error:
        raise DataError(f"{path} cannot be read as a Parquet file ({_first_line(error)}).") from error
    indices = [place for place, name in enumerate(frame.index.names) if name is not None]
    kept = [frame.index.get_level_values(place).to_series(index=frame.index) for place in indices]
    kept = [level for level in kept if level.name not in frame.columns or not level.equals(frame[level.name])]
    labels = [*map(str, frame.columns), *(str(level.name) for level in kept)]
    names, repeated, notes = unique_names(labels)
    if kept:
        frame = pandas.concat([frame, *kept], axis=1)
        notes.append(f"The file's index is used as a column, too: {', '.join(names[-len(kept) :])}.")
    frame.columns = names
    return Table(frame.reset_index(drop=True), path, notes, repeated, ".")


def _read_csv(pandas: Any, path: Path, texts: Sequence[str]) -> Table:
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: it has no bytes at all.")
    compressed = path.suffix.lower() in (".gz", ".bz2", ".xz", ".zip", ".zst")
    encoding, notes = ("utf-8-sig", []) if compressed else _encoding(path)
    try:
        lines, above = _first_lines(path, encoding)
    except Exception as error:  # every kind of compression has its own
        raise DataError(f"{path} cannot be read as text ({_first_line(error)}).") from error
    if not lines:
        raise DataError(f"{path} is empty: it has only blank lines.")
    if comments := sum(line.startswith("#") for line in above):
        notes.append(f"Lines above the names that begin with # were left out ({comments}).")
    if "\0" in lines[0]:
        raise DataError(f"{path} is not a text file. Save the table as CSV or Parquet.")
    if lines[0].lstrip("\ufeff ").lower().startswith(("<!doctype", "<html", "<?xml")):
        raise DataError(f"{path} holds a web page or XML, not a table. Save the table as CSV or Parquet.")
    separator = _separator(lines)
    rows = [row for row in _cells(lines, separator) if any(cell.strip() for cell in row)]
    header = [cell.strip() for cell in rows[0]]
    if all(_is_number(cell) for cell in header if cell) and any(header):
        raise DataError(
            f"The first line of {path} holds numbers ({', '.join(header[:4])}) where names of columns are expected. "
            "Add a first line with a name for every column."
        )
    decimal = "," if separator != "," and _has_decimal_commas(rows[1:], separator) else "."
    if separator != ",":
        comma = "; numbers have decimal commas" if decimal == "," else ""
        notes.append(f"Cells are separated by {SEPARATORS[separator]}{comma}.")

    def read(names: Sequence[str]) -> Any:
        return _read_cells(
            pandas, path, sep=separator, encoding=encoding, decimal=decimal, skiprows=len(above), names=names,
            dtype={name: str for name in texts if name in names},
        )  # fmt: skip

    frame, header = _read_below(path, header, rows[1:], read, separator)
    names, repeated, more = unique_names(header)
    if names and names[0].startswith("column ") and header[0] == "" and _counts_rows(frame[names[0]]):
        frame = frame.drop(columns=names[0])
        more = [note for note in more if names[0] not in note]
        notes.append("The first column has no name and numbers the rows; it was left out.")
    known = decimal if separator == "," or decimal == "," else ""
    return Table(frame, path, notes + more, repeated, known)


def _read_below(
    path: Path, header: list[str], rows: Sequence[Sequence[str]], read: Callable[[Sequence[str]], Any], separator: str
) -> tuple[Any, list[str]]:
    """The frame and its names, which get an empty one in front where every row begins with an unnamed number or name.

    Cells beyond the names are read as columns of their own: pandas would drop them, or take them for columns that have
    names. Empty ones, from separators at the end of lines, are left out.
    """
    longer = len(rows) > 0 and all(len(row) == len(header) + 1 for row in rows)
    first = 1
    if not longer or not any(row[-1].strip() for row in rows):
        spare = [f"{_LAST}{place}" for place in range(len(header), max(map(len, rows), default=0))]
        frame = read([*unique_names(header)[0], *spare])
        beyond = frame[spare].notna().any(axis=1).to_numpy()
        if not beyond.any():
            return frame.drop(columns=spare), header
        first = int(beyond.argmax()) + 1
    named = ["", *header]
    if longer:
        frame = read(unique_names(named)[0])
        labels = frame.iloc[:, 0]
        if labels.dtype.kind in "iu" or labels.is_unique:  # as programs write them in front of rows
            return frame, named
    raise _more_cells(path, f"Row {first} under the names", separator)


def _more_cells(path: Path, where: str, separator: str) -> DataError:
    return DataError(
        f"{where} of {path} has more cells than its first line has names. Name every column there (lines above it "
        f"begin with #), and put text with {SEPARATORS[separator]} in it in quotation marks."
    )


def _read_cells(pandas: Any, path: Path, **options: Any) -> Any:
    """The frame of a CSV file whose form is known."""
    try:
        return pandas.read_csv(
            path,
            header=0,
            index_col=False,
            na_values=list(MISSING),
            skipinitialspace=True,
            low_memory=False,  # one type for each column, not one for each part of it
            **options,
        )
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}). Unpack it first.") from error
    except Exception as error:  # pandas has its own kinds, and the engine's
        if found := re.search(r"Expected \d+ fields in line (\d+), saw", str(error)):
            raise _more_cells(path, f"Line {found[1]}", options["sep"]) from error
        raise DataError(f"{path} cannot be read as a table: {_first_line(error)}.") from error


def _first_lines(path: Path, encoding: str) -> tuple[list[str], list[str]]:
    """The first lines that are not blank, and the lines above them: blank ones, comments, a separator for Excel."""
    from pandas.io.common import get_handle

    found: list[str] = []
    above: list[str] = []
    with get_handle(path, "r", encoding=encoding, compression="infer", errors="replace") as handle:
        for line in handle.handle:
            if found or not (line.startswith("#") or not line.strip(_BLANK) or _FOR_EXCEL.fullmatch(line.strip())):
                found.append(line)
            else:
                above.append(line)
            if len(found) >= _SNIFF_LINES:
                break
    lines = [line for line in found if line.strip()]
    if above and above[-1].startswith("#") and _names_columns(above[-1], lines):
        lines = [above.pop(), *lines]
    return lines, above


def _names_columns(line: str, below: Sequence[str]) -> bool:
    """Whether a line that begins with # holds names, not a comment: as many as there are cells, and no names below."""
    if not below:
        return True
    separator = _separator(below)
    cells = [*_cells(below[:2], separator), []]
    names_below = not any(map(_is_number, cells[0])) and any(map(_is_number, cells[1]))
    return len(_cells([line], separator)[0]) == len(cells[0]) and not names_below


def _cells(lines: Sequence[str], separator: str) -> list[list[str]]:
    limit = csv.field_size_limit(sum(map(len, lines)))  # long cells are no error
    try:
        return list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    finally:
        csv.field_size_limit(limit)


def _encoding(path: Path) -> tuple[str, list[str]]:
    """The encoding, and what to say when it had to be guessed."""
    import codecs

    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16", ["The file is UTF-16."]
    if _decodes(path, "utf-8"):
        return "utf-8-sig", []
    # what Windows writes is Latin-1 with a euro sign and curly quotation marks, but has five bytes without a meaning
    latin = "cp1252" if _decodes(path, "cp1252") else "latin-1"
    return latin, ["The file is not UTF-8; it was read as Latin-1, so check letters with accents."]


def _decodes(path: Path, encoding: str) -> bool:
    """Whether a whole file is text of an encoding."""
    try:
        with path.open(encoding=encoding, newline="") as file:
            while file.read(_CHUNK):
                pass
    except UnicodeDecodeError:
        return False
    return True


def _separator(lines: Sequence[str]) -> str:
    """The separator that cuts most lines into the same number of cells, more than one; comma when none does."""

    def quality(separator: str) -> tuple[float, int]:
        counts = [len(row) for row in _cells(lines, separator) if row]
        width, agree = Counter(counts).most_common(1)[0] if counts else (1, 0)
        return (agree / len(counts) if width > 1 else 0.0, width)

    return max(SEPARATORS, key=quality)


def _has_decimal_commas(rows: Sequence[Sequence[str]], separator: str) -> bool:
    """Whether numbers have decimal commas; without semicolons, 1,250 alone says nothing: it may be a thousand."""
    cells = [cell.strip() for row in rows for cell in row]
    found = [cell for cell in cells if "," in cell and _is_number(cell.replace(",", ".", 1))]
    if separator == ";":
        return bool(found)
    points = any("." in cell and _is_number(cell) for cell in cells)
    return not points and any(not re.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}", cell) for cell in found)


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


def unique_names(header: Sequence[str]) -> tuple[list[str], tuple[str, ...], list[str]]:
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
