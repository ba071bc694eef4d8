"""Pieces of HTML pages that need nothing but themselves: style, tables, axes of small SVG plots, calibration plots."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

__all__ = [
    "BLUE",
    "CSS",
    "GRID",
    "INK",
    "LABELLED",
    "ORANGE",
    "Frame",
    "calibration",
    "document",
    "grid",
    "line",
    "numbers",
    "ticks",
]

INK, GRID, BLUE, ORANGE = "#333", "#ddd", "#0072B2", "#D55E00"
# Pixels below the axes of a plot whose horizontal axis has a label.
LABELLED = 38.0

CSS = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;color:#222;background:#fff;
 margin:0 auto;padding:0 16px 48px;max-width:1180px}
h1{font-size:1.7em;margin:.9em 0 .2em}h2{margin:1.8em 0 .3em;border-bottom:2px solid #0072B2;padding-bottom:.15em}
h3{margin:1.4em 0 .4em;font-size:1.05em}p{margin:.4em 0;max-width:75ch;overflow-wrap:anywhere}a{color:#0060a0}
.small,figcaption{color:#555;font-size:.87em}code{font-size:.92em;overflow-wrap:anywhere}
.box{overflow-x:auto;border:1px solid #ddd;border-radius:6px;margin:.5em 0}
table{border-collapse:collapse;font-size:.88em;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.32em .7em;text-align:right;white-space:nowrap;border-bottom:1px solid #eee}
th{background:#f6f7f8;font-weight:600}tr:last-child td{border-bottom:0}
.k{text-align:left}td.wrap{white-space:normal;text-align:left;min-width:11em}
.t2{display:block;color:#666;font-size:.92em}
.better{background:#d9f2e3}.equal{background:#eaf1fb}.worse{background:#fbdcd3}.different{background:#fdeccd}.open{background:#f2f2f2}
.chip{display:inline-block;padding:.05em .6em;border-radius:1em;margin:.15em .25em .15em 0;font-size:.87em}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,270px),1fr));gap:10px}
.grid svg,.grid img{width:100%;height:auto;border:1px solid #eee;border-radius:6px;display:block}
.figures{grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr))}
figure{margin:0}svg text{font:10px system-ui,sans-serif;fill:#444}svg .t{font-size:11px;font-weight:600;fill:#222}
nav a{margin-right:.9em;white-space:nowrap}
"""


