"""Small plots as SVG text, without any plotting package: learning curves, and dots with error bars."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Dot", "curves", "dots"]

INK, GRID, BLUE, ORANGE = "#333", "#ddd", "#0072B2", "#D55E00"


@dataclass(frozen=True)
class Dot:
    """A value with its standard error in a row of a dot plot."""

    row: str
    value: float
    error: float | None
    ours: bool


def ticks(low: float, high: float, n: int = 4) -> list[float]:
    """About `n` round numbers between two numbers.

    >>> ticks(0.0, 1.0)
    [0.0, 0.5, 1.0]
    """
    if not high > low:
        return [low]
    raw = (high - low) / n
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    text = f"{value:.4g}"
    return f"{value / 1000:g}k" if abs(value) >= 10_000 and value % 1000 == 0 else text


class _Frame:
    """Axes with scales from data to pixels."""

    def __init__(
        self, width: float, height: float, x: tuple[float, float], y: tuple[float, float], left: float
    ) -> None:
        self.width, self.height, self.x, self.y, self.left = width, height, x, y, left
        self.top, self.bottom, self.right = 26.0, 24.0, 16.0

    def px(self, value: float) -> float:
        span = self.x[1] - self.x[0] or 1.0
        return self.left + (value - self.x[0]) / span * (self.width - self.left - self.right)

    def py(self, value: float) -> float:
        span = self.y[1] - self.y[0] or 1.0
        return self.height - self.bottom - (value - self.y[0]) / span * (self.height - self.top - self.bottom)

    def svg(self, title: str, parts: Sequence[str]) -> str:
        return (
            f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(title)}">'
            f'<text x="{self.left:g}" y="15" class="t">{escape(title)}</text>{"".join(parts)}</svg>'
        )

    def x_axis(self) -> list[str]:
        low, high = self.height - self.bottom, self.top
        return [
            f'<line x1="{self.px(t):.1f}" x2="{self.px(t):.1f}" y1="{low:g}" y2="{high:g}" stroke="{GRID}"/>'
            f'<text x="{self.px(t):.1f}" y="{low + 14:g}" text-anchor="middle">{_number(t)}</text>'
            for t in ticks(*self.x)
        ]

    def y_axis(self) -> list[str]:
        right = self.width - self.right
        return [
            f'<line x1="{self.left:g}" x2="{right:g}" y1="{self.py(t):.1f}" y2="{self.py(t):.1f}" stroke="{GRID}"/>'
            f'<text x="{self.left - 5:g}" y="{self.py(t) + 3.5:.1f}" text-anchor="end">{_number(t)}</text>'
            for t in ticks(*self.y)
        ]


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
    frame = _Frame(320, 200, (0.0, last), (low - margin, high + margin), 46)
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
    frame = _Frame(320, 50.0 + 26.0 * len(rows), (low, high), (0.0, float(len(rows))), left)
    parts = frame.x_axis()
    for number, row in enumerate(rows):
        y = frame.py(len(rows) - number - 0.5)
        parts.append(f'<text x="{left - 6:g}" y="{y + 3.5:.1f}" text-anchor="end">{escape(row)}</text>')
    for point in points:
        y = frame.py(len(rows) - rows.index(point.row) - 0.5) + (-4 if point.ours else 4)
        colour = BLUE if point.ours else ORANGE
        if not low <= point.value <= high:
            x, anchor, text = (
                (frame.px(low), "start", "\u25c2 {}") if point.value < low else (frame.px(high), "end", "{} \u25b8")
            )
            shown = text.format(_number(point.value))
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
