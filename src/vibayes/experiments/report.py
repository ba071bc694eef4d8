"""The report: one HTML page that needs nothing but itself."""

import base64
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import vibayes
from vibayes._page import calibration, document, grid, line
from vibayes.experiments import svg
from vibayes.experiments.display import duration
from vibayes.experiments.experiment import Experiment, Unit
from vibayes.experiments.figures import Figure, FigureResult
from vibayes.experiments.reference import direction
from vibayes.experiments.results import finished
from vibayes.experiments.sweep import by_family
from vibayes.experiments.tables import KEYS, Row, cells_of, telling_columns

__all__ = ["Section", "page"]


VERDICTS = ("better", "equal", "worse", "different", "open")


class Section:
    """What the report says of one experiment.

    Args:
        experiment: the experiment.
        units: its runs, with the options whose results are shown.
        tables: ours beside the thesis's.
        out: the folder of results.
        figures: what a script of figures left, where it is one.
        preset: the preset of the experiment's whose results these are.
    """

    def __init__(
        self,
        experiment: Experiment,
        units: Sequence[Unit],
        tables: Mapping[str, Sequence[Row]],
        out: Path,
        figures: FigureResult | None = None,
        preset: str | None = None,
    ) -> None:
        self.experiment, self.tables, self.figures, self.out = experiment, tables, figures, out
        self.preset = preset
        self.families: list[tuple[Unit, list[dict[str, Any]]]] = []
        for members in by_family(units).values():
            results = [r for r in (finished(out, unit) for unit in members) if r is not None]
            if results:
                self.families.append((members[0], results))

    @property
    def name(self) -> str:
        """What it is called, as on the command line."""
        return self.experiment.name + (f" --preset {self.preset}" if self.preset else "")

    @property
    def anchor(self) -> str:
        """For links to it."""
        return self.name.replace(" --preset ", "-")

    @property
    def verdicts(self) -> Counter[str]:
        """How many numbers are better, equal, worse; a number that several tables print counts once."""
        found = {
            tuple(row.printed.get(key, "") for key in (*KEYS, "metric")): row.verdict
            for rows in self.tables.values()
            for row in rows
        }
        return Counter(verdict for verdict in found.values() if verdict)

    @property
    def n_results(self) -> int:
        """How many result files are behind it."""
        return sum(len(results) for _, results in self.families) + (self.figures is not None)

    def html(self) -> str:
        """The section."""
        e = self.experiment
        parts = [f'<h2 id="{self.anchor}">{escape(self.name)}</h2><p>{escape(e.title)}.</p>']
        note = f"With {e.presets[self.preset]}" if self.preset else e.note
        if note:
            parts.append(f'<p class="small">{escape(note)}</p>')
        if self.verdicts:
            parts.append(f"<p>{_chips(self.verdicts)}</p>")
        parts += [_table(name, rows) for name, rows in self.tables.items()]
        if self.figures is not None:
            parts.append(_figures(self.figures))
        if self.families:
            parts += [self._dots(), self._calibration(), self._curves(), self._timings(), self._origin()]
        return "".join(parts)

    def _dots(self) -> str:
        shown = []
        for metric in ("elbo_per_datapoint", "test_ll", "test_rmse"):
            by_dataset: dict[str, list[svg.Dot]] = {}
            seen: set[tuple[str, ...]] = set()
            for rows in self.tables.values():
                for row in rows:
                    key = tuple(row.printed.get(k, "") for k in KEYS)
                    if row.printed["metric"] != metric or row.quoted or key in seen:
                        continue
                    seen.add(key)
                    words = [row.printed.get(k) for k in ("model", "prior", "depth")]
                    label = " ".join(filter(None, [*words, "augmented" * (row.printed.get("augmentation") == "yes")]))
                    points = by_dataset.setdefault(row.printed["dataset"], [])
                    if row.ours is not None and math.isfinite(row.ours):
                        points.append(svg.Dot(label, row.ours, row.ours_stderr, True))
                    if row.thesis is not None:
                        points.append(svg.Dot(label, row.thesis, row.thesis_stderr, False))
            for dataset, points in by_dataset.items():
                if any(point.ours for point in points):
                    shown.append(f"<figure>{svg.dots(f'{dataset}: {metric}', points, direction(metric))}</figure>")
        if not shown:
            return ""
        return (
            '<h3>Means and standard errors</h3><p class="small">Filled blue: ours. Hollow orange: the thesis. Far-off '
            "values stand at the edge as numbers.</p>"
            f'<div class="grid">{"".join(shown)}</div>'
        )

    def _curves(self) -> str:
        shown = []
        for unit, results in self.families:
            curves = [r["curve"] for r in results if r.get("curve", {}).get("step")]
            lines = [(curve["step"], _numbers(curve["elbo_per_datapoint"])) for curve in curves]
            if not lines:
                continue
            known = [
                row.thesis
                for rows in self.tables.values()
                for row in rows
                if row.printed["metric"] == "elbo_per_datapoint"
                and row.thesis is not None
                and all(row.printed.get(key, "") == value for key, value in unit.columns.items())
            ]
            bounded = any(r["metrics"].get("elbo_per_datapoint") is not None for r in results)
            title = f"{unit.title}: {'ELBO' if bounded else 'objective'}"
            plot = svg.curves(title, lines, known[0] if known else None)
            shown.append(f"<figure>{plot}</figure>")
        return (
            '<h3>Learning curves</h3><p class="small">The bound per data point against the step, one line per split, '
            "on the minibatch of the step where there are minibatches. Dashed: where the thesis ends, on all rows. A "
            "network with one value of each weight has no bound: its objective is the log likelihood, under a fixed "
            "noise.</p>"
            f'<div class="grid">{"".join(shown)}</div>'
        )

    def _calibration(self) -> str:
        shown = []
        for unit, results in self.families:
            for result in results:
                if not (bins := result.get("calibration")):
                    continue
                share, count = bins["accuracy"], bins["count"]
                error = [math.sqrt(max(a * (1 - a), 0.01) / n) for a, n in zip(share, count, strict=True)]
                more = f", split {result['split']}" if len(results) > 1 else ""
                labels = ("confidence", "share that is right", f"{unit.title}{more}")
                shown.append(f"<figure>{calibration(bins['confidence'], share, error, *labels)}</figure>")
        if not shown:
            return ""
        return (
            '<h3>Calibration</h3><p class="small">How many test predictions of a confidence are right; on the diagonal '
            f'promises are kept. Bars: two standard errors.</p><div class="grid">{"".join(shown)}</div>'
        )

    def _timings(self) -> str:
        head = ("data set", "model", "runs", "steps", "seconds per run", "ms per step", "together", "device", "dtype")
        lines = []
        for unit, results in self.families:
            times = [r["seconds"] for r in results]
            mean = math.fsum(times) / len(times)
            steps = results[0].get("steps", 0)
            hardware = results[0].get("hardware", {})
            device = hardware.get("gpu") or f"{hardware.get('processor')}, {hardware.get('threads')} threads"
            chunk = results[0].get("group", {}).get("chunk") or 1
            cells = (unit.dataset, unit.title.removeprefix(f"{unit.dataset} "), len(results), steps, f"{mean:.1f}",
                     f"{1000 * mean / max(steps, 1):.2f}", chunk, device, unit.options.get("dtype"))  # fmt: skip
            lines.append(line(cells, 2))
        note = (
            '<p class="small">Seconds of a run that trained together with others are those of all of them together: '
            "divide by the number in the column for the cost of one.</p>"
        )
        return f"<h3>Timings</h3>{grid(head, lines, 2)}{note}"

    def _origin(self) -> str:
        found = Counter(
            (
                str(r.get("code", {}).get("version")),
                _commit(r.get("code", {}).get("commit")),
                str(r.get("code", {}).get("sources")),
                str(r.get("software", {}).get("torch")),
                str(r.get("group", {}).get("executor")),
                str(r.get("command")),
            )
            for _, results in self.families
            for r in results
        )
        lines = [
            "<tr>"
            + "".join(f'<td class="k">{escape(cell)}</td>' for cell in key[:5])
            + f'<td class="wrap"><code>{escape(key[5])}</code></td><td>{count}</td></tr>'
            for key, count in found.items()
        ]
        head = ("version", "commit", "sources", "torch", "executor", "command", "runs")
        events = [
            f"<li>{escape(u.title)}, split {r['split']}: {escape(' '.join(r['events']))}</li>"
            for u, results in self.families
            for r in results
            if r.get("events")
        ]
        told = f"<h3>Events</h3><ul class='small'>{''.join(events[:50])}</ul>" if events else ""
        return f"<h3>How it was run</h3>{grid(head, lines, 6)}{told}"


