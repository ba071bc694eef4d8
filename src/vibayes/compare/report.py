"""The report of a comparison: one HTML page that needs nothing but itself."""

import math
import time
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

import vibayes
from vibayes import metrics
from vibayes._page import calibration, document, grid, line
from vibayes.compare import plots
from vibayes.compare.comparison import Comparison
from vibayes.compare.insight import Sensitivity, least_sure
from vibayes.compare.ranking import Result
from vibayes.compare.scores import LEVEL, Predicted, nats, predict
from vibayes.experiments.display import duration
from vibayes.experiments.results import thin
from vibayes.tables.cells import count

__all__ = ["page"]

STYLE = """
.lead{font-size:1.12em;background:#eef5fb;border-left:4px solid #0072B2;padding:.7em 1em;border-radius:0 6px 6px 0;
 max-width:none}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,350px),1fr));gap:14px;align-items:start}
.two svg,.wide svg{width:100%;height:auto;border:1px solid #eee;border-radius:6px;display:block}
.wide{max-width:720px}tr.win td{background:#e6f2fb;font-weight:600}tr.aside td{color:#666}
.facts{display:flex;flex-wrap:wrap;gap:8px;margin:.8em 0}
.facts div{border:1px solid #ddd;border-radius:6px;padding:.35em .8em;min-width:7.5em}
.facts b{display:block;font-size:1.15em}
td.long{white-space:normal;text-align:left;min-width:16em}
@media(max-width:600px){body{padding:0 10px 32px}h1{font-size:1.35em}.wide{overflow-x:auto}.wide svg{min-width:540px}}
"""


def page(comparison: Comparison, predicted: Predicted, sensitivities: Sequence[Sensitivity]) -> str:
    """The whole page.

    Args:
        comparison: what was found.
        predicted: the best model's predictions of every row of the table.
        sensitivities: how much each column matters to it.
    """
    data = comparison.data
    name = data.table.path.name
    targets = ", ".join(data.target.names)
    winner = comparison.winner
    body = [
        f"<h1>{escape(name)}: {escape(targets)}</h1>",
        f'<p class="small">vibayes {vibayes.__version__}, {time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}. '
        f"{len(data.table):,} rows, {len(data.encoder.used)} of {len(data.encoder.columns)} input columns used; "
        f"{len(data.train):,} rows trained, {len(data.test):,} were held out. It took {duration(comparison.seconds)} "
        f"of a budget of {comparison.minutes:g} min.</p>",
        f'<p class="lead">{escape(comparison.verdict())}</p>',
        _interrupted(comparison),
        _facts(winner, data.target.kind),
        _ranking(comparison),
        _predictions(comparison, predicted),
        _columns(sensitivities),
        _unsure(comparison, predicted),
        _curves(comparison.results),
        _table_notes(comparison),
        _how_to_read(comparison),
    ]
    return document(f"{name}: {targets}", body, STYLE)


def _interrupted(comparison: Comparison) -> str:
    if not comparison.interrupted:
        return ""
    return "<p><b>Interrupted:</b> these are the results so far; families that were not reached are listed below.</p>"


def _facts(winner: Result, kind: str) -> str:
    s = winner.scores[winner.best]
    if kind == "regression":
        shown = [
            (f"{100 * s['r2']:.1f}%", "variance explained"),
            (f"{s['rmse']:.4g}", "RMSE"),
            (f"{100 * s['coverage_95']:.0f}%", "of true values inside 95% intervals"),
            (f"{s['interval_width_95']:.4g}", "mean width of these intervals"),
        ]
    else:
        shown = [
            (f"{100 * s['accuracy']:.1f}%", "accuracy"),
            (f"{s['ece']:.3f}", "calibration error"),
            (f"{s['brier']:.3f}", "Brier score"),
        ]
    found = f"{nats(s['log_likelihood_standardized'])} ± {nats(s['log_likelihood_stderr'])}"
    shown.append((found, "held-out log likelihood"))  # in the units of the table below
    boxes = "".join(f"<div><b>{escape(number)}</b>{escape(what)}</div>" for number, what in shown)
    return f'<p>{escape(winner.about.title)} on the held-out rows:</p><div class="facts">{boxes}</div>'


