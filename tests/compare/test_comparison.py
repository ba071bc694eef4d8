"""The comparison as a whole, with few steps."""

import copy
import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests_tables import class_frame, regression_frame, table

from vibayes.compare import (
    Data,
    Difference,
    Result,
    TableModel,
    compare,
    paired,
    prediction_frame,
    prepare,
    rank,
    training,
    write,
)
from vibayes.compare import comparison as module
from vibayes.compare.comparison import Silent
from vibayes.compare.families import FAMILIES
from vibayes.compare.scores import Bounds
from vibayes.compare.training import Trained
from vibayes.errors import ConfigurationError, DataError, TrainingError
from vibayes.modes import default_dtype
from vibayes.saving import load
from vibayes.tables import Encoder, read_table
from vibayes.training import History


def result(family: str, values: list[float], errors: list[float] | None = None, n: int = 100) -> Result:
    seeds = list(range(len(values)))
    history = History(n_data=n, step=[1])
    trained = Trained([None] * len(values), [history] * len(values), seeds, 1.0)  # type: ignore[list-item]
    bounds = [Bounds(v, e) for v, e in zip(values, errors or [0.0] * len(values), strict=True)]
    return Result(family, trained, bounds, [{"rmse": 1.0}] * len(values))


# -- parts of a table -------------------------------------------------------------------------------------------


def test_held_out_rows_are_apart_and_reproducible() -> None:
    frame = regression_frame(200)
    first, again, other = (prepare(table(frame), ["y"], seed=seed) for seed in (0, 0, 1))
    assert len(first.test) == 20
    assert not set(first.train) & set(first.test)
    assert 5 not in set(first.train) | set(first.test)  # it has no target
    assert len(first.train) + len(first.test) == 199
    np.testing.assert_array_equal(first.test, again.test)
    assert set(first.test) != set(other.test)
    assert any("1 row without a target" in note for note in first.notes)


def test_sizes_of_the_test_part() -> None:
    assert len(prepare(table(regression_frame(60)), ["y"]).test) == 12
    assert len(prepare(table(regression_frame(60)), ["y"], test=0.5).test) == 30
    assert len(prepare(table(regression_frame(60)), ["y"], test=0.0).test) == 0
    chosen = prepare(table(regression_frame(60)), ["y"], test=np.array([1, 2, 5]))
    assert chosen.test.tolist() == [1, 2]  # 5 has no target
    with pytest.raises(ConfigurationError, match="below 1"):
        prepare(table(regression_frame(60)), ["y"], test=1.5)
    with pytest.raises(ConfigurationError, match="nothing to train on"):
        prepare(table(regression_frame(60)), ["y"], test=np.arange(60))


def test_every_class_trains_and_tests() -> None:
    frame = class_frame(120, 3)
    frame.loc[0, "label"] = "rare"
    data = prepare(table(frame), ["label"])
    train = data.y.numpy()[data.train]
    assert set(train) == {0, 1, 2, 3}
    shares = np.bincount(data.y.numpy()[data.test], minlength=4) / len(data.test)
    np.testing.assert_allclose(shares[:3], np.bincount(train, minlength=4)[:3] / len(train), atol=0.05)


