"""The deep models of the UCI experiments: how they are built, trained and measured, and where their numbers go."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from vibayes.datasets import Split
from vibayes.errors import ConfigurationError
from vibayes.experiments import models, reference
from vibayes.experiments.catalogue import available, get
from vibayes.experiments.experiment import Experiment, Unit, merge, override
from vibayes.experiments.models import MODELS, build, training_options
from vibayes.experiments.results import finished
from vibayes.experiments.runner import Settings, run_sweep
from vibayes.experiments.sweep import Selection, expand
from vibayes.experiments.training import load_split, measure
from vibayes.inducing import choose_inducing
from vibayes.layers import InverseWishartProcess
from vibayes.means import IdentityMean, ZeroMean
from vibayes.model import Model
from vibayes.posteriors import GeneralizedWishart, GlobalInducing, LocalInducing
from vibayes.training import fit_many

ALL = [(name, model) for name in ("dgp-uci", "dwp-uci") for model in available(get(name)) if model != "DIWP"]
each_model = pytest.mark.parametrize(("name", "model"), ALL)


def small(name: str) -> Experiment:
    """The experiment on few rows of a data set that needs no file."""
    pytest.importorskip("sklearn")
    experiment = get(name)
    data = {"split": "random", "n_train": 40, "n_test": 20}
    options = merge(experiment.options, {"data": data, "model": {"n_inducing": 8}})
    return dataclasses.replace(experiment, datasets=("diabetes",), splits={"diabetes": (0, 1)}, options=options)


def first_unit(name: str, model: str, **changes: Any) -> Unit:
    depth = changes.pop("depth", 2)
    chosen = Selection(models=[model], depths=str(depth), splits="0", changes=changes)
    return expand(small(name), chosen)[0]


def built(unit: Unit) -> tuple[Model, dict[str, Any], Split]:
    split = load_split(unit)
    model, how = build(unit.builder, split, unit.options, seed=0)
    return model, how, split


def test_the_models_are_those_of_the_tables() -> None:
    for name in ("dgp-uci", "dwp-uci"):
        experiment = get(name)
        rows = [row for table in experiment.tables for row in reference.load_table(table)]
        assert {row["model"] for row in rows} == set(experiment.models)
        for model, spec in experiment.models.items():
            assert {row["depth"] for row in rows if row["model"] == model} == set(map(str, spec.depths))
        assert {row["dataset"] for row in rows} == set(experiment.datasets)
        assert not experiment.needs
    assert available(get("dgp-uci")) == ["DSVI", "local inducing", "global inducing"]
    assert available(get("dwp-uci")) == ["DGP", "DWP", "DWP-A", "DWP-AB", "DIWP"]
    assert all(len(splits) == (5 if d == "protein" else 20) for d, splits in get("dwp-uci").splits.items())


@each_model
def test_five_steps_give_finite_metrics_for_a_row_of_the_tables(name: str, model: str, settings: Settings) -> None:
    experiment = small(name)
    units = expand(experiment, Selection(models=[model], depths="2", steps=5))
    summary = run_sweep(units, settings)
    assert (summary.trained, summary.failed, summary.ok) == (2, [], True)
    printed = [row for table in experiment.tables for row in reference.load_table(table)]
    for unit in units:
        result = finished(settings.out, unit)
        assert result is not None
        assert result["steps"] == 5
        assert set(result["metrics"]) == set(experiment.metrics)
        assert all(math.isfinite(value) for value in result["metrics"].values())
        marks = {key: value for key, value in unit.columns.items() if key != "dataset"}
        rows = [row for row in printed if all(row[key] == value for key, value in marks.items())]
        assert {row["metric"] for row in rows} == {"elbo_per_datapoint", "test_ll", "test_rmse"}


@each_model
def test_depth_is_the_number_of_gp_layers(name: str, model: str) -> None:
    for depth in (2, 5):
        network, _, split = built(first_unit(name, model, depth=depth))
        layers = list(network.layers.values())
        width = split.x_train.shape[1]
        assert [layer.out_features for layer in layers] == [width] * (depth - 1) + [1]


def test_chapter_five_is_built_as_printed() -> None:
    for model, mixing in (("DGP", None), ("DWP", "plain"), ("DWP-A", "A"), ("DWP-AB", "AB")):
        network, _, split = built(first_unit("dwp-uci", model, depth=3))
        *hidden, last = network.layers.values()
        assert isinstance(last.posterior, GlobalInducing)
        assert all(
            layer.posterior.form == "full" for layer in [*hidden, last] if not hasattr(layer.posterior, "mixing")
        )
        if mixing is None:
            assert all(isinstance(layer.posterior, GlobalInducing) for layer in hidden)
            assert torch.equal(hidden[0].posterior.pseudo_outputs, split.x_train[:8])
            assert hidden[0].posterior.raw_factor.diagonal().tolist() == [1.0] * 8  # half the log precision
        else:
            assert all(isinstance(layer.posterior, GeneralizedWishart) for layer in hidden)
            assert [layer.posterior.mixing for layer in hidden] == [mixing] * 2
        assert last.posterior.raw_factor.diagonal().tolist() == [1.5] * 8
        assert torch.equal(last.posterior.pseudo_outputs[:, 0], split.y_train[:8])
        assert torch.equal(network.inducing, split.x_train[:8])
        lengthscales = [layer.kernel.lengthscale.value for layer in (*hidden, last)]
        assert [tuple(value.shape) for value in lengthscales] == [(10,), (), ()]
        assert all(torch.allclose(value, torch.tensor(10.0).sqrt()) for value in lengthscales)
        assert all(isinstance(layer.mean, ZeroMean) and layer.white is None for layer in (*hidden, last))
        assert network.likelihood.noise.value.log().item() == pytest.approx(-3.0)
        assert network.likelihood.noise.scale == 10.0


def test_chapter_four_has_skip_connections_and_noise_in_hidden_layers() -> None:
    forms = {"DSVI": "whitened", "local inducing": "pseudo", "global inducing": "full_per_output"}
    for model, form in forms.items():
        network, how, split = built(first_unit("dgp-uci", model, depth=3))
        width = split.x_train.shape[1]
        *hidden, last = network.layers.values()
        assert all(isinstance(layer.mean, IdentityMean) and layer.white is not None for layer in hidden)
        assert isinstance(last.mean, ZeroMean)
        assert last.white is None
        assert [layer.posterior.form for layer in hidden] == [form] * 2
        assert last.posterior.form == ("natural" if model == "global inducing" else form)
        assert (last.posterior.sites is None) == (model == "DSVI")
        assert how["n_samples"] == (4 if model == "global inducing" else 1)
        rates = [how["lr_schedule"](step) for step in (0, 10_000, 20_000)]
        assert rates == pytest.approx([1.0, 1.0, 0.003])
        rise = how["kl_weight"]
        whole = 300 if model == "local inducing" else 100
        assert rise == 1.0 if model == "DSVI" else [rise(step) for step in (0, whole // 2, whole)] == [0.0, 0.5, 1.0]
        variances = [layer.kernel.variance.value.item() for layer in (*hidden, last)]
        assert variances == pytest.approx([0.1, 0.1, 1.0] if model == "global inducing" else [1.0] * 3)
        if model == "DSVI":
            stds = [layer.posterior.raw_factor.diagonal(dim1=-2, dim2=-1).exp() for layer in (*hidden, last)]
            assert [round(math.log10(std.max().item())) for std in stds] == [-5, -5, 0]
        if model == "global inducing":
            assert [layer.posterior.raw_factor[:, 0, 0].tolist() for layer in hidden] == [[-2.0] * width] * 2
            assert torch.allclose(last.posterior.sites.precision[0].diagonal().log(), torch.tensor(3.0).double())
        if model == "local inducing":
            assert all(torch.count_nonzero(layer.posterior.pseudo_outputs) == 0 for layer in hidden)
            assert [layer.posterior.raw_factor[:, 0, 0].tolist() for layer in hidden] == [[4.0] * width] * 2
        assert isinstance(last.posterior, GlobalInducing if model == "global inducing" else LocalInducing)


def test_the_inverse_wishart_process_has_depth_three(settings: Settings) -> None:
    units = expand(small("dwp-uci"), Selection(models=["DIWP"], steps=3))
    assert {unit.options["model"]["depth"] for unit in units} == {3}
    network, _, split = built(units[0])
    *hidden, last = network.layers.values()
    width = split.x_train.shape[1]
    assert [type(layer) for layer in hidden] == [InverseWishartProcess] * 2
    assert [layer.out_features for layer in hidden] == [width] * 2
    assert [layer.dof.value.item() for layer in hidden] == pytest.approx([50.0] * 2)
    assert isinstance(last.posterior, GlobalInducing)
    summary = run_sweep(units, settings)
    assert (summary.trained, summary.failed) == (2, [])
    result = finished(settings.out, units[0])
    assert result is not None
    assert all(math.isfinite(value) for value in result["metrics"].values())


def test_training_of_chapter_five() -> None:
    unit = next(u for u in expand(get("dwp-uci")) if u.dataset == "protein")
    how = training_options(unit.options, 41157)
    assert (how["steps"], how["batch_size"], how["lr"], how["n_samples"]) == (20_000, 10_000, 2e-2, 10)
    assert [how["kl_weight"](step) for step in (0, 1250, 5000, 19_999)] == [0.0, 0.25, 1.0, 1.0]
    factors = [how["lr_schedule"](step) for step in (0, 9_999, 10_000, 16_999, 17_000)]
    assert factors == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.01])
    printed = {"lr": 0.01, "lr_drops": [0.5], "kl_warmup": 1000, "jitter": None}
    as_printed = training_options(
        expand(get("dwp-uci"), Selection(models=["DGP"], depths="5", changes=printed))[0].options, 455
    )
    assert (as_printed["lr"], as_printed["lr_schedule"](19_999)) == pytest.approx((0.01, 0.1))
    assert as_printed["kl_weight"](250) == 0.25
    slow = override(unit.options, "lr_warmup", 100)
    assert [training_options(slow, 41157)["lr_schedule"](s) for s in (0, 99, 17_000)] == pytest.approx(
        [0.01, 1.0, 0.01]
    )
    even = {**unit.options, "training": {**unit.options["training"], "lr_end": 0.01, "lr_hold": 0.5}}
    rate = training_options(even, 41157)["lr_schedule"]
    assert [rate(step) for step in (0, 10_000, 15_000, 20_000)] == pytest.approx([1.0, 1.0, 0.1, 0.01])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_jitter_is_what_was_asked_for(dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    models._warn_of_little_jitter.cache_clear()
    for given, wanted in ((1e-8, 1e-8), (None, 1e-6)):
        unit = first_unit("dwp-uci", "DGP", n_inducing=20, jitter=given, dtype=dtype)
        model = built(unit)[0]
        assert float(model.jitter) == pytest.approx(wanted)
    assert [("little for float32" in message) for message in caplog.messages] == [True] * (dtype == "float32")


def test_fewer_rows_than_inducing_points() -> None:
    unit = first_unit("dwp-uci", "DWP-AB", n_inducing=100)
    network, _, split = built(unit)
    assert torch.equal(network.inducing, split.x_train)


def test_inducing_inputs_can_be_chosen_and_held() -> None:
    unit = first_unit("dgp-uci", "global inducing", inducing="greedy", learn_inducing=False)
    network, how, split = built(unit)
    rows = torch.cdist(network.inducing, split.x_train).argmin(1)
    assert torch.equal(network.inducing, split.x_train[rows])
    assert sorted(rows.tolist()) != list(range(8))
    *_, last = network.layers.values()
    trusted = math.exp(3.0) * split.y_train[rows].double()
    assert torch.allclose(last.posterior.sites.shift[:, 0], trusted, rtol=1e-6)
    other, _, _ = built(unit)
    before = network.inducing.clone()
    data = (split.x_train, split.y_train)
    other.initialize(*data)
    with torch.no_grad():
        other.inducing += 0.1  # each replica keeps its own
    histories = fit_many([network, other], [data, data], progress=False, **{**how, "steps": 3, "log_every": 1})
    assert torch.equal(network.inducing, before)
    assert torch.equal(other.inducing, before + 0.1)
    assert histories[0].per_datapoint != histories[1].per_datapoint
    with pytest.raises(ConfigurationError, match="inducing option"):
        built(first_unit("dgp-uci", "global inducing", inducing="best"))


def test_local_inducing_points_start_among_the_rows_or_as_in_the_thesis() -> None:
    network, _, split = built(first_unit("dgp-uci", "local inducing"))
    network.initialize(split.x_train, split.y_train)
    *hidden, _ = network.layers.values()
    torch.testing.assert_close(hidden[0].posterior.inputs, choose_inducing(split.x_train, 8, "kmeans"))
    with pytest.raises(ConfigurationError, match='hidden_outputs="zeros"'):
        built(first_unit("dgp-uci", "local inducing", hidden_outputs="inputs"))
    thesis = {"local_inputs": None, "hidden_outputs": None, "log_precision": None, "precision": None, "last": None}
    network, _, split = built(first_unit("dgp-uci", "local inducing", **thesis))
    hidden, last = network.layers.values()
    before = hidden.posterior.inputs.clone()
    network.initialize(split.x_train, split.y_train)
    assert torch.equal(hidden.posterior.inputs, before)
    assert hidden.posterior.pseudo_outputs.abs().min() > 0
    assert hidden.posterior.raw_factor.shape == last.posterior.raw_factor.shape == (8, 8)
    assert torch.count_nonzero(hidden.posterior.raw_factor) == 0
    with pytest.raises(ConfigurationError, match="local_inputs option"):
        built(first_unit("dgp-uci", "local inducing", local_inputs="best"))


def test_doubly_stochastic_inference_can_have_a_natural_last_layer() -> None:
    network, how, split = built(first_unit("dgp-uci", "DSVI", last="natural"))
    hidden, last = network.layers.values()
    assert hidden.posterior.form == "whitened"
    before = last.posterior.sites.precision.clone()
    fit_many([network], [(split.x_train, split.y_train)], progress=False, **{**how, "steps": 2})
    assert not torch.equal(last.posterior.sites.precision, before)


def test_log_likelihood_and_rmse_are_in_original_units() -> None:
    unit = first_unit("dwp-uci", "DGP")
    network, _, split = built(unit)
    network.initialize(split.x_train, split.y_train)
    names = ("elbo_per_datapoint", "test_ll", "test_rmse")
    ours = measure(network, split, dataclasses.replace(unit, metrics=names))
    options = merge(unit.options, {"data": {"units": "standardised"}})
    plain = measure(network, split, dataclasses.replace(unit, metrics=names, options=options))
    scale = float(split.y_std)
    assert scale > 10  # else the test says little
    assert ours["elbo_per_datapoint"] == plain["elbo_per_datapoint"]
    assert ours["test_rmse"] == pytest.approx(plain["test_rmse"] * scale)
    assert ours["test_ll"] == pytest.approx(plain["test_ll"] - math.log(scale))


@pytest.mark.parametrize("depth", [None, 0, 2.5, True])
def test_a_depth_that_is_none_is_refused(depth: Any) -> None:
    unit = first_unit("dwp-uci", "DWP")
    options = merge(unit.options, {"model": {"depth": depth}})
    with pytest.raises(ConfigurationError, match="number of GP layers"):
        MODELS["DWP"](load_split(unit), options)


def test_results_of_earlier_experiments_are_still_found() -> None:
    units = expand(get("dkl-uci"), Selection(models=["SVGP"], splits="0"))
    found = {unit.dataset: unit.family.name for unit in units}
    assert found["boston"] == "SVGP-357bab3b53"
    assert found["power"] == "SVGP-658f2db8f3"


@each_model
def test_an_option_that_a_model_makes_no_use_of_is_named(
    name: str, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    models._warn_of_unused.cache_clear()
    unit = expand(small(name), Selection(models=[model], splits="0"))[0]
    split = load_split(unit)
    build(unit.builder, split, unit.options, 0)
    assert not caplog.messages  # the experiment's own are all used
    for _ in range(2):
        build("SVGP", split, override(dict(unit.options), "inducing", "greedy"), 0)
    unused = [message for message in caplog.messages if "inducing" in message]
    assert len(unused) == 1
    assert unused[0].startswith("SVGP makes no use of the option")
