"""Experiments that draw figures instead of training a sweep: running them and reading what they left."""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from vibayes.experiments import reference
from vibayes.experiments.experiment import Experiment
from vibayes.experiments.record import machine_name
from vibayes.experiments.tables import Row, summarise

__all__ = ["Figure", "FigureResult", "compare_figures", "read_figures", "run_figures"]

logger = logging.getLogger("vibayes")

# Which number of a figure is which row of the thesis's numbers: dataset, model, metric.
_ROWS = {
    ("blr_vi", "alpha, full covariance"): ("blr_toy", "BLR W=12 full-covariance VI", "prior_std_alpha"),
    ("blr_vi", "alpha, mean field"): ("blr_toy", "BLR W=12 mean-field VI", "prior_std_alpha"),
    ("exact_gpr", "lengthscale, trained"): ("snelson_20", "exact GP (SE)", "lengthscale"),
    ("exact_gpr", "LML, trained"): ("snelson_20", "exact GP (SE)", "lml"),
    ("sgpr", "lengthscale, M=2"): ("snelson_20", "SGPR M=2", "lengthscale"),
    ("sgpr", "lengthscale, M=10"): ("snelson_20", "SGPR M=10", "lengthscale"),
}
# The thesis does not give the data behind these, so there is no verdict.
_OTHER_DATA = {key for key in _ROWS.values() if key[0] == "blr_toy"}


@dataclass(frozen=True)
class Figure:
    """One figure: its label, picture, numbers, the thesis's statements about it, and where it was computed."""

    name: str
    label: str
    image: Path | None = None
    skipped: str = ""
    numbers: list[dict[str, Any]] = field(default_factory=list)
    statements: list[dict[str, Any]] = field(default_factory=list)
    machine: str = ""


@dataclass(frozen=True)
class FigureResult:
    """All figures of an experiment, and where they come from."""

    figures: list[Figure]
    origin: str


def run_figures(
    experiment: Experiment,
    out: Path,
    *,
    figures: Sequence[str] | None = None,
    seed: int = 0,
    report: Callable[[str, dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Draw the figures into `out/NAME`, with a file of their numbers."""
    module = import_module(experiment.script)
    found: dict[str, Any] = module.run(out / experiment.name, figures=figures, seed=seed, report=report)
    return found


def read_figures(experiment: Experiment, out: Path) -> FigureResult | None:
    """What `run_figures` left, or None."""
    folder = out / experiment.name
    file = folder / f"{experiment.name}.json"
    if not file.exists():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        figures = []
        for name, entry in content["figures"].items():
            image = folder / entry["file"] if entry.get("file") else None
            figures.append(
                Figure(
                    name,
                    entry["label"],
                    image if image is not None and image.exists() else None,
                    entry.get("skipped") or "",
                    [n | {"ours": math.nan} if n["ours"] is None else n for n in entry.get("numbers", [])],
                    entry.get("statements", []),
                    _machine(content, entry),
                )
            )
        origin = f"vibayes {content['version']}, commit {str(content['commit'])[:12]}, {content['command']}"
        return FigureResult(figures, origin)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
        logger.warning("The result file %s cannot be read (%s). It is skipped; `bench run` replaces it.", file, error)
        return None


def _machine(content: dict[str, Any], entry: dict[str, Any]) -> str:
    """Where a figure was computed; older files say it once, for the figures of the last run."""
    hardware = entry.get("hardware")
    if hardware is None and entry.get("commit") == content["commit"]:
        hardware = content.get("hardware")
    return machine_name(hardware or {}, entry.get("setup", {}).get("device"))


def compare_figures(experiment: Experiment, out: Path) -> dict[str, list[Row]]:
    """The numbers that the thesis prints in its text beside ours."""
    found = read_figures(experiment, out)
    ours: dict[tuple[str, str, str], dict[str, Any]] = {}
    placed: list[dict[str, Any]] = []
    for figure in [] if found is None else found.figures:
        placed += [{**number, "machine": figure.machine} for number in figure.numbers if number.get("row")]
        for number in figure.numbers:
            key = _ROWS.get((figure.name, number["name"]))
            if key is not None:
                ours[key] = number
    tables: dict[str, list[Row]] = {}
    for name in experiment.tables:
        rows = []
        for printed in reference.load_table(name):
            key = (printed["dataset"], printed["model"], printed["metric"])
            if name != "text_numbers":
                here = [n for n in placed if all(printed[column] == value for column, value in n["row"].items())]
                machine = here[0]["machine"] if here and reference.is_time(printed["metric"]) else ""
                rows.append(
                    Row(_with_note(printed, here[0]), float(here[0]["ours"]), None, 1, machine=machine)
                    if here
                    else Row(printed)
                )
                continue
            if (
                printed["chapter"] not in ("1", "2") or key not in _ROWS.values()
            ):  # other chapters, and settings rather than results
                continue
            if key not in ours:
                rows.append(Row(printed))
            elif key in _OTHER_DATA:
                rows.append(Row(printed, float(ours[key]["ours"]), None, 1))
            else:
                rows.append(summarise(printed, [float(ours[key]["ours"])]))
        tables[(rows and rows[0].printed["table"]) or name] = rows
    return tables


def _with_note(printed: dict[str, str], number: Mapping[str, Any]) -> dict[str, str]:
    """The thesis's row, whose note also says what ours is where it need not be the same."""
    if not number.get("note"):
        return printed
    return printed | {"note": "; ".join(filter(None, (printed["note"], f"ours: {number['name']}, {number['note']}")))}
