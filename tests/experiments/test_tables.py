"""Tables: arithmetic by hand, verdicts, formats, and no number without a result file."""

import csv
import io
import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from vibayes.errors import ConfigurationError
from vibayes.experiments import catalogue, commands, reference
from vibayes.experiments.experiment import Unit
from vibayes.experiments.report import Section
from vibayes.experiments.results import write_result
from vibayes.experiments.sweep import Selection, expand
from vibayes.experiments.tables import Row, compare, render, summarise, telling_columns, verdict

HEADER = (
    "table,chapter,dataset,model,prior,depth,batch_size,augmentation,feature_dim,metric,value,stderr,normalised,note,"
    "ours,ours_stderr,thesis,thesis_stderr,n_splits,verdict"
)


def put(out: Path, unit: Unit, **metrics: float | None) -> None:
    keys = ("experiment", "dataset", "model", "builder", "split", "options")
    content = {key: getattr(unit, key) for key in keys}
    write_result(out / unit.path, content | {"metrics": metrics, "seconds": 1.0, "steps": 10, "curve": {"step": []}})


@pytest.fixture
def boston(tmp_path: Path) -> Path:
    units = expand(catalogue.get("dkl-uci"), Selection(datasets=["boston"], models=["SVGP"], splits="0-3"))
    for unit, value in zip(units, (-1.0, -1.2, -1.4, -1.6), strict=True):
        put(tmp_path, unit, elbo_per_datapoint=value, loss=-value, test_ll=-0.35, test_rmse=0.40)
    return tmp_path


def rows_of(out: Path, **selection: object) -> dict[tuple[str, str, str], Row]:
    experiment = catalogue.get("dkl-uci")
    units = expand(experiment, Selection(**selection))  # type: ignore[arg-type]
    tables = compare(experiment, units, out)
    return {
        (r.printed["dataset"], r.printed["model"], r.printed["metric"]): r for rows in tables.values() for r in rows
    }


def test_means_and_standard_errors_by_hand(boston: Path) -> None:
    row = rows_of(boston)["boston", "SVGP", "elbo_per_datapoint"]
    # mean -1.3; deviations .3 .1 -.1 -.3: variance (0.09 + 0.01) * 2 / 3, error sqrt(0.2 / 3 / 4) = 0.129099
    assert row.ours == pytest.approx(-1.3)
    assert row.ours_stderr == pytest.approx(0.1290994449)
    assert (row.thesis, row.thesis_stderr, row.n_splits) == (-1.66, 0.06, 4)
    assert row.difference == pytest.approx(0.36)
    assert row.difference_stderr == pytest.approx(math.sqrt(0.1290994449**2 + 0.06**2))
    assert row.verdict == "better"  # 0.36 > 2 * 0.14236 + 0.005
    same = rows_of(boston)["boston", "SVGP", "test_ll"]
    assert (same.ours, same.ours_stderr, same.verdict) == (-0.35, 0.0, "equal")
    assert rows_of(boston)["boston", "SVGP", "test_rmse"].verdict == "equal"  # 0.03 <= 2 * 0.02 + 0.005


@pytest.mark.parametrize(
    ("metric", "ours", "error", "thesis", "thesis_error", "expected"),
    [
        ("test_ll", 0.105, 0.0, "0.10", "0.00", "equal"),  # within rounding of the printed number
        ("test_ll", 0.1051, 0.0, "0.10", "0.00", "better"),
        ("test_ll", 0.0949, 0.0, "0.10", "0.00", "worse"),
        ("test_rmse", 0.0949, 0.0, "0.10", "0.00", "better"),
        ("loss", 0.2, 0.01, "0.10", "0.01", "worse"),
        ("ece", 0.2, 0.01, "0.10", "0.01", "worse"),
        ("accuracy_percent", 90.0, 0.01, "86.70", "", "better"),
        ("seconds_per_epoch", 0.1, 0.01, "0.463", "", "better"),
        ("elbo_total", 3.0, 0.01, "2.236", "", "better"),
        ("test_ll", 0.10 + 2 * 0.05 + 0.0049, 0.03, "0.10", "0.04", "equal"),  # hypot(0.03, 0.04) = 0.05
        ("test_ll", 0.10 + 2 * 0.05 + 0.0051, 0.03, "0.10", "0.04", "better"),
        ("test_ll", 5.0, None, "0.10", "0.04", "open"),  # one split says nothing
        ("accuracy_percent", 86.36, None, "86.70", "", "open"),  # nor does one against one
        ("lengthscale", 0.4152, None, "0.415", "", "equal"),
        ("lengthscale", 0.4162, None, "0.415", "", "different"),
        ("test_ll", math.nan, 0.1, "0.10", "0.04", "worse"),
    ],
)
def test_verdicts(metric: str, ours: float, error: float | None, thesis: str, thesis_error: str, expected: str) -> None:
    assert verdict(metric, ours, error, thesis, thesis_error) == expected


