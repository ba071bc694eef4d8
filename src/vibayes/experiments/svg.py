"""Small plots as SVG text, without any plotting package: learning curves, and dots with error bars."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from vibayes._page import BLUE, ORANGE, Frame, ticks

__all__ = ["Dot", "curves", "dots", "ticks"]


@dataclass(frozen=True)
class Dot:
    """A value with its standard error in a row of a dot plot."""

    row: str
    value: float
    error: float | None
    ours: bool


def curves(title: str, lines: Sequence[tuple[Sequence[float], Sequence[float]]], reference: float | None = None) -> str:
    """Learning curves of several splits as thin lines, with a dashed line where the thesis ended.

    What a curve does in its first tenth does not set the scale.
    """
    values = sorted(
        v for xs, ys in lines for x, v in zip(xs, ys, strict=True) if x >= 0.1 * xs[-1] and math.isfinite(v)
    )
    values = values or [0.0]
    low, high = values[0], values[-1]
    if reference is not None:
        low, high = min(low, reference), max(high, reference)
    margin = 0.05 * (high - low) or 0.1
    last = max((xs[-1] for xs, _ in lines), default=1.0)
    frame = Frame(320, 200, (0.0, last), (low - margin, high + margin), 46)
    parts = frame.x_axis() + frame.y_axis()
    for xs, ys in lines:
        points = " ".join(
            f"{frame.px(x):.1f},{min(max(frame.py(v), frame.top), frame.height - frame.bottom):.1f}"
            for x, v in zip(xs, ys, strict=True)
            if math.isfinite(v)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="1" opacity=".55"/>')
    if reference is not None:
        y = frame.py(reference)
        parts.append(
            f'<line x1="{frame.left:g}" x2="{frame.width - frame.right:g}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{ORANGE}" stroke-dasharray="5 3"/>'
        )
    return frame.svg(title, parts)


def dots(title: str, points: Sequence[Dot], better: int = 0) -> str:
    """One row per model: ours filled, the thesis's hollow, both with bars of one standard error.

    Args:
        title: above the plot.
        points: the values.
        better: 1 when more is better, -1 when less is: values far off on the bad side do not set the scale.
    """
    rows = list(dict.fromkeys(point.row for point in points))
    low, high = _limits(points, better)
    left = 20.0 + 6.0 * max(len(row) for row in rows)
    frame = Frame(320, 50.0 + 26.0 * len(rows), (low, high), (0.0, float(len(rows))), left)
    parts = frame.x_axis()
    for place, row in enumerate(rows):
        y = frame.py(len(rows) - place - 0.5)
        parts.append(f'<text x="{left - 6:g}" y="{y + 3.5:.1f}" text-anchor="end">{escape(row)}</text>')
    for point in points:
        y = frame.py(len(rows) - rows.index(point.row) - 0.5) + (-4 if point.ours else 4)
        colour = BLUE if point.ours else ORANGE
        if not low <= point.value <= high:
            x, anchor, text = (
                (frame.px(low), "start", "\u25c2 {}") if point.value < low else (frame.px(high), "end", "{} \u25b8")
            )
            shown = text.format(f"{point.value:.4g}")
            parts.append(
                f'<text x="{x:.1f}" y="{y + 3.5:.1f}" text-anchor="{anchor}" style="fill:{colour}">{shown}</text>'
            )
            continue
        if point.error:
            a, b = (frame.px(min(max(point.value + s * point.error, low), high)) for s in (-1, 1))
            parts.append(
                f'<line x1="{a:.1f}" x2="{b:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="1.5"/>'
            )
        fill = colour if point.ours else "white"
        parts.append(
            f'<circle cx="{frame.px(point.value):.1f}" cy="{y:.1f}" r="3.2" fill="{fill}" stroke="{colour}" '
            'stroke-width="1.5"/>'
        )
    return frame.svg(title, parts)


def _limits(points: Sequence[Dot], better: int) -> tuple[float, float]:
    ends = [point.value + sign * (point.error or 0.0) for point in points for sign in (-1, 1)]
    low, high = min(ends), max(ends)
    values = sorted(point.value for point in points)
    middle = values[len(values) // 2]
    if better > 0:
        low = max(low, middle - 5 * (high - middle))
    elif better < 0:
        high = min(high, middle + 5 * (middle - low))
    margin = 0.08 * (high - low) or 0.05 * (abs(low) or 1.0)
    return low - margin, high + margin