def _ranking(comparison: Comparison) -> str:
    ranked = comparison.ranking
    regression = comparison.data.target.kind == "regression"
    unranked = [r for r in comparison.results if not r.about.ranked]
    dots = [(r.about.title, r.elbo, r.stderr, True) for r, _ in ranked]
    dots += [(r.about.title, r.elbo, r.stderr, False) for r in unranked]
    head = ["", "model", "evidence bound", "below the best", "held-out log lik."]
    head += ["RMSE", "coverage of 95%"] if regression else ["accuracy", "calibration error"]
    head += ["seeds", "steps", "time"]
    rows = [_line(comparison, r, str(place), gap) for place, (r, gap) in enumerate(ranked, 1)]
    rows += [_line(comparison, r, "–", None) for r in unranked]
    notes = []
    for r in unranked:
        v = comparison.validation
        contest = ""
        if v is not None and v.family == r.family:
            contest = (
                f" On {v.rows} validation rows it reaches {v.log_likelihood:.3f} nats per row, the best by evidence "
                f"{v.winner_log_likelihood:.3f} (difference {v.difference:+.3f} ± {v.stderr:.3f})."
            )
        notes.append(f"{escape(r.about.title)} is shown but not ranked: {escape(r.about.why_not)}.{escape(contest)}")
    if comparison.skipped:
        left_out = "; ".join(f"{name} ({reason})" for name, reason in comparison.skipped.items())
        notes.append(f"Not trained: {escape(left_out)}.")
    told = "".join(f'<p class="small">{note}</p>' for note in notes)
    unit = "targets in units of their standard deviation, " if regression else ""
    return (
        "<h2>Ranking by evidence</h2><p>The evidence says how well a model predicts the training rows before it has "
        "seen them, and so needs no held-out rows; the scores on held-out rows stand beside it.</p>"
        f'<div class="wide">{plots.ranking(dots)}</div>'
        f'<p class="small">Bars: two standard errors over seeds and draws. Evidence and held-out log likelihood are in '
        f"nats per row, {unit}so that all models are measured alike.</p>"
        f"{grid(head, rows, 2)}{told}"
    )


def _line(comparison: Comparison, r: Result, place: str, gap: Any) -> str:
    regression = comparison.data.target.kind == "regression"
    behind = "" if gap is None else f"{nats(gap.mean)} ± {nats(gap.stderr)}" + ("" if gap.clear else " (not clear)")
    if regression:
        scores = [f"{r.score('rmse'):.4g}", f"{100 * r.score('coverage_95'):.1f}%"]
    else:
        scores = [f"{100 * r.score('accuracy'):.1f}%", f"{r.score('ece'):.3f}"]
    steps = max(h.step[-1] for h in r.trained.histories)
    seeds = count(len(r.trained.starts), "start") if r.trained.starts else str(len(r.trained.models))
    early = " (ended early)" if r.trained.interrupted else ""
    cells = [
        place, r.about.title, f"{nats(r.elbo)} ± {nats(r.stderr)}", behind,
        nats(r.score("log_likelihood_standardized")), *scores, seeds, f"{steps:,}{early}", duration(r.trained.seconds),
    ]  # fmt: skip
    made = line(cells, 2)
    if r is comparison.winner:
        return made.replace("<tr>", '<tr class="win">', 1)
    return made if r.about.ranked else made.replace("<tr>", '<tr class="aside">', 1)


def _predictions(comparison: Comparison, predicted: Predicted) -> str:
    data = comparison.data
    epistemic, aleatoric = predicted.uncertainty
    test = data.test
    x, y = data.part(test)
    prediction = predict(comparison.model, x)
    y = y.to(comparison.model.device)
    if data.target.kind == "regression":
        truth = data.y.numpy().reshape(len(data.table), -1)
        first = ""
        for p, name in enumerate(data.target.names):
            ends = predicted.lower[test, p], predicted.upper[test, p]
            plot = plots.against_truth(truth[test, p], predicted.mean[test, p], *ends, name)
            caption = "Held-out rows with their 95% intervals; orange ones lie outside."
            first += f"<figure>{plot}<figcaption>{caption}</figcaption></figure>"
        levels, covered = metrics.coverage_curve(prediction, y)
        shares, got = levels.numpy(), covered.numpy()
        error = np.sqrt(shares * (1 - shares) / (len(test) * len(data.target.names)))
        points = shares.tolist(), got.tolist(), error.tolist()
        curve = calibration(*points, "share that an interval promises", "share of true values in it")
        unit = f"variance of {plots.short(data.target.names[0])}"
    else:
        first = f"<figure>{_confusion(comparison, predicted)}</figure>"
        found = metrics.calibration_curve(prediction, y, bins=10)
        there = (found.count > 0).cpu().numpy()
        confidence, got = found.confidence.cpu().numpy()[there], found.accuracy.cpu().numpy()[there]
        error = np.sqrt(np.clip(got * (1 - got), 0.01, None) / found.count.cpu().numpy()[there])
        points = confidence.tolist(), got.tolist(), error.tolist()
        curve = calibration(*points, "probability that the model gives", "share that is right")
        unit = "entropy (nats)"
    return (
        f'<h2>Predictions</h2><div class="two">{first}'
        f"<figure>{curve}<figcaption>Calibration on held-out rows: on the diagonal, promises are kept. Bars: two "
        "standard errors.</figcaption></figure>"
        f"<figure>{plots.uncertainty(epistemic, aleatoric, unit)}<figcaption>Where uncertainty comes from, over all "
        f"{len(data.table):,} rows. Mean share that more data would reduce: "
        f"{100 * float(epistemic.mean() / (epistemic + aleatoric).mean()):.0f}%.</figcaption></figure></div>"
    )


