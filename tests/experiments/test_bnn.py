"""Fully connected Bayesian networks of the experiments: how they are built and trained, and what is drawn of them."""

import dataclasses
import math

import pytest
import torch

from vibayes.errors import ConfigurationError
from vibayes.experiments import bnn_linear, bnn_toy, cubic_hmc, reference
from vibayes.experiments.bnn_models import FAMILIES, bnn_network
from vibayes.experiments.catalogue import get
from vibayes.experiments.experiment import Experiment, merge
from vibayes.experiments.models import build
from vibayes.experiments.results import finished
from vibayes.experiments.runner import Settings, run_sweep
from vibayes.experiments.sweep import Selection, expand
from vibayes.experiments.training import load_split
from vibayes.layers import Linear
from vibayes.posteriors import FromPrior, GlobalInducing, LocalInducing, MeanField
from vibayes.priors import ScalePrior


def small() -> Experiment:
    """gi-uci on few rows of a data set that needs no file."""
    pytest.importorskip("sklearn")
    experiment = get("gi-uci")
    changes = {
        "data": {"split": "random", "n_train": 30, "n_test": 10},
        "model": {"width": 6},
        "training": {"steps": 8, "log_every": 2, "n_samples": 2},
    }
    options = merge(experiment.options, changes)
    return dataclasses.replace(experiment, datasets=("diabetes",), splits={"diabetes": (0, 1)}, options=options)


def test_every_printed_number_has_a_run() -> None:
    units = expand(get("gi-uci"))
    for table in get("gi-uci").tables:
        for row in reference.load_table(table):
            wanted = {key: row[key] for key in ("dataset", "model", "prior")}
            assert any(wanted.items() <= unit.columns.items() for unit in units), wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    network = bnn_network(family, [2, 4, 4, 1], n_inducing=5)
    kinds = [type(m.posterior) for m in network if isinstance(m, Linear)]
    lower, last = {
        "factorised": (MeanField, MeanField),
        "local inducing": (LocalInducing, LocalInducing),
        "global inducing": (GlobalInducing, GlobalInducing),
        "fac->gi": (MeanField, GlobalInducing),
        "rand->gi": (FromPrior, GlobalInducing),
    }[family]
    assert kinds == [lower, lower, last]
    assert len(network) == 5
    assert len(bnn_network(family, [2, 4, 4, 1], n_inducing=5, activation=None)) == 3
    with pytest.raises(ConfigurationError, match="Did you mean 'factorised'"):
        bnn_network("factorized", [2, 1], n_inducing=5)


@pytest.mark.parametrize("prior", ["StandardPrior", "NealPrior", "ScalePrior"])
def test_models_start_as_the_thesis_says(prior: str) -> None:
    chosen = Selection(models=["global inducing"], priors=[prior], splits="0", changes={"scale_covariance": "sqrt(s)"})
    unit = expand(small(), chosen)[0]
    split = load_split(unit)
    model, how = build(unit.builder, split, unit.options, seed=0)
    assert math.log(float(model.likelihood.noise.value.detach())) == pytest.approx(-3.0)
    assert model.inducing.shape == split.x_train.shape
    torch.testing.assert_close(model.inducing.detach(), split.x_train)
    layers = list(model.layers.values())
    torch.testing.assert_close(layers[-1].posterior.pseudo_outputs[:, 0].detach(), split.y_train)
    assert layers[0].posterior.precision.value.shape == (6, 30)
    assert float(layers[0].posterior.precision.value[0, 0].detach().log()) == pytest.approx(-4.0)
    assert float(layers[-1].posterior.precision.value[0, 0].detach().log()) == pytest.approx(0.0)
    assert {type(layer.prior).__name__ for layer in layers} == {prior}
    if isinstance(layers[0].prior, ScalePrior):
        assert layers[0].prior.covariance == "sqrt(s)"
    assert how["choices"] == {"lr": [3e-3, 1e-2]}
    assert how["steps"] == 8


