"""Figures of what is inside a model: kernels and layers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from vibayes._figures import (
    COLOURS,
    GREY,
    PANEL,
    as_array,
    as_column,
    axes_or_new,
    label_axes,
    mark_inputs,
    new_figure,
    style,
)
from vibayes.data import as_tensor, check_count
from vibayes.errors import DataError, ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["correlation_functions", "layer_features"]


class _LayerFunction(Protocol):
    @property
    def draws(self) -> Tensor: ...


def correlation_functions(
    correlations: Any,
    x_grid: Tensor,
    reference: Tensor,
    *,
    data: Tensor | None = None,
    ax: "Axes | None" = None,
    title: str = "",
    xlabel: str = "x",
) -> "Axes":
    """Prior correlations `k(x, x') / sqrt(k(x, x) k(x', x'))` along one input with a few reference inputs `x'`.

    Correlations that stay near one everywhere, far beyond the distance at which the data change, are the mark of an
    overfitted deep kernel (thesis, Fig. `fig:dkl:toy_problem_corr`).

    Args:
        correlations: a kernel of one input, or values `[R, G]` such as `diagnostics.correlation(model, x_grid,
            reference)` gives for any model.
        x_grid: inputs `[G]` or `[G, 1]`, in any order.
        reference: inputs `[R]` or `[R, 1]`, at which the curves are one.
        data: training inputs `[N]` or `[N, 1]`, marked along the bottom.
        ax: where to draw; a new figure when None.
        title: of the axes.
        xlabel: name and unit of the input.

    >>> import torch, vibayes as vb
    >>> grid = torch.linspace(-3, 3, 7)
    >>> ax = correlation_functions(vb.SquaredExponential(1), grid, torch.tensor([0.0]))
    >>> ax.lines[0].get_ydata()[2:5].round(3).tolist()
    [0.607, 1.0, 0.607]
    """
    x, places = as_column(x_grid, "x_grid"), as_column(reference, "reference")
    rho = as_array(_correlate(correlations, x_grid, reference), "correlations")
    if rho.shape != (len(places), len(x)):
        raise ShapeError(
            f"correlations must be [{len(places)}, {len(x)}], a row per reference input; got {list(rho.shape)}."
        )
    order = np.argsort(x, kind="stable")
    with style():
        ax = axes_or_new(ax, size=(PANEL[0] + 0.9, PANEL[1]))
        for place, row in zip(places, rho, strict=True):
            (line,) = ax.plot(x[order], row[order], label=f"x' = {place:.3g}")
            ax.axvline(place, color=line.get_color(), linewidth=0.8, linestyle=":")
        if data is not None:
            mark_inputs(ax, data, "data", "data", marker="|", size=6, colour=COLOURS["black"])
        ax.margins(x=0)
        ax.set_ylim(min(-0.02, 1.05 * float(rho.min())), 1.05)
        label_axes(ax, title, xlabel, "prior correlation with x'")
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


def layer_features(
    layers: Mapping[str, _LayerFunction],
    x_grid: Tensor,
    *,
    n_features: int = 2,
    n_draws: int = 10,
    xlabel: str = "x",
) -> "Figure":
    """What every layer makes of one input: draws of its first features, and their mean over all draws.

    Features of a Wishart layer are imagined: only their inner products have a meaning, so their draws show how much the
    layer's values vary, not what each feature is.

    Args:
        layers: what `model.layer_functions(x_grid)` returned: `.draws` `[n, G, P]` by the layer's name.
        x_grid: the inputs `[G]` or `[G, 1]` there, in any order.
        n_features: how many of each layer's outputs to draw, one row of panels per layer and one column per output.
        n_draws: how many draws to show.
        xlabel: name and unit of the input.

    >>> import torch, vibayes as vb
    >>> x = torch.linspace(-1, 1, 5)[:, None]
    >>> first, last = vb.GP(2, kernel=vb.SquaredExponential(1)), vb.GP(1, kernel=vb.SquaredExponential(2))
    >>> model = vb.Model(torch.nn.Sequential(first, last), vb.Gaussian(0.1), inducing=x)
    >>> grid = torch.linspace(-2, 2, 20)[:, None]
    >>> figure = layer_features(model.layer_functions(grid, 20), grid)
    >>> len(figure.axes)  # two outputs of the first layer, one of the second
    3
    """
    check_count(n_features, "n_features")
    check_count(n_draws, "n_draws")
    x = as_column(x_grid, "x_grid")
    if not layers:
        raise DataError("layer_features needs at least one layer; give it model.layer_functions(x_grid).")
    values = {name: as_array(layer.draws, f"draws of layer {name!r}") for name, layer in layers.items()}
    for name, draws in values.items():
        if draws.ndim != 3 or draws.shape[1] != len(x):
            raise ShapeError(f"The draws of layer {name!r} must be [n, {len(x)}, P], got {list(draws.shape)}.")
    order = np.argsort(x, kind="stable")
    columns = min(n_features, max(draws.shape[2] for draws in values.values()))
    with style():
        figure = new_figure(2.6 * columns + 0.4, 1.9 * len(values) + 0.3)
        grid = figure.subplots(len(values), columns, sharex=True, squeeze=False)
        for row, (name, draws) in zip(grid, values.items(), strict=True):
            for k, ax in enumerate(row):
                if k >= draws.shape[2]:
                    ax.remove()
                    continue
                for i, draw in enumerate(draws[:n_draws, :, k]):
                    label = "draws" if i == 0 else None
                    ax.plot(x[order], draw[order], color=GREY, alpha=0.45, linewidth=0.6, label=label)
                ax.plot(x[order], draws[:, order, k].mean(0), color=COLOURS["blue"], label="mean over all draws")
                ax.margins(x=0)
                bottom = row is grid[-1] or all(below.shape[2] <= k for below in _after(values, name))
                ax.xaxis.set_tick_params(labelbottom=bottom)
                label_axes(ax, f"layer {name}, output {k + 1}", xlabel if bottom else "", "")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _after(values: Mapping[str, Any], name: str) -> list[Any]:
    names = list(values)
    return [values[later] for later in names[names.index(name) + 1 :]]


@torch.no_grad()
def _correlate(correlations: Any, x_grid: Tensor, reference: Tensor) -> Any:
    if not callable(correlations) or isinstance(correlations, Tensor):
        return correlations
    like = next(iter(correlations.parameters()), torch.empty(()))  # the kernel's dtype and device
    x, z = (as_tensor(v, name).to(like).reshape(-1, 1) for v, name in ((x_grid, "x_grid"), (reference, "reference")))
    return correlations(z, x) / (correlations.diag(z)[:, None] * correlations.diag(x)).sqrt()
