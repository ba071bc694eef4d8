"""The command line: what it prints, writes and returns."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import vibayes
from vibayes import cli, plotting
from vibayes.cli import demo
from vibayes.cli.app import app
from vibayes.errors import TrainingError


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "TERM": "dumb"})


def test_demo(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    folder = tmp_path / "a" / "b"
    result = run("demo", "--quick", "--out", str(folder))
    assert result.exit_code == 0, result.output
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert f"Open {folder / 'report.html'} in a browser." in result.stdout
    rows = {
        name: [float(v.rstrip("%")) for v in re.findall(r"-?\d+\.\d+|\d+%", rest)]
        for name, rest in re.findall(r"^ ?(gp|gp-matern|deep-gp) +(-?\d.*)$", result.stdout, re.M)
    }
    gp, deep = rows["gp"], rows["deep-gp"]
    # evidence, (below the best, its error), held-out log likelihood, RMSE, coverage
    assert gp[0] > deep[0]  # 12 steps are not enough for the deep one
    assert 45 < gp[-2] < 65  # others report an RMSE of 53 to 55
    assert gp[-1] > 80
    assert "…" not in result.stdout  # nothing is cut off on 80 columns
    assert "vb.fit(" in result.stdout
    assert torch.get_num_threads() == before


def test_demo_next_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.linspace(0, 1, 10)[:, None]
    names: dict[str, Any] = {"x": x, "y": torch.sin(6 * x[:, 0]), "x_new": x}
    exec(demo.NEXT, names)
    assert bool((names["lower"] < names["upper"]).all())
    assert len(demo.NEXT.strip().splitlines()) == 3


def test_demo_table(tmp_path: Path) -> None:
    lines = demo.write_table(tmp_path / "t.csv").read_text().splitlines()
    assert len(lines) == 443
    assert lines[0].split(",")[-1] == demo.TARGET
    assert lines[1].startswith("59.0,b,32.1,")  # the first patient


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for command in (["demo"], ["bench", "run", "intro"]):
        result = run(*command, "--out", str(tmp_path / "file" / "sub"))
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")
        assert str(tmp_path / "file" / "sub") in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_missing_scikit_learn_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    result = run("demo", "--quick", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "vibayes[tables]" in result.stderr
    assert "training" not in result.stderr


def test_errors_are_one_line_and_debug_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise TrainingError("first [red]\nsecond :back:")

    monkeypatch.setattr(demo, "run", fail)
    result = run("demo")
    assert (result.exit_code, result.stderr) == (1, "error: first [red] second :back:\n")
    debug = run("--debug", "demo")
    assert isinstance(debug.exception, TrainingError)


def test_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupt)
    result = run("demo")
    assert result.exit_code == 130
    assert result.stderr.startswith("interrupted")


def test_interrupt_of_the_real_program(tmp_path: Path, interruptible: str) -> None:
    """Control-C before anything is trained: a short message, 130, and no half-written result."""
    program = subprocess.Popen(
        [sys.executable, "-u", "-c", interruptible, "demo", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stderr is not None
    for line in program.stderr:
        if line.startswith("1/"):
            break
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 130
    assert errors.startswith("interrupted")
    assert "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["diabetes.csv"]


def test_usage_errors_and_help() -> None:
    assert run("demo", "--bogus").exit_code == 2
    assert run("nothing").exit_code == 2
    assert run("bench", "run").exit_code == 2
    for command in ([], ["demo"], ["bench"], ["bench", "run"], ["bench", "list"]):
        result = run(*command, "--help")
        assert result.exit_code == 0
        assert "Usage: " in result.output


def test_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIBAYES_DATA", raising=False)
    monkeypatch.delenv("VIBAYES_DATA_URL", raising=False)
    monkeypatch.setenv("VIBAYES_CACHE", str(tmp_path / "cache"))
    assert "intro" in run("bench", "list").stdout
    result = run("bench", "run", "intro", "--out", str(tmp_path), "--figures", "symm_vi,blr_vi", "--figures", "sgpr")
    assert result.exit_code == 0, result.output
    assert "fig:back:symm_vi" in result.stdout
    assert "0.6888" in result.stdout
    assert re.search(r"alpha, mean field \*\s+0\.\d+\s+0\.092", result.stdout)
    assert "skipped:" in result.stdout
    assert "2 of 3 figures" in result.stdout
    assert set(json.loads((tmp_path / "intro" / "intro.json").read_text())["figures"]) == {"blr_vi", "sgpr", "symm_vi"}
    assert (tmp_path / "intro" / "symm_vi.png").exists()
    unknown = run("bench", "run", "intor", "--out", str(tmp_path))
    assert unknown.exit_code == 1
    assert "Did you mean 'intro'?" in unknown.stderr


def test_version_is_light() -> None:
    program = (
        "import sys\n"
        "from vibayes.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'matplotlib', 'sklearn', 'scipy', 'pandas', 'torchmetrics', 'pooch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--version"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"vibayes {vibayes.__version__}\n"


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vibayes", "--version"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == f"vibayes {vibayes.__version__}\n", done.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_main_without_its_extras(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    assert 'pip install "vibayes[cli]"' in capsys.readouterr().err


def test_compare_1d_marks_inducing_inputs_and_truth() -> None:
    grid = torch.linspace(0, 1, 11)
    prediction = (torch.zeros(11), torch.ones(11))
    figure = plotting.compare_1d(
        [("a", prediction), ("b", prediction)], grid, inducing=[None, torch.tensor([0.5])], truth=torch.ones(11)
    )
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {"truth", "inducing inputs", "mean"} <= names
    marked = [line for line in figure.axes[1].get_lines() if line.get_label() == "inducing inputs"]
    assert list(marked[0].get_xdata()) == [0.5]
    with pytest.raises(vibayes.ShapeError, match="inducing has 1 entries for 2 panels"):
        plotting.compare_1d([("a", prediction)] * 2, grid, inducing=[None])
    with pytest.raises(vibayes.ShapeError, match="truth has 3 values"):
        plotting.posterior_1d(prediction, grid, truth=torch.zeros(3))