def page(sections: Sequence[Section], folder: Path) -> str:
    """The whole page."""
    total: Counter[str] = Counter()
    for section in sections:
        total.update(section.verdicts)
    lines = [
        f'<tr><td class="k"><a href="#{s.anchor}">{s.name}</a></td>'
        f'<td class="wrap">{escape(s.experiment.title)}</td><td>{s.n_results}</td>'
        + "".join(f"<td>{s.verdicts[v] or ''}</td>" for v in VERDICTS)
        + "</tr>"
        for s in sections
    ]
    n_files = sum(s.n_results for s in sections)
    spent = math.fsum(
        r["seconds"] / (r.get("group", {}).get("chunk") or 1)
        for s in sections
        for _, results in s.families
        for r in results
    )
    body = [
        "<h1>vibayes: results beside the thesis</h1>",
        f'<p class="small">vibayes {vibayes.__version__}, {time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}, from '
        f"<code>{escape(folder.name)}</code>; {n_files} result file{'s' * (n_files != 1)}"
        f"{f', {duration(spent)} of training' if spent else ''}.</p>",
        f"<p>{_chips(total)}</p>",
        '<p class="small">Equal: within two combined standard errors of the thesis\'s number and half a unit of its '
        "last printed digit. Open: one split only. A dash: no result of ours. Quoted: the thesis took the number from "
        "elsewhere.</p>",
        grid(("experiment", "what", "results", *VERDICTS), lines, 2),
        *(section.html() for section in sections),
    ]
    return document("vibayes results", body)


