"""From an experiment to runs: options, hashes, filters, groups."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vibayes.errors import ConfigurationError
from vibayes.experiments.catalogue import EXPERIMENTS, get, register
from vibayes.experiments.experiment import Experiment, ModelSpec, Unit, _flat, override
from vibayes.experiments.models import MODELS, n_steps, training_options
from vibayes.experiments.names import parse_numbers
from vibayes.experiments.options import check_value
from vibayes.experiments.reference import table_names
from vibayes.experiments.sweep import Selection, by_family, expand, plan
from vibayes.experiments.training import load_split

NAMES = [
    *("intro", "dkl-toy", "dkl-mnist", "dkl-uci", "dkl-images", "dkl-hmc", "dkl-sgld"),
    *("gi-toy", "gi-linear", "gi-uci", "gi-cifar10", "gi-mnist500", "gi-uncertainty", "gi-runtime"),
    *("dgp-uci", "dgp-compositional", "dwp-toy", "dwp-uci", "dwp-runtime"),
]


def test_all_experiments_have_their_names_and_existing_tables() -> None:
    assert list(EXPERIMENTS)[: len(NAMES)] == NAMES
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert set(experiment.tables) <= set(table_names())
        assert experiment.needs or experiment.script or any(s.builder in MODELS for s in experiment.models.values())


def test_every_table_of_the_thesis_belongs_to_an_experiment() -> None:
    assert {t for e in EXPERIMENTS.values() for t in e.tables} == set(table_names())


def test_svgp_rows_of_chapter_3_as_the_thesis_says() -> None:
    units = expand(get("dkl-uci"), Selection(models=["SVGP"]))
    count = {name: sum(u.dataset == name for u in units) for name in get("dkl-uci").datasets}
    assert count == {"boston": 20, "energy": 20, "kin40k": 5, "power": 20, "protein": 5}
    by_dataset = {u.dataset: u.options for u in units}
    assert by_dataset["boston"]["model"]["n_inducing"] == by_dataset["energy"]["model"]["n_inducing"] == 100
    assert by_dataset["power"]["model"]["n_inducing"] == by_dataset["protein"]["model"]["n_inducing"] == 1000
    boston = training_options(by_dataset["boston"], 455)
    assert (boston["steps"], boston["batch_size"], boston["lr"]) == (400 * 15, 32, 1e-3)
    rates = [boston["lr_schedule"](step) for step in (0, 2999, 3000, 4499, 4500, 5999)]
    assert rates == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    kin40k = training_options(by_dataset["kin40k"], 36_000)
    assert (kin40k["steps"], kin40k["batch_size"]) == (160 * 360, 100)
    assert [kin40k["lr_schedule"](s) for s in (80 * 360 - 1, 80 * 360)] == pytest.approx([1, 0.1])


def test_a_changed_option_is_another_run_and_a_split_is_not(tiny: Experiment) -> None:
    base = expand(tiny)[0]
    assert base.family == expand(tiny)[1].family
    assert base.path != expand(tiny)[1].path
    for changed in (
        Selection(steps=61),
        Selection(dtype="float32"),
        Selection(changes={"lr": 0.02}),
        Selection(changes={"n_inducing": 6}),
        Selection(changes={"data.n_train": 41}),
        Selection(changes={"seed": 1}),
    ):
        assert expand(tiny, changed)[0].digest != base.digest, changed
    assert expand(tiny, Selection(steps=60))[0].digest == base.digest  # the same value is the same run
    assert Unit.from_dict(json.loads(json.dumps(base.to_dict()))).digest == base.digest


def test_the_hash_does_not_depend_on_the_order_of_options(tiny: Experiment) -> None:
    unit = expand(tiny)[0]
    turned = replace(unit, options=dict(reversed(list(unit.options.items()))))
    assert turned.digest == unit.digest


def test_filters() -> None:
    experiment = get("dkl-uci")
    chosen = expand(experiment, Selection(datasets=["energy", "BOSTON"], splits="0-1,19", models=["svgp"]))
    assert [(u.dataset, u.split) for u in chosen] == [(d, s) for d in ("boston", "energy") for s in (0, 1, 19)]
    # a data set with fewer splits has those it has
    assert {u.split for u in expand(experiment, Selection(datasets=["kin40k", "boston"], splits="4-6"))} == {4, 5, 6}


def test_models_to_come_are_named(tiny: Experiment) -> None:
    with pytest.raises(ConfigurationError, match="SVDKL of tiny is not available yet"):
        expand(tiny, Selection(models=["SVDKL"]))


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(datasets=["bosten"]), "Did you mean 'boston'"),
        (Selection(models=["SVPG"]), "Did you mean 'SVGP'"),
        (Selection(splits="20"), "splits 0 to 19; got 20"),
        (Selection(splits="5", datasets=["kin40k"]), "splits 0 to 4; got 5"),
        (Selection(splits="3-1"), "such as 0-4,7"),
        (Selection(depths="2"), "no depths"),
        (Selection(priors=["Neal"]), "no priors"),
        (Selection(steps=0), "positive whole number"),
        (Selection(dtype="float46"), "Did you mean 'float64'"),
        (Selection(changes={"lrr": 1}), "Did you mean 'lr'"),
        (Selection(datasets=["kin40k"], models=["DKL"]), "the models DKL are not run on kin40k"),
    ],
)
def test_bad_filters_are_named(selection: Selection, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        expand(get("dkl-uci"), selection)


def test_priors_may_be_typed_in_lower_case() -> None:
    typed, known = (expand(get("gi-uci"), Selection(priors=[prior])) for prior in ("nealprior", "NealPrior"))
    assert typed == known
    assert typed


def test_experiments_of_models_to_come_refuse_to_run() -> None:
    with pytest.raises(ConfigurationError, match="later needs patience, not available yet"):
        expand(Experiment("later", "An experiment to come", needs="patience"))
    with pytest.raises(ConfigurationError, match="Did you mean 'dwp-uci'"):
        get("dwp-ucci")
    with pytest.raises(ConfigurationError, match="already"):
        register(get("intro"))


def test_depths_and_priors_become_options() -> None:
    spec = ModelSpec("SVGP", depths=(2, 3, 5), priors=("NealPrior", "ScalePrior"))
    experiment = Experiment("deep", "t", datasets=("boston",), splits={"boston": (0,)}, models={"DGP": spec})
    chosen = expand(experiment, Selection(depths="3-5", priors=["ScalePrior"]))
    assert [u.columns for u in chosen] == [
        {"dataset": "boston", "model": "DGP", "depth": d, "prior": "ScalePrior"} for d in ("3", "5")
    ]
    assert len(expand(experiment)) == 6
    with pytest.raises(ConfigurationError, match="no depth '4'"):
        expand(experiment, Selection(depths="4"))


def test_override_wants_unambiguous_names() -> None:
    options = {"model": {"size": 1}, "data": {"size": 2}}
    with pytest.raises(ConfigurationError, match=r"model.size or data.size"):
        override(options, "size", 3)
    assert override(options, "data.size", 3) == {"model": {"size": 1}, "data": {"size": 3}}


def test_numbers_and_steps() -> None:
    assert parse_numbers("7,0-2") == [0, 1, 2, 7]
    assert n_steps({"steps": 5, "epochs": 2}, 100) == 5
    assert n_steps({"epochs": 2, "batch_size": None}, 100) == 2
    with pytest.raises(ConfigurationError, match="steps or epochs"):
        n_steps({}, 10)


def test_groups_cover_all_runs_and_are_kept(tiny: Experiment, tmp_path: Path) -> None:
    units = expand(tiny)
    first = plan(tmp_path, units, size=3, how={})
    assert [[u.split for u in g.units] for g in first] == [[0, 1, 2], [3]]
    again = plan(tmp_path, units, size=1, how={})  # another size later changes nothing
    assert [[u.split for u in g.units] for g in again] == [[0, 1, 2], [3]]
    assert [g.folder for g in again] == [g.folder for g in first]
    few = plan(tmp_path, units[:1], size=None, how={})
    assert [[u.split for u in g.units] for g in few] == [[0, 1, 2]]
    assert len(by_family(units)) == 1


def test_override_knows_options_that_few_experiments_set_and_none_takes_them_out() -> None:
    options = {"model": {"depth": 2}, "training": {"lr": 0.1, "lr_drops": [0.5]}}
    assert override(options, "jitter", 1e-8) == {**options, "model": {"depth": 2, "jitter": 1e-8}}
    assert override(override(options, "jitter", 1e-8), "jitter", None) == options
    assert override(options, "lr_drops", None) == {**options, "training": {"lr": 0.1}}
    with pytest.raises(ConfigurationError, match="lr_end"):
        override(options, "lr_ends", 0.1)


@pytest.mark.parametrize("name", [name for name in NAMES if not EXPERIMENTS[name].script])
def test_every_number_of_an_experiment_is_known_to_be_one(name: str) -> None:
    for unit in expand(get(name)):
        for (_, leaf), value in _flat(unit.options).items():
            assert check_value(leaf, value, value) == value
            if isinstance(value, int | float | list):
                with pytest.raises(ConfigurationError, match=f"The option {leaf} must be .*; got 'abc'"):
                    check_value(leaf, "abc", value)


def test_options_of_the_wrong_kind_are_refused_before_training(tiny: Experiment) -> None:
    def changed(**changes: object) -> Unit:
        return expand(tiny, Selection(changes=changes))[0]

    assert changed(steps=1e3).digest == changed(steps=1000).digest
    assert changed(split="Random").digest == expand(tiny)[0].digest
    assert changed(batch_size=None).options["training"]["batch_size"] is None
    wrong = {
        "seed": None,
        "lr": [0.1, 0.2],
        "noise": True,
        "kl_warmup": "10",
        "lr_drops": ["a"],
        "learn_inducing": "no",
    }
    for name, value in wrong.items():
        with pytest.raises(ConfigurationError, match=f"The option {name} must be"):
            changed(**{name: value})
    unit = replace(expand(tiny)[0], options={"data": {"split": "foo"}})
    with pytest.raises(ConfigurationError, match=r"no split option 'foo'.*published, random, generated"):
        load_split(unit)
    unit = replace(expand(tiny)[0], options={"data": {"split": "generated"}})
    with pytest.raises(ConfigurationError, match="is not generated; use split=published"):
        load_split(unit)