def test_every_metric_of_the_tables_has_a_direction() -> None:
    neither = {"mean_variance_layer1", "mean_variance_layer2", "mean_variance_layer3"}
    for name in reference.table_names():
        if name == "text_numbers":
            continue
        for row in reference.load_table(name):
            assert (reference.direction(row["metric"]) == 0) == (row["metric"] in neither), row["metric"]


def test_reference_tables_are_whole() -> None:
    rows = [row for name in reference.table_names() for row in reference.load_table(name)]
    assert len(reference.table_names()) == 28
    assert sum(bool(row["table"]) for row in rows) == 1905
    assert all(set(reference.COLUMNS) <= set(row) for row in rows)


def test_csv_columns(boston: Path) -> None:
    text = commands.table("dkl-uci", Selection(datasets=["boston"]), out=boston, form="csv")
    assert text.splitlines()[0] == HEADER
    rows = list(csv.DictReader(io.StringIO(text)))
    first = rows[0]
    assert (first["ours"], first["thesis"], first["thesis_stderr"], first["n_splits"]) == ("-1.3", "-1.66", "0.06", "4")
    assert first["verdict"] == "better"
    missing = next(row for row in rows if row["model"] == "SVDKL")
    assert (missing["ours"], missing["ours_stderr"], missing["n_splits"], missing["verdict"]) == ("-", "-", "0", "-")


def test_no_number_without_a_result_file(tmp_path: Path) -> None:
    for form in ("md", "csv", "json"):
        commands.table("dwp-uci", Selection(), out=tmp_path, form=form)
    rows = json.loads(commands.table("dkl-uci", Selection(), out=tmp_path / "none", form="json"))
    assert all(row["ours"] is None and row["verdict"] is None and row["n_splits"] == 0 for row in rows)
    assert len(rows) == 15 + 5 * 25


def test_other_options_do_not_count(boston: Path) -> None:
    row = rows_of(boston, steps=7)["boston", "SVGP", "elbo_per_datapoint"]
    assert row.ours is None
    text = commands.table("dkl-uci", Selection(datasets=["boston"], steps=7), out=boston)
    assert "results with other options" in text
    assert "- no option: boston SVGP (4 runs)" in text


def test_how_to_see_other_options_names_the_models_that_have_them(tmp_path: Path) -> None:
    chosen = Selection(datasets=["boston"], models=["fNN", "sNN"], splits="0-1", changes={"weight_decay": 3e-4})
    for unit in expand(catalogue.get("dkl-uci"), chosen):
        put(tmp_path, unit, loss=1.0)
    text = commands.table(
        "dkl-uci", Selection(), out=tmp_path
    )  # of all models, of which sparse GPs have no such option
    assert "- `--models fNN,sNN --set weight_decay=0.0003`: boston fNN (2 runs), boston sNN (2 runs)" in text
    again = commands.select(models=["fNN,sNN"], changes=["weight_decay=0.0003"])
    assert "| boston | fNN | loss | 1.000 ± 0.000 |" in commands.table("dkl-uci", again, out=tmp_path)
    own = commands.table("dkl-uci", Selection(models=["fNN"]), out=tmp_path)
    assert "- `--set weight_decay=0.0003`: boston fNN (2 runs)" in own


def test_results_with_other_options_say_how_to_see_them(tmp_path: Path) -> None:
    changes = {"lr": 0.5, "lengthscale": 2.0, "lr_drops": [0.1, 0.2], "dtype": "float32"}
    chosen = Selection(datasets=["boston", "energy"], models=["SVGP"], splits="0-1", changes=changes)
    for unit in expand(catalogue.get("dkl-uci"), chosen):
        put(tmp_path, unit, loss=1.0)
    text = commands.table("dkl-uci", Selection(models=["SVGP"]), out=tmp_path)
    line = next(line for line in text.splitlines() if line.startswith("- `"))
    assert line.endswith("boston SVGP (2 runs), energy SVGP (2 runs)")
    flags = shlex.split(line.split("`")[1])
    assert flags[::2] == ["--set"] * 4
    again = commands.select(models=["SVGP"], changes=flags[1::2])
    found = commands.table("dkl-uci", again, out=tmp_path)
    assert "other options" not in found
    assert "| boston | SVGP | loss | 1.000 ± 0.000 |" in found
    only = commands.table("dkl-uci", Selection(datasets=["energy"], models=["SVGP"]), out=tmp_path)
    assert "`: energy SVGP (2 runs)" in only
    unit = expand(catalogue.get("dkl-uci"), chosen)[0]
    (tmp_path / unit.path).write_text("{")  # one that is damaged stands for nothing
    assert "boston SVGP" not in commands.table("dkl-uci", Selection(models=["SVGP"]), out=tmp_path)