# -- pieces -----------------------------------------------------------------------------------------------------


def _chips(counts: Mapping[str, int]) -> str:
    chips = [f'<span class="chip {v}">{counts[v]} {v}</span>' for v in VERDICTS if counts.get(v)]
    return "".join(chips) or '<span class="small">No number of ours beside one of the thesis yet.</span>'


def _table(name: str, rows: Sequence[Row]) -> str:
    """A table of the thesis with one line per model and one column per metric; ours above, the thesis's below."""
    keys = telling_columns(rows)
    metrics = list(dict.fromkeys(row.printed["metric"] for row in rows))
    by_line: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        by_line.setdefault(tuple(row.printed.get(key, "") for key in keys), {})[row.printed["metric"]] = row
    timed = any(row.machine for row in rows)
    lines: list[str] = []
    without: list[str] = []  # a result of ours
    for key, found in by_line.items():
        cells = "".join(f'<td class="k">{escape(part)}</td>' for part in key)
        place = without if all(row.ours is None for row in found.values()) else lines
        cells += "".join(_cell(found.get(metric)) for metric in metrics)
        if timed:
            machines = dict.fromkeys(row.machine for row in found.values() if row.machine)
            cells += f"<td>{escape(', '.join(machines))}</td>"
        place.append(f"<tr>{cells}</tr>")
    if name == "text_numbers":
        name = "Numbers in the thesis's text"
    beside = "; below it the thesis's" if any(row.thesis is not None for row in rows) else ""
    caption = f'<p class="small">Ours with its standard error and the number of splits{beside}.</p>'
    head = [key.replace("_", " ") for key in keys] + metrics + (["machine"] if timed else [])
    shown = f"{caption}{grid(head, lines, len(keys))}" if lines else ""
    rest = f"<summary>{len(without)} of {len(by_line)} rows have no result of ours yet</summary>"
    hidden = f'<details class="small">{rest}{grid(head, without, len(keys))}</details>' if without else ""
    return f"<h3>{escape(name)}</h3>{shown}{hidden}"


def _cell(row: Row | None) -> str:
    if row is None:
        return "<td></td>"
    ours, thesis, difference, splits, verdict = cells_of(row)
    title = f"difference {difference}, {splits} splits: {verdict}"
    if row.printed.get("note"):
        title += f"; {row.printed['note']}"
    count = f" ({splits})" if row.n_splits else ""
    below = "" if row.thesis is None else f'<span class="t2">{escape(thesis)}</span>'
    return f'<td class="{row.verdict}" title="{escape(title)}">{escape(ours)}{count}{below}</td>'


def _title(figure: Figure) -> str:
    """Its label and its name: a short run, or two data sets of one table, share the label of the thesis."""
    return escape(f"{figure.label}, {figure.name}")


def _figures(found: FigureResult) -> str:
    parts = []
    for figure in found.figures:
        title = _title(figure)
        image = ""
        if figure.image is not None:
            data = base64.b64encode(figure.image.read_bytes()).decode()
            image = f'<img src="data:image/png;base64,{data}" alt="{title}">'
        said = "".join(
            f"<li>{'yes' if s['holds'] else '<b>no</b>'}: {escape(s['text'])}</li>" for s in figure.statements
        )
        missing = f"<p>Skipped: {escape(figure.skipped)}</p>" if figure.skipped else ""
        parts.append(f"<figure>{image}<figcaption><b>{title}</b>{missing}<ul>{said}</ul></figcaption></figure>")
    numbers = [
        f'<tr><td class="k">{_title(f)}</td><td class="k">{escape(n["name"])}</td><td>{n["ours"]:.4f}</td>'
        f"<td>{_or_dash(n['thesis'])}</td><td>{_or_dash(n['reference'])}</td>"
        f'<td class="wrap">{escape(n.get("note", ""))}</td></tr>'
        for f in found.figures
        for n in f.numbers
    ]
    head = ("figure", "number", "ours", "thesis", "reference", "note")
    return (
        '<h3>Figures</h3><p class="small">Below a figure: whether what the thesis says of it holds for ours.</p>'
        f'<div class="grid figures">{"".join(parts)}</div><h3>Numbers</h3><p class="small">Reference: what other code '
        f"finds for the same set-up.</p>{grid(head, numbers, 2, last=True)}"
        f'<p class="small">{escape(found.origin)}</p>'
    )


def _commit(found: str | None) -> str:
    return "-" if not found else found[:12] + "+changes" * ("+" in found)


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if v is None else float(v) for v in values]
