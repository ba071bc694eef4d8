"""Reading files as people have them."""

import gzip
from pathlib import Path

import pandas as pd
import pytest

from vibayes.errors import ConfigurationError, DataError
from vibayes.tables import read_table


def written(folder: Path, text: str, name: str = "t.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators(tmp_path: Path, separator: str) -> None:
    rows = [["a", "b", "c"], ["1", "x", "2.5"], ["2", "y", "3.5"]]
    table = read_table(written(tmp_path, "\n".join(separator.join(row) for row in rows)))
    assert list(table.frame.columns) == ["a", "b", "c"]
    assert table.frame["c"].tolist() == [2.5, 3.5]


def test_separator_inside_quotes_is_text(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, 'name,n\n"Doe; John; X",1\n"Roe; Jane; Y",2\n'))
    assert table.frame["name"].tolist() == ["Doe; John; X", "Roe; Jane; Y"]


def test_decimal_commas(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a;b\n1,5;x\n2,25;y\n"))
    assert table.frame["a"].tolist() == [1.5, 2.25]
    assert "decimal commas" in table.notes[0]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    table = read_table(written(tmp_path, "städte,n\nKöln,1\nGöteborg,2\n", encoding=encoding))
    assert list(table.frame.columns) == ["städte", "n"]
    assert table.frame["städte"].tolist() == ["Köln", "Göteborg"]
    assert any("Latin-1" in note for note in table.notes) == (encoding == "latin-1")


def test_bad_bytes_far_into_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"name,n\n" + b"abc,1\n" * 300_000 + b"K\xf6ln,2\n")
    table = read_table(path)
    assert table.frame["name"].iloc[-1] == "Köln"
    assert "Latin-1" in table.notes[0]


def test_parquet_and_gzip(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": pd.to_datetime(["2020-01-01", "2021-01-01"])})
    frame.to_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").frame.equals(frame)
    with gzip.open(tmp_path / "t.csv.gz", "wt") as file:
        file.write("a;b\n1;2\n")
    assert read_table(tmp_path / "t.csv.gz").frame["b"].tolist() == [2]


def test_duplicate_and_missing_names(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a,a,,a.2,a\n1,2,3,4,5\n6,7,8,9,10\n"))
    assert list(table.frame.columns) == ["a", "a.3", "column 3", "a.2", "a.4"]
    assert table.repeated == ("a",)
    assert sum("'a' stands over several columns" in note for note in table.notes) == 2


def test_row_numbers_without_a_name_are_left_out(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [5.0, 6.0, 7.0], "b": ["x", "y", "z"]})
    frame.to_csv(tmp_path / "t.csv")
    table = read_table(tmp_path / "t.csv")
    assert list(table.frame.columns) == ["a", "b"]
    assert "numbers the rows" in table.notes[0]


def test_missing_cells(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a,b\n1,x\n?,NA\n-,\n4,y\n"))
    assert table.frame["a"].isna().tolist() == [False, True, True, False]
    assert table.frame["b"].isna().tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n  \n", "is empty"),
        ("a,b\n", "but no rows"),
        ("1,2\n3,4\n", "holds numbers .* where names"),
        ("a,b\n1,2\n1,2,3,4\n5,6\n", "line 3"),
        ("a\0b\0\n1\0", "not a text file"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_table(written(tmp_path, content))


def test_no_file_folder_and_bad_parquet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        read_table(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(DataError, match="Parquet"):
        read_table(written(tmp_path, "not parquet", "t.parquet"))


def test_without_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigurationError, match=r"vibayes\[tables\]"):
        read_table(written(tmp_path, "a,b\n1,2\n"))
