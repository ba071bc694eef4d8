"""Our numbers beside the thesis's, with standard errors and a verdict."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibayes.errors import ConfigurationError
from vibayes.experiments import reference
from vibayes.experiments.experiment import Experiment, Unit
from vibayes.experiments.names import check_name
from vibayes.experiments.results import finished
from vibayes.experiments.sweep import by_family

__all__ = ["FORMATS", "Row", "compare", "render", "verdict"]

FORMATS = ("md", "csv", "json")
OURS = ("ours", "ours_stderr", "thesis", "thesis_stderr", "n_splits", "verdict")


@dataclass(frozen=True)
class Row:
    """One number of the thesis and ours.

    Attributes:
        printed: the thesis's row as it stands; without a `value` where the thesis has no number.
        ours: the mean over splits, or None where no result file backs one.
        ours_stderr: standard deviation over splits divided by sqrt(count); None with one split.
        n_splits: how many result files it comes from.
        n_diverged: how many of those gave up training; their numbers count.
        verdict: "better", "equal", "worse", "different" (no direction), "open" (one split) or "" (nothing to compare).
        machine: where a time was measured; "" for other numbers.
    """

    printed: Mapping[str, str]
    ours: float | None = None
    ours_stderr: float | None = None
    n_splits: int = 0
    n_diverged: int = 0
    verdict: str = ""
    machine: str = ""

    @property
    def thesis(self) -> float | None:
        """What the thesis prints."""
        return _number(self.printed.get("value"))

    @property
    def thesis_stderr(self) -> float | None:
        """The standard error it prints, where it does and it is no misprint."""
        return _number(_stderr(self.printed))

    @property
    def quoted(self) -> bool:
        """Whether the thesis only quotes the number."""
        return reference.is_quoted(dict(self.printed))

    @property
    def difference(self) -> float | None:
        """Ours minus the thesis's."""
        return None if self.ours is None or self.thesis is None else self.ours - self.thesis

    @property
    def difference_stderr(self) -> float | None:
        """The square root of the sum of both squared standard errors."""
        errors = [e for e in (self.ours_stderr, self.thesis_stderr) if e is not None]
        return None if self.difference is None or not errors else math.hypot(*errors)


def _stderr(printed: Mapping[str, str]) -> str:
    return "" if reference.is_error_wrong(dict(printed)) else printed.get("stderr", "")


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def verdict(metric: str, ours: float, ours_stderr: float | None, thesis: str, thesis_stderr: str) -> str:
    """Better, equal or worse.

    Equal means within two combined standard errors, plus half a unit of the last printed digit, by which the thesis's
    number may be off. One split has no standard error, so it can be equal by rounding, but not better or worse.

    >>> verdict("test_ll", 0.10, 0.01, "0.07", "0.01"), verdict("test_ll", 0.15, 0.01, "0.07", "0.01")
    ('equal', 'better')
    """
    if ours_stderr is None and thesis_stderr:
        return "open"
    if not math.isfinite(ours):
        return "worse"
    combined = math.hypot(ours_stderr or 0.0, float(thesis_stderr or 0.0))
    decimals = len(thesis.partition(".")[2])
    difference = ours - float(thesis)
    if abs(difference) <= 2 * combined + 0.5 * 10**-decimals * (1 + 1e-9):
        return "equal"
    sign = reference.direction(metric)
    if sign == 0:
        return "different"
    if ours_stderr is None:
        return "open"
    return "better" if sign * difference > 0 else "worse"


def compare(
    experiment: Experiment, units: Sequence[Unit], out: Path, models: Sequence[str] | None = None
) -> dict[str, list[Row]]:
    """Rows of the thesis's tables with ours, by table; of experiments that stand for figures ours alone.

    Args:
        experiment: the experiment.
        units: the runs whose results count; only the thesis's rows for their data sets are given.
        out: the folder of results.
        models: only the thesis's rows for these; all when None.
    """
    families = [(members[0].columns, _results(members, out)) for members in by_family(units).values()]
    if not experiment.tables:
        alone = [
            _row({**columns, "metric": metric}, [(columns, results)])
            for columns, results in families
            for metric in experiment.metrics
        ]
        rows = [row for row in alone if row.ours is not None]
        return {", ".join(experiment.labels): rows} if rows else {}
    shown = {columns["dataset"] for columns, _ in families}
    found: dict[str, list[Row]] = {}
    for name in experiment.tables:
        printed = [row for row in reference.load_table(name) if not shown or row["dataset"] in shown]
        printed = [row for row in printed if (models is None or row["model"] in models) and _is_number(row["value"])]
        if printed:
            found[printed[0]["table"] or name] = [_row(row, families) for row in printed]
    return found