def document(title: str, body: Sequence[str], style: str = "") -> str:
    """A whole page."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{CSS}{style}</style></head><body>{''.join(body)}</body></html>\n"
    )


def grid(head: Sequence[str], lines: Sequence[str], left: int, *, last: bool = False) -> str:
    """A table that scrolls sideways where it is too wide; the first `left` columns hold text, and maybe the last."""
    text = {*range(left), *([len(head) - 1] if last else [])}
    cells = "".join(f"<th{' class=k' if i in text else ''}>{escape(h)}</th>" for i, h in enumerate(head))
    return f'<div class="box"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def line(cells: Sequence[Any], left: int) -> str:
    """A row of a table, its cells escaped."""
    return (
        "<tr>"
        + "".join(f"<td{' class=k' if i < left else ''}>{escape(str(c))}</td>" for i, c in enumerate(cells))
        + "</tr>"
    )


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
    return [float(f"{k * step:.12g}") for k in range(first, math.floor(high / step + 1e-9) + 1)]


def numbers(values: Sequence[float]) -> list[str]:
    """Numbers on an axis, with as many digits as it takes to write them all.

    >>> numbers([2020.0, 2020.5, 2021.0]), numbers([0.0, 12_500.0, 25_000.0]), numbers([1e-20, 2e-20])
    (['2020', '2020.5', '2021'], ['0', '12.5k', '25k'], ['1e-20', '2e-20'])
    """
    if 10_000 <= max(map(abs, values), default=0.0) < 1e8 and all(v % 100 == 0 for v in values):
        return [f"{v / 1000:g}k" if v else "0" for v in values]
    digits = next((d for d in range(4, 12) if all(float(f"{v:.{d}g}") == v for v in values)), 12)
    return [f"{v:.{digits}g}" for v in values]


def _ticks(ends: tuple[float, float]) -> list[tuple[float, str]]:
    places = ticks(*ends)
    return list(zip(places, numbers(places), strict=True))


class Frame:
    """Axes with scales from data to pixels."""

    def __init__(
        self,
        width: float,
        height: float,
        x: tuple[float, float],
        y: tuple[float, float],
        left: float,
        bottom: float = 24.0,
    ) -> None:
        self.width, self.height, self.x, self.y, self.left = width, height, x, y, left
        self.top, self.bottom, self.right = 26.0, bottom, 16.0

    def px(self, value: float) -> float:
        """Pixels from the left."""
        span = self.x[1] - self.x[0] or 1.0
        return self.left + (value - self.x[0]) / span * (self.width - self.left - self.right)

    def py(self, value: float) -> float:
        """Pixels from the top."""
        span = self.y[1] - self.y[0] or 1.0
        return self.height - self.bottom - (value - self.y[0]) / span * (self.height - self.top - self.bottom)

    def svg(self, title: str, parts: Sequence[str]) -> str:
        """The plot with its title, which begins further left, and then in smaller letters, where it is long."""
        wide = 6.6 * len(title)  # in letters of 11 pixels
        left = max(4.0, min(self.left, self.width - 4.0 - wide))
        size = "" if wide <= self.width - left else f' style="font-size:{11.0 * (self.width - left) / wide:.1f}px"'
        return (
            f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(title)}">'
            f'<text x="{left:g}" y="15" class="t"{size}>{escape(title)}</text>{"".join(parts)}</svg>'
        )

    def x_axis(self) -> list[str]:
        """Grid lines and numbers below."""
        low, high = self.height - self.bottom, self.top
        return [
            f'<line x1="{self.px(t):.1f}" x2="{self.px(t):.1f}" y1="{low:g}" y2="{high:g}" stroke="{GRID}"/>'
            f'<text x="{self.px(t):.1f}" y="{low + 14:g}" text-anchor="middle">{text}</text>'
            for t, text in _ticks(self.x)
        ]

    def y_axis(self) -> list[str]:
        """Grid lines and numbers at the left."""
        right = self.width - self.right
        return [
            f'<line x1="{self.left:g}" x2="{right:g}" y1="{self.py(t):.1f}" y2="{self.py(t):.1f}" stroke="{GRID}"/>'
            f'<text x="{self.left - 5:g}" y="{self.py(t) + 3.5:.1f}" text-anchor="end">{text}</text>'
            for t, text in _ticks(self.y)
        ]

    def labels(self, x: str, y: str = "") -> list[str]:
        """What the axes are; the frame needs a bottom of `LABELLED`."""
        middle = 0.5 * (self.left + self.width - self.right)
        parts = [f'<text x="{middle:.0f}" y="{self.height - 3:g}" text-anchor="middle">{escape(x)}</text>']
        if y:
            height = 0.5 * (self.top + self.height - self.bottom)
            parts.append(
                f'<text transform="translate(11 {height:.0f}) rotate(-90)" text-anchor="middle">{escape(y)}</text>'
            )
        return parts


def calibration(
    x: Sequence[float], y: Sequence[float], error: Sequence[float], x_label: str, y_label: str, title: str = ""
) -> str:
    """Achieved against promised shares, with bars of two standard errors; the diagonal is perfect."""
    frame = Frame(400, 400, (0.0, 1.0), (0.0, 1.0), 58, bottom=LABELLED)
    parts = frame.x_axis() + frame.y_axis()
    parts.append(
        f'<line x1="{frame.px(0):.1f}" y1="{frame.py(0):.1f}" x2="{frame.px(1):.1f}" y2="{frame.py(1):.1f}" '
        f'stroke="{INK}" stroke-dasharray="4 3"/>'
    )
    points = " ".join(f"{frame.px(a):.1f},{frame.py(b):.1f}" for a, b in zip(x, y, strict=True))
    parts.append(f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>')
    for a, b, e in zip(x, y, error, strict=True):
        low, high = frame.py(max(0.0, b - 2 * e)), frame.py(min(1.0, b + 2 * e))
        at = f"{frame.px(a):.1f}"
        parts.append(
            f'<line x1="{at}" x2="{at}" y1="{low:.1f}" y2="{high:.1f}" stroke="{BLUE}" opacity=".4"/>'
            f'<circle cx="{at}" cy="{frame.py(b):.1f}" r="3" fill="{BLUE}"/>'
        )
    return frame.svg(title, parts + frame.labels(x_label, y_label))
