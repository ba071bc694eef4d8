"""The experiments of chapter 3, small: the models of the sweep, the toy figures, and the staged pipelines."""

import math
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import vibayes as vb
from vibayes.datasets import Split
from vibayes.experiments import catalogue, dkl_images, dkl_mnist, dkl_models, dkl_toy, dkl_toy_figures
from vibayes.experiments.display import steps_of
from vibayes.experiments.dkl_models import DKL_MODELS, FULL_BATCH, FULL_BATCH_STEPS, feature_network
from vibayes.experiments.dkl_pipeline import METHODS, Pipeline, Stage, measure
from vibayes.experiments.experiment import Unit
from vibayes.experiments.models import build
from vibayes.experiments.sweep import Selection, expand
from vibayes.experiments.training import measure as measure_unit
from vibayes.experiments.training import train_group

SNELSON = Path(os.environ.get("VIBAYES_DATA", ".")) / "toy" / "snelson.npz"
needs_snelson = pytest.mark.skipif(not SNELSON.exists(), reason="set VIBAYES_DATA to a folder with toy/snelson.npz")


def table(n: int = 60) -> Split:
    x = torch.randn(n, 3)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(n)
    return Split(x[: n - 20], y[: n - 20], x[n - 20 :], y[n - 20 :])


def units(model: str, steps: int = 30) -> list[Unit]:
    experiment = catalogue.get("dkl-uci")
    return expand(experiment, Selection(datasets=["boston"], models=[model], splits="0-1", steps=steps))


@pytest.mark.parametrize("name", ["DKL", "SVDKL", "fNN", "sNN"])
def test_models_of_the_sweep_train_and_are_measured(name: str, tmp_path: Path) -> None:
    chosen, splits = units(name), [table(), table()]
    models, histories = train_group(chosen, splits, device="cpu", checkpoint=tmp_path / "checkpoint", chunk=2)
    assert all(history.step[-1] == 30 for history in histories)
    found = measure_unit(models[0], splits[0], chosen[0])
    if name.endswith("NN"):
        assert math.isnan(found["elbo_per_datapoint"])
        error = float((models[0].predict(splits[0].x_train).mean - splits[0].y_train).square().mean())
        square = sum(float(w.detach().square().sum()) for w in vb.stages.network_weights(models[0]).values())
        assert found["loss"] == pytest.approx(error + 0.5e-4 * square)  # half of 1e-4 |w|^2
        assert found["noise"] == pytest.approx(error)  # maximum likelihood
    else:
        assert found["loss"] == pytest.approx(-found["elbo_per_datapoint"])
        assert found["lengthscale_median"] > 0
    assert (name == "DKL") == math.isfinite(found["lml_per_datapoint"])


def test_progress_is_told_of_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dkl_models, "FULL_BATCH_STEPS", 3)
    seen: list[tuple[int, int]] = []
    train_group(
        units("fNN"),
        [table(), table()],
        device="cpu",
        checkpoint=tmp_path / "checkpoint",
        chunk=2,
        watch=lambda step, steps: seen.append((step, steps)),
    )
    assert seen
    assert {steps for _, steps in seen} == {3}


def test_full_batch_methods_take_the_steps_of_batched_ones_up_to_a_limit() -> None:
    options = catalogue.get("dkl-uci").options_of("fNN", "boston")
    _, training = build("fNN", table(475), options, 0)
    _, batched = build("sNN", table(475), options, 0)
    assert training["steps"] == batched["steps"] == 400 * 15
    assert training["batch_size"] is None
    large = catalogue.get("dkl-uci").options_of("VDKL", "power")
    split = Split(torch.zeros(8611, 4), torch.zeros(8611), torch.zeros(1, 4), torch.zeros(1))
    _, training = build("VDKL", split, large, 0)
    assert training["steps"] == FULL_BATCH_STEPS
    schedule = training["lr_schedule"]  # falls where the batched ones' does, not at half of its own steps
    assert [schedule(step) for step in (0, 6959, 6960, 7999)] == pytest.approx([1.0, 1.0, 0.1, 0.1])


@pytest.mark.parametrize("name", DKL_MODELS)
def test_full_batches_are_known_by_name(name: str) -> None:
    """What is told of a run, and how much work it is taken for, does not need its data."""
    options = catalogue.get("dkl-uci").options_of(name, "boston")
    _, training = build(name, table(455), options, 0)
    assert (training["batch_size"] is None) == (name in FULL_BATCH)


