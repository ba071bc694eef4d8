"""Reading files as people have them."""

import csv
import gzip
import lzma
from pathlib import Path

import pandas as pd
import pytest

from vibayes.errors import ConfigurationError, DataError
from vibayes.tables import Encoder, read_table


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


def test_latin_1_as_windows_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("größe;preis\n1;5 €\n2;7 €\n".encode("cp1252"))
    assert read_table(path).frame["preis"].tolist() == ["5 €", "7 €"]
    path.write_bytes(b"gr\xf6\xdfe;b\n1;\x81\n2;c\n")  # of no meaning to Windows
    assert read_table(path).frame["b"].tolist() == ["\x81", "c"]


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


@pytest.mark.parametrize("rows", [2, 80])
def test_a_separator_at_the_end_of_every_line(tmp_path: Path, rows: int) -> None:
    table = read_table(written(tmp_path, "x,y,z\n" + "1,2,3,\n4,5,6,\n" * (rows // 2)))
    assert list(table.frame.columns) == ["x", "y", "z"]
    assert table.frame.iloc[:2].to_numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
    assert table.notes == []


def test_row_numbers_and_a_last_column_that_is_empty_at_first(tmp_path: Path) -> None:
    rows = [f"{i},5,{'3' if i == 60 else ''}\n" for i in range(1, 61)]
    table = read_table(written(tmp_path, "x,y\n" + "".join(rows)))
    assert list(table.frame.columns) == ["x", "y"]
    assert table.frame.iloc[-1].tolist() == [5, 3]
    assert "numbers the rows" in table.notes[0]


@pytest.mark.parametrize("end", ["1,2,3,,\n", "1,2,3,\n1,2,3\n"])
def test_empty_cells_beyond_the_names(tmp_path: Path, end: str) -> None:
    table = read_table(written(tmp_path, "x,y,z\n" + end * 3))
    assert table.frame.to_numpy().tolist() == [[1, 2, 3]] * len(table)
    assert list(table.frame.columns) == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        (["S1, Flat 2,1,2", *["S1,1,2"] * 9], "Row 1 under"),  # the extra cell of the first row was let pass in all
        (["S1, Flat 2,1,2", *["S1,1,2"] * 60, "S1, Flat 2,1,2"], "Row 1 under"),
        (["S1,1,2"] * 3 + ["S1, Flat 2,1,2"], "Line 5"),
        (["S1,1,2"] * 60 + ["S1, Flat 2,1,2"], "Line 62"),
        (["S1, Flat 2,1,2", "S2, Flat 2,1,2", "S1, Flat 2,1,2"], "Row 1 under"),  # no names of rows: they repeat
        (["S1,1,2,"] * 60 + ["S1, Flat 2,1,2"], "Row 61 under"),
        (["S1, F, 2,1,2"] * 5, "Row 1 under"),
    ],
)
def test_more_cells_than_names_are_refused(tmp_path: Path, rows: list[str], where: str) -> None:
    """Cells behind the extra one would stand under the wrong names."""
    with pytest.raises(DataError, match=f"{where}.* more cells .* text with commas in it in quotation marks"):
        read_table(written(tmp_path, "\n".join(["address,x,y", *rows])))


def test_names_of_rows_stay_a_column(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "x,y\nMazda RX4,1,2\nValiant,3,4\n"))
    assert table.frame.to_numpy().tolist() == [["Mazda RX4", 1, 2], ["Valiant", 3, 4]]
    again = read_table(
        written(tmp_path, "x,code\n" + "".join(f"{i},5,{'01' * (i > 60)}\n" for i in range(70))), ["code"]
    )
    assert again.frame["code"].tolist()[-1] == "01"


