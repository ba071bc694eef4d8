"""What kind of target a column is."""

import numpy as np
import pandas as pd
import pytest

from vibayes.errors import ConfigurationError, DataError
from vibayes.tables import Target
from vibayes.tables.targets import learn_target


def test_numbers_are_regression() -> None:
    frame = pd.DataFrame({"y": [1.0, np.nan, 3.0], "z": ["1", "2", "4"]})
    target = learn_target(frame, ["y", "z"])
    assert (target.kind, target.width) == ("regression", 2)
    y, known = target.encode(frame)
    assert known.tolist() == [True, False, True]
    assert y[known].tolist() == [[1.0, 1.0], [3.0, 4.0]]
    assert Target.from_dict(target.to_dict()) == target


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (["no", "yes", "no", None], ("no", "yes")),
        ([0, 1, 1, 0], ("0", "1")),
        ([0.0, 1.0, np.nan, 0.0], ("0", "1")),
        ([True, False, True, True], ("False", "True")),
    ],
)
def test_two_values_are_classes(values: list[object], labels: tuple[str, ...]) -> None:
    frame = pd.DataFrame({"y": values})
    target = learn_target(frame, ["y"])
    assert (target.kind, target.labels, target.width) == ("binary", labels, 1)
    y, known = target.encode(frame)
    assert known.tolist() == frame["y"].notna().tolist()
    assert [labels[code] for code in y[known]] == [
        labels[0] if v in ("no", 0, False) else labels[1] for v in frame["y"][known]
    ]


def test_several_classes_and_the_task_by_hand() -> None:
    frame = pd.DataFrame({"y": [3, 4, 5, 3, 4, 5, 3, 4, 5, 5]})
    assert learn_target(frame, ["y"]).kind == "regression"
    target = learn_target(frame, ["y"], "classification")
    assert (target.kind, target.labels, target.width) == ("classes", ("3", "4", "5"), 3)
    assert learn_target(pd.DataFrame({"y": [0, 1, 0]}), ["y"], "regression").kind == "regression"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([5.0] * 20, "Every value of the target 'y' is 5"),
        (["a"] * 20, "one class only, 'a'; there is nothing to tell apart.$"),
        (["a", None] * 10, "one class only, 'a'; .* Cells that say None"),  # the class may have been 'None' in the file
        ([None] * 20, "is missing"),
        ([f"c{i % 500}" for i in range(5000)], "500 classes"),
        ([f"c{i}" for i in range(20)], "too few rows for each"),
        ([f"${i},500" for i in range(1, 21)], r"such as '\$1,500', are read as text: write all of them alike"),
        ([f"{i}.5%" for i in range(150)] + ["0.5"], "such as '0.5%', are read as text: write all of them alike"),
        (pd.date_range("2020", periods=20), "holds dates"),
        ([np.inf] * 10 + [-np.inf] * 10, "finite number"),
    ],
)
def test_refused(values: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        learn_target(pd.DataFrame({"y": values}), ["y"])


def test_classes_that_must_be_read_as_text() -> None:
    assert learn_target(pd.DataFrame({"y": ["01", "02", "1A"] * 3}), ["y"]).texts == ("y",)
    assert learn_target(pd.DataFrame({"y": [0, 1, 0]}), ["y"]).texts == ()
    assert learn_target(pd.DataFrame({"y": [0.5, 1.5, 2.5]}), ["y"]).texts == ()


def test_numbers_with_marks() -> None:
    frame = pd.DataFrame({"price": ["$1,250", "$990", "free", None] + ["$20"] * 60, "share": ["7%"] * 63 + ["8.5%"]})
    target = learn_target(frame, ["price", "share"], decimal=".")
    assert (target.forms, target.texts) == (("$.", "%."), ("price", "share"))
    assert Target.from_dict(target.to_dict()) == target
    y, known = target.encode(frame)
    np.testing.assert_array_equal(y[known][:2], [[1250, 7], [990, 7]])
    assert (~known).nonzero()[0].tolist() == [2, 3]
    assert target.odd(frame) == " (1 entry not a finite number, such as 'free')"


def test_damaged_descriptions() -> None:
    description = learn_target(pd.DataFrame({"y": [0, 1, 0]}), ["y"]).to_dict()
    assert Target.from_dict(description).to_dict() == description
    for wrong in ({"names": "y"}, {"names": []}, {"kind": "evil"}, {"labels": [0, 1]}, {"note": 3}, {"forms": ["x"]}):
        with pytest.raises(DataError, match="not the description of a target"):
            Target.from_dict(description | wrong)


def test_refused_questions() -> None:
    frame = pd.DataFrame({"y": [1.0, 2.0, 3.0], "c": ["a", "b", "a"]})
    with pytest.raises(DataError, match=r"no column 'price'.*y, c"):
        learn_target(frame, ["price"])
    with pytest.raises(DataError, match="holds lists"):
        learn_target(frame.assign(y=[[1], [2], [3]]), ["y"])
    with pytest.raises(DataError, match="holds lists"):
        learn_target(frame, ["c"]).encode(frame.assign(c=[["a"], ["b"], None]))
    with pytest.raises(DataError, match="must all be numbers"):
        learn_target(frame, ["y", "c"])
    with pytest.raises(
        DataError, match=r"cannot be a regression's\. If .* keep only the numbers in the cells; one is 'a'"
    ):
        learn_target(frame, ["c"], "regression")
    many = pd.DataFrame({"n": range(200), "unit": [f"{i} kWh" for i in range(200)]})
    with pytest.raises(DataError, match="If they are numbers, give --task regression"):
        learn_target(many, ["n"], "classification")
    with pytest.raises(DataError, match=r"at most 100 .* numbers with a unit, keep only the numbers .* '0 kWh'"):
        learn_target(many, ["unit"])
    with pytest.raises(ConfigurationError, match="named twice"):
        learn_target(frame, ["y", "y"])
    with pytest.raises(ConfigurationError, match="--target"):
        learn_target(frame, [])
    with pytest.raises(ConfigurationError, match="regression or classification"):
        learn_target(frame, ["y"], "clustering")