def test_the_steps_that_are_told_are_those_that_are_taken() -> None:
    chosen = expand(catalogue.get("dkl-uci"), Selection(splits="0"))
    steps = {(unit.dataset, unit.model): steps_of(unit) for unit in chosen}
    assert steps["energy", "DKL"] == steps["power", "VDKL"] == steps["protein", "fNN"] == FULL_BATCH_STEPS
    assert (steps["boston", "fNN"], steps["energy", "SVDKL"], steps["power", "sNN"]) == (6_000, 8_800, 13_920)


def test_exact_kernels_are_for_the_small_sets() -> None:
    experiment = catalogue.get("dkl-uci")
    sets = {
        name: {u.dataset for u in expand(experiment, Selection(models=[name]))} for name in ("DKL", "VDKL", "SVDKL")
    }
    assert sets["DKL"] == {"boston", "energy"}
    assert sets["VDKL"] == {"kin40k", "power", "protein"}
    assert sets["SVDKL"] == sets["DKL"] | sets["VDKL"]


@needs_snelson
def test_the_toy_figures(tmp_path: Path) -> None:
    result = dkl_toy.toy_problem(0, steps=15, seeds=2)
    numbers = {n.name: n.ours for n in result.numbers}
    assert numbers["LML, SE"] == pytest.approx(-89.309, abs=2e-3)
    assert numbers["LML, DKL, seed 0"] != numbers["LML, DKL, seed 1"]
    assert len(dkl_toy_figures.toy_problem(result.arrays).axes) == 6
    small = dkl_toy.app_toy(0, steps=15, slow_steps=15, seeds=1)
    numbers = {n.name: n.ours for n in small.numbers}
    assert numbers["LML, SE, 20 points"] == pytest.approx(-17.40, abs=0.01)
    assert len(dkl_toy_figures.app_toy(small.arrays).axes) == 9
    correlations = dkl_toy.toy_problem_corr(0, steps=15)
    assert len(dkl_toy_figures.toy_problem_corr(correlations.arrays).axes) == 2
    # correlations of the SE kernel by hand, at its own reference inputs
    grid, rho = correlations.arrays["grid"][:, 0], correlations.arrays["SE: rho"]
    for x, row in zip(dkl_toy_figures.REFERENCES, rho, strict=True):
        assert float(row[(grid - x).abs().argmin()]) == pytest.approx(1.0)


# -- stages ---------------------------------------------------------------------------------------------------------