def _is_number(text: str) -> bool:
    """Whether a printed value is one; the text has formulas among its numbers."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _results(units: Sequence[Unit], out: Path) -> list[dict[str, Any]]:
    found = (finished(out, unit) for unit in units)
    return [result for result in found if result is not None]


def _row(printed: dict[str, str], families: Sequence[tuple[dict[str, str], list[dict[str, Any]]]]) -> Row:
    metric = printed["metric"]
    for columns, results in families:
        if any(printed.get(key, "") != value for key, value in columns.items()):
            continue
        measured = [result for result in results if metric in result["metrics"]]
        if not measured:
            continue
        return summarise(
            printed,
            [math.nan if r["metrics"][metric] is None else float(r["metrics"][metric]) for r in measured],
            sum(r.get("status") == "diverged" for r in measured),
        )
    return Row(printed)


def summarise(printed: Mapping[str, str], values: Sequence[float], n_diverged: int = 0) -> Row:
    """A row from the values of all splits."""
    n = len(values)
    mean = math.fsum(values) / n
    error = None
    if n > 1:
        error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    said = ""
    if printed.get("value") and not reference.is_wrong(dict(printed)):
        said = verdict(printed["metric"], mean, error, printed["value"], _stderr(printed))
    return Row(printed, mean, error, n, n_diverged, said)


# -- formats ----------------------------------------------------------------------------------------------------


def render(tables: Mapping[str, Sequence[Row]], form: str = "md", *, everything: bool = False) -> str:
    """Tables as text: Markdown, CSV or JSON.

    Args:
        tables: rows by the name of their table.
        form: one of `FORMATS`.
        everything: whether Markdown has the rows without a number of ours, too; the other formats always do.
    """
    check_name(form, FORMATS, "format")
    if form == "csv":
        return _csv(tables)
    if form == "json":
        return json.dumps([_record(row) for rows in tables.values() for row in rows], indent=1)
    return "\n".join(_markdown(name, rows, everything) for name, rows in tables.items())


def _record(row: Row) -> dict[str, Any]:
    return {
        **row.printed,
        "ours": _finite(row.ours),
        "ours_stderr": _finite(row.ours_stderr),
        "thesis": row.thesis,
        "thesis_stderr": row.thesis_stderr,
        "n_splits": row.n_splits,
        "verdict": row.verdict or None,
        "difference": _finite(row.difference),
        "difference_stderr": _finite(row.difference_stderr),
        "n_diverged": row.n_diverged,
        "quoted": row.quoted,
        "machine": row.machine or None,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _csv(tables: Mapping[str, Sequence[Row]]) -> str:
    extra = sorted({key for rows in tables.values() for row in rows for key in row.printed} - set(reference.COLUMNS))
    timed = any(row.machine for rows in tables.values() for row in rows)
    header = [*reference.COLUMNS, *extra, *OURS, *(["machine"] if timed else [])]
    text = io.StringIO()
    writer = csv.DictWriter(text, header, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for rows in tables.values():
        for row in rows:
            values = {key: "-" if value is None else value for key, value in _record(row).items()}
            values |= {"thesis": row.printed.get("value", ""), "thesis_stderr": row.printed.get("stderr", "")}
            for key in ("ours", "ours_stderr"):
                if isinstance(values[key], float):
                    values[key] = f"{values[key]:.6g}"
            writer.writerow({key: "" if value is None else value for key, value in values.items()})
    return text.getvalue()


def _markdown(name: str, rows: Sequence[Row], everything: bool) -> str:
    keys = telling_columns(rows, keep=("dataset", "model"))
    header = [*keys, "metric", "ours", "thesis", "difference", "splits", "verdict"]
    timed = any(row.machine for row in rows)
    header += ["machine"] if timed else []
    shown = rows if everything else [row for row in rows if row.ours is not None]
    lines = [f"### {name}", ""]
    if shown:
        lines += ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    for row in shown:
        cells = [*(row.printed.get(key, "") for key in keys), row.printed["metric"], *cells_of(row)]
        cells += [row.machine or "-"] if timed else []
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    missing = sum(row.ours is None for row in rows)
    if missing:
        said = f"{missing} of {len(rows)} numbers have no result of ours"
        lines += [""] if shown else []
        lines += [f"{said}." if everything else f"{said}; --all shows them."]
    return "\n".join(lines) + "\n"


def telling_columns(rows: Sequence[Row], keep: Sequence[str] = ("model",)) -> list[str]:
    """The columns that tell the rows of a table apart: those kept, those that vary, and others only where needed."""

    def distinct(keys: Sequence[str]) -> bool:
        seen = {tuple(row.printed.get(key, "") for key in (*keys, "metric")) for row in rows}
        return len(seen) == len(rows)

    varying = [key for key in KEYS if len({row.printed.get(key, "") for row in rows}) > 1]
    chosen = [key for key in KEYS if key in keep or (key in varying and key in ("dataset", "prior", "depth"))]
    for key in varying:
        if key not in chosen and not distinct(chosen):
            chosen.append(key)
    return [key for key in KEYS if key in chosen]


KEYS = ("dataset", "model", "prior", "depth", "batch_size", "feature_dim", "augmentation")


def cells_of(row: Row) -> list[str]:
    """For people: ours, the thesis's, the difference, the number of splits, the verdict."""
    value = row.printed.get("value", "-")
    digits = 3 if row.thesis is None else max(2, len(value.partition(".")[2]) + 1)
    ours = "-" if row.ours is None else with_error(f"{row.ours:.{digits}f}", row.ours_stderr, digits)
    thesis = value + (f" ± {row.printed['stderr']}" if row.printed.get("stderr") else "")
    if row.quoted:
        thesis += " (quoted)"
    if reference.is_wrong(dict(row.printed)):
        thesis += " (misprint)"
    if reference.is_error_wrong(dict(row.printed)):
        thesis += " (misprinted error)"
    difference = "-"
    if row.difference is not None:
        difference = with_error(f"{row.difference:+.{digits}f}", row.difference_stderr, digits)
    splits = "-" if not row.n_splits else str(row.n_splits)
    if row.n_diverged:
        splits += f" ({row.n_diverged} diverged)"
    return [ours, thesis, difference, splits, row.verdict or "-"]


def with_error(text: str, error: float | None, digits: int) -> str:
    """A number with its standard error, where there is one."""
    return text if error is None else f"{text} ± {error:.{digits}f}"


def require_tables(experiment: Experiment) -> None:
    """Refuse an experiment that no table of the thesis stands beside."""
    if not experiment.tables:
        figures = ", ".join(experiment.labels)
        raise ConfigurationError(
            f"The thesis has no table for {experiment.name}; it stands for {figures}. Its figures and numbers are in "
            f"the report: vibayes bench report {experiment.name}."
        )