@pytest.mark.parametrize(("test", "size"), [(None, 20), (0.2, 24), (0.05, 6), (0.9, 80), (0.0, 0)])
def test_classes_of_few_rows_are_held_out(test: float | None, size: int) -> None:
    frame = class_frame(120, 3)
    frame["label"] = [f"class {i // 3}" for i in range(120)]  # 40 classes of three rows
    data = prepare(table(frame), ["label"], test=test)
    assert len(data.test) == size
    assert set(data.y.numpy()[data.train]) == set(range(40))
    assert np.bincount(data.y.numpy()[data.test], minlength=40).max(initial=0) <= max(1, size // 40)


def test_targets_that_cannot_be_used_are_said() -> None:
    frame = regression_frame()
    frame.loc[7, "y"] = np.inf
    notes = prepare(table(frame), ["y"]).notes
    assert any("2 rows without a target (1 entry not a finite number, such as 'inf')" in note for note in notes)
    assert not any("None" in note for note in notes)
    classes = class_frame(60, 3)
    classes.loc[:9, "label"] = None
    notes = prepare(table(classes), ["label"]).notes
    assert any(
        "10 rows without a target" in note and "say None, NA or unknown count as empty" in note for note in notes
    )


def test_the_encoder_sees_training_rows_only() -> None:
    frame = regression_frame(100)
    data = prepare(table(frame), ["y"])
    frame.loc[data.test, "a"] = 1e6
    again = prepare(table(frame), ["y"])
    assert again.encoder == data.encoder


def test_refused_tables() -> None:
    frame = regression_frame(50)
    with pytest.raises(DataError, match="at least 10"):
        prepare(table(frame.iloc[:8]), ["y"])
    with pytest.raises(DataError, match="No input column"):
        prepare(table(frame[["y"]]), ["y"])
    with pytest.raises(DataError, match="no column 'zz' to ignore"):
        prepare(table(frame), ["y"], ignore=["zz"])
    twice = table(frame)
    twice.repeated = ("y",)
    with pytest.raises(DataError, match="several columns"):
        prepare(twice, ["y"])


def test_copies_and_coarse_targets_are_noted() -> None:
    frame = regression_frame(60).dropna().reset_index(drop=True)
    frame["y"] = frame["y"].round()
    frame.loc[0] = frame.loc[40]
    frame.loc[1, ["a", "b", "kind"]] = frame.loc[41, ["a", "b", "kind"]]  # another target: no copy
    notes = prepare(table(frame), ["y"], test=np.array([0, 1, 2])).notes
    assert "1 of the 3 held-out rows is a copy of rows that train" in " ".join(notes)
    assert any("y is recorded in steps of 1: no model's noise" in note for note in notes)
    assert not any("copy" in note or "steps of" in note for note in prepare(table(regression_frame(60)), ["y"]).notes)


def test_columns_that_are_the_target_are_noted() -> None:
    frame = regression_frame().assign(inches=lambda t: 3.0 - t["y"] / 2.54, near=lambda t: t["y"] + 0.01 * t["a"])
    said = [note for note in prepare(table(frame), ["y"]).notes if "alone tells" in note]
    assert [note[:34] for note in said] == ["Column 'inches' alone tells y exac"]
    classes = class_frame(classes=2).assign(code=lambda t: t["label"].map({"class 0": 7, "class 1": 3}))
    classes["rather"] = classes["code"].where(classes.index != 5, 10 - classes["code"])
    said = [note for note in prepare(table(classes), ["label"]).notes if "alone tells" in note]
    assert [note[:36] for note in said] == ["Column 'code' alone tells label exac"]
    assert not any("alone tells" in note for note in prepare(table(regression_frame()), ["y"], ignore=["b"]).notes)
    with pytest.raises(ConfigurationError, match="'y' cannot be both the target and ignored"):
        prepare(table(frame), ["y"], ignore=["y"])


def test_tables_too_wide_for_lengthscales_are_noted() -> None:
    frame = regression_frame(60)
    wide = frame.assign(**{f"more {i}": np.random.RandomState(i).normal(size=60) for i in range(4)})
    for given, noted in ((frame, False), (wide, True)):
        data = prepare(table(given), ["y"])
        assert (len(data.train) >= 10 * data.x.shape[1]) != noted
        assert any("one lengthscale for all of them" in note for note in data.notes) == noted


def test_numbers_that_may_be_classes_are_noted() -> None:
    frame = pd.DataFrame({"a": np.arange(60.0), "y": np.arange(60) % 3, "z": np.arange(60) % 3 / 2})
    told = "y is one of 0, 1, 2, taken as numbers; if they name classes, give --task classification."
    assert told in prepare(table(frame), ["y"]).notes
    assert not any("--task" in note for note in prepare(table(frame), ["y"], task="regression").notes)
    assert not any("--task" in note for note in prepare(table(frame), ["z"]).notes)


# -- ranking ----------------------------------------------------------------------------------------------------


def test_paired_differences() -> None:
    a, b = result("deep-gp", [1.0, 1.2, 1.4]), result("bnn-global", [0.5, 0.8, 0.8])
    gap = paired(a, b)
    values = np.array([0.5, 0.4, 0.6])
    assert gap.mean == pytest.approx(values.mean())
    assert gap.stderr == pytest.approx(values.std(ddof=1) / math.sqrt(3))
    assert gap.clear
    exact = result("gp", [1.0])
    against = paired(exact, b)
    assert against.mean == pytest.approx(np.mean([0.5, 0.2, 0.2]))
    assert paired(b, exact).mean == pytest.approx(-against.mean)
    assert paired(b, exact).stderr == pytest.approx(against.stderr)


def test_monte_carlo_errors_count() -> None:
    gap = paired(result("deep-gp", [1.0, 1.0], [0.3, 0.4]), result("bnn-global", [0.5, 0.5], [0.0, 0.0]))
    assert gap.stderr == pytest.approx(0.25)
    assert not gap.clear


def test_a_difference_of_few_nats_in_all_is_not_clear() -> None:
    assert not Difference(0.01, 0.0, 100).clear
    assert Difference(0.01, 0.0, 1000).clear
    assert not Difference(0.01, 0.006, 1000).clear


def test_a_bound_that_still_rises() -> None:
    def trained(values: list[float]) -> Result:
        made = result("deep-gp", [1.0])
        made.trained.histories = [History(n_data=10, step=[1] * len(values), elbo=[10 * v for v in values])]
        return made

    assert trained([0.0, 1.0, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0]).rising
    assert not trained([0.0, 1.0, 1.5, 1.6, 1.6, 1.6, 1.61, 1.61]).rising
    assert trained([1.0, 1.0]).rising  # too short to know
    exact = trained([1.0])
    exact.trained.starts = [1.0]
    assert not exact.rising


def test_rank_leaves_deep_kernel_learning_out() -> None:
    ranked = rank([result("gp", [0.0]), result("dkl", [9.0]), result("deep-gp", [1.0, 2.0])])
    assert [r.family for r, _ in ranked] == ["deep-gp", "gp"]
    assert ranked[0][1] is None
    with pytest.raises(ConfigurationError, match="add one"):
        rank([result("dkl", [9.0])])


def comparison(data: Data, values: dict[str, float], scores: dict[str, float] | None = None) -> module.Comparison:
    results = [result(family, [value]) for family, value in values.items()]
    for made in results:
        made.trained.starts = [1.0]  # at their end
        made.scores = [scores or {}]
    return module.Comparison(data, results, {}, None, 1.0, 1.0)


def test_nothing_is_said_of_families_that_were_not_trained(regression: Data) -> None:
    values = {"gp": 1.0, "gp-matern": 0.5, "gp-two-scales": 0.4, "deep-wishart": -1.0}
    assert "nothing deeper" not in comparison(regression, values).verdict()
    values |= {"bnn-mean-field": 0.0, "bnn-global": 0.0, "deep-gp": 0.0}
    assert comparison(regression, values).verdict().endswith("nothing deeper is worth its trouble.")


def test_the_verdict_warns_of_intervals_that_are_too_narrow(regression: Data) -> None:
    assert len(regression.test) == 16
    values = {"gp": 1.0, "deep-gp": 0.0}
    told = comparison(regression, values, {"coverage_95": 0.75}).verdict()
    assert told.endswith("of the held-out values, 75% lie inside those that promise 95%.")
    assert "narrow" not in comparison(regression, values, {"coverage_95": 0.8125}).verdict()  # 13 of 16 is chance
    regression.test = np.arange(10_000)
    assert "narrow" not in comparison(regression, values, {"coverage_95": 0.92}).verdict()  # no chance, but small
    assert "narrow" in comparison(regression, values, {"coverage_95": 0.89}).verdict()


def test_the_verdict_says_where_nothing_was_learned(regression: Data, classes: Data) -> None:
    values = {"gp": 1.0, "deep-gp": 0.0}
    assert "no better than their mean" in comparison(regression, values, {"r2": -0.1}).verdict()
    for fine in ({"r2": 0.1}, {"r2": math.nan}, {}):
        assert "no better" not in comparison(regression, values, fine).verdict()
    shares = classes.y[classes.train].long().bincount().double() / len(classes.train)
    chance = float(shares[classes.y[classes.test].long()].log().mean())
    for better, told in ((-0.001, True), (0.001, False)):
        found = {"accuracy": 0.9, "log_likelihood": chance + better}
        assert ("no better than the frequencies" in comparison(classes, values, found).verdict()) == told


# -- all of it --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Path]]:
    folder = tmp_path_factory.mktemp("comparison")
    regression_frame(130).to_csv(folder / "table.csv", index=False)
    with default_dtype(torch.float64):
        data = prepare(read_table(folder / "table.csv"), ["y"])
        found = compare(data, seeds=2, steps=20, families=["gp", "bnn-mean-field", "deep-gp", "dkl"])
        return found, write(found, folder / "out")


def test_the_winner_and_the_contest(written: tuple[Any, dict[str, Path]]) -> None:
    found, _ = written
    assert found.winner.family == "gp"
    assert "the plain Gaussian process wins" in found.verdict()
    assert "Still rising when their time was over: " in found.verdict()  # 20 steps
    assert [r.family for r in found.results] == ["gp", "bnn-mean-field", "deep-gp", "dkl"]
    assert found.validation.family == "dkl"
    assert found.validation.rows == 20
    assert found.validation.difference == pytest.approx(
        found.validation.log_likelihood - found.validation.winner_log_likelihood
    )
    challenger = next(r for r in found.results if r.family == "dkl")
    assert challenger.trained.histories[0].n_data == len(found.data.train) - 20


def test_a_challenger_that_wins(written: tuple[Any, dict[str, Path]]) -> None:
    found, _ = written
    kept = found.validation
    try:
        found.validation = module.Validation("dkl", 20, 1.0, 0.0, 1.0, 0.1)
        assert found.winner.family == "dkl"
        assert "By evidence Gaussian process comes first" in found.verdict()
        found.validation = module.Validation("dkl", 20, 0.1, 0.0, 0.1, 0.1)
        assert found.winner.family == "gp"
    finally:
        found.validation = kept


def test_results_file(written: tuple[Any, dict[str, Path]]) -> None:
    found, files = written
    content = json.loads(files["results"].read_text())
    assert content["winner"] == "gp"
    assert [entry["family"] for entry in content["ranking"]] == [r.family for r, _ in found.ranking]
    assert content["ranking"][0]["below_best"] is None
    assert content["ranking"][1]["below_best"]["mean"] > 0
    dkl = next(entry for entry in content["families"] if entry["family"] == "dkl")
    assert not dkl["ranked"]
    assert "hyperparameters" in dkl["why_not_ranked"]
    assert set(content["sensitivity"]) == {"a", "b", "kind"}
    assert content["sensitivity"]["a"] > content["sensitivity"]["b"]
    assert len(content["least_sure_rows"]) == 10
    mean_field = next(entry for entry in content["families"] if entry["family"] == "bnn-mean-field")
    assert [seed["seed"] for seed in mean_field["seeds"]] == [0, 1]
    assert mean_field["elbo_per_datapoint"] == pytest.approx(
        np.mean([seed["elbo_per_datapoint"] for seed in mean_field["seeds"]])
    )


def test_predictions_and_the_saved_model(written: tuple[Any, dict[str, Path]]) -> None:
    found, files = written
    rows = pd.read_csv(files["predictions"])
    frame = found.data.table.frame
    assert len(rows) == len(frame) == 130
    assert rows["part"].value_counts().to_dict() == {"train": 109, "test": 20, "no target": 1}
    np.testing.assert_allclose(rows["true y"], frame["y"], rtol=1e-6)
    assert (rows["lower 95%"] < rows["mean"]).all()
    np.testing.assert_allclose(rows["epistemic std"] ** 2 + rows["aleatoric std"] ** 2, rows["std"] ** 2, rtol=1e-5)
    loaded = TableModel.load(files["model"])
    predicted, notes = loaded.predict(frame[["kind", "b", "a"]])
    again = prediction_frame(loaded.target, predicted)
    np.testing.assert_allclose(again["mean"], rows["mean"], rtol=1e-6)
    np.testing.assert_allclose(again["upper 95%"], rows["upper 95%"], rtol=1e-6)
    assert notes == [] or all("missing" in note for note in notes)
    assert TableModel.load(files["model"].parent).about["family"] == "gp"  # the whole folder does, too


def test_report(written: tuple[Any, dict[str, Path]]) -> None:
    found, files = written
    page = files["report"].read_text()
    for heading in (
        "Ranking by evidence", "Predictions", "What the prediction depends on", "Rows the model is least sure of",
        "Learning curves", "How the table was read",
    ):  # fmt: skip
        assert f"<h2>{heading}</h2>" in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)  # nothing is fetched
    assert "nan" not in re.sub(r"<[^>]*>", " ", page).lower().split()
    assert "NaN" not in page
    assert "the plain Gaussian process wins" in page
    assert "shown but not ranked" in page
    assert page.count("<svg") == 5 + len(found.results)
    assert 'class="win"' in page


