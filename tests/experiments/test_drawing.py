"""Computing and drawing figures apart: arrays are kept, drawn later, and earlier entries stay."""

import dataclasses
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vibayes import plotting
from vibayes.errors import ConfigurationError
from vibayes.experiments import commands
from vibayes.experiments import drawing as module
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.experiment import Experiment
from vibayes.experiments.figures import compare_figures, read_figures
from vibayes.experiments.record import Number, Result
from vibayes.experiments.report import Section
from vibayes.experiments.tables import render


def line(seed: int) -> Result:
    x = torch.linspace(0.0, 1.0, 9)
    return Result(None, [Number("seed", float(seed))], arrays={"x": x, "mean": seed * x, "std": x.flip(0)})


def drawing() -> Drawing:
    def paint(arrays: dict[str, torch.Tensor]) -> object:
        return plotting.posterior_1d((arrays["mean"], arrays["std"]), arrays["x"]).figure

    both = {"first": line, "second": line}
    return Drawing("lines", both, {name: f"fig:{name}" for name in both}, paint={name: paint for name in both})


def test_results_of_figures_stay_beside_one_another(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    reported: list[str] = []
    drawing().run(tmp_path, figures=["second"], seed=3)
    found = drawing().run(tmp_path, figures=["first"], seed=4, report=lambda name, _: reported.append(name))
    assert reported == ["first"]
    assert list(found["figures"]) == ["first", "second"]
    assert [entry["seed"] for entry in found["figures"].values()] == [4, 3]
    assert found["figures"]["second"]["numbers"][0]["ours"] == 3.0
    assert json.loads((tmp_path / "lines.json").read_text())["figures"] == found["figures"]
    (tmp_path / "lines.json").write_text("[]")
    assert list(drawing().run(tmp_path, figures=["first"])["figures"]) == ["first"]


def test_a_figure_that_is_skipped_leaves_what_there_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that needs a GPU is where there is none, after a run on a machine that has one."""
    pytest.importorskip("matplotlib")
    on_gpu = dataclasses.replace(drawing(), on_gpu=("first",))
    monkeypatch.setattr(module, "_has_gpu", lambda: False)
    skipped = on_gpu.run(tmp_path)["figures"]
    assert skipped["first"]["skipped"] == "It needs a GPU, and there is none here."
    assert skipped["second"]["skipped"] is None
    monkeypatch.setattr(module, "_has_gpu", lambda: True)
    made = on_gpu.run(tmp_path, seed=2)["figures"]["first"]
    assert made["numbers"][0]["ours"] == 2.0
    monkeypatch.setattr(module, "_has_gpu", lambda: False)
    again = on_gpu.run(tmp_path, seed=3)["figures"]
    assert again["first"] == made
    assert again["second"]["seed"] == 3


def test_labels_stand_for_all_their_figures_and_some_are_drawn_on_request_only(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    several = dataclasses.replace(
        drawing(),
        figures={"first": line, "second": line, "third": line, "second-short": line},
        labels={"first": "fig:a", "second": "fig:b", "third": "fig:b", "second-short": "fig:b"},
        paint={name: drawing().paint["first"] for name in ("first", "second", "third", "second-short")},
        on_request=("second-short",),
    )
    assert list(several.run(tmp_path / "all")["figures"]) == ["first", "second", "third"]
    assert list(several.run(tmp_path / "label", figures=["fig:b"])["figures"]) == ["second", "third"]
    assert list(several.run(tmp_path / "short", figures=["second-short"])["figures"]) == ["second-short"]
    with pytest.raises(ConfigurationError, match="Did you mean 'second'"):
        several.run(tmp_path / "none", figures=["secund"])


def test_every_figure_says_how_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(sys, "argv", ["vibayes", "bench", "run", "lines"])
    entry = drawing().run(tmp_path, figures=["first"])["figures"]["first"]
    assert entry["command"] == "vibayes bench run lines"
    assert entry["hardware"]["cores"] >= 1
    assert {"version", "commit", "seed", "seconds"} <= set(entry)


def test_drawing_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    seen = importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else seen(name, *a))
        found = drawing().run(tmp_path, figures=["first"], seed=2)
    assert found["figures"]["first"]["file"] is None
    assert not (tmp_path / "first.png").exists()
    assert drawing().draw(tmp_path) == [tmp_path / "first.png"]
    assert (tmp_path / "first.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((tmp_path / "lines.json").read_text())
    assert written["figures"]["first"]["file"] == "first.png"
    assert written["figures"]["first"]["numbers"] == found["figures"]["first"]["numbers"]


def test_a_killed_figure_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def slow(seed: int, checkpoint: Path) -> Result:
        if not checkpoint.exists():
            checkpoint.parent.mkdir(parents=True)
            checkpoint.write_text("half")
            raise KeyboardInterrupt
        return line(seed)

    resumable = dataclasses.replace(drawing(), figures={"first": slow}, resumable=("first",))
    with pytest.raises(KeyboardInterrupt):
        resumable.run(tmp_path, seed=5)
    assert not (tmp_path / "lines.json").exists()
    assert resumable.run(tmp_path, seed=5)["figures"]["first"]["file"] == "first.png"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first.png", "first.safetensors", "lines.json"]


def test_a_figure_that_is_skipped_keeps_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of a killed run on a GPU, say, that somebody goes on with where the GPU is not seen."""

    def killed(seed: int, checkpoint: Path) -> Result:
        checkpoint.parent.mkdir(parents=True)
        checkpoint.write_text("half")
        raise KeyboardInterrupt

    on_gpu = dataclasses.replace(drawing(), figures={"first": killed}, resumable=("first",), on_gpu=("first",))
    monkeypatch.setattr(module, "_has_gpu", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        on_gpu.run(tmp_path)
    monkeypatch.setattr(module, "_has_gpu", lambda: False)
    assert on_gpu.run(tmp_path)["figures"]["first"]["skipped"]
    assert [file.read_text() for file in (tmp_path / ".work").iterdir()] == ["half"]


def test_a_number_that_is_none_does_not_cost_the_figure(tmp_path: Path) -> None:
    """Such as the mean over misclassified rows where there are none: JSON has no NaN."""
    pytest.importorskip("matplotlib")

    def undefined(seed: int) -> Result:
        row = {"dataset": "boston", "model": "SVGP", "metric": "elbo_per_datapoint"}
        return dataclasses.replace(line(seed), numbers=[Number("of none", math.nan, row=row)])

    dataclasses.replace(drawing(), experiment="lines", figures={"first": undefined}).run(tmp_path / "lines")
    assert json.loads((tmp_path / "lines" / "lines.json").read_text())["figures"]["first"]["numbers"][0]["ours"] is None
    experiment = Experiment("lines", "Lines", tables=("tab_dkl_uci_elbos",), script=__name__)
    found = read_figures(experiment, tmp_path)
    assert found is not None
    assert math.isnan(found.figures[0].numbers[0]["ours"])
    tables = compare_figures(experiment, tmp_path)
    assert "| boston | SVGP | elbo_per_datapoint | nan | -1.66 ± 0.06 |" in render(tables)
    assert "<td>nan</td>" in Section(experiment, [], tables, tmp_path, found).html()


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no result file"):
        drawing().draw(tmp_path / "mistyped")
    assert not (tmp_path / "mistyped").exists()
    (tmp_path / "lines.json").write_text('{"figures": ')
    with pytest.raises(ConfigurationError, match="is damaged"):
        drawing().draw(tmp_path)
    (tmp_path / "lines.json").write_text('{"figures": {"first": {}}}')
    with pytest.raises(ConfigurationError, match="no arrays of figures"):
        drawing().draw(tmp_path)
    (tmp_path / "first.safetensors").write_bytes(b"no")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        drawing().draw(tmp_path)
    with pytest.raises(ConfigurationError, match="dkl-uci keeps no arrays"):
        commands.draw("dkl-uci", out=tmp_path)
    with pytest.raises(ConfigurationError, match="no result file"):
        commands.draw("gi-toy", out=tmp_path)


def test_computing_needs_no_matplotlib() -> None:
    """These run for long, on machines that have little more than torch."""
    scripts = ("dkl_toy", "dkl_hmc", "bnn_toy")
    code = "import sys; sys.modules['matplotlib'] = None\n" + "\n".join(
        f"import vibayes.experiments.{script} as m; assert set(m.DRAWING.paint) == set(m.FIGURES)" for script in scripts
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
