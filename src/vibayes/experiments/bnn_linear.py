"""Deep linear networks by depth and width (thesis, Sec. "Depth dependence in deep linear networks")."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vibayes import datasets, plotting
from vibayes._figures import COLOURS, label_axes, new_figure
from vibayes.datasets.toys import deep_linear_log_evidence
from vibayes.experiments.bnn_models import FAMILIES, bnn_model, bnn_network
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.record import Number, Result, Statement
from vibayes.likelihoods import Gaussian
from vibayes.training import fit, schedules

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DRAWING", "FIGURES", "linear", "run"]

DATA_SEED = 0
DEPTHS = (1, 2, 4, 8)
STEPS = 10_000
N_INDUCING = 10
N_DRAWS = 200
_SHOWN = 1.5  # nats below the evidence that the figure shows
# Families whose lines lie on one another take turns along them, and their markers are rings around one another.
_LOOKS: dict[str, dict[str, Any]] = {
    "factorised": {"color": COLOURS["blue"], "markersize": 4},
    "local inducing": {"color": COLOURS["green"], "markersize": 4},
    "global inducing": {"color": COLOURS["orange"], "markersize": 9, "linestyle": (0, (2, 4))},
    "fac->gi": {"color": COLOURS["purple"], "markersize": 6, "linestyle": (4, (2, 4))},
    "rand->gi": {"color": COLOURS["sky"], "markersize": 3, "linestyle": (2, (2, 4))},
}


def _bound(family: str, depth: int, width: int, seed: int) -> float:
    """The bound per data point of one network after training, without biases and with the true noise."""
    data = datasets.deep_linear(DATA_SEED)
    x, y = data.x_train, data.y_train
    torch.manual_seed(seed)
    network = bnn_network(
        family,
        [x.shape[1], *[width] * depth, 1],
        n_inducing=N_INDUCING,
        outputs=y[:N_INDUCING, None],
        activation=None,
        bias=False,
    )
    model = bnn_model(x[:N_INDUCING], network, Gaussian(data.metadata["noise_variance"], learn=False))
    rate = schedules.piecewise([3 * STEPS // 4], [1.0, 0.1])
    device = "cuda" if torch.cuda.is_available() else None
    fit(model, (x, y), steps=STEPS, lr=1e-2, lr_schedule=rate, n_samples=1, seed=seed, device=device, progress=False)
    with torch.no_grad():
        return float(model.elbo(x, y, n_samples=N_DRAWS).per_datapoint)


def linear(width: int, seed: int = 0) -> Result:
    """The bounds of all families by the number of hidden layers, below the evidence of the true process."""
    data = datasets.deep_linear(DATA_SEED)
    noise = data.metadata["noise_variance"]
    evidence = float(deep_linear_log_evidence(data.x_train, data.y_train, noise)) / len(data.x_train)
    bounds = {family: [_bound(family, depth, width, seed) for depth in DEPTHS] for family in FAMILIES}
    numbers = [Number("evidence per data point", evidence)]
    for family, values in bounds.items():
        numbers += [
            Number(f"ELBO per data point, {family}, {depth} hidden", value)
            for depth, value in zip(DEPTHS, values, strict=True)
        ]
    fall = {family: values[0] - values[-1] for family, values in bounds.items()}
    flat = ("global inducing", "rand->gi")
    steep = ("factorised", "local inducing")
    statements = [
        *(
            Statement(f"{one} falls at least three times as much with depth as {other}", fall[one] > 3 * fall[other])
            for one in steep
            for other in flat
        ),
        *(
            Statement(f"{other} is above {one} at {DEPTHS[-1]} hidden layers", bounds[other][-1] > bounds[one][-1])
            for one in steep
            for other in flat
        ),
        Statement("no bound is above the evidence", max(max(v) for v in bounds.values()) < evidence + 0.005),
    ]
    arrays = {family: torch.tensor(values) for family, values in bounds.items()}
    arrays |= {"hidden layers": torch.tensor(DEPTHS), "evidence": torch.tensor(evidence)}
    setup = {"data": "deep_linear", "data_seed": DATA_SEED, "width": width, "steps": STEPS, "n_inducing": N_INDUCING}
    return Result(None, numbers, statements, setup, arrays)


def _paint(width: int, arrays: Mapping[str, Tensor]) -> "Figure":
    """Bounds by depth. A family that fits nothing would flatten all others: the axis ends above it, and says so."""
    evidence = float(arrays["evidence"])
    floor = evidence - _SHOWN
    lowest = {family: float(arrays[family].min()) for family in FAMILIES}
    with plotting.style():
        figure = new_figure(5.0, 3.4)
        ax = figure.subplots()
        for family in FAMILIES:
            label = f"{family} (down to {lowest[family]:.1f})" if lowest[family] < floor else family
            ax.plot(arrays["hidden layers"], arrays[family], marker="o", label=label, **_LOOKS[family])
        ax.axhline(evidence, color=COLOURS["black"], linestyle=":", linewidth=1, zorder=1, label="evidence")
        if min(lowest.values()) < floor:
            ax.set_ylim(floor, evidence + 0.05 * _SHOWN)
        label_axes(ax, f"width {width}", "hidden layers", "ELBO per data point")
        figure.legend(loc="outside right center")
    return figure


WIDTHS = (50, 250)
FIGURES: dict[str, Callable[[int], Result]] = {f"width_{width}": partial(linear, width) for width in WIDTHS}

DRAWING = Drawing(
    "gi-linear",
    FIGURES,
    {name: f"fig:gi:linear, {name.replace('_', ' ')}" for name in FIGURES},
    paint={f"width_{width}": partial(_paint, width) for width in WIDTHS},
)
run = DRAWING.run
