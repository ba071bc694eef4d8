"""Named presets of the experiments, and their models as they start."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import vibayes as vb
from vibayes import experiments
from vibayes.datasets import Split
from vibayes.errors import ConfigurationError
from vibayes.experiments.__main__ import main
from vibayes.experiments.catalogue import EXPERIMENTS, get
from vibayes.experiments.sweep import Selection, expand
from vibayes.posteriors import GlobalInducing, LocalInducing

SWEEPS = [(name, model) for name, e in EXPERIMENTS.items() for model, spec in e.models.items() if not e.script]
TABLES = [(name, model) for name, model in SWEEPS if not get(name).models[model].builder.startswith("image")]


@pytest.fixture(scope="module")
def split() -> Split:
    x = torch.randn(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Split(x, x.sum(1), x[:5], x[:5].sum(1)).standardized("both")


def axes(name: str, model: str) -> dict[str, Any]:
    spec = get(name).models[model]
    return {"depth": spec.depths[0] if spec.depths else None, "prior": spec.priors[0] if spec.priors else None}


@pytest.mark.parametrize(("name", "model"), SWEEPS)
def test_presets_are_described_and_change_what_they_say(name: str, model: str) -> None:
    experiment = get(name)
    spec = experiment.models[model]
    assert set(spec.presets) <= set(experiment.presets)
    dataset = (spec.datasets or experiment.datasets)[0]
    own = experiment.options_of(model, dataset, **axes(name, model))
    for preset, changes in spec.presets.items():
        options = experiment.options_of(model, dataset, **axes(name, model), preset=preset)
        flat = {**options["model"], **options["training"]}
        assert options != own
        assert {key: flat.get(key) for key in changes} == changes


@pytest.mark.parametrize("name", [name for name, e in EXPERIMENTS.items() if e.presets])
def test_every_preset_belongs_to_a_model(name: str) -> None:
    experiment = get(name)
    assert set(experiment.presets) == {preset for spec in experiment.models.values() for preset in spec.presets}


@pytest.mark.parametrize(("name", "model"), TABLES)
def test_every_model_starts_and_trains_by_hand(name: str, model: str, split: Split) -> None:
    for preset in (None, *get(name).models[model].presets):
        started, training = experiments.start(name, model, split, **axes(name, model), preset=preset)
        history = vb.fit(started, (split.x_train, split.y_train), **{**training, "steps": 2}, progress=False)
        assert math.isfinite(history.elbo[-1])


def test_a_start_is_that_of_the_sweep(split: Split) -> None:
    unit = expand(get("dwp-uci"), Selection(["boston"], ["DWP-A"], depths="2", splits="0", preset="thesis"))[0]
    model, training = experiments.start("dwp-uci", "DWP-A", split, depth=2, preset="thesis")
    expected, how = experiments.models.build(unit.builder, split, unit.options, seed=0)
    for value, other in zip(model.state_dict().values(), expected.state_dict().values(), strict=True):
        assert torch.equal(value, other)
    assert training == {"optimizer": "adam", **how}


def log_precision(posterior: GlobalInducing | LocalInducing) -> Tensor:
    factor = posterior.raw_factor.detach()  # logarithms on the diagonal of a Cholesky factor
    assert torch.equal(factor, factor.diag().diag())
    return 2.0 * factor.diag()


def test_the_appendix_of_chapter_four_global(split: Split) -> None:
    model, training = experiments.start("dgp-uci", "global inducing", split, depth=2, preset="appendix", n_inducing=20)
    hidden, last = model.network
    assert torch.equal(model.inducing, split.x_train[:20])
    assert torch.equal(last.posterior.pseudo_outputs[:, 0], split.y_train[:20])
    assert torch.equal(log_precision(last.posterior), torch.zeros(20, dtype=torch.float64))
    assert torch.equal(log_precision(hidden.posterior), torch.full((20,), -4.0, dtype=torch.float64))
    normal = hidden.posterior.pseudo_outputs
    assert normal.shape == (20, 3)
    assert 0.6 < normal.std() < 1.4
    assert training["lr"] == 0.01
    assert training["n_samples"] == 1
    assert training["lr_schedule"] == training["kl_weight"] == 1.0


def test_the_appendix_of_chapter_four_local(split: Split) -> None:
    model, _ = experiments.start("dgp-uci", "local inducing", split, depth=2, preset="appendix", n_inducing=20)
    assert model.inducing is None
    for layer in model.network:
        assert torch.equal(log_precision(layer.posterior), torch.zeros(20, dtype=torch.float64))
        for normal in (layer.posterior.inputs, layer.posterior.pseudo_outputs):
            assert abs(normal.mean()) < 0.7
            assert 0.6 < normal.std() < 1.4
        assert not torch.equal(layer.posterior.pseudo_outputs[:, 0], split.y_train[:20])


def test_the_schedule_of_chapter_five(split: Split) -> None:
    _, training = experiments.start("dwp-uci", "DGP", split, depth=2, preset="thesis")
    rate, weight = training["lr_schedule"], training["kl_weight"]
    assert training["lr"] * rate(9_999) == pytest.approx(1e-2)
    assert training["lr"] * rate(10_000) == pytest.approx(1e-3)
    assert training["lr"] * rate(19_999) == pytest.approx(1e-3)
    assert weight(500) == pytest.approx(0.5)
    assert weight(1_000) == 1.0


def test_a_preset_selects_the_models_that_have_it_and_changes_by_hand_come_last() -> None:
    chosen = expand(get("gi-uci"), Selection(["boston"], splits="0", preset="minutes", changes={"n_samples": 3}))
    assert {unit.model for unit in chosen} == {"factorised", "fac->gi"}
    assert {unit.options["training"]["n_samples"] for unit in chosen} == {3}
    assert {unit.options["training"]["steps"] for unit in chosen} == {10_000}


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(preset="falling"), "no preset of dgp-uci 'falling'"),
        (Selection(preset="apendix"), "Did you mean 'appendix'"),
    ],
)
def test_unknown_presets_are_named(selection: Selection, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        expand(get("dgp-uci"), selection)


def test_presets_that_an_experiment_or_model_has_not_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="dkl-uci has no presets; leave --preset out"):
        expand(get("dkl-uci"), Selection(preset="thesis"))
    with pytest.raises(ConfigurationError, match="factorised of gi-uci has no preset 'falling'; local inducing"):
        expand(get("gi-uci"), Selection(models=["factorised"], preset="falling"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dgp-uci", "global inducing", {}), "needs depth=, such as 2"),
        (("gi-uci", "factorised", {}), "needs prior=, such as 'StandardPrior'"),
        (("dkl-uci", "SVGP", {"depth": 2}), "has no depth; leave it out"),
        (("gi-uci", "factorised", {"prior": "Neal"}), "Did you mean 'NealPrior'"),
        (("gi-uci", "factorised", {"prior": "NealPrior", "preset": "falling"}), "has no preset 'falling'"),
        (("dgp-uci", "globl inducing", {}), "Did you mean 'global inducing'"),
        (("gi-toy", "global inducing", {}), "has no models by name"),
        (("dgp-uci", "DSVI", {"depth": 2, "lr": "fast"}), "lr must be a number"),
        (("dgp-uci", "DSVI", {"depth": 0}), "depth"),
    ],
)
def test_bad_starts_are_named(arguments: tuple[str, str, dict[str, Any]], message: str, split: Split) -> None:
    name, model, options = arguments
    with pytest.raises(ConfigurationError, match=message):
        experiments.start(name, model, split, **options)


def test_presets_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "dgp-uci"]) == 0
    assert "--preset appendix: starts as in the appendix of chapter 4" in capsys.readouterr().out
    assert main(["table", "dgp-uci", "--preset", "nonsense", "--all"]) == 1
    assert "appendix" in capsys.readouterr().err