def _confusion(comparison: Comparison, predicted: Predicted) -> str:
    """How often each class was taken for which, on held-out rows."""
    data = comparison.data
    labels = data.target.labels
    truth = data.y.numpy()[data.test].astype(int)
    guess = predicted.probs[data.test].argmax(1)
    counts = np.zeros((len(labels), len(labels)), dtype=int)
    np.add.at(counts, (truth, guess), 1)
    kept = np.argsort(-counts.sum(1), kind="stable")[:12]
    kept = np.sort(kept)
    rows = []
    for i in kept:
        cells = "".join(
            f'<td style="background:rgba({"0,114,178" if i == j else "213,94,0"},'
            f'{0.6 * counts[i, j] / max(counts[i].sum(), 1):.2f})">{counts[i, j] or ""}</td>'
            for j in kept
        )
        rows.append(f'<tr><td class="k">{escape(labels[i])}</td>{cells}</tr>')
    head = ["true \\ predicted", *(labels[j] for j in kept)]
    note = "" if len(kept) == len(labels) else f" The {len(kept)} most frequent of {len(labels)} classes."
    return (
        f"{grid(head, rows, 1)}<figcaption>Held-out rows: how often each class was taken for which.{note}</figcaption>"
    )


def _columns(sensitivities: Sequence[Sensitivity]) -> str:
    shown = [(entry.column, entry.share) for entry in sensitivities[:15]]
    more = f" The {len(shown)} largest of {len(sensitivities)}." if len(sensitivities) > len(shown) else ""
    return (
        '<h2>What the prediction depends on</h2><div class="wide">'
        f"{plots.bars(shown, 'share of the prediction’s variance lost without the column')}</div>"
        '<p class="small">Each column in turn is shuffled over rows (total effect index). Columns act together, so the '
        f"shares may add up to more than 100%. They say what the model uses, not what causes what.{more}</p>"
    )


def _unsure(comparison: Comparison, predicted: Predicted) -> str:
    data = comparison.data
    frame = data.table.frame
    columns = [column.name for column in data.encoder.used][:8]
    part = np.full(len(frame), "no target", dtype=object)
    part[data.train], part[data.test] = "trained", "held out"
    rows = []
    regression = data.target.kind == "regression"
    for number in least_sure(predicted):
        if regression:
            std = predicted.std[number, 0]
            truth = _to(data.y.reshape(len(frame), -1)[number, 0].item(), std) if data.known[number] else ""
            told = [f"{_to(predicted.mean[number, 0], std)} ± {std:.3g}"]
        else:
            best = int(predicted.probs[number].argmax())
            truth = _cell(frame[data.target.names[0]].iloc[number])
            told = [f"{data.target.labels[best]} ({100 * predicted.probs[number, best]:.0f}%)"]
        values = [_cell(frame[column].iloc[number]) for column in columns]
        rows.append(line([f"{number + 1:,}", part[number], truth, *told, *values], 2))
    head = ["row", "part", f"true {data.target.names[0]}", "predicted", *columns]
    what = "standard deviation" if regression else "entropy"
    return (
        f"<h2>Rows the model is least sure of</h2><p>By the prediction's {what}. Rows are counted from the first one "
        f"under the names.</p>{grid(head, rows, 2)}"
    )


def _to(value: float, std: float) -> str:
    """A number with as many digits as its standard deviation asks for."""
    ratio = abs(value) / std if std > 0 else 1.0
    return f"{value:.{min(max(4, 3 + math.ceil(math.log10(max(ratio, 1.0)))), 15)}g}"


def _cell(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else f"{value:.6g}"
    text = "" if value is None or str(value) in ("NaT", "nan", "<NA>") else str(value)
    return text if len(text) <= 30 else text[:29] + "…"


def _curves(results: Sequence[Result]) -> str:
    shown = []
    for r in results:
        lines = [
            (thin([float(s) for s in h.step], 120), thin(h.per_datapoint, 120)) for h in r.trained.histories if h.step
        ]
        unit = "iterations of L-BFGS" if r.trained.starts else "steps of Adam"
        shown.append(f"<figure>{plots.curves(r.about.title, lines, unit)}</figure>")
    return (
        "<h2>Learning curves</h2><p>The bound in nats per row while it was trained, one line per seed. A curve that "
        "still rises at its end wants more time: give a larger <code>--budget</code>.</p>"
        f'<div class="grid">{"".join(shown)}</div>'
    )


def _table_notes(comparison: Comparison) -> str:
    data = comparison.data
    rows = [
        f'<tr><td class="k">{escape(name)}</td><td class="long">{escape(note)}</td></tr>'
        for name, note in data.encoder.summary()
    ]
    notes = "".join(f"<li>{escape(note)}</li>" for note in (data.target.note, *data.notes) if note)
    return f"<h2>How the table was read</h2><ul>{notes}</ul>{grid(('column', 'what was done'), rows, 2)}"


def _how_to_read(comparison: Comparison) -> str:
    about = "".join(f"<li><b>{escape(r.about.title)}.</b> {escape(r.about.about)}</li>" for r in comparison.results)
    return (
        "<h2>The models</h2>"
        f'<ul>{about}</ul><p class="small">Intervals hold {100 * LEVEL:.0f}% of the predictive probability. The best '
        "model, predictions for every row and all numbers of this page lie beside it: <code>model/</code>, "
        "<code>predictions.csv</code>, <code>results.json</code>.</p>"
    )