def test_a_sweep_chooses_settings_by_the_bound(settings: Settings) -> None:
    experiment = small()
    changes = {"batch_choices": [10, 30], "lr_choices": [1e-6, 0.1]}
    units = expand(experiment, Selection(models=["factorised"], priors=["NealPrior"], steps=60, changes=changes))
    summary = run_sweep(units, settings)
    assert summary.ok
    for unit in units:
        result = finished(settings.out, unit)
        assert result is not None
        assert any("chosen by its bound: lr 0.1, batch size" in event for event in result["events"])
        assert result["metrics"]["elbo_per_datapoint"] > -40.0


def test_the_toy_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    pytest.importorskip("matplotlib")
    bnn_toy._trained.cache_clear()
    for name, value in {"STEPS": 3, "N_SEEDS": 2, "N_INDUCING": 4, "POINTS": (2, 10, 40), "N_DRAWS": 8}.items():
        monkeypatch.setattr(bnn_toy, name, value)
    G = len(cubic_hmc.cubic().grid)
    sampled = cubic_hmc.Reference(torch.zeros(G), torch.ones(G), torch.zeros(5, G), 1.0, 1.0, 9.0, 9.0, 0, 1.0, 1.0)
    monkeypatch.setattr(cubic_hmc, "reference", lambda seed: sampled)
    found = bnn_toy.run(tmp_path, figures=["toy", "toy_points"], seed=0)
    assert set(found["figures"]) == {"toy", "toy_points"}
    assert (tmp_path / "toy.png").stat().st_size > 10_000
    assert bnn_toy._distance((torch.full((G,), 3.0), torch.full((G,), 5.0)), sampled) == pytest.approx(5.0)
    rows = [number["row"] for number in found["figures"]["toy"]["numbers"] if number.get("row")]
    printed = reference.load_table("tab_gi_comp_uncertainty")
    assert len(rows) == len(printed) == 12
    for row in rows:
        assert sum(all(p[k] == v for k, v in row.items()) for p in printed) == 1
    bnn_toy._trained.cache_clear()


def test_the_printed_numbers_are_those_of_the_table() -> None:
    for row in reference.load_table("tab_gi_comp_uncertainty"):
        place = 0 if row["metric"] == "elbo_total" else int(row["metric"][-1])
        assert bnn_toy._PRINTED[row["model"]][place] == float(row["value"])


def test_the_linear_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    pytest.importorskip("matplotlib")
    for name, value in {"STEPS": 3, "DEPTHS": (1, 2), "N_DRAWS": 8}.items():
        monkeypatch.setattr(bnn_linear, name, value)
    found = bnn_linear.run(tmp_path, figures=["width_50"])
    numbers = {n["name"]: n["ours"] for n in found["figures"]["width_50"]["numbers"]}
    assert len(numbers) == 1 + 2 * len(FAMILIES)
    assert all(value < numbers["evidence per data point"] + 0.005 for value in numbers.values())
    assert bnn_linear.DRAWING.draw(tmp_path) == [tmp_path / "width_50.png"]


def test_linear_families_that_agree_are_all_seen() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_rgb

    flat, depths = torch.full((4,), -0.29), torch.tensor([1, 2, 4, 8])
    arrays = {**dict.fromkeys(FAMILIES, flat), "hidden layers": depths, "evidence": torch.tensor(-0.28)}
    figure = bnn_linear._paint(50, arrays)
    figure.canvas.draw()
    box = figure.axes[0].get_window_extent().transformed(figure.transFigure.inverted())
    pixels = torch.frombuffer(bytearray(figure.canvas.buffer_rgba()), dtype=torch.uint8)
    width, height = figure.canvas.get_width_height()
    image = pixels.reshape(height, width, 4)[..., :3]
    inside = image[:, : int(box.x1 * width)].reshape(-1, 3)  # without the legend
    for family in ("global inducing", "fac->gi", "rand->gi"):
        colour = (255 * torch.tensor(to_rgb(bnn_linear._LOOKS[family]["color"]))).round().to(torch.uint8)
        assert int((inside == colour).all(1).sum()) > 100
