"""What the layers of a deep GP learn (thesis, App. "Understanding compositional uncertainty", DGP part)."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vibayes import datasets, plotting
from vibayes._figures import new_figure
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.record import Number, Result, Statement
from vibayes.inspection import LayerFunction
from vibayes.kernels import SquaredExponential
from vibayes.layers import GP
from vibayes.likelihoods import Gaussian
from vibayes.model import Model
from vibayes.posteriors import GlobalInducing, LocalInducing
from vibayes.training import fit, schedules

__all__ = ["DRAWING", "FIGURES", "dgp_uncertainty", "run"]

# The thesis leaves kernels, noise, inducing points and training open: ours.
DATA_SEED = 1
N_INDUCING = 25
STEPS = 2500
N_SAMPLES = 5
N_DRAWS = 400


def _model(posterior: str, x: Tensor) -> Model:
    """Two layers of width one with squared exponential kernels; they differ in the posterior only.

    Global inducing starts with its first layer near the identity: from near the prior it takes ten times as long.
    """
    if posterior == "local":
        layers = [GP(1, kernel=SquaredExponential(1), posterior=LocalInducing(N_INDUCING, form="pseudo"))] * 2
        return Model(nn.Sequential(*map(copy.deepcopy, layers)), Gaussian(0.05))
    places = x[torch.linspace(0, len(x) - 1, N_INDUCING).round().long()]
    first = GlobalInducing(pseudo_outputs=places, log_precision=0.0)
    families = (first, GlobalInducing(log_precision=2.0))
    network = nn.Sequential(*(GP(1, kernel=SquaredExponential(1), posterior=family) for family in families))
    return Model(network, Gaussian(0.05), inducing=places)


def _fitted(posterior: str, x: Tensor, y: Tensor, seed: int) -> Model:
    torch.manual_seed(seed)
    model = _model(posterior, x)
    rate = schedules.piecewise([STEPS // 2], [1.0, 0.1])
    warm_up = schedules.linear(0.0, 1.0, max(1, STEPS // 20))
    fit(
        model,
        (x, y),
        steps=STEPS,
        lr=1e-2,
        lr_schedule=rate,
        kl_weight=warm_up,
        n_samples=N_SAMPLES,
        seed=seed,
        progress=False,
    )
    return model


def dgp_uncertainty(seed: int = 0) -> Result:
    """Posteriors of both layers' functions and of the output, with local and with global inducing points."""
    data = datasets.deep_gp(DATA_SEED)
    x, grid = ((rows - data.x_train.mean(0)) / data.x_train.std(0) for rows in (data.x_train, data.x_test))
    y = (data.y_train - data.y_train.mean()) / data.y_train.std()
    hidden = torch.linspace(-2.5, 2.5, 101)[:, None]
    inside = (grid[:, 0] >= x.min()) & (grid[:, 0] <= x.max())
    numbers, elbo, spread = [], {}, {}
    with plotting.style():
        figure = new_figure(9.4, 5.2)
        axes = figure.subplots(2, 3)
    for row, posterior in zip(axes, ("local", "global"), strict=True):
        model = _fitted(posterior, x, y, seed)
        with torch.no_grad():
            elbo[posterior] = float(model.elbo(x, y, n_samples=N_DRAWS).value)
        layers = model.layer_functions(grid, N_DRAWS, grids={"1": hidden})
        used = model.layer_functions(x, N_DRAWS)["0"].draws.flatten()  # where the second layer's function matters
        low, high = torch.quantile(used, torch.tensor([0.025, 0.975])).tolist()
        reached = (hidden[:, 0] >= low) & (hidden[:, 0] <= high)
        first = layers["0"].variance[inside, 0].mean()
        second = layers["1"].variance[reached, 0].mean()
        spread[posterior] = (float(first.sqrt()), float(second.sqrt()))
        numbers += [
            Number(f"ELBO, {posterior} inducing", elbo[posterior]),
            Number(f"standard deviation of the first layer, {posterior} inducing", spread[posterior][0]),
            Number(f"standard deviation of the second layer, {posterior} inducing", spread[posterior][1]),
        ]
        _panels(row, posterior, model, layers, grid, hidden, (x, y), elbo[posterior])
    statements = [
        Statement("global inducing has the better ELBO", elbo["global"] > elbo["local"]),
        *(
            Statement(f"the {name} layer's function is broader with global inducing", broad)
            for name, broad in zip(
                ("first", "second"), (spread["global"][k] > spread["local"][k] for k in range(2)), strict=True
            )
        ),
    ]
    setup = {"data": "deep_gp", "data_seed": DATA_SEED, "n": len(x), "n_inducing": N_INDUCING, "steps": STEPS}
    return Result(figure, numbers, statements, setup)


def _panels(
    row: Any,
    posterior: str,
    model: Model,
    layers: dict[str, LayerFunction],
    grid: Tensor,
    hidden: Tensor,
    data: tuple[Tensor, Tensor],
    elbo: float,
) -> None:
    colour = plotting.COLOURS["vermilion" if posterior == "local" else "blue"]
    titles = (f"{posterior} inducing: layer 1", "layer 2", f"output,  ELBO {elbo:.1f}")
    panels = ((layers["0"], grid, "x", "h"), (layers["1"], hidden, "h", "f"))
    for ax, title, (function, at, xlabel, ylabel) in zip(row, titles, panels, strict=False):
        plotting.posterior_1d(
            (function.mean[:, 0], function.variance[:, 0].sqrt()),
            at,
            samples=function.draws[:12, :, 0],
            ax=ax,
            colour=colour,
            title=title,
            xlabel=xlabel,
            ylabel=ylabel,
            legend=False,
        )
    prediction = model.predict(grid, n_samples=N_DRAWS)
    plotting.posterior_1d(
        (prediction.mean, prediction.std), grid, data=data, ax=row[2], colour=colour, title=titles[2], legend=False
    )


FIGURES = {"dgp_uncertainty": dgp_uncertainty}

DRAWING = Drawing("dgp-compositional", FIGURES, {"dgp_uncertainty": "fig:gi:dgp-uncertainty"})
run = DRAWING.run
