"""What all figures share: the style, colours, making a figure without pyplot, and writing it to a file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vibayes.data import as_tensor
from vibayes.errors import ConfigurationError, DataError, ShapeError
from vibayes.writing import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "GREY",
    "PANEL",
    "as_array",
    "as_column",
    "axes_or_new",
    "diagonal",
    "label_axes",
    "mark_inputs",
    "new_figure",
    "save",
    "style",
    "unit_square",
]

COLOURS = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "yellow": "#F0E442",
    "black": "#000000",
}

GREY = "#767676"
PANEL = (4.2, 2.8)  # inches


@contextmanager
def style() -> Iterator[None]:
    """The style of every figure here; use it for your own figures too.

    >>> with style():
    ...     pass
    """
    matplotlib = _import()
    settings = {
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.labelsize": 9,
        "axes.prop_cycle": matplotlib.cycler(color=list(COLOURS.values())),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 10,
        "figure.dpi": 150,
        "figure.facecolor": "white",
        "font.size": 9,
        "grid.alpha": 0.25,
        "grid.linewidth": 0.5,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "lines.linewidth": 1.5,
        "savefig.bbox": None,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
    }
    with matplotlib.rc_context(settings):
        yield


def save(figure: "Figure | Axes", path: str | os.PathLike[str], *, dpi: int = 200) -> Path:
    """Write a figure to a file: completely, or not at all.

    The folder is made if it does not exist. The file is written aside and then renamed, so that nobody sees
    half of it and a failure leaves an older file as it was.

    Args:
        figure: a figure, or axes on it.
        path: the file; its suffix (`.png`, `.pdf`, `.svg`, ...) is the format.
        dpi: resolution of raster formats.

    Returns:
        The path.

    >>> import tempfile
    >>> from vibayes import plotting
    >>> ax = plotting.ranking(["linear", "GP"], [-1.11, -1.09])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plotting.save(ax, f"{folder}/figures/ranking.pdf").name
    'ranking.pdf'
    """
    target = Path(path)
    whole: Any = figure.figure.figure  # of axes, of axes on a part of a figure, and of the figure itself
    formats = whole.canvas.get_supported_filetypes()
    kind = target.suffix[1:].lower()
    if kind not in formats:
        known = ", ".join(sorted(formats))
        raise ConfigurationError(f"Cannot tell a figure format from {target.name!r}; use a suffix of {known}.")
    try:
        with written_whole(target) as aside, style():
            whole.savefig(aside, format=kind, dpi=dpi)
    except OSError as error:
        raise DataError(
            f"Cannot write the figure to {target}: {error.strerror or error}. Choose another folder."
        ) from error
    return target


def _import() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ConfigurationError('Figures need matplotlib: pip install "vibayes[plots]".') from None
    return matplotlib


def new_figure(width: float, height: float) -> "Figure":
    _import()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def axes_or_new(ax: "Axes | None", size: tuple[float, float] = PANEL) -> "Axes":
    return new_figure(*size).add_subplot() if ax is None else ax


def label_axes(ax: "Axes", title: str, xlabel: str, ylabel: str, legend: bool = False) -> None:
    if title:  # a later curve on the same axes leaves theirs
        ax.set_title(title)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if legend:
        ax.legend()


def mark_inputs(ax: "Axes", inputs: Any, what: str, label: str, *, marker: str, size: float, colour: str) -> None:
    """Mark inputs `[N]` or `[N, 1]` along the bottom of the axes."""
    places = as_column(inputs, what)
    bottom = [0.02] * len(places)  # as a share of the height
    ax.plot(places, bottom, marker, transform=ax.get_xaxis_transform(), markersize=size, color=colour, label=label)


def diagonal(ax: "Axes") -> None:
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--", zorder=1)


def unit_square(ax: "Axes") -> None:
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")


def as_array(values: Any, what: str) -> Any:
    return as_tensor(values, what).double().cpu().numpy()


def as_column(values: Any, what: str) -> Any:
    """Numbers `[N]` from `[N]` or `[N, 1]`."""
    array = as_array(values, what)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ShapeError(f"{what} must be [N] or [N, 1], got shape {list(array.shape)}.")
    if len(array) == 0:
        raise DataError(f"{what} is empty; there is nothing to draw.")
    return array