def test_rows_without_results_are_shown_on_request(boston: Path) -> None:
    chosen = Selection(datasets=["boston"])
    text = commands.table("dkl-uci", chosen, out=boston)
    assert "| SVGP |" in text
    assert "| - |" not in text
    assert "have no result of ours; --all shows them." in text
    everything = commands.table("dkl-uci", chosen, out=boston, everything=True)
    assert "| boston | DKL | lml_per_datapoint | - |" in everything
    assert "have no result of ours.\n" in everything
    none = commands.table("dkl-uci", chosen, out=boston / "none")
    assert "| --- |" not in none
    assert json.loads(commands.table("dkl-uci", chosen, out=boston, form="json")) == json.loads(
        commands.table("dkl-uci", chosen, out=boston, form="json", everything=True)
    )


def test_a_corrupt_file_is_left_out(boston: Path) -> None:
    unit = expand(catalogue.get("dkl-uci"), Selection(datasets=["boston"]))[3]
    (boston / unit.path).write_text("{")
    row = rows_of(boston)["boston", "SVGP", "elbo_per_datapoint"]
    assert (row.n_splits, row.ours) == (3, pytest.approx(-1.2))


def test_missing_metrics_and_nan(tmp_path: Path) -> None:
    units = expand(catalogue.get("dkl-uci"), Selection(datasets=["boston"], models=["SVGP"], splits="0-1"))
    for unit, value in zip(units, (1.0, None), strict=True):
        put(tmp_path, unit, loss=value)
    rows = rows_of(tmp_path)
    assert rows["boston", "SVGP", "loss"].verdict == "worse"
    assert rows["boston", "SVGP", "test_ll"].ours is None
    json.loads(commands.table("dkl-uci", Selection(), out=tmp_path, form="json"))


def test_quoted_and_misprinted_numbers_are_marked() -> None:
    rows = [row for name in reference.table_names() for row in reference.load_table(name)]
    quoted = [row for row in rows if row["table"] == "tab:dwp:uci_lls" and row["model"] == "DIWP"]
    assert quoted
    assert all(reference.is_quoted(row) for row in quoted)
    text = commands.table("dwp-uci", Selection(), out=Path("nowhere"), everything=True)
    assert "(quoted)" in text
    wine = next(row for row in rows if row["note"].startswith("misprint"))
    assert summarise(wine, [0.63, 0.64]).verdict == ""
    assert "(misprint)" in render({"t": [Row(wine)]}, everything=True)


def test_a_misprinted_standard_error_is_marked_and_counts_for_nothing() -> None:
    """Of the bounds of UTKFace by feature dimension; that of the first row is another row's."""
    printed = reference.load_table("tab_dkl_fd_age")
    bounds = [row for row in printed if row["metric"] == "elbo_per_datapoint"]
    assert len(bounds) == 15
    for row in bounds:
        assert "(misprinted error)" in render({"t": [Row(row)]}, everything=True)
    row = summarise(bounds[0], [-0.5, -0.6, -0.7])  # the thesis: -0.22 +- 1.00
    assert row.thesis_stderr is None
    assert row.difference_stderr == pytest.approx(row.ours_stderr)
    assert row.verdict == "worse"
    assert sum("misprinted" in render({"t": [Row(row)]}, everything=True) for row in printed) == 15


def test_markdown_says_it_all(boston: Path) -> None:
    text = commands.table("dkl-uci", Selection(datasets=["boston"], models=["SVGP"]), out=boston)
    line = next(line for line in text.splitlines() if "elbo_per_datapoint" in line)
    assert line == (
        "| boston | SVGP | elbo_per_datapoint | -1.300 ± 0.129 | -1.66 ± 0.06 | +0.360 ± 0.142 | 4 | better |"
    )
    assert "SVDKL" not in text