def test_predictions_far_from_zero_keep_their_digits(tmp_path: Path) -> None:
    frame = regression_frame()
    frame["y"] += 1.7e9
    written = write(compare(prepare(table(frame), ["y"]), families=["gp"], steps=20, seeds=1), tmp_path)
    found = pd.read_csv(written["predictions"])
    np.testing.assert_array_equal(found["true y"], frame["y"])
    np.testing.assert_allclose((found["upper 95%"] - found["lower 95%"]) / found["std"], 2 * 1.95996, rtol=1e-3)
    page = written["report"].read_text()
    assert "e+09" not in page
    assert re.search(r">true y - 1[67]\d{8}<", page)  # axes begin near the values
    assert re.search(r">1[67]\d{8}\.\d+ ± ", page)


def test_broken_model_folders(written: tuple[Any, dict[str, Path]], tmp_path: Path) -> None:
    _, files = written
    with pytest.raises(DataError, match="holds no model of a table"):
        TableModel.load(tmp_path)
    load(files["model"]).save(tmp_path)  # a model without a table
    with pytest.raises(DataError, match="holds no model of a table"):
        TableModel.load(tmp_path)
    description = (files["model"] / "model.json").read_text()
    for tensors in files["model"].glob("tensors-*"):
        shutil.copy(tensors, tmp_path)
    (tmp_path / "model.json").write_text(description)
    assert TableModel.load(tmp_path).target.names == ("y",)
    (tmp_path / "model.json").write_text(description.replace('"name": "kind"', '"name": "sort"'))
    with pytest.raises(DataError, match="damaged or edited"):
        TableModel.load(tmp_path)


