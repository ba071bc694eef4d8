"""The plots of the report, as SVG text."""

import math
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from vibayes._page import BLUE, GRID, INK, LABELLED, ORANGE, Frame

__all__ = ["against_truth", "bars", "curves", "ranking", "short", "uncertainty"]

F64 = NDArray[np.float64]
_POINTS = 300


def short(name: str, most: int = 36) -> str:
    """A name of a column for a label, which must not run out of its plot."""
    return name if len(name) <= most else name[: most - 1] + "…"


def _limits(values: Sequence[float] | F64, margin: float = 0.05) -> tuple[float, float]:
    finite = [float(v) for v in values if math.isfinite(v)] or [0.0]
    low, high = min(finite), max(finite)
    room = margin * (high - low) or 0.05 * (abs(low) or 1.0)
    return low - room, high + room


def _frame(width: float, height: float, x: tuple[float, float], y: tuple[float, float], left: float = 58) -> Frame:
    return Frame(width, height, x, y, left, bottom=LABELLED)


def ranking(rows: Sequence[tuple[str, float, float, bool]]) -> str:
    """Dots with bars of two standard errors, one row per family; hollow where the evidence is not ranked.

    Families far below the best do not set the scale: they stand at the edge with their number.
    """
    values = [value for _, value, _, ranked in rows if ranked]
    top = max(values)
    middle = sorted(values)[len(values) // 2]
    floor = max(min(values), top - max(4 * (top - middle), 0.5))
    low, high = _limits([floor, *(v for v in [r[1] for r in rows] if v >= floor)], 0.1)
    left = 14.0 + 6.1 * max(len(name) for name, *_ in rows)
    frame = _frame(640, 66.0 + 26.0 * len(rows), (low, high), (0.0, float(len(rows))), left)
    frame.top = 12.0
    parts = frame.x_axis()
    for place, (name, value, error, ranked) in enumerate(rows):
        y = frame.py(len(rows) - place - 0.5)
        parts.append(f'<text x="{left - 8:g}" y="{y + 3.5:.1f}" text-anchor="end">{escape(name)}</text>')
        if value < low:
            parts.append(f'<text x="{frame.left + 3:.1f}" y="{y + 3.5:.1f}" fill="{BLUE}">\u25c2 {value:.3g}</text>')
            continue
        if value > high:
            end = frame.width - frame.right
            parts.append(f'<text x="{end:.1f}" y="{y + 3.5:.1f}" text-anchor="end">{value:.3g} \u25b8</text>')
            continue
        if error:
            a, b = (frame.px(min(max(value + s * 2 * error, low), high)) for s in (-1, 1))
            parts.append(
                f'<line x1="{a:.1f}" x2="{b:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{BLUE}" stroke-width="2"/>'
            )
        fill = BLUE if ranked else "white"
        parts.append(
            f'<circle cx="{frame.px(value):.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{BLUE}" stroke-width="1.5"/>'
        )
    return frame.svg("", parts + frame.labels("evidence bound, nats per training row (more is better)"))


def curves(title: str, lines: Sequence[tuple[Sequence[float], Sequence[float]]], unit: str) -> str:
    """Learning curves of the seeds of one family; what a curve does in its first tenth does not set the scale."""
    values = [v for xs, ys in lines for x, v in zip(xs, ys, strict=True) if x >= 0.1 * xs[-1] or len(xs) < 3]
    low, high = _limits(values)
    last = max((xs[-1] for xs, _ in lines), default=1.0)
    frame = _frame(320, 210, (0.0, float(last)), (low, high), 50)
    parts = frame.x_axis() + frame.y_axis()
    floor, ceiling = frame.height - frame.bottom, frame.top
    for xs, ys in lines:
        points = [
            f"{frame.px(x):.1f},{min(max(frame.py(v), ceiling), floor):.1f}"
            for x, v in zip(xs, ys, strict=True)
            if math.isfinite(v)
        ]
        if len(points) == 1:
            x, y = points[0].split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{BLUE}"/>')
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{BLUE}" opacity=".6"/>')
    return frame.svg(title, parts + frame.labels(unit))


def against_truth(truth: F64, mean: F64, lower: F64, upper: F64, name: str) -> str:
    """Predictions of held-out rows with their intervals against the true values; misses in orange."""
    chosen, name = _some(len(truth)), short(name)
    truth, mean, lower, upper = truth[chosen], mean[chosen], lower[chosen], upper[chosen]
    limits = _limits(np.concatenate([truth, mean]))
    if max(map(abs, limits)) > 1e4 * (limits[1] - limits[0]):  # numbers on axes would be long and differ little
        unit = 10.0 ** math.floor(math.log10(limits[1] - limits[0]))
        shift = math.floor(limits[0] / unit) * unit
        truth, mean, lower, upper = truth - shift, mean - shift, lower - shift, upper - shift
        limits = limits[0] - shift, limits[1] - shift
        name = f"{name} {'-' if shift > 0 else '+'} {abs(shift):.12g}"
    span = limits[1] - limits[0]
    ends = (min(limits[0], max(float(lower.min()), limits[0] - 0.3 * span)),
            max(limits[1], min(float(upper.max()), limits[1] + 0.3 * span)))  # fmt: skip
    frame = _frame(460, 400, limits, ends)
    parts = frame.x_axis() + frame.y_axis()
    a, b = (max(limits[0], ends[0]), min(limits[1], ends[1]))
    parts.append(
        f'<line x1="{frame.px(a):.1f}" y1="{frame.py(a):.1f}" x2="{frame.px(b):.1f}" y2="{frame.py(b):.1f}" '
        f'stroke="{INK}" stroke-dasharray="4 3"/>'
    )
    for t, m, lo, hi in zip(truth, mean, lower, upper, strict=True):
        colour = BLUE if lo <= t <= hi else ORANGE
        top, bottom = frame.py(min(hi, ends[1])), frame.py(max(lo, ends[0]))
        parts.append(
            f'<line x1="{frame.px(t):.1f}" x2="{frame.px(t):.1f}" y1="{bottom:.1f}" y2="{top:.1f}" stroke="{colour}" '
            f'opacity=".35"/><circle cx="{frame.px(t):.1f}" cy="{frame.py(m):.1f}" r="2.4" fill="{colour}"/>'
        )
    return frame.svg("", parts + frame.labels(f"true {name}", f"predicted {name}"))


def uncertainty(epistemic: F64, aleatoric: F64, unit: str) -> str:
    """Rows sorted by how unsure the prediction is; the blue part more data would reduce, the grey one not."""
    order = np.argsort(epistemic + aleatoric, kind="stable")
    order = order[_some(len(order))]
    e, a = epistemic[order], np.maximum(aleatoric[order], 0.0)
    n = len(order)
    total = e + a
    cap = float(np.quantile(total, 0.98)) * 1.25 if n > 20 else float(total.max())
    frame = _frame(460, 300, (0.0, 100.0), (0.0, min(cap, float(total.max())) * 1.05 or 1.0))
    xs = np.linspace(0.0, 100.0, n) if n > 1 else np.array([50.0])

    def area(low: F64, high: F64, colour: str) -> str:
        up = [f"{frame.px(x):.1f},{frame.py(min(v, frame.y[1])):.1f}" for x, v in zip(xs, high, strict=True)]
        down = [f"{frame.px(x):.1f},{frame.py(min(v, frame.y[1])):.1f}" for x, v in zip(xs, low, strict=True)]
        return f'<polygon points="{" ".join(up + down[::-1])}" fill="{colour}"/>'

    parts = [area(np.zeros(n), a, "#b8bcc2"), area(a, total, "#6cb0dc"), *frame.x_axis(), *frame.y_axis()]
    for place, (colour, text) in enumerate(
        (("#6cb0dc", "epistemic: more data would reduce it"), ("#b8bcc2", "aleatoric: noise"))
    ):
        y = 36 + 16 * place
        parts.append(
            f'<rect x="{frame.left + 8:g}" y="{y - 8}" width="10" height="10" fill="{colour}"/>'
            f'<text x="{frame.left + 22:g}" y="{y}">{text}</text>'
        )
    return frame.svg("", parts + frame.labels("rows, sorted (percent)", unit))


def bars(rows: Sequence[tuple[str, float]], unit: str) -> str:
    """Horizontal bars with their names."""
    shown = [(short(name, 26), value) for name, value in rows]
    left = 14.0 + 6.1 * max(len(name) for name, _ in shown)
    high = max(max(value for _, value in shown), 1e-9)
    frame = _frame(560, 60.0 + 22.0 * len(shown), (0.0, 1.05 * high), (0.0, float(len(shown))), left)
    frame.top, frame.right = 12.0, 44.0
    parts = frame.x_axis()
    for place, (name, value) in enumerate(shown):
        y = frame.py(len(shown) - place - 0.5)
        width = frame.px(value) - frame.px(0.0)
        parts.append(
            f'<text x="{left - 8:g}" y="{y + 3.5:.1f}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{frame.px(0):.1f}" y="{y - 7:.1f}" width="{width:.1f}" height="14" fill="{BLUE}"/>'
            f'<text x="{frame.px(value) + 4:.1f}" y="{y + 3.5:.1f}">{100 * value:.0f}%</text>'
        )
    parts.append(
        f'<line x1="{left:g}" x2="{left:g}" y1="{frame.top:g}" y2="{frame.height - frame.bottom:g}" stroke="{GRID}"/>'
    )
    return frame.svg("", parts + frame.labels(unit))


def _some(n: int) -> NDArray[np.int64]:
    """At most a few hundred of n numbers, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, _POINTS)).round().astype(np.int64))