def test_intro_numbers(tmp_path: Path) -> None:
    numbers = [{"name": "LML, trained", "ours": -14.2147, "thesis": -14.21, "reference": None, "note": ""}]
    entry = {"label": "fig:intro:exact_gpr", "file": None, "numbers": numbers, "statements": []}
    content = {"version": "0", "commit": None, "command": "c", "figures": {"exact_gpr": entry}}
    (tmp_path / "intro").mkdir()
    (tmp_path / "intro" / "intro.json").write_text(json.dumps(content))
    rows = json.loads(commands.table("intro", Selection(), out=tmp_path, form="json"))
    found = {(row["model"], row["metric"]): (row["ours"], row["verdict"]) for row in rows}
    assert found["exact GP (SE)", "lml"] == (-14.2147, "equal")
    assert found["SGPR M=2", "lengthscale"] == (None, None)


def test_tables_of_drawn_experiments_have_the_thesis_label_and_end_with_their_note(tmp_path: Path) -> None:
    text = commands.table("gi-toy", Selection(), out=tmp_path)
    assert text.startswith("### tab:gi:comp-uncertainty\n")
    assert text.endswith(f"\n\n{catalogue.get('gi-toy').note}\n")  # in which unit its bounds are taken
    number = {"name": "ELBO per data point, factorised", "ours": -5.0, "thesis": -4.585, "reference": None}
    row = {"dataset": "toy_cubic", "model": "factorised", "metric": "elbo_total"}
    numbers = [number | {"note": "the thesis gives no unit", "row": row}]
    figure = {"label": "fig:gi:toy", "file": None, "numbers": numbers, "statements": []}
    (tmp_path / "gi-toy").mkdir()
    content = {"version": "0", "commit": "c", "command": "c", "figures": {"toy": figure}}
    (tmp_path / "gi-toy" / "gi-toy.json").write_text(json.dumps(content))
    (found, *_) = json.loads(commands.table("gi-toy", Selection(), out=tmp_path, form="json"))
    assert (
        found["note"]
        == "sum over 40 points (inferred); ours: ELBO per data point, factorised, the thesis gives no unit"
    )


@pytest.mark.parametrize("form", ["md", "csv", "json", "html"])
def test_times_say_their_machine(tmp_path: Path, form: str) -> None:
    """Every row of a table of times, also those of files that name the hardware once."""

    def entry(dataset: str, device: str | None, **more: object) -> dict[str, object]:
        row = {"dataset": dataset, "model": "DGP", "depth": "2", "metric": "seconds_per_epoch"}
        numbers = [{"name": dataset, "ours": 0.5, "thesis": None, "reference": None, "note": "", "row": row}]
        setup = {} if device is None else {"device": device}
        return {"label": dataset, "file": None, "numbers": numbers, "statements": [], "setup": setup, **more}

    def table(**figures: object) -> list[str]:
        here = {"processor": "AMD EPYC", "cores": 2, "threads": 1, "gpu": None}
        content = {"version": "0", "commit": "c", "command": "c", "hardware": here, "figures": figures}
        (tmp_path / "dwp-runtime").mkdir(exist_ok=True)
        (tmp_path / "dwp-runtime" / "dwp-runtime.json").write_text(json.dumps(content))
        if form == "html":
            text = commands.report(["dwp-runtime"], out=tmp_path, file=tmp_path / "r.html").read_text()
            return [line for line in text.split("<tr>") if ">DGP<" in line and "0.5000" in line]
        text = commands.table("dwp-runtime", Selection(), out=tmp_path, form=form)
        if form == "json":
            return [str(row["machine"]) for row in json.loads(text) if row["ours"] is not None]
        return [line for line in text.splitlines() if "DGP" in line and "0.5" in line]

    there = {"processor": "Xeon", "cores": 16, "threads": 1, "gpu": "NVIDIA H200"}
    boston, protein = table(a=entry("boston", None, commit="c"), b=entry("protein", "cuda", hardware=there))
    assert "AMD EPYC, 1 of 2 cores" in boston
    assert "NVIDIA H200" in protein
    # a processor's times on a machine with a GPU; and a figure of which only that of another run is known
    boston, protein = table(a=entry("boston", "cpu", hardware=there), b=entry("protein", None, commit="other"))
    assert "Xeon, 1 of 16 cores" in boston
    assert "not known" in protein


def test_errors() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'csv'"):
        commands.table("dkl-uci", Selection(), form="cvs")
    with pytest.raises(ConfigurationError, match=r"no table for dkl-hmc.*bench report dkl-hmc"):
        commands.table("dkl-hmc", Selection())