def pipeline(split: Split, **changes: object) -> Pipeline:
    stages = {name: Stage(30) for name in ("network", "again", "scratch", "frozen", "joint")}
    d = split.x_train.shape[1]
    return Pipeline(split, lambda: feature_network(d, [20, 4]), 4, 8, stages, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", ["kmeans", "greedy"])
@pytest.mark.parametrize("classes", [False, True])
def test_stages_follow_one_another(start: str, classes: bool) -> None:
    split = table()
    if classes:
        split = replace(split, y_train=(split.y_train > 0).long(), y_test=(split.y_test > 0).long())
    staged = pipeline(split, start=start)
    trained = staged.plain(10)
    weights = [p.detach().clone() for p in trained.network[0].parameters()]
    frozen = staged.frozen(trained, 10)
    assert all(torch.equal(a, b) for a, b in zip(weights, frozen.network[0].parameters(), strict=True))
    # the stage on features that were computed once ends where its last history says
    bound = staged.histories["fSVDKL, batch size 10"]
    assert bound.step[-1] == 30
    before = measure(frozen, split)
    after = measure(staged.joint(frozen, 10), split)
    assert after["elbo_per_datapoint"] > before["elbo_per_datapoint"]
    assert not torch.equal(weights[0], frozen.network[0][0].weight)
    assert all(torch.equal(a, b) for a, b in zip(weights, trained.network[0].parameters(), strict=True))
    again = measure(staged.again(trained, 10), split)
    scratch = measure(staged.scratch(10), split)
    assert "elbo_per_datapoint" not in again
    assert ("accuracy" in scratch) == classes
    assert set(staged.histories) == {f"{method}, batch size 10" for method in METHODS}


def test_the_frozen_stage_on_features_is_the_frozen_model() -> None:
    split = table()
    staged = pipeline(split)
    trained = staged.plain(None)
    quick = staged.frozen(trained, None)
    slow = staged.svdkl(trained)
    vb.stages.freeze(slow)
    staged.train("slow", slow, "frozen", None)
    assert float(quick.elbo(split.x_train, split.y_train).value.detach()) == pytest.approx(
        float(slow.elbo(split.x_train, split.y_train).value.detach()), rel=1e-6
    )


def images(n: int, channels: int, size: int, classes: bool) -> Split:
    y = torch.randn(n).float()
    x = torch.rand(n, channels, size, size).float() + y[:, None, None, None]
    y = (y > 0).long() if classes else y
    return Split(x[: n - 8], y[: n - 8], x[n - 8 :], y[n - 8 :])


@pytest.mark.parametrize(("dataset", "augmented"), [("cifar10", False), ("utkface", True)])
def test_the_image_pipeline_with_batch_normalisation(dataset: str, augmented: bool) -> None:
    split = images(32, 3, 16, dataset == "cifar10")
    result = dkl_images.images(
        0, dataset=dataset, split=split, augmented=augmented, width=2, epochs=0.02, n_inducing=5, q=3
    )
    numbers = {n.name: n for n in result.numbers}
    assert math.isfinite(numbers[f"elbo_per_datapoint, pSVDKL, batch size {dkl_images.LARGE[dataset]}"].ours)
    assert numbers["test_ll, NN, batch size 100"].note == "reduced run"
    assert ("test_rmse, fSVDKL, batch size 100" in numbers) == (dataset == "utkface")
    assert ("test_ll, SVDKL, batch size 100" in numbers) == (not augmented)
    assert len(result.statements) == 4


def test_a_killed_image_pipeline_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    split = images(24, 3, 8, True)

    def run(checkpoint: Path | None) -> dict[str, float]:
        result = dkl_images.images(
            0, dataset="cifar10", split=split, width=2, epochs=0.05, n_inducing=5, q=3, batches=(10,),
            methods=("NN", "fSVDKL", "pSVDKL"), checkpoint=checkpoint,
        )  # fmt: skip
        return {n.name: n.ours for n in result.numbers}

    whole = run(None)
    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "joint", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            run(tmp_path / "cifar10-0.checkpoint")
    kept = sorted(file.name for file in tmp_path.iterdir())
    assert kept == ["cifar10-0.checkpoint.NN-100", "cifar10-0.checkpoint.fSVDKL-10"]
    with caplog.at_level("INFO", logger="vibayes"):
        assert run(tmp_path / "cifar10-0.checkpoint") == whole
    assert sum("Resuming" in message for message in caplog.messages) == 2


def test_image_figures_stand_for_the_tables() -> None:
    labels = {label for label, _ in dkl_images._figures().values()}
    assert labels == {"tab:dkl:batch", "tab:dkl:batch_da", "tab:dkl:fd_age", "tab:dkl:fd_cifar"}
    assert len(dkl_images.FIGURES) == 24
    short = dkl_images.FIGURES["utkface-q2-short"]
    assert isinstance(short, partial)
    assert short.keywords == {
        "dataset": "utkface", "q": 2, "batches": (100,), "epochs": 0.125, "methods": ("NN", "fSVDKL", "pSVDKL"),
    }  # fmt: skip


def test_the_mnist_pipeline() -> None:
    split = images(60, 1, 4, True)
    split = replace(split, x_train=split.x_train.flatten(1), x_test=split.x_test.flatten(1))
    plan = {"n_inducing": 10, "pretrain": 40, "frozen": 20, "joint": 20}
    result = dkl_mnist.mnist(0, plan=plan, split=split, widths=(20, 4), measurements=3)
    numbers = {n.name: n.ours for n in result.numbers}
    assert numbers["accuracy, pretrained"] > 0.5
    assert len(result.figure.axes) == 2


def test_feature_networks() -> None:
    network = feature_network(3, [5, 2], last_activation=False)
    assert isinstance(network[-1], nn.Linear)
    assert float(network[0].bias.detach().abs().max()) == 0.0
    with pytest.raises(vb.ConfigurationError, match="hidden width"):
        feature_network(3, [])
