"""From columns to numbers, and the same way again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from vibayes.errors import DataError
from vibayes.tables import Encoder, read_table
from vibayes.tables.numbers import as_numbers, learn_form, marked_numbers


def learn(decimal: str = "", **columns: Any) -> tuple[Encoder, pd.DataFrame]:
    frame = pd.DataFrame(columns)
    return Encoder.learn(frame, decimal=decimal), frame


def note(encoder: Encoder, name: str) -> str:
    return dict(encoder.summary())[name]


def test_numbers_and_missing_ones() -> None:
    encoder, frame = learn(a=[1.0, np.nan, 5.0, 3.0, np.inf], b=[1, 2, 3, 4, 5])
    assert encoder.features == ("a", "a is missing", "b")
    assert encoder.encode(frame).x[:, :2].tolist() == [[1, 0], [3, 1], [5, 0], [3, 0], [3, 1]]
    assert "2 missing values replaced by the median 3" in note(encoder, "a")


def test_missing_only_at_prediction_time_is_said() -> None:
    encoder, _ = learn(a=[1.0, 2.0, 9.0])
    encoded = encoder.encode(pd.DataFrame({"a": [np.nan, 4.0]}))
    assert encoded.x.tolist() == [[2.0], [4.0]]
    assert "1 missing value, of which there were none in training" in encoded.notes[0]


def test_mixed_types() -> None:
    mostly = [str(i) for i in range(40)] + ["oops"]
    encoder, frame = learn(a=mostly, b=["1", "x"] * 20 + ["2"])
    assert [column.kind for column in encoder.columns] == ["number", "category"]
    assert "('oops')" in note(encoder, "a")
    x = encoder.encode(frame).x
    assert x[-1, 0] == np.median(np.arange(40))
    assert x[-1, 1] == 1.0


def test_categories() -> None:
    encoder, frame = learn(colour=["red", "blue", None, "red"], flag=[True, False, True, True])
    assert encoder.features == ("colour=(missing)", "colour=blue", "colour=red", "flag=True")
    assert encoder.encode(frame).x.tolist() == [[0, 0, 1, 1], [0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 1]]
    new = encoder.encode(pd.DataFrame({"flag": ["True", "maybe"], "colour": ["green", "blue"]}))
    assert new.x.tolist() == [[0, 0, 0, 1], [0, 1, 0, 0.5]]
    assert [text for text in new.notes if "('green')" in text]
    assert [text for text in new.notes if "('maybe')" in text]


def test_whole_numbers_as_categories_read_alike_with_missing_values() -> None:
    encoder, _ = learn(code=pd.Series(["1", "x", "1", "x"]))
    # pandas reads a column of 1 and an empty cell as 1.0
    assert (
        encoder.encode(pd.DataFrame({"code": [1.0]})).x.tolist()
        == encoder.encode(pd.DataFrame({"code": ["1"]})).x.tolist()
    )


def test_codes_written_otherwise_are_found_and_said() -> None:
    encoder, _ = learn(code=["01", "02", "1A", "02"])
    assert encoder.texts == ("code",)
    new = encoder.encode(pd.DataFrame({"code": [1, 2, 3]}))
    assert new.x.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert new.notes[0] == "'code': 2 rows with a level written otherwise ('1' for '01', '2' for '02')."
    assert "('3')" in new.notes[1]


def test_true_and_false_are_found_where_one_cell_makes_text_of_the_column(tmp_path: Path) -> None:
    """Files of R hold TRUE and of SQL true, which pandas reads as words where the column has others, too."""
    encoder, _ = learn(active=[True, False, True])
    (tmp_path / "t.csv").write_text("active\nTRUE\nfalse\nmaybe\n")
    new = encoder.encode(read_table(tmp_path / "t.csv", encoder.texts).frame)
    assert new.x.tolist() == [[1], [0], [0.5]]
    assert new.notes == [
        "'active': 2 rows with a level written otherwise ('TRUE' for 'True', 'false' for 'False').",
        "'active': 1 row with a value not seen in training ('maybe').",
    ]
    both, _ = learn(code=["01", "1", "1A", "01"])
    assert both.encode(pd.DataFrame({"code": ["1.0"]})).x.tolist() == [[0, 0, 0]]  # which of two is not known
    yes_or_no, _ = learn(flag=[True, False, True])
    assert yes_or_no.texts == ()


def test_lists_and_records_are_left_out() -> None:
    encoder, frame = learn(a=[1.0, 2.0, 3.0], tags=[["x"], ["y"], None], place=[{"b": 1}, None, {"b": 2}])
    assert encoder.features == ("a",)
    assert "its cells are lists" in note(encoder, "tags")
    assert "its cells are records" in note(encoder, "place")
    with pytest.raises(DataError, match="'a' holds lists; a number"):
        encoder.encode(frame.assign(a=frame["tags"]))


def test_many_levels_keep_the_frequent_ones() -> None:
    values = [f"l{i}" for i in range(40) for _ in range(i + 1)]
    encoder, frame = learn(a=values)
    assert len(encoder.features) == 30
    assert encoder.texts == ("a",)
    assert encoder.features[-1] == "a=(other)"
    x = encoder.encode(frame).x
    assert (x.sum(1) == 1).all()
    assert x[0, -1] == 1.0  # l0 is the rarest
    assert encoder.encode(pd.DataFrame({"a": ["never seen"]})).x[0, -1] == 1.0


def test_identifiers_constants_and_empty_columns_are_left_out() -> None:
    n = 60
    encoder, frame = learn(
        name=[f"person {i}" for i in range(n)], same=[3.0] * n, word=["x"] * n, empty=[None] * n, a=range(n)
    )
    assert encoder.features == ("a",)
    assert "names the rows" in note(encoder, "name")
    assert "every value is 3" in note(encoder, "same")
    assert "every value is 'x'" in note(encoder, "word")
    assert "every value is missing" in note(encoder, "empty")
    assert encoder.encode(frame[["a"]]).x.shape == (n, 1)  # columns that were left out need not come back


@pytest.mark.parametrize("n", [8, 24, 36])
def test_identifiers_of_few_rows_are_left_out(n: int) -> None:
    """A column for each row lets a model take its noise from there; what it says of new rows is then worth nothing."""
    encoder, _ = learn(name=[f"person {i}" for i in range(n)], kind=["a", "b", "c", "d"] * (n // 4), a=range(n))
    assert "names the rows" in note(encoder, "name")
    assert note(encoder, "kind") == "category of 4 levels"


def test_numbers_with_marks_are_read_and_named() -> None:
    n = 60
    encoder, frame = learn(".", price=[f"${i},000" for i in range(1, n + 1)], share=[f"{i % 9}%" for i in range(n)])
    assert note(encoder, "price") == "number, 1000 to 6e+04; '$1,000' is read as 1000"
    assert note(encoder, "share") == "number, 0 to 8; '0%' is read as 0"
    np.testing.assert_array_equal(
        encoder.encode(frame).x, np.column_stack([1000 * np.arange(1, n + 1), np.arange(n) % 9])
    )
    assert encoder.texts == ("price", "share")
    assert Encoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder


def test_new_rows_are_written_as_those_that_trained() -> None:
    encoder, _ = learn(price=["1,250", "0,5", "2,0", "3,125"], share=["10%", "20%", "15%", "5%"])
    new = pd.DataFrame({"price": ["1,250", "7"], "share": ["3%", "4 %"]})  # 1,250 alone might be a thousand
    assert encoder.encode(new).x.tolist() == [[1.25, 3], [7, 4]]
    assert encoder.encode(new.assign(price=[1.25, 7.0])).x.tolist() == [[1.25, 3], [7, 4]]  # Parquet, say
    for other in (["0.03", "0.04"], [0.03, 0.04], ["$3", "$4"]):
        with pytest.raises(DataError, match="'share' held numbers with % in training, but here most of its entries"):
            encoder.encode(new.assign(share=other))
    dollars, _ = learn(price=["$5", "$6", "7"])
    with pytest.raises(DataError, match=r"'price' held numbers with \$ in training.* such as '€5'"):
        dollars.encode(pd.DataFrame({"price": ["€5", "€6"]}))


def test_few_numbers_with_marks_among_plain_ones_do_not_count_as_missing() -> None:
    encoder, frame = learn(".", price=[*map(str, range(100)), "1,250"])
    assert encoder.encode(frame).x[-1].tolist() == [1250.0]
    assert encoder.features == ("price",)


@pytest.mark.parametrize(
    ("levels", "what"),
    [
        (100, "left out: 10 of 100 entries"),
        (40, "category of 37 levels, the 29 most frequent ones kept and the others joined; 10 of"),
    ],
)
def test_numbers_among_which_are_too_many_words_are_named(levels: int, what: str) -> None:
    """They do not name the rows, and joining the rarest is nothing that one would want."""
    cells = ["n/d" if i % 10 == 0 else f"{i % levels}.5" for i in range(100)]
    encoder, _ = learn(x=cells, a=range(100))
    assert note(encoder, "x").startswith(what)
    assert "such as 'n/d': leave such cells empty" in note(encoder, "x")


@pytest.mark.parametrize(
    ("cells", "decimal", "numbers"),
    [
        (["1,697", "-0,977"], ".", [1.697, -0.977]),  # the second cannot be thousands
        (["1,697", "977"], ".", [1697, 977]),  # as elsewhere in the file
        (["1,697 €", "977 €"], ",", [1.697, 977]),
        (["€ 1.250,50", "-€990", "€.5"], "", None),  # marks that contradict each other
        (["€ 1.250,50", "-€990", "€,5"], "", [1250.5, -990, 0.5]),
        (["1.250.000", "2.500.000"], ".", [1250000, 2500000]),
        (["12'500", "990", "1 250.5"], "", [12500, 990, 1250.5]),
        (["\u22120.5", "1", "2"], "", [-0.5, 1, 2]),
        (["+$1,250.00", "$-3", None], "", [1250, -3, np.nan]),
    ],
)
def test_marks_are_understood(cells: list[str], decimal: str, numbers: list[float] | None) -> None:
    series = pd.Series(cells)
    form = learn_form(series, decimal)
    assert bool(form) == (numbers is not None)
    if numbers is not None:
        np.testing.assert_array_equal(as_numbers(series, form)[0], numbers)


@pytest.mark.parametrize(
    "cells",
    [
        ["1,250", "990"],  # nothing says whether a thousand
        ["$1,250", "€990"],  # of two currencies
        ["7%", "0.07"],  # shares beside percentages
        ["1,2", "1,2,3"],
    ],
)
def test_marks_that_are_not_clear_are_named(cells: list[str]) -> None:
    assert learn_form(pd.Series(cells)) == ""
    assert f"such as {cells[0]!r}, are read as text: write all of them alike" in marked_numbers(pd.Series(cells))


@pytest.mark.parametrize("cells", [["10 20", "30 40"], ["1,2,3", "4"], ["A1", "B2"], ["2021-01-05"], ["10.0.0.1"]])
def test_other_text_is_no_number(cells: list[str]) -> None:
    assert learn_form(pd.Series(cells), ".") == ""
    assert not np.isfinite(as_numbers(pd.Series(cells), ".")[0]).all()


def test_yes_or_no_with_missing_cells_is_a_category(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("flag,sure,y\n" + "True,TRUE,1\nFalse,,2\n,TRUE,3\nTrue,,4\n")
    frame = read_table(file).frame
    encoder = Encoder.learn(frame, ["y"])
    assert encoder.features == ("flag=(missing)", "flag=False", "flag=True", "sure=True")
    assert encoder.encode(frame).x.tolist() == [[0, 0, 1, 1], [0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]]
    new = encoder.encode(pd.DataFrame({"flag": [False, True], "sure": [True, True]}))
    assert new.x.tolist() == [[0, 1, 0, 1], [0, 0, 1, 1]]


def test_dates() -> None:
    days = pd.date_range("2020-01-01", periods=800, freq="D")
    encoder, frame = learn(day=days.strftime("%Y-%m-%d"))
    assert encoder.columns[0].kind == "date"
    assert encoder.columns[0].parts == ("season", "week")
    x = encoder.encode(frame).x
    np.testing.assert_allclose(x[:, 0], np.arange(800) / 365.2425, atol=1e-9)
    np.testing.assert_allclose(x[7, 3:5], x[0, 3:5], atol=1e-6)  # one week later is the same day of the week
    np.testing.assert_allclose(x[365, 1:3], x[0, 1:3], atol=0.02)  # and nearly the same season
    np.testing.assert_allclose(np.square(x[:, 1:3]).sum(1), 1.0)


@pytest.mark.parametrize(
    ("texts", "second"),
    [
        (["2021-03-01", "2021-03-02", "2021-03-15"], 1.0),
        (["01.03.2021", "02.03.2021", "15.03.2021"], 1.0),
        (["01/03/2021", "02/03/2021", "15/03/2021"], 1.0),  # 15 cannot be a month
        (["03/01/2021", "03/02/2021", "03/12/2021"], 1.0),
        (["1 Mar 2021", "2 Mar 2021", "15 Mar 2021"], 1.0),
        (["Mar 1, 2021", "Mar 2, 2021", "Mar 15, 2021"], 1.0),
        (["March 1 2021", "March 2 2021", "March 15 2021"], 1.0),
        (["2021-03-01T00:00:00+01:00", "2021-03-02T00:00:00+01:00", "2021-03-03T12:00:00+01:00"], 1.0),
    ],
)
def test_forms_of_dates(texts: list[str], second: float) -> None:
    encoder, frame = learn(day=texts)
    assert encoder.columns[0].kind == "date"
    x = encoder.encode(frame).x
    assert x[1, 0] * 365.2425 == pytest.approx(second)


def test_the_order_of_day_and_month_is_learned_once() -> None:
    encoder, _ = learn(day=["25/12/2020", "01/02/2021", "05/03/2021"])
    assert encoder.columns[0].day_first
    few, more = pd.DataFrame({"day": ["05/12/2021"]}), pd.DataFrame({"day": ["05/12/2021", "25/12/2021"]})
    expected = (pd.Timestamp("2021-12-05") - pd.Timestamp("2020-12-25")).days / 365.2425
    assert encoder.encode(few).x[0, 0] == pytest.approx(expected)
    assert encoder.encode(more).x[0, 0] == pytest.approx(expected)
    assert not encoder.encode(more).notes
    again = Encoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again.encode(few).x[0, 0] == pytest.approx(expected)
    months, frame = learn(day=["02/01/2021", "03/05/2021", "04/09/2021"])
    assert months.columns[0].day_first is False
    assert not months.encode(frame).notes
    assert "1 date such as '25/12/2021' cannot have the month first" in months.encode(more).notes[0]


def test_descriptions_from_before_the_order_was_kept_still_load() -> None:
    encoder, frame = learn(day=["25/12/2020", "01/02/2021", "05/03/2021"])
    description = encoder.to_dict()
    del description["columns"][0]["day_first"]
    old = Encoder.from_dict(description)
    assert old.columns[0].day_first is None
    np.testing.assert_array_equal(old.encode(frame).x, encoder.encode(frame).x)


def test_day_first_leaves_dates_with_the_year_first_alone() -> None:
    encoder, _ = learn(day=["25/12/2020", "2020-12-26", "27/12/2020"])
    x = encoder.encode(pd.DataFrame({"day": ["2021-05-12", "12/05/2021", "2021/05/12"]})).x
    assert x[0, 0] == x[1, 0] == x[2, 0]


@pytest.mark.parametrize("kind", ["text", "stamps"])
def test_dates_beyond_2262(kind: str) -> None:
    texts = ["2020-01-01", "2021-01-01", "9999-12-31"]
    values = texts if kind == "text" else pd.Series(np.array(texts, dtype="datetime64[s]"))
    encoder, frame = learn(day=values)
    assert encoder.encode(frame).x[2, 0] == pytest.approx(7980, abs=0.1)


def test_words_are_not_dates() -> None:
    encoder, _ = learn(month=["may", "june", "may", "july"] * 3)
    assert encoder.columns[0].kind == "category"


def test_time_of_day() -> None:
    stamps = pd.date_range("2024-01-01", periods=48, freq="h")
    encoder, frame = learn(at=stamps)
    assert encoder.columns[0].parts == ("day",)
    x = encoder.encode(frame).x
    np.testing.assert_allclose(x[30, 1:], x[6, 1:], atol=1e-6)


def test_json_round_trip_encodes_alike() -> None:
    encoder, frame = learn(
        a=[1.0, None, 3.0, 4.0], c=["x", "y", None, "x"], d=["2020-01-01", "2021-06-01", None, "2023-01-01"]
    )
    again = Encoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again == encoder
    np.testing.assert_array_equal(again.encode(frame).x, encoder.encode(frame).x)
    assert again.summary() == encoder.summary()
    with pytest.raises(DataError, match="no list of columns"):
        Encoder.from_dict({})
    with pytest.raises(DataError, match="kind must be one of"):
        Encoder.from_dict({"columns": [{"name": "a", "kind": "evil"}]})
    with pytest.raises(DataError, match="not the description of a column"):
        Encoder.from_dict({"columns": [{"nam": "a"}]})
    with pytest.raises(DataError, match="not the description of a column"):
        Encoder.from_dict({"columns": ["a"]})
    for wrong in ({"levels": 3}, {"features": [1]}, {"fill": "x"}, {"flags_missing": 1}):
        with pytest.raises(DataError, match=f"not the description of a column: {next(iter(wrong))} is"):
            Encoder.from_dict({"columns": [{"name": "a", "kind": "number", **wrong}]})


def test_columns_are_found_by_name_and_missing_ones_named() -> None:
    encoder, frame = learn(Age=[1.0, 2.0, 3.0], b=[3.0, 1.0, 2.0])
    shuffled = frame[["b", "Age"]].assign(extra=1)
    np.testing.assert_array_equal(encoder.encode(shuffled).x, encoder.encode(frame).x)
    with pytest.raises(DataError, match=r"lacks the column 'Age' \(is it 'age'\?\)"):
        encoder.encode(frame.rename(columns={"Age": "age"}))
    with pytest.raises(DataError, match="no rows"):
        encoder.encode(frame.iloc[:0])


def test_another_kind_of_column_at_prediction_time() -> None:
    encoder, _ = learn(a=[1.0, 2.0, 3.0], d=["2020-01-01", "2020-01-05", "2020-02-01"])
    with pytest.raises(DataError, match="held numbers in training"):
        encoder.encode(pd.DataFrame({"a": ["x", "y"], "d": ["2020-01-01"] * 2}))
    with pytest.raises(DataError, match="held dates in training"):
        encoder.encode(pd.DataFrame({"a": [1, 2], "d": ["soon", "later"]}))


def test_nothing_left_to_learn_from() -> None:
    with pytest.raises(DataError, match="No input column is left"):
        Encoder.learn(pd.DataFrame({"y": [1, 2, 3]}), leave_out=["y"])
    with pytest.raises(DataError, match="every value is missing"):
        Encoder.learn(pd.DataFrame({"a": [None, None]}))


def test_slices_cover_the_features() -> None:
    encoder, _ = learn(a=[1.0, None, 2.0], s=["x"] * 3, c=["x", "y", "z"])
    assert encoder.slices() == {"a": slice(0, 2), "c": slice(2, 5)}