def test_columns_tell_models_apart(tmp_path: Path) -> None:
    experiment = catalogue.get("dkl-uci")
    unit = expand(experiment, Selection(datasets=["boston"], splits="0"))[0]
    other = replace(unit, marks={"batch_size": "full"})
    put(tmp_path, other, loss=1.0)
    tables = compare(experiment, [other], tmp_path)
    assert all(row.ours is None for rows in tables.values() for row in rows)  # SVGP's rows say 32


def test_columns_that_tell_rows_apart() -> None:
    def keys(name: str) -> list[str]:
        return telling_columns([Row(row) for row in reference.load_table(name)])

    assert keys("tab_dkl_boston") == ["model"]
    assert keys("tab_dkl_uci_elbos") == ["dataset", "model"]
    assert keys("tab_dwp_uci_elbos") == ["dataset", "model", "depth"]
    assert keys("tab_dkl_batch") == ["dataset", "model", "batch_size"]
    assert keys("tab_dkl_fd_age") == ["model", "feature_dim"]
    assert keys("tab_gi_uci_lls") == ["dataset", "model", "prior"]
    for name in reference.table_names():
        rows = [row for row in reference.load_table(name) if row["table"]]
        chosen = telling_columns([Row(row) for row in rows])
        assert len({tuple(row[key] for key in (*chosen, "metric")) for row in rows}) == len(rows), name


def test_experiments_without_a_table_show_their_own_numbers(tmp_path: Path) -> None:
    experiment = catalogue.get("gi-mnist500")
    unit = expand(experiment, Selection(models=["global inducing"], priors=["ScalePrior"]))[0]
    assert commands.table("gi-mnist500", Selection(), out=tmp_path) == (
        f"There are no results of these runs in {tmp_path}.\n"
    )
    put(tmp_path, unit, test_ll=-0.75, accuracy_percent=85.0)
    rows = compare(experiment, expand(experiment), tmp_path)["fig:gi:mnist_500"]
    assert [(row.printed["metric"], row.ours, row.thesis, row.verdict) for row in rows] == [
        ("test_ll", -0.75, None, ""),
        ("accuracy_percent", 85.0, None, ""),
    ]
    text = commands.table("gi-mnist500", Selection(), out=tmp_path)
    assert "| mnist | global inducing | test_ll | -0.750 | - | - | 1 | - |" in text
    printed = list(csv.DictReader(io.StringIO(commands.table("gi-mnist500", Selection(), out=tmp_path, form="csv"))))
    assert [(row["metric"], row["ours"], row["thesis"]) for row in printed] == [
        ("test_ll", "-0.75", ""),
        ("accuracy_percent", "85", ""),
    ]
    assert json.loads(commands.table("gi-mnist500", Selection(), out=tmp_path, form="json"))[0]["thesis"] is None
    report = commands.report(["gi-mnist500"], out=tmp_path, file=tmp_path / "report.html").read_text()
    assert "fig:gi:mnist_500" in report
    assert "the thesis's.</p>" not in report  # nothing stands below
    assert "1 result file, " in report
    assert "entropy_ratio" not in unit.metrics  # SVHN is no other set of MNIST's kind


def test_a_number_of_several_tables_counts_once_in_the_report(tmp_path: Path) -> None:
    experiment = catalogue.get("dwp-uci")
    units = expand(experiment, Selection(datasets=["yacht"], models=["DWP"], depths="5", splits="0-1"))
    for unit in units:
        put(tmp_path, unit, test_ll=9.0 + unit.split)
    tables = compare(experiment, units, tmp_path)
    assert sum(row.verdict == "better" for rows in tables.values() for row in rows) == 3
    assert Section(experiment, units, tables, tmp_path).verdicts == {"better": 1}


def test_the_report_shows_presets_that_have_results(tmp_path: Path) -> None:
    experiment = catalogue.get("gi-cifar10")
    unit = expand(experiment, Selection(models=["global inducing"], priors=["ScalePrior"], preset="falling"))[0]
    put(tmp_path, unit, test_ll=-0.43, accuracy_percent=85.73)
    text = commands.report(None, out=tmp_path, file=tmp_path / "report.html").read_text()
    assert '<h2 id="gi-cifar10-falling">gi-cifar10 --preset falling</h2>' in text
    assert '<a href="#gi-uncertainty-falling">gi-uncertainty --preset falling</a>' in text
    assert "300 epochs instead of 1,000" in text
    assert 'id="gi-cifar10"' not in text  # with its own options it has no result