def test_models_of_other_versions_are_refused(
    written: tuple[Any, dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vibayes.compare.table_model.SCHEMA", "vibayes-table-9")
    with pytest.raises(DataError, match=r"is of the format 'vibayes-table-1'.*reads 'vibayes-table-9'"):
        TableModel.load(written[1]["model"])


def test_model_and_table_cannot_be_mixed(
    written: tuple[Any, dict[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = TableModel.load(written[1]["model"])
    first.save(tmp_path)
    columns = [dataclasses.replace(column, fill=column.fill + 1.0) for column in first.encoder.columns]
    second = TableModel(copy.deepcopy(first.model), Encoder(columns), first.target, first.about | {"title": "second"})
    second.model.likelihood.noise.set(0.5)
    with monkeypatch.context() as patch:  # the disk is full before everything is there
        patch.setattr(Path, "replace", _refuse("model.json", Path.replace))
        with pytest.raises(ConfigurationError, match="cannot be written"):
            second.save(tmp_path)
    kept = TableModel.load(tmp_path)
    assert (kept.encoder, kept.about) == (first.encoder, first.about)
    assert kept.model.likelihood.noise.value == first.model.likelihood.noise.value
    second.save(tmp_path)
    new = TableModel.load(tmp_path)
    assert (new.encoder, new.about) == (second.encoder, second.about)
    assert new.model.likelihood.noise.value == second.model.likelihood.noise.value
    new.model.save(tmp_path)  # a model of its own, to which the table of another does not belong
    with pytest.raises(DataError, match="holds no model of a table"):
        TableModel.load(tmp_path)


def _refuse(name: str, replace: Any) -> Any:
    def refusing(aside: Path, path: Path) -> Any:
        if path.name == name:
            raise OSError("no space left")
        return replace(aside, path)

    return refusing


def test_devices_that_are_not_there(
    written: tuple[Any, dict[str, Path]], regression: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device, message in (("cuda", "no CUDA GPU"), ("foo", "Unknown device 'foo'")):
        with pytest.raises(ConfigurationError, match=message):
            TableModel.load(written[1]["model"], device)
        with pytest.raises(ConfigurationError, match=message):
            compare(regression, device=device, families=["gp"])
        with pytest.raises(ConfigurationError, match=message):
            training.train(FAMILIES["bnn-mean-field"], regression.problem(regression.train), [0], 1.0, device=device)


def test_training_rows_decide_the_order_of_day_and_month() -> None:
    frame = regression_frame(40).dropna().reset_index(drop=True)
    frame["day"] = [f"{1 + i % 12:02d}/{1 + i % 9:02d}/2021" for i in range(len(frame))]
    frame.loc[7, "day"] = "25/12/2021"
    data = prepare(table(frame), ["y"], test=np.array([7, 8, 9]))
    (day,) = (column for column in data.encoder.columns if column.name == "day")
    assert day.day_first is False
    assert any("1 date such as '25/12/2021' cannot have the month first" in note for note in data.notes)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classification(n_classes: int, tmp_path: Path) -> None:
    data = prepare(table(class_frame(150, n_classes)), ["label"])
    found = compare(data, seeds=1, steps=60, families=["gp", "bnn-mean-field"])
    files = write(found, tmp_path)
    assert found.winner.score("accuracy") > 0.9
    rows = pd.read_csv(files["predictions"])
    probabilities = rows[[f"P(class {i})" for i in range(n_classes)]]
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-6)
    assert (rows["predicted"] == data.table.frame["label"]).mean() > 0.9
    page = files["report"].read_text()
    assert "true \\ predicted" in page
    assert "calibration error" in page


def test_several_targets(tmp_path: Path) -> None:
    frame = regression_frame(60).dropna()
    frame["z"] = 3 * frame["a"] + frame["b"]
    long = "a target's name that is much too long for an axis"
    data = prepare(table(frame.rename(columns={"y": long}).reset_index(drop=True)), [long, "z"])
    assert "z" not in data.encoder.features
    files = write(compare(data, seeds=1, steps=15, families=["gp"]), tmp_path)
    assert {f"{long} mean", "z mean", "z lower 95%"} <= set(pd.read_csv(files["predictions"]).columns)
    page = files["report"].read_text()
    assert "predicted z" in page
    assert f">predicted {long[:20]}".replace("'", "&#x27;") in page
    assert f"variance of {long}".replace("'", "&#x27;") not in page


def test_a_family_that_fails_is_reported(regression: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.train

    def train(family: Any, *arguments: Any, **options: Any) -> Any:
        if family.name == "gp-matern":
            raise TrainingError("gave up")
        return real(family, *arguments, **options)

    monkeypatch.setattr(module, "train", train)
    found = compare(regression, seeds=1, steps=5, families=["gp", "gp-matern"])
    assert found.skipped == {"gp-matern": "failed: gave up"}
    with pytest.raises(DataError, match="No model could be trained"):
        compare(regression, seeds=1, steps=5, families=["gp-matern"])


def test_a_family_without_time_is_left_out(regression: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_time_steps", lambda *_: 1e3)
    found = compare(regression, seeds=1, minutes=0.2, families=["gp", "deep-gp"])
    assert found.skipped == {"deep-gp": "no time: 0 steps would have fitted; give it a larger budget"}
    assert [r.family for r in found.results] == ["gp"]
    assert "Not tried for lack of time, and perhaps better: Deep Gaussian process." in found.verdict()


def test_nothing_begins_when_the_budget_is_over(regression: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def train(*args: Any, **options: Any) -> Any:
        clock[0] += 100.0  # in a budget of 60 s
        return training.train(*args, **options | {"steps": 3})

    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    found = compare(regression, seeds=1, minutes=1.0, families=["gp", "gp-matern", "deep-gp"])
    assert [r.family for r in found.results] == ["gp"]
    assert found.skipped.keys() == {"gp-matern", "deep-gp"}
    assert all("others took all of it" in reason for reason in found.skipped.values())


class Interrupting(Silent):
    """Presses control-C while a family trains."""

    def __init__(self, name: str) -> None:
        self.name, self.now = name, ""

    def family(self, family: Any, seconds: float) -> None:
        self.now = family.name

    def progress(self, fraction: float, bound: float) -> None:
        if self.now == self.name:
            raise KeyboardInterrupt


def test_interrupt_ends_with_the_results_so_far(regression: Data, tmp_path: Path) -> None:
    families = ["gp", "bnn-mean-field", "deep-gp"]
    found = compare(regression, seeds=1, steps=5, families=families, display=Interrupting("bnn-mean-field"))
    assert found.interrupted
    assert [r.family for r in found.results] == ["gp", "bnn-mean-field"]
    assert found.results[1].trained.interrupted
    assert found.skipped == {"deep-gp": "interrupted"}
    assert "<b>Interrupted:</b>" in write(found, tmp_path)["report"].read_text()
    with pytest.raises(KeyboardInterrupt):
        compare(regression, seeds=1, steps=5, families=families, display=Interrupting("gp"))


def test_refused_questions(regression: Data) -> None:
    with pytest.raises(ConfigurationError, match="budget must be positive"):
        compare(regression, minutes=0)
    with pytest.raises(ConfigurationError, match="seeds"):
        compare(regression, seeds=0)
    with pytest.raises(ConfigurationError, match="held-out rows"):
        compare(prepare(regression.table, ["y"], test=0.0))


def test_time_is_shared(regression: Data) -> None:
    """Each family gets its share of what is left; one that takes less leaves more to the others.

    Exact GPs end by themselves, so they may take three times as long.
    """

    class Listening(Silent):
        given: dict[str, float] = {}  # noqa: RUF012

        def family(self, family: Any, seconds: float) -> None:
            self.given[family.name] = seconds

    heard = Listening()
    compare(regression, minutes=2.0, seeds=1, steps=1, families=["gp", "gp-matern", "deep-gp"], display=heard)
    total = module.FOR_TRAINING * 120
    assert heard.given["gp"] == pytest.approx(total * 6.0 / (6.0 + 4.5 + 2.0), rel=0.02)
    assert heard.given["deep-gp"] > 0.8 * total
