"""`vibayes compare`, `fit`, `predict` and `describe`: files in, files out, exit codes, messages."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from vibayes.cli.app import app
from vibayes.compare import TableModel

FEW = ("--steps", "10", "--seeds", "1", "--models", "gp")


def run(*arguments: object, columns: int = 80) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": str(columns), "TERM": "dumb"})


def frame(n: int = 60) -> pd.DataFrame:
    random = np.random.RandomState(0)
    a = random.uniform(-2, 2, n)
    kind = random.choice(["left", "right", "middle"], n)
    y = 3 * np.sin(2 * a) + (kind == "left") + 0.1 * random.standard_normal(n)
    return pd.DataFrame({"a": a, "kind": kind, "y": y})


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("cli")
    frame().to_csv(folder / "t.csv", index=False)
    return folder, run("compare", folder / "t.csv", "--target", "y", "--out", folder / "out", *FEW, columns=40)


def test_compare_names_the_report_and_what_comes_next(compared: tuple[Path, Any]) -> None:
    folder, result = compared
    assert result.exit_code == 0, result.output
    assert str(folder / "out" / "report.html") in result.stdout.replace("\n", "")
    assert "is the one to use" in result.stdout
    assert "vibayes predict" in result.stdout
    assert "…" not in result.stdout  # nothing is cut off, however narrow the terminal
    assert "60 rows; to predict y (regression) from 2 columns" in result.stderr
    assert {p.name for p in (folder / "out").iterdir()} == {"model", "predictions.csv", "report.html", "results.json"}


def test_compare_json(compared: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = compared
    result = run("compare", folder / "t.csv", "--target", "y", "--out", tmp_path, "--json", "--quiet", *FEW)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["winner"] == "gp"
    assert result.stderr == ""
    assert result.stdout == (tmp_path / "results.json").read_text()
    assert json.loads(result.stdout)["sensitivity"].keys() == {"a", "kind"}


def test_names_with_brackets_spaces_and_commas_are_taken_as_they_are(tmp_path: Path) -> None:
    table = frame().rename(columns={"y": "price [/m2]"}).assign(id=range(60), **{"size, m2": range(60)})
    table["price [/m2]"] = (table["price [/m2]"] > 0).astype(int)
    table.to_csv(tmp_path / "my [bold] table.csv", index=False)
    ignored = ("--ignore", "id,kind", "--ignore", "size, m2")
    options = ("--task", "classification", *ignored, "--out", tmp_path / "out [m]")
    result = run("compare", tmp_path / "my [bold] table.csv", "--target", "price [/m2]", *options, *FEW)
    assert result.exit_code == 0, result.output
    (again,) = (line for line in result.stdout.splitlines() if line.startswith("Use all rows:"))
    assert shlex.split(again.removeprefix("Use all rows:")) == [
        "vibayes", "fit", str(tmp_path / "my [bold] table.csv"), "--target", "price [/m2]", "--task", "classification",
        "--ignore", "id", "--ignore", "kind", "--ignore", "size, m2", "--model", "gp",
    ]  # fmt: skip
    (predict,) = (line for line in result.stdout.splitlines() if line.startswith("Predict new rows:"))
    assert shlex.split(predict)[5] == str(tmp_path / "out [m]" / "model")
    assert str(tmp_path / "out [m]" / "report.html") in result.stdout
    assert "to predict price [/m2]" in result.stderr
    described = run("describe", tmp_path / "out [m]")
    assert described.exit_code == 0, described.output
    assert "predicts price [/m2]" in described.stdout
    fitted = run("fit", *shlex.split(again)[5:], "--steps", "5", "--out", tmp_path / "fitted [m]")
    assert fitted.exit_code == 0, fitted.output
    assert f"Model: {tmp_path / 'fitted [m]'}" in fitted.stdout


def test_a_family_named_twice_trains_once(compared: tuple[Path, Any], tmp_path: Path) -> None:
    options = ("--steps", "5", "--seeds", "1", "--models", "gp,gp", "--out", tmp_path, "--json")
    result = run("compare", compared[0] / "t.csv", "--target", "y", *options)
    assert result.exit_code == 0, result.output
    assert [family["family"] for family in json.loads(result.stdout)["families"]] == ["gp"]


def test_codes_with_leading_zeros(tmp_path: Path) -> None:
    table = frame()
    table["code"] = np.array(["01", "02", "1A"])[np.arange(60) % 3]
    table["class"] = np.array(["07", "8B", "09"])[np.arange(60) % 3]
    table.to_csv(tmp_path / "t.csv", index=False)
    fitted = run("fit", tmp_path / "t.csv", "--target", "class", "--steps", "5", "--out", tmp_path / "m")
    assert fitted.exit_code == 0, fitted.output
    table[table["code"] != "1A"].assign(**{"class": "07"}).to_csv(tmp_path / "new.csv", index=False)
    result = run("predict", tmp_path / "m", tmp_path / "new.csv")
    assert result.exit_code == 0, result.output
    assert "not seen" not in result.stderr
    assert "otherwise" not in result.stderr
    assert "Against the 40 known targets" in result.stderr


def test_kept_columns_and_predictions_have_names_of_their_own(compared: tuple[Path, Any], tmp_path: Path) -> None:
    frame(5).assign(mean=1.0, std=2.0).to_csv(tmp_path / "new.csv", index=False)
    result = run("predict", compared[0] / "out", tmp_path / "new.csv", "--keep", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert (rows[0]["mean"], rows[0]["std"]) == (1.0, 2.0)
    assert {"mean.2", "std.2", "lower 95%"} <= rows[0].keys()
    assert "is called 'mean.2'" in result.stderr


def test_kept_columns_are_as_the_file_has_them(compared: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = compared
    kept = ["code,place,id,seen,note,a,kind", "007,52.520006612,1234567890123,TRUE,1.50,0.25,left"]
    (tmp_path / "new.csv").write_text("\n".join([*kept, "008,52.520006613,,FALSE,,0.50,right\n"]))
    result = run("predict", folder / "out", tmp_path / "new.csv", "--keep")
    lines = result.stdout.splitlines()
    assert [line.startswith(own) for line, own in zip(lines, kept, strict=False)] == [True, True]
    assert lines[2].startswith("008,52.520006613,,FALSE,,0.50,right,")
    row = json.loads(run("predict", folder / "out", tmp_path / "new.csv", "--keep", "--json").stdout)[0]
    assert (row["code"], row["place"], row["note"], row["a"]) == ("007", 52.520006612, 1.5, 0.25)
    (tmp_path / "new.csv").write_text("a;kind;w\n0,25;left;1,5\n")
    assert (
        run("predict", folder / "out", tmp_path / "new.csv", "--keep")
        .stdout.splitlines()[1]
        .startswith("0.25,left,1.5,")
    )


def test_classes_that_training_did_not_see_are_not_scored_and_said(tmp_path: Path) -> None:
    table = frame()[["a", "kind"]]
    table.to_csv(tmp_path / "t.csv", index=False)
    assert run("fit", tmp_path / "t.csv", "--target", "kind", "--out", tmp_path / "m", "--steps", 10).exit_code == 0
    table.assign(kind=["new"] * 20 + table["kind"].tolist()[20:]).to_csv(tmp_path / "t.csv", index=False)
    result = run("predict", tmp_path / "m", tmp_path / "t.csv")
    assert "Against the 40 known targets (20 entries not a class of the model, such as 'new'):" in result.stderr


def test_predict_new_rows(compared: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = compared
    new = frame(8).drop(columns="y")
    new.loc[0, "kind"] = "above"
    new.loc[1, "a"] = np.nan
    new[["kind", "a"]].to_csv(tmp_path / "new.csv", index=False)
    result = run("predict", folder / "out" / "model", tmp_path / "new.csv")
    assert result.exit_code == 0, result.output
    lines = result.stdout.strip().splitlines()
    assert lines[0].startswith("mean,std,lower 95%,upper 95%")
    assert len(lines) == 9
    assert "'kind': 1 row with a value not seen in training ('above')" in result.stderr
    assert "'a': 1 missing value" in result.stderr
    out = run("predict", folder / "out" / "model", tmp_path / "new.csv", "--out", tmp_path / "p.csv", "--keep")
    assert out.exit_code == 0
    assert list(pd.read_csv(tmp_path / "p.csv").columns)[:3] == ["kind", "a", "mean"]
    rows = json.loads(run("predict", folder / "out" / "model", tmp_path / "new.csv", "--json").stdout)
    assert len(rows) == 8
    assert rows[2]["mean"] == pytest.approx(float(lines[3].split(",")[0]), rel=1e-5)


def test_predict_scores_where_the_target_is_known(compared: tuple[Path, Any]) -> None:
    folder, _ = compared
    result = run("predict", folder / "out" / "model", folder / "t.csv")
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("Against the 60 known targets"))
    assert "rmse" in line
    assert "coverage 95" in line  # not on a line of its own


def test_predict_into_a_folder_or_on_a_device_that_is_not_there(
    compared: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for options, message in (
        (("--out", tmp_path), f"{tmp_path} is a folder"),
        (("--out", compared[0] / "t.csv" / "p.csv"), "p.csv cannot be written (File exists). Choose another"),
        (("--device", "cuda"), "no CUDA GPU is available"),
        (("--device", "foo"), "Unknown device 'foo'"),
    ):
        result = run("predict", compared[0] / "out", compared[0] / "t.csv", *options)
        assert result.exit_code == 1
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert ".part" not in result.stderr


def test_predict_refuses_a_missing_column(compared: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = compared
    frame(5)[["a"]].to_csv(tmp_path / "new.csv", index=False)
    result = run("predict", folder / "out" / "model", tmp_path / "new.csv")
    assert result.exit_code == 1
    assert "lacks the column 'kind'" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert run("predict", tmp_path, tmp_path / "new.csv").exit_code == 1


def test_describe(compared: tuple[Path, Any]) -> None:
    folder, _ = compared
    result = run("describe", folder / "out" / "model")
    assert result.exit_code == 0, result.output
    assert "Gaussian process that predicts y" in result.stdout
    assert "category of 3 levels" in result.stdout
    assert "noise" in result.stdout
    content = json.loads(run("describe", folder / "out", "--json").stdout)
    assert content["about"]["family"] == "gp"
    assert content["about"]["rows_trained"] == 48


def test_fit_uses_all_rows(compared: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = compared
    options = ("--model", "bnn-mean-field", "--steps", "5", "--out", tmp_path / "m")
    result = run("fit", folder / "t.csv", "--target", "y", *options)
    assert result.exit_code == 0, result.output
    assert "evidence" in result.stdout
    about = TableModel.load(tmp_path / "m").about
    assert (about["rows_trained"], about["rows_held_out"], about["scores"]) == (60, 0, {})
    assert run("predict", tmp_path / "m", folder / "t.csv").exit_code == 0
    described = run("describe", tmp_path / "m")
    assert described.exit_code == 0, described.output
    assert "Linear" in described.stdout
    scored = run("fit", folder / "t.csv", "-t", "y", "--test", "0.2", "--steps", "5", "--json", "--out", tmp_path / "n")
    assert "rmse" in json.loads(scored.stdout)["scores"]
    one = run("fit", folder / "t.csv", "-t", "y", "--test", "0.02", "--steps", "5", "--out", tmp_path / "o")
    assert one.exit_code == 0, one.output
    assert "held-out r2: unknown" in one.stdout  # of one row


@pytest.mark.parametrize(
    ("content", "target", "message"),
    [
        ("", "y", "is empty"),
        ("a,y\n", "y", "no rows"),
        ("y\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n", "y", "No input column is left"),
        ("a,y\n" + "1,5\n2,5\n" * 10, "y", "nothing to learn"),
        ("a,a,y\n" + "1,2,3\n4,5,6\n" * 10, "a", "stands over several columns"),
        ("a,y\n" + "1,only\n2,only\n" * 10, "y", "one class only"),
        ("a,y\n" + "".join(f"{i},c{i % 500}\n" for i in range(2000)), "y", "500 classes"),
        ("a,y\n1,\n2,\n", "y", "is missing"),
        ("a,y\n1,2\n3,4\n", "y", "at least 10"),
        ("a,y\n1,2\n3,4\n", "price", "no column 'price'"),
        ("a,size\n1,2\n3,4\n", "Szie", "Did you mean 'size'?"),
        (
            "a,y\n" + "".join(f"{i},{i if i % 8 else 'err'}\n" for i in range(400)),
            "y",
            "50 of its 400 entries are no numbers, such as 'err'",
        ),
        ("b,y\n" + ",1\n,2\n" * 10, "y", "every value is missing"),
    ],
)
def test_messy_files_get_a_clear_line(tmp_path: Path, content: str, target: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    result = run("compare", tmp_path / "t.csv", "--target", target, "--out", tmp_path / "out", *FEW)
    assert result.exit_code == 1, result.output
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last


def test_a_messy_file_that_works(tmp_path: Path) -> None:
    """Semicolons, Latin-1, decimal commas, an all-missing column, duplicate names, mixed types, no target in places."""
    random = np.random.RandomState(0)
    lines = ["größe;leer;größe;gemischt;y"]
    for i in range(40):
        size = f"{random.uniform(1, 9):.2f}".replace(".", ",")
        mixed = "oops" if i == 7 else str(i % 5)
        y = "" if i == 3 else f"{random.uniform(0, 1):.3f}".replace(".", ",")
        lines.append(f"{size};;{i};{mixed};{y}")
    (tmp_path / "t.csv").write_bytes("\n".join(lines).encode("latin-1"))
    result = run("compare", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "out", *FEW)
    assert result.exit_code == 0, result.output
    for said in ("Latin-1", "semicolons", "'größe.2'", "'leer' left out: every value is missing", "1 row without"):
        assert said in result.stderr
    assert len(pd.read_csv(tmp_path / "out" / "predictions.csv")) == 40


def test_numbers_with_marks(tmp_path: Path) -> None:
    marked = frame(40).assign(
        rent=lambda t: [f"${1000 + 100 * a:,.2f}" for a in t["a"]],
        price=lambda t: [f"€{1e5 + 1e4 * y:,.0f}" for y in t["y"]],
    )
    marked.drop(columns="y").to_csv(tmp_path / "t.csv", index=False)
    result = run("compare", tmp_path / "t.csv", "--target", "price", "--out", tmp_path / "out", *FEW)
    assert result.exit_code == 0, result.output
    assert f"price: '{marked['price'][0]}' is read as {marked['price'][0][1:].replace(',', '')}." in result.stderr
    assert f"'{marked['rent'][0]}' is read as" in result.stderr
    found = pd.read_csv(tmp_path / "out" / "predictions.csv")
    np.testing.assert_allclose(found["true price"], 1e5 + 1e4 * marked["y"], atol=0.5)
    (tmp_path / "new.csv").write_text('a,kind,rent,price\n0.5,left,"$1,050","€90,000"\n0.5,left,1050,90000\n')
    predicted = run("predict", tmp_path / "out", tmp_path / "new.csv", "--keep")
    assert predicted.exit_code == 0, predicted.output
    lines = predicted.stdout.splitlines()
    first, second = lines[1].removeprefix('0.5,left,"$1,050","€90,000",'), lines[2].removeprefix("0.5,left,1050,90000,")
    assert first == second
    assert "Against the 2 known targets" in predicted.stderr


def test_large_table_is_sparse_and_bounded(tmp_path: Path) -> None:
    """The way of a million rows at a smaller size: minibatches, few test rows, predictions for all."""
    random = np.random.RandomState(0)
    x = random.standard_normal((12_000, 2))
    large = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.sin(x[:, 0]) + 0.1 * random.standard_normal(12_000)})
    large.to_parquet(tmp_path / "t.parquet")
    result = run("compare", tmp_path / "t.parquet", "-t", "y", "--out", tmp_path / "out", *FEW)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["rows_held_out"] == 1200
    assert found["families"][0]["seeds"][0]["steps"] == 10
    assert len(pd.read_csv(tmp_path / "out" / "predictions.csv")) == 12_000
    assert (tmp_path / "out" / "report.html").stat().st_size < 500_000


def test_usage_errors_and_help(tmp_path: Path) -> None:
    assert run("compare").exit_code == 2
    assert run("compare", "t.csv").exit_code == 2  # no target
    assert run("compare", "t.csv", "-t", "y", "--seeds", "0").exit_code == 2
    for command in ("compare", "fit"):
        for option, value in (("--seed", "-1"), ("--seed", str(2**32)), ("--steps", "0")):
            assert run(command, "t.csv", "-t", "y", option, value).exit_code == 2
    missing = run("compare", tmp_path / "none.csv", "-t", "y", "--out", tmp_path / "o")
    assert (missing.exit_code, f"There is no file none.csv in {tmp_path}." in missing.stderr) == (1, True)
    frame().to_csv(tmp_path / "t.csv", index=False)
    assert "Did you mean 't.csv'?" in run("compare", tmp_path / "t.cvs", "-t", "y", "--out", tmp_path / "o").stderr
    unknown = run("fit", tmp_path / "t.csv", "-t", "y", "--model", "deep-pg", "--out", tmp_path / "o")
    assert unknown.exit_code == 1
    assert "Did you mean 'deep-gp'?" in unknown.stderr
    for command in ("compare", "fit", "predict", "describe"):
        result = run(command, "--help")
        assert result.exit_code == 0
        assert "Example: vibayes" in result.output
        paragraphs = get_command(app).commands[command].help.split("\n\n")  # type: ignore[attr-defined]
        assert not any("\n" in paragraph for paragraph in paragraphs)  # so that they fill lines of any width
    assert "--install-completion" in run("--help").output


def test_interrupt_of_the_real_program(tmp_path: Path, interruptible: str) -> None:
    """Control-C in the middle: the results so far are written, and the exit code is 130."""
    frame(200).to_csv(tmp_path / "t.csv", index=False)
    program = subprocess.Popen(
        [sys.executable, "-u", "-c", interruptible, "compare", str(tmp_path / "t.csv"),
         "-t", "y", "--seeds", "1", "--models", "gp,bnn-mean-field", "--budget", "30", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ, COLUMNS="80"),
    )  # fmt: skip
    assert program.stderr is not None
    for line in program.stderr:
        if line.startswith("2/2"):
            break
    time.sleep(0.2)
    program.send_signal(signal.SIGINT)
    out, errors = program.communicate(timeout=120)
    assert program.returncode == 130, errors
    assert "Traceback" not in errors
    assert "results so far" in errors
    assert "is the one to use" in out
    assert json.loads((tmp_path / "out" / "results.json").read_text())["interrupted"]
