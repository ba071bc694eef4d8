"""Bayesian networks on the cubic with a gap (thesis, Sec. "Uncertainty in 1D regression" of chapter 4)."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vibayes import plotting
from vibayes.experiments import cubic_hmc
from vibayes.experiments.bnn_models import bnn_model, bnn_network
from vibayes.experiments.cubic_hmc import DATA_SEED, Reference, cubic
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.record import Number, Result, Statement
from vibayes.likelihoods import Gaussian
from vibayes.model import Model
from vibayes.training import fit_many

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DRAWING", "FIGURES", "run", "toy", "toy_points"]

SHOWN = ("factorised", "local inducing", "global inducing")

N_SEEDS = 5
STEPS = 5000
N_SAMPLES = 10
N_INDUCING = 100
POINTS = (2, 5, 10, 20, 40)
N_DRAWS = 2000
_LEAST_GAIN = 4.0
# The log evidence of the infinitely wide network with these priors is near -60 nats in total on such data, so the
# thesis's bounds of -4.6, -5.5 and 2.2 cannot be totals. Per data point the first two agree with ours, and the third
# must have lost its minus sign: 2.2 is above what the noise allows any model.
_UNITS = "the thesis gives no unit, and its data are others; see the experiment's note"


@cache
def _trained(family: str, n_inducing: int, seed: int) -> list[Model]:
    """Models of all seeds, trained together; inducing inputs and last pseudo-outputs start standard normal."""
    data = cubic()
    models = []
    for number in range(N_SEEDS):
        torch.manual_seed(1000 * seed + number)
        outputs, inducing = torch.randn(n_inducing, 1), torch.randn(n_inducing, 1)
        network = bnn_network(family, [1, 50, 50, 1], n_inducing=n_inducing, outputs=outputs)
        models.append(bnn_model(inducing, network, Gaussian(data.noise, learn=False)))
    fit_many(
        models,
        [(data.x, data.y)] * N_SEEDS,
        steps=STEPS,
        lr=1e-2,
        n_samples=N_SAMPLES,
        seed=[1000 * seed + number for number in range(N_SEEDS)],
        device="cuda" if torch.cuda.is_available() else None,
        progress=False,
    )
    return [model.cpu() for model in models]


@torch.no_grad()
def _elbo(model: Model) -> float:
    data = cubic()
    return float(model.elbo(data.x, data.y, n_samples=N_DRAWS).value)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _layer_variances(model: Model) -> list[float]:
    """`E_x` of the mean over units of `Var[f_l(x)]` for each layer's own function, `x` standard normal.

    The function of a layer is `W_l relu(x)`, without the ReLU in the first: then layers at the prior have variances 1,
    0.5 and 0.5, to which the thesis's numbers fit.
    """
    random = torch.Generator().manual_seed(0)
    grids = {
        name: torch.randn(200, layer.in_features, generator=random, dtype=torch.float64)
        for name, layer in model.layers.items()
    }
    first = next(iter(grids))
    grids = {name: rows if name == first else rows.relu() for name, rows in grids.items()}
    found = model.layer_functions(grids[first], N_DRAWS // 2, grids=grids)
    return [float(layer.variance.mean()) for layer in found.values()]


def _band(model: Model) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the function on the grid."""
    prediction = model.predict(cubic().grid, n_samples=N_DRAWS // 2)
    return prediction.mean, prediction.epistemic.sqrt()


def _distance(band: tuple[Tensor, Tensor], reference: Reference) -> float:
    """The 2-Wasserstein distance of Gaussians with the moments of `f(x)`, mean over the data's range and the gap."""
    apart = ((band[0] - reference.mean).square() + (band[1] - reference.std).square()).sqrt()
    return float(apart[cubic().near].mean())


def toy(seed: int = 0) -> Result:
    """Factorised, local and global inducing posteriors beside HMC: bounds, bands, and the layers' variances."""
    data, reference = cubic(), cubic_hmc.reference(seed)
    numbers, bands, draws = [], [], []
    bounds, spread, distance = {}, {}, {}
    for family in SHOWN:
        models = _trained(family, N_INDUCING, seed)
        each = [_elbo(model) for model in models]
        bounds[family] = _mean(each)
        row = {"dataset": "toy_cubic", "model": family}
        note = f"mean of {N_SEEDS} seeds, from {min(each):.2f} to {max(each):.2f} in total; {_UNITS}"
        numbers += [
            Number(f"ELBO, {family}", bounds[family]),
            Number(
                f"ELBO per data point, {family}",
                bounds[family] / len(data.x),
                thesis=_PRINTED[family][0],
                note=note,
                row=row | {"metric": "elbo_total"},
            ),
        ]
        variances = [_layer_variances(model) for model in models]
        numbers += [
            Number(
                f"variance of layer {layer + 1}, {family}",
                _mean([v[layer] for v in variances]),
                thesis=_PRINTED[family][1 + layer],
                row=row | {"metric": f"mean_variance_layer{layer + 1}"},
            )
            for layer in range(3)
        ]
        of_seeds = [_band(model) for model in models]
        spread[family] = _mean([float(std[data.gap].mean()) for _, std in of_seeds])
        distance[family] = _mean([_distance(band, reference) for band in of_seeds])
        numbers += [
            Number(f"standard deviation in the gap, {family}", spread[family]),
            Number(f"distance to HMC, {family}", distance[family]),
        ]
        bands.append(of_seeds[0])
        draws.append(models[0].sample_functions(data.grid, 5))
    numbers.append(Number("standard deviation in the gap, HMC", float(reference.std[data.gap].mean())))
    bands.append((reference.mean, reference.std))
    draws.append(reference.functions)
    arrays = _arrays(bands, draws) | {"bounds": torch.tensor([bounds[family] for family in SHOWN])}
    statements = _statements(bounds, spread, distance, {number.name: number.ours for number in numbers})
    return Result(None, numbers, statements, _setup(N_INDUCING), arrays)


def _statements(
    bounds: Mapping[str, float],
    spread: Mapping[str, float],
    distance: Mapping[str, float],
    by_name: Mapping[str, float],
) -> list[Statement]:
    """What the thesis says, of bounds, standard deviations in the gap, distances to HMC, and numbers by name."""
    best = bounds["global inducing"]
    statements = [
        Statement(
            f"global inducing is at least {_LEAST_GAIN:g} nats above {family}", best >= bounds[family] + _LEAST_GAIN
        )
        for family in ("factorised", "local inducing")
    ]
    others = max(spread["factorised"], spread["local inducing"])
    statements += [
        Statement("global inducing is the least sure in the gap", spread["global inducing"] > others),
        Statement(
            "of the three, global inducing is the closest to HMC", min(distance, key=distance.__getitem__) == SHOWN[-1]
        ),
    ]
    return statements + [
        Statement(
            f"global inducing has the largest variance in layer {layer}",
            by_name[f"variance of layer {layer}, global inducing"]
            > max(by_name[f"variance of layer {layer}, {family}"] for family in ("factorised", "local inducing")),
        )
        for layer in (1, 3)
    ]


def _arrays(bands: list[tuple[Tensor, Tensor]], draws: list[Tensor]) -> dict[str, Tensor]:
    data = cubic()
    mean, std = (torch.stack(parts) for parts in zip(*bands, strict=True))
    points = {"x": data.x, "y": data.y, "grid": data.grid}
    return points | {"mean": mean, "std": std, "functions": torch.stack(draws)}


def _panels(arrays: Mapping[str, Tensor], titles: list[str], columns: int) -> "Figure":
    panels = [(title, (m, s)) for title, m, s in zip(titles, arrays["mean"], arrays["std"], strict=True)]
    points = (arrays["x"], arrays["y"])
    return plotting.compare_1d(panels, arrays["grid"], data=points, samples=list(arrays["functions"]), columns=columns)


def _paint_toy(arrays: Mapping[str, Tensor]) -> "Figure":
    titles = [f"{family}:  ELBO {bound:.2f}" for family, bound in zip(SHOWN, arrays["bounds"].tolist(), strict=True)]
    return _panels(arrays, [*titles, "HMC"], 2)


def toy_points(seed: int = 0) -> Result:
    """Global inducing with more and more inducing points: ten are enough."""
    data = cubic()
    numbers, bands, draws, bounds = [], [], [], {}
    for M in POINTS:
        models = _trained("global inducing", M, seed)
        bounds[M] = _mean([_elbo(model) for model in models]) / len(data.x)
        numbers.append(Number(f"ELBO per data point, M={M}", bounds[M]))
        bands.append(_band(models[0]))
        draws.append(models[0].sample_functions(data.grid, 5))
    statements = [
        Statement("two inducing points are not enough", bounds[2] < bounds[10] - 0.1),
        Statement("from ten on hardly anything changes", abs(bounds[40] - bounds[10]) < 0.05),
    ]
    kept = {"points": torch.tensor(list(bounds)), "bounds": torch.tensor(list(bounds.values()))}
    return Result(None, numbers, statements, _setup(max(POINTS)), _arrays(bands, draws) | kept)


def _paint_points(arrays: Mapping[str, Tensor]) -> "Figure":
    each = zip(arrays["points"].tolist(), arrays["bounds"].tolist(), strict=True)
    return _panels(arrays, [f"M = {M}:  ELBO {bound:.3f} per point" for M, bound in each], 3)


def _setup(n_inducing: int) -> dict[str, object]:
    return {
        "data": "cubic",
        "data_seed": DATA_SEED,
        "seeds": N_SEEDS,
        "steps": STEPS,
        "n_samples": N_SAMPLES,
        "n_inducing": n_inducing,
    }


# What the thesis prints: the bound and the variances of three layers.
_PRINTED = {
    "factorised": (-4.585, 0.0728, 0.4765, 0.1926),
    "local inducing": (-5.469, 0.0763, 0.4473, 0.0643),
    "global inducing": (2.236, 0.4820, 0.4877, 1.0820),
}

FIGURES: dict[str, Callable[[int], Result]] = {"toy": toy, "toy_hmc": cubic_hmc.cubic_hmc, "toy_points": toy_points}

_LABELS = {"toy": "fig:gi:toy", "toy_hmc": "fig:gi:toy (HMC)", "toy_points": "fig:gi:toy-points"}

DRAWING = Drawing(
    "gi-toy", FIGURES, _LABELS, paint={"toy": _paint_toy, "toy_hmc": cubic_hmc.paint, "toy_points": _paint_points}
)
run = DRAWING.run
