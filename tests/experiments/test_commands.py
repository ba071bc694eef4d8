"""The commands, by `python -m vibayes.experiments` and `vibayes bench`, and the report."""

import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from vibayes.experiments import commands, svg
from vibayes.experiments.__main__ import main
from vibayes.experiments.catalogue import EXPERIMENTS, get
from vibayes.experiments.experiment import Experiment
from vibayes.experiments.figures import Figure, FigureResult
from vibayes.experiments.report import Section
from vibayes.experiments.results import write_result
from vibayes.experiments.runner import Summary
from vibayes.experiments.sweep import Selection, expand


def bench(*arguments: str) -> Any:
    testing = pytest.importorskip("typer.testing")
    from vibayes.cli.app import app

    return testing.CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})


def test_list_and_show(tiny: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    for name in EXPERIMENTS:
        assert f"{name}: " in listed
        assert main(["show", name]) == 0
    assert "dwp-uci: " in listed
    assert "needs patience, not available yet" in listed
    shown = capsys.readouterr().out
    assert "boston: 20 splits, 6000 steps" in shown
    result = bench("list")
    assert result.exit_code == 0
    assert "gi-mnist500" in result.stdout


def test_run_and_resume(tiny: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "tiny", "--out", str(tmp_path), "--splits", "0-1", "--steps", "10", "--device", "cpu"]
    assert main(arguments) == 0
    first = capsys.readouterr()
    assert "2 runs: 0 finished before, 2 trained now" in first.out
    assert "diabetes SVGP splits 0,1: done" in first.err
    assert main([*arguments, "--quiet"]) == 0
    again = capsys.readouterr()
    assert "2 finished before, 0 trained now" in again.out
    assert again.err == ""
    result = bench(*arguments, "--set", "lr=0.5", "--set", "noise=0.5")
    assert result.exit_code == 0, result.output
    options = [json.loads(p.read_text())["options"] for p in tmp_path.glob("tiny/*/*/split-0.json")]
    assert sorted((o["training"]["lr"], o["model"]["noise"]) for o in options) == [(0.01, 1.0), (0.5, 0.5)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "tyni"], "no experiment 'tyni'. Did you mean 'tiny'?"),
        (["run", "tiny", "--datasets", "diabets"], "Did you mean 'diabetes'?"),
        (["run", "tiny", "--models", "SVGPP"], "Did you mean 'SVGP'?"),
        (["run", "tiny", "--set", "lr"], "KEY=VALUE"),
        (["run", "tiny", "--set", "seed=a"], "The option seed must be a whole number; got 'a'."),
        (["run", "tiny", "--set", "steps=abc"], "The option steps must be a whole number; got 'abc'."),
        (["run", "tiny", "--set", "steps=2.5"], "The option steps must be a whole number; got 2.5."),
        (["run", "tiny", "--set", "training.lr=abc"], "The option lr must be a number; got 'abc'. Write it like --set"),
        (["run", "tiny", "--set", "lr=NaN"], "The option lr must be a number; got 'NaN'."),
        (["run", "tiny", "--set", "lr_drops=0.5"], "The option lr_drops must be a list of numbers; got 0.5."),
        (["run", "tiny", "--set", "split=foo"], "There is no split option 'foo'."),
        (["run", "tiny", "--set", "dtype=5"], "There is no dtype option 5."),
        (["run", "tiny", "--set", 'dtype={"a": 1}'], "There is no dtype option {'a': 1}."),
        (["run", "tiny", "--figures", "sgpr"], "is a sweep"),
        (["run", "tiny", "--seed", "1"], "tiny is a sweep; --seed belongs to experiments that draw figures."),
        (["run", "tiny", "--seed", "0"], "--set seed=0."),
        (["run", "tiny", "--group", "0"], "--group must be"),
        (["run", "tiny", "--checkpoint-seconds", "-1"], "--checkpoint-seconds must not be negative"),
        (["run", "tiny", "--checkpoint-seconds", "nan"], "--checkpoint-seconds must not be negative"),
        (["run", "tiny", "--datasets", ""], "An option got no name"),
        (["run", "tiny", "--models", " ,"], "An option got no name"),
        (["run", "tiny", "--splits", "0-99999999999"], "splits are numbers up to 99,999"),
        (["run", "intro", "--steps", "5"], "draws figures"),
        (["run", "intro", "--device", "cuda"], "takes --figures, --seed, --out and --quiet only"),
        (["run", "intro", "--compile"], "draws figures"),
        (["run", "intro", "--executor", "processes"], "draws figures"),
        (["run", "intro", "--workers", "2"], "draws figures"),
        (["run", "later"], "later needs patience, not available yet"),
        (["show", "intor"], "Did you mean 'intro'?"),
        (["table", "dkl-uci", "--format", "xml"], "no format 'xml'"),
        (["table", "dkl-uci", "--out", "/no/such/folder"], "There is no folder of results /no/such/folder;"),
        (["table", "dkl-uci", "--all", "--out", "/no/such/folder"], "There is no folder of results /no/such/folder;"),
        (["table", "dkl-uci", "--out", __file__], "--out must be a folder of results; got the file"),
        (
            ["table", "intro", "--models", "SVGP"],
            "intro draws figures; its table takes --format, --all and --out only.",
        ),
        (["report", "--results", "/no/such/folder"], "no folder of results"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_1(
    tiny: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    if arguments[0] == "run":
        arguments = [*arguments, "--out", str(tmp_path)]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1
    result = bench(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr


def test_a_failed_run_gives_exit_code_1_after_the_others(
    tiny: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["run", "tiny", "--out", str(tmp_path / "file")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    # more inducing points than a step can take: a data set too small for its batch
    code = main(["run", "tiny", "--out", str(tmp_path), "--quiet", "--splits", "0", "--set", "data.n_train=0"])
    assert code == 1
    assert "failed: diabetes SVGP split 0:" in capsys.readouterr().err


def test_the_hint_after_a_run_shows_its_results(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my results"
    chosen = ["--splits", "0-1", "--steps", "10", "--dtype", "float32", "--set", "lr=0.5", "--set", "lr_drops=[0.1, 1]"]
    arguments = ["run", "tiny", "--out", str(out), "--device", "cpu", "--quiet", *chosen]
    assert main(arguments) == 0
    assert f"Results: {out / 'tiny'}\n" in capsys.readouterr().out  # no table: the thesis has none
    row = dict.fromkeys(("prior", "depth", "note", "batch_size"), "")
    row |= {"table": "tab:tiny", "chapter": "3", "dataset": "diabetes", "model": "SVGP", "metric": "test_ll"}
    monkeypatch.setattr("vibayes.experiments.reference.load_table", lambda _: ({**row, "value": "1", "stderr": "2"},))
    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment(**{**vars(tiny), "tables": ("tab_tiny",)}))
    assert main(arguments) == 0
    hint = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("See: "))
    typed = shlex.split(hint.removeprefix("See: "))
    assert typed[:3] == ["vibayes", "bench", "table"]
    assert main(typed[2:]) == 0
    shown = capsys.readouterr().out
    assert "| diabetes | SVGP | test_ll |" in shown
    assert "other options" not in shown


def test_the_hint_after_a_run_names_the_models_where_others_lack_an_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = commands.select(models=["SVDKL"], changes=["weight_decay=1e-4"])  # which sparse GPs do not have
    commands._conclude(Summary(wanted=1, trained=1), get("dkl-uci"), chosen, tmp_path)
    hint = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("See: "))
    assert main([*hint[2:], "--all"]) == 0


def test_table_before_anything_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["table", "dkl-uci"]) == 1
    error = capsys.readouterr().err
    assert "Nothing has been run yet" in error
    assert "`vibayes bench run dkl-uci`" in error
    assert len(error.splitlines()) == 1
    assert "Nothing has been run yet" in bench("table", "dkl-uci").stderr
    assert main(["table", "dkl-uci", "--all"]) == 0  # the thesis's numbers need no results
    assert "| boston | DKL | lml_per_datapoint | - |" in capsys.readouterr().out


class Page(HTMLParser):
    """Every address and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "data", "action")]
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_report_has_every_table_and_needs_nothing_else(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "tiny", "--out", str(tmp_path), "--quiet", "--splits", "0-2"]) == 0
    rows = (
        {"table": "tab:tiny <1>", "chapter": "3", "dataset": "diabetes", "model": "SVGP", "metric": "test_ll"},
        {
            "table": "tab:tiny <1>",
            "chapter": "3",
            "dataset": "diabetes",
            "model": "SVGP",
            "metric": "elbo_per_datapoint",
        },
        {"table": "tab:tiny <1>", "chapter": "3", "dataset": "diabetes", "model": "Other", "metric": "test_ll"},
    )
    whole = tuple(
        {**dict.fromkeys(("prior", "depth", "note", "batch_size"), ""), **r, "value": "-1.30", "stderr": "0.02"}
        for r in rows
    )
    monkeypatch.setattr("vibayes.experiments.reference.load_table", lambda _: whole)
    monkeypatch.setitem(EXPERIMENTS, "tiny", Experiment(**{**vars(tiny), "tables": ("tab_tiny",)}))
    page = tmp_path / "report.html"
    assert main(["report", "--results", str(tmp_path), "--out", str(page)]) == 0
    text = page.read_text()
    parsed = Page()
    parsed.feed(text)
    assert parsed.open == []
    assert all(link.startswith(("#", "data:")) for link in parsed.links), parsed.links
    assert not re.search(r"https?://|@import|url\(", text)
    shown = " ".join(parsed.text)
    for words in ("tab:tiny <1>", "Learning curves", "Timings", "How it was run", "Means and standard errors"):
        assert words in shown
    assert shown.count("-1.30 ± 0.02") == 3
    assert "1 of 2 rows have no result of ours yet" in shown
    first, folded = text.split("<details", 1)
    assert ">Other<" not in first
    assert ">Other<" in folded
    assert text.count("<polyline") == 3  # one per split
    assert "viewport" in text
    assert capsys.readouterr().out.strip().endswith(str(page))


def test_report_of_results_that_hold_numbers_only(tmp_path: Path) -> None:
    unit = expand(get("dkl-uci"), Selection(datasets=["boston"], models=["SVGP"], splits="0"))[0]
    kept = {key: getattr(unit, key) for key in ("experiment", "dataset", "model", "builder", "split", "options")}
    write_result(tmp_path / unit.path, kept | {"metrics": {"test_ll": -0.3125}, "seconds": 1.0})
    commands.report(["dkl-uci"], out=tmp_path, file=tmp_path / "report.html")
    assert "-0.312" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(("bound", "word"), [(-0.5, "ELBO"), (None, "objective")])
def test_a_curve_is_called_a_bound_where_there_is_one(bound: float | None, word: str, tmp_path: Path) -> None:
    """A plain network's is the log likelihood that it maximises."""
    unit = expand(get("dkl-uci"), Selection(datasets=["boston"], models=["fNN"], splits="0"))[0]
    kept = {key: getattr(unit, key) for key in ("experiment", "dataset", "model", "builder", "split", "options")}
    curve = {"step": [1, 2], "elbo_per_datapoint": [-1.0, -0.5]}
    write_result(
        tmp_path / unit.path, kept | {"metrics": {"elbo_per_datapoint": bound}, "seconds": 1.0, "curve": curve}
    )
    commands.report(["dkl-uci"], out=tmp_path, file=tmp_path / "report.html")
    assert f"boston fNN: {word}<" in (tmp_path / "report.html").read_text()


def test_report_tells_figures_of_one_label_apart(tmp_path: Path) -> None:
    number = {"name": "test_ll", "ours": -0.5, "thesis": None, "reference": None}
    short = [Figure(name, "tab:batch", numbers=[number]) for name in ("one-short", "other-short")]
    shown = Section(get("dkl-images"), [], {}, tmp_path, FigureResult(short, "here")).html()
    for name in ("one-short", "other-short"):
        assert shown.count(f"tab:batch, {name}") == 2  # below the figure, and among the numbers


def test_report_without_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--results", str(tmp_path), "--out", str(tmp_path / "r.html")]) == 1
    assert "no results" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_plots_survive_odd_numbers() -> None:
    assert "<circle" in svg.dots("t", [svg.Dot("a", 1.0, None, True), svg.Dot("a", 1.0, 0.0, False)])
    assert "<polyline" in svg.curves("t", [([10, 20], [float("nan"), 1.0])], 1.0)
    far = svg.dots("t", [svg.Dot(str(v), v, 1.0, False) for v in (-0.2, -0.3, -1.1, -5.6, -132.0)], 1)
    assert far.count("<circle") == 4
    assert "\u25c2 -132" in far
    assert svg.ticks(3.0, 3.0) == [3.0]
    assert svg.ticks(-1.05, 0.95) == [-1.0, -0.5, 0.0, 0.5]
    assert svg.ticks(-1.05e-20, 0.95e-20) == [-1e-20, -5e-21, 0.0, 5e-21]
