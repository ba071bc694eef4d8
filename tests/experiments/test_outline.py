"""What `vibayes bench show` tells of experiments."""

from importlib import import_module

import pytest

from vibayes.experiments import catalogue, commands
from vibayes.experiments.__main__ import main
from vibayes.experiments.sweep import expand


@pytest.mark.parametrize("name", list(catalogue.EXPERIMENTS))
def test_every_model_and_data_set_is_told_of_in_few_lines(name: str) -> None:
    experiment = catalogue.get(name)
    text = commands.describe(name)
    for word in (*experiment.labels, *experiment.models, *experiment.presets):
        assert word in text
    figures = import_module(experiment.script).DRAWING.figures if experiment.script else ()
    for word in figures or experiment.datasets:
        assert word in text
    assert len(text.splitlines()) < 100


def test_runs_that_differ_in_an_option_stand_apart() -> None:
    lines = commands.describe("dwp-uci", commands.select(models=["DGP,DWP"])).splitlines()
    heads = [line for line in lines if line.startswith(("  DGP, ", "  DWP, "))]
    assert [head.partition(";")[0] for head in heads] == ["  DGP, depth 2, 3, 4, 5", "  DWP, depth 2, 3, 4, 5"]
    at = lines.index(heads[1])
    assert "kl_warmup=5000" in "\n".join(lines[:at])
    assert "kl_warmup=1000" in "\n".join(lines[at:])
    assert any("protein: 5 splits, 20000 steps" in line for line in lines)


@pytest.mark.parametrize("name", [n for n, experiment in catalogue.EXPERIMENTS.items() if not experiment.script])
def test_every_option_is_told_of(name: str) -> None:
    experiment = catalogue.get(name)
    text = commands.describe(name)
    for dataset in experiment.datasets:
        for model in catalogue.available(experiment):
            for section in experiment.options_of(model, dataset).values():
                told = section.items() if isinstance(section, dict) else ()
                assert all(f"{key}={value}" in text for key, value in told if value is not None)


def test_figures_that_are_said_to_need_a_gpu_are_skipped_without_one() -> None:
    """Else ResNet-18 would train for weeks on a CPU."""
    said = [experiment for experiment in catalogue.EXPERIMENTS.values() if "Needs a GPU" in experiment.note]
    assert len(said) == 3
    for experiment in said:
        drawing = import_module(experiment.script).DRAWING
        assert set(drawing.on_gpu) == set(drawing.figures)


def test_of_chosen_runs_the_folders_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["--datasets", "boston", "yacht", "--models", "DGP", "--depths", "2,5", "--set", "lr=0.5"]
    assert main(["show", "dwp-uci", *typed]) == 0
    text = capsys.readouterr().out
    assert "lr=0.5" in text
    chosen = commands.select(datasets=["boston", "yacht"], models=["DGP"], depths="2,5", changes=["lr=0.5"])
    families = {str(unit.family) for unit in expand(catalogue.get("dwp-uci"), chosen)}
    assert len(families) == 4
    assert all(family in text for family in families)


def test_a_name_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "dwp-uci", "--models", "DPG"]) == 1
    assert "Did you mean" in capsys.readouterr().err