@pytest.mark.parametrize("blank", [",,\n", ",,\n\n,,\n", " \n", '"","",""\n', "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_blank_lines_before_the_names(tmp_path: Path, blank: str, encoding: str) -> None:
    table = read_table(written(tmp_path, blank + "x,y,z\n1,2,3\n4,5,6\n", encoding=encoding))
    assert list(table.frame.columns) == ["x", "y", "z"]
    assert table.frame.to_numpy().tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    "above",
    [
        "# made by a tool, v2\n",  # as many cells as there are columns
        '# a\n\n#b, 5" long\n',
        "".join(f"# line {i}\n" for i in range(80)),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_comments_above_the_names(tmp_path: Path, above: str, encoding: str) -> None:
    table = read_table(written(tmp_path, above + "x,y\n1,2\n3,4\n", encoding=encoding))
    assert list(table.frame.columns) == ["x", "y"]
    assert table.frame.to_numpy().tolist() == [[1, 2], [3, 4]]
    assert any("begin with # were left out" in note for note in table.notes)


def test_names_behind_a_hash(tmp_path: Path) -> None:
    assert list(read_table(written(tmp_path, "#x,y\n1,2\n3,4\n")).frame.columns) == ["#x", "y"]
    table = read_table(written(tmp_path, "# from a tool\n#x,kind\n1,red\n2,blue\n"))
    assert list(table.frame.columns) == ["#x", "kind"]
    assert len(table) == 2
    assert table.notes == ["Lines above the names that begin with # were left out (1)."]
    assert list(read_table(written(tmp_path, "#id,kind\nb,red\nc,blue\n")).frame.columns) == ["#id", "kind"]


def test_the_separator_that_excel_wants_to_know(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "sep=;\nx;y\n1,5;2\n3;4\n"))
    assert table.frame.to_numpy().tolist() == [[1.5, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("separator", ["\t", "|"])
def test_decimal_commas_without_semicolons(tmp_path: Path, separator: str) -> None:
    table = read_table(written(tmp_path, "x,y\n1@250,7\n-0@5,8\n".replace(",", separator).replace("@", ",")))
    assert table.frame["x"].tolist() == [1.25, -0.5]
    assert "decimal commas" in table.notes[0]
    thousands = read_table(written(tmp_path, "x,y\n1@250,7\n2@500,8\n".replace(",", separator).replace("@", ",")))
    assert thousands.frame["x"].tolist() == ["1,250", "2,500"]  # may be either


def test_points_of_thousands_beside_decimal_commas(tmp_path: Path) -> None:
    """Read as decimal points, 950 and 1.200 would be 950 and 1.2."""
    content = "people;area;day;code\n950;1,5;03.04.2021;1.2\n1.200;1.234,5;04.04.2021;1.3\n;2;05.04.2021;1.4\n"
    table = read_table(written(tmp_path, content))
    assert table.decimal == ","
    assert table.frame["day"].tolist()[0] == "03.04.2021"
    assert table.frame["code"].tolist() == ["1.2", "1.3", "1.4"]
    encoder = Encoder.learn(table.frame, ["day"], table.decimal)
    assert encoder.encode(table.frame).x.tolist() == [[950, 0, 1.5, 1.2], [1200, 0, 1234.5, 1.3], [1075, 1, 2, 1.4]]
    assert "'1.200' is read as 1200" in dict(encoder.summary())["people"]
    new = written(tmp_path, "people;area;code\n1.100;7;1\n")  # in which no comma says what a point is
    assert encoder.encode(read_table(new, encoder.texts).frame).x.tolist() == [[1100, 0, 7, 1]]


def test_blank_line_of_tabs(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "\t\t\nx\ty\tz\n1\t2\t3\n"))
    assert table.frame.to_numpy().tolist() == [[1, 2, 3]]


def test_columns_to_read_as_text(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "code,n\n01,1\n,2\n"), ["code", "elsewhere"])
    assert table.frame["code"].iloc[0] == "01"
    assert table.frame["code"].isna().tolist() == [False, True]
    assert table.frame["n"].tolist() == [1, 2]


def test_long_cells(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    table = read_table(written(tmp_path, f"a,b\n{'x' * 200_000},1\ny,2\n"))
    assert table.frame["b"].tolist() == [1, 2]
    assert csv.field_size_limit() == limit


def test_decimal_commas_that_come_late(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a;b;c\n" + "1;1.5;x,y\n" * 60 + "2,5;2.5;\n;1;z\n"))
    assert table.frame["b"].iloc[60] == 2.5
    assert table.frame["c"].iloc[0] == "x,y"
    encoder = Encoder.learn(table.frame, ["b", "c"], table.decimal)
    assert encoder.encode(table.frame).x[:61].tolist() == [[1.0, 0.0]] * 60 + [[2.5, 0.0]]
    assert "'2,5' is read as 2.5" in dict(encoder.summary())["a"]


def test_named_indices_of_parquet_are_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6], "y": [7, 8, 9]})
    frame.set_index(["b", "a"]).to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert table.frame[["a", "b", "y"]].equals(frame)
    assert "index is used as a column, too: b, a" in table.notes[0]
    frame.set_index("a", drop=False).to_parquet(tmp_path / "t.parquet")  # the same numbers twice
    assert read_table(tmp_path / "t.parquet").frame.equals(frame)
    frame.set_index(pd.Index([5, 5, 6], name="a")).to_parquet(tmp_path / "t.parquet")  # other numbers, one name
    table = read_table(tmp_path / "t.parquet")
    assert table.frame["a.2"].tolist() == [5, 5, 6]
    assert table.repeated == ("a",)


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
        ("a,b\n1,2\n1,2,3,4\n5,6\n", "Line 3"),
        ("Made by a tool\n\na,b,c\n1,2,3\n", "more cells .*lines above it begin with #"),
        ("<!DOCTYPE html>\n<html><p>Log in, please</p></html>\n", "web page"),
        ("a\0b\0\n1\0", "not a text file"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_table(written(tmp_path, content))


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zip", "tar", "zst"])
def test_damaged_compressed_files(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(DataError, match=rf"t.csv.{suffix} cannot be read as text"):
        read_table(written(tmp_path, "a,b\n1,2\n", f"t.csv.{suffix}"))
    if suffix in ("gz", "xz"):
        content = bytearray({"gz": gzip, "xz": lzma}[suffix].compress(b"a,b\n" + b"1,2\n3,4\n5,7\n" * 99))
        content[len(content) // 2] ^= 255
        (tmp_path / f"t.csv.{suffix}").write_bytes(content)
        with pytest.raises(DataError, match="cannot be read as"):
            read_table(tmp_path / f"t.csv.{suffix}")


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
