"""The features of a deep GP and of a deep Wishart process on the cubic (thesis, chapter 5, figures of features)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vibayes import datasets, plotting
from vibayes._figures import label_axes, new_figure
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.record import Number, Result, Statement
from vibayes.kernels import SquaredExponential
from vibayes.layers import GP
from vibayes.likelihoods import Gaussian
from vibayes.model import Model
from vibayes.posteriors import GeneralizedWishart, GlobalInducing
from vibayes.posteriors.base import Posterior
from vibayes.training import fit, schedules

__all__ = ["DRAWING", "FIGURES", "dgp_features", "dwp_features", "run"]

# The thesis leaves these open: ours.
WIDTH = 2
N_INDUCING = 20
STEPS = 2500
N_SAMPLES = 5
N_DRAWS = 400
DATA_SEED = 0


def _data() -> tuple[Tensor, Tensor, Tensor, datasets.Split]:
    """Standardised inputs and targets, the grid in the same units, and the data as they came."""
    data = datasets.cubic(DATA_SEED)
    mean, scale = data.x_train.mean(0), data.x_train.std(0)
    y = (data.y_train - data.y_train.mean()) / data.y_train.std()
    return (data.x_train - mean) / scale, y, (data.x_test - mean) / scale, data


def _fitted(posterior: Posterior, seed: int) -> Model:
    """Two layers, the first one `WIDTH` wide, with squared exponential kernels; noise at its true value."""
    x, y, _, data = _data()
    torch.manual_seed(seed)
    hidden = GP(WIDTH, kernel=SquaredExponential(1), posterior=posterior)
    last = GP(1, kernel=SquaredExponential(WIDTH, lengthscale=WIDTH**0.5), posterior=GlobalInducing("full"))
    noise = Gaussian(float(data.metadata["noise_variance"] / data.y_train.var()), learn=False)
    places = torch.linspace(float(x.min()), float(x.max()), N_INDUCING)[:, None]
    model = Model(nn.Sequential(hidden, last), noise, inducing=places)
    fit(
        model,
        (x, y),
        steps=STEPS,
        lr=1e-2,
        lr_schedule=schedules.piecewise([STEPS // 2], [1.0, 0.1]),
        kl_weight=schedules.linear(0.0, 1.0, max(1, STEPS // 20)),
        n_samples=N_SAMPLES,
        seed=seed,
        progress=False,
    )
    return model


def _measured(model: Model) -> dict[str, Any]:
    x, y, grid, _ = _data()
    first: Any = next(iter(model.layers.values()))
    with torch.no_grad():
        elbo = float(model.elbo(x, y, n_samples=N_DRAWS).value)
    features = model.layer_functions(grid, N_DRAWS)["0"].draws  # [n, G, WIDTH]
    # A Gram matrix, and so the spread of distances between rows, does not depend on the rotation of the features.
    centred = features - features.mean(1, keepdim=True)
    gram = centred @ centred.mT / WIDTH
    prediction = model.predict(grid, n_samples=N_DRAWS)
    outside = (grid[:, 0] < x.min()) | (grid[:, 0] > x.max())
    return {
        "elbo": elbo,
        "lengthscale": float(first.kernel.lengthscale.value.detach()),
        "variety": float(gram.std(0).mean()),
        "outside": float(prediction.std[outside].mean()),
        "features": features,
        "functions": model.sample_functions(grid, 20),
        "prediction": prediction,
    }


def _draw(found: dict[str, Any], name: str, colour: str) -> Any:
    x, y, grid, _ = _data()
    with plotting.style():
        figure = new_figure(12.2, 2.9)
        axes = figure.subplots(1, WIDTH + 2)
        for k in range(WIDTH):
            for draw in found["features"][:20, :, k]:
                axes[k].plot(grid[:, 0], draw, color=colour, alpha=0.4, linewidth=0.8)
            label_axes(axes[k], f"{name}: feature {k + 1}", "x", "f")
            axes[k].margins(x=0)
        for draw in found["functions"]:
            axes[-2].plot(grid[:, 0], draw, color=colour, alpha=0.4, linewidth=0.8)
        axes[-2].scatter(x[:, 0], y, s=10, color=plotting.COLOURS["black"], linewidths=0, zorder=3)
        label_axes(axes[-2], "posterior functions", "x", "y")
        axes[-2].margins(x=0)
    prediction = found["prediction"]
    title = f"prediction,  ELBO {found['elbo']:.1f}"
    plotting.posterior_1d(
        (prediction.mean, prediction.std), grid, data=(x, y), ax=axes[-1], colour=colour, title=title, legend=False
    )
    return figure


def _numbers(found: dict[str, Any]) -> list[Number]:
    return [
        Number("ELBO", found["elbo"]),
        Number("lengthscale of the first layer", found["lengthscale"]),
        Number("spread of the features' Gram matrix over draws", found["variety"]),
        Number("predictive standard deviation outside of the data", found["outside"]),
    ]


def _setup() -> dict[str, Any]:
    return {"data": "cubic", "data_seed": DATA_SEED, "width": WIDTH, "n_inducing": N_INDUCING, "steps": STEPS}


def dgp_features(seed: int = 0) -> Result:
    """Draws of the first layer's functions of a deep GP, of its output, and the prediction."""
    found = _measured(_fitted(GlobalInducing("full", log_precision=-2.0), seed))
    return Result(_draw(found, "DGP", plotting.COLOURS["vermilion"]), _numbers(found), [], _setup())


def dwp_features(seed: int = 0) -> Result:
    """The same for imagined features of a deep Wishart process, and what the thesis says of the two."""
    found = _measured(_fitted(GeneralizedWishart(), seed))
    other = _measured(_fitted(GlobalInducing("full", log_precision=-2.0), seed))
    statements = [
        Statement("the DWP's features are more varied", found["variety"] > other["variety"]),
        Statement("the DWP's lengthscale is shorter", found["lengthscale"] < other["lengthscale"]),
        Statement("the DWP is less certain away from the data", found["outside"] > other["outside"]),
    ]
    return Result(_draw(found, "DWP", plotting.COLOURS["blue"]), _numbers(found), statements, _setup())


FIGURES: dict[str, Callable[[int], Result]] = {"dgp_features": dgp_features, "dwp_features": dwp_features}

DRAWING = Drawing("dwp-toy", FIGURES, {name: f"fig:dwp:{name}" for name in FIGURES})
run = DRAWING.run
