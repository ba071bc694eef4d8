"""The image experiments: networks, models, training options, and a tiny run from end to end."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vibayes as vb
from vibayes import datasets
from vibayes.datasets import Split
from vibayes.errors import ConfigurationError
from vibayes.experiments import drawing, image_runtime, reference, timing, training
from vibayes.experiments.catalogue import EXPERIMENTS, available, get
from vibayes.experiments.executors import make_executor
from vibayes.experiments.experiment import merge
from vibayes.experiments.figures import compare_figures, run_figures
from vibayes.experiments.images import POSTERIORS, image_model
from vibayes.experiments.models import build, training_options
from vibayes.experiments.networks import NETWORKS, Bayesian, Plain, resnet18, small_resnet
from vibayes.experiments.report import Section
from vibayes.experiments.results import finished
from vibayes.experiments.runner import Settings, run_sweep
from vibayes.experiments.sweep import Selection, expand

SMALL = {"channels": 2, "n_inducing": 6}


def split(n: int = 12, channels: int = 3, size: int = 8) -> Split:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * n, channels, size, size, generator=generator)
    y = torch.arange(2 * n) % 3
    return Split(x[:n], y[:n], x[n:], y[n:], name="cifar10")


@pytest.mark.parametrize("name", NETWORKS)
def test_plain_networks_have_the_sizes_of_the_thesis(name: str) -> None:
    layers = [m for m in NETWORKS[name](Plain(), 3, 32, 10, 32).modules() if isinstance(m, nn.Conv2d)]
    assert len(layers) == {"small_resnet": 7, "lenet": 3, "resnet18": 20}[name]
    if name == "resnet18":
        whole = resnet18(Plain(normalize=True))
        assert sum(p.numel() for p in whole.parameters()) == 11_173_962  # that of the CIFAR version in wide use
        widest = max((m for m in whole.modules() if isinstance(m, nn.Conv2d)), key=lambda m: m.weight[0].numel())
        assert widest.weight[0].numel() == 4608


def test_the_small_network_computes_what_its_words_say() -> None:
    net = small_resnet(Plain(), channels=4)
    x = torch.randn(2, 3, 32, 32)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    h = convolutions[0](x).relu()
    for block in range(3):
        first, second = convolutions[1 + 2 * block : 3 + 2 * block]
        h = h + second(first(h).relu()).relu()
        h = nn.functional.avg_pool2d(h, 2) if block < 2 else h.mean((2, 3))
    torch.testing.assert_close(net(x), net[-1](h))


@pytest.mark.parametrize("prior", ["SpatialIWPrior", "ScalePrior"])
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_models_are_built_as_the_thesis_says(posterior: str, prior: str) -> None:
    data = split()
    n_inducing = 24 if posterior == "local inducing" else 6
    model = image_model(posterior, data, {"model": {**SMALL, "prior": prior, "n_inducing": n_inducing}})
    layers = list(model.layers.values())
    assert len(layers) == 8
    assert {type(layer.prior).__name__ for layer in layers} == {prior}
    kinds = [type(layer.posterior).__name__ for layer in layers]
    expected = {
        "factorised": ["MeanField"] * 8,
        "local inducing": ["LocalInducing"] * 8,
        "fac->gi": ["MeanField"] * 7 + ["GlobalInducing"],
        "global inducing": ["GlobalInducing"] * 8,
    }
    assert kinds == expected[posterior]
    if posterior == "local inducing":  # as many inducing patches as weights, but for a limit
        assert layers[0].fan_in > 24 > layers[1].fan_in
        assert [layer.posterior.n_inducing for layer in layers] == [min(layer.fan_in, 24) for layer in layers]
    if "gi" in posterior or "global" in posterior:
        assert model.inducing is not None
        assert torch.equal(model.inducing, data.x_train[:6])
        model.initialize(data.x_train, data.y_train)
        assert torch.equal(layers[-1].posterior.pseudo_outputs.argmax(1), data.y_train[:6])
    bound = model.elbo(data.x_train, data.y_train, n_samples=2)
    assert bool(torch.isfinite(bound.value))


@pytest.mark.parametrize("network", ["small_resnet", "lenet"])
def test_networks_without_normalisation_refuse_it(network: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{network} has no normalisation"):
        image_model("global inducing", split(), {"model": {**SMALL, "network": network, "normalize": True}})


@pytest.mark.parametrize(
    ("posterior", "normalize"), [("fac->gi", True), ("global inducing", True), ("factorised", False)]
)
def test_resnets_are_built_and_trained(posterior: str, normalize: bool) -> None:
    data = split()
    options = {"model": {"network": "resnet18", "channels": 2, "n_inducing": 6, "normalize": normalize}}
    model = image_model(posterior, data, options)
    assert any(isinstance(m, vb.BatchNorm) for m in model.modules()) == normalize
    history = vb.fit(model, (data.x_train, data.y_train), steps=2, n_samples=1, batch_size=4, progress=False)
    assert history.step == [2]


def test_the_kl_weight_rises_in_steps_and_augmentation_is_named() -> None:
    experiment = get("gi-cifar10")
    options = experiment.options_of("global inducing", "cifar10")
    how = training_options(options, 50_000)
    assert how["steps"] == 100_000
    weight = how["kl_weight"]
    by_epoch = [round(weight(100 * epoch), 6) for epoch in (0, 9, 10, 19, 20, 95, 99, 100, 999)]
    assert by_epoch == [0.0, 0.0, 0.1, 0.1, 0.2, 0.9, 0.9, 1.0, 1.0]
    assert "augment" not in how
    tempered = training_options(merge(options, {"training": {"kl_weight": 0.5}}), 50_000)["kl_weight"]
    assert [tempered(step) for step in (0, 1000, 9_000, 20_000)] == pytest.approx([0.0, 0.05, 0.45, 0.5])
    resnet = training_options(experiment.options_of("fac->gi ResNet-18", "cifar10"), 50_000)
    assert resnet["kl_weight"] == 0.05
    assert "RandomFlip" in repr(resnet["augment"])


@pytest.mark.parametrize("name", ["gi-cifar10", "gi-uncertainty"])
def test_runs_find_their_rows_in_the_tables(name: str) -> None:
    experiment = get(name)
    assert available(experiment) == list(experiment.models)
    rows = [row for table in experiment.tables for row in reference.load_table(table)]
    for unit in expand(experiment):
        if unit.model == "global inducing ResNet-18":  # not in the thesis
            continue
        mine = [r for r in rows if all(r.get(key, "") == value for key, value in unit.columns.items())]
        assert mine, unit.title
        assert {r["metric"] for r in mine} <= set(unit.metrics)
        assert unit.experiment == "gi-cifar10"  # both experiments show the same runs


def tiny(name: str) -> Any:
    experiment = get(name)
    options = merge(
        experiment.options,
        {"data": {"n_train": 12, "n_test": 10}, "model": SMALL, "training": {"steps": 4, "batch_size": 6}},
        {"measure": {"draws": 2, "rows": 2000}},
    )
    return dataclasses.replace(experiment, options=options)


@pytest.mark.skipif("VIBAYES_DATA" not in os.environ, reason="VIBAYES_DATA is not set: no data files")
def test_a_tiny_run_from_end_to_end(tmp_path: Path) -> None:
    units = expand(tiny("gi-mnist500"), Selection(models=["global inducing"], priors=["SpatialIWPrior"]))
    settings = Settings(tmp_path, device="cpu", show=False, command="test")
    summary = run_sweep(units, settings, make_executor("process", workers=1))
    assert summary.ok
    result = finished(tmp_path, units[0])
    assert result is not None
    found = result["metrics"]
    assert 0.0 <= found["accuracy_percent"] <= 100.0
    assert -20.0 < found["elbo_per_datapoint"] < 0.0
    assert found["ece"] >= 0.0
    assert sum(result["calibration"]["count"]) > 0
    assert "<h3>Calibration</h3>" in Section(tiny("gi-mnist500"), units, {}, tmp_path).html()


def test_measures_of_classifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    data = split()
    unit = expand(tiny("gi-cifar10"), Selection(models=["factorised"], priors=["ScalePrior"]))[0]
    model, _ = build(unit.builder, data, {**unit.options, "dtype": "float64"}, 0)
    model.initialize(data.x_train, data.y_train)
    outside = Split(torch.zeros(0, 3, 8, 8), torch.zeros(0), torch.randn(7, 3, 8, 8), name="svhn")
    monkeypatch.setattr(training.datasets, "load", lambda name, dtype: outside)
    found = training.measure(model, data.standardized("inputs"), unit)
    assert set(found) == set(unit.metrics)
    bins = found.pop("calibration")
    assert all(value == value for value in found.values())
    assert found["entropy_ratio"] > 0.0
    confidence, share, count = (torch.tensor(bins[name]) for name in ("confidence", "accuracy", "count"))
    assert count.sum() == len(data.x_test)
    assert (count > 0).all()
    gap = ((confidence - share).abs() * count).sum() / count.sum()
    assert float(gap) == pytest.approx(found["ece"], abs=1e-4)


def test_bad_options() -> None:
    with pytest.raises(ConfigurationError, match="network"):
        image_model("factorised", split(), {"model": {**SMALL, "network": "resnet"}})
    with pytest.raises(ConfigurationError, match="prior"):
        image_model("factorised", split(), {"model": {**SMALL, "prior": "SpatialPrior"}})
    with pytest.raises(ConfigurationError, match="posterior"):
        image_model("gi", split(), {"model": SMALL})
    table = Split(torch.randn(4, 3), torch.zeros(4, dtype=torch.long), torch.randn(4, 3), torch.zeros(4))
    with pytest.raises(ConfigurationError, match="no images"):
        image_model("factorised", table, {"model": SMALL})
    options = merge(get("gi-cifar10").options, {"training": {"augment": "mixup"}})
    with pytest.raises(ConfigurationError, match="augmentation"):
        training_options(options, 100)
    assert Bayesian(vb.NealPrior(), "local").conv(2, 3).posterior.n_inducing == 19


def test_seconds_per_epoch_stand_in_the_thesis_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    experiment = get("gi-runtime")
    small = merge(get("gi-cifar10").options, {"model": SMALL, "training": {"batch_size": 5}})
    monkeypatch.setitem(EXPERIMENTS, "gi-cifar10", dataclasses.replace(get("gi-cifar10"), options=small))
    monkeypatch.setattr(datasets, "load", lambda *_, **__: split(channels=1))
    monkeypatch.setattr(timing, "TIMED_STEPS", 1)
    monkeypatch.setattr(image_runtime, "DEVICE", "cpu")
    monkeypatch.setattr(drawing, "_has_gpu", lambda: True)
    found = run_figures(experiment, tmp_path)["figures"]["epoch"]
    assert found["setup"] == {"timed_steps": 1, "batch_size": 5, "n_inducing": 6, "rows": 12, "device": "cpu"}
    rows = compare_figures(experiment, tmp_path)["tab:gi:cifar10"]
    filled = [row for row in rows if row.ours is not None]
    assert {row.printed["model"] for row in filled} == set(POSTERIORS)
    assert {row.printed["metric"] for row in filled} == {"seconds_per_epoch"}
    assert (tmp_path / "gi-runtime" / "epoch.png").stat().st_size > 5_000
