"""Fully Bayesian deep kernel learning on one input (thesis, Fig. "hmc"): weights and hyperparameters are sampled."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import LogNormal, Normal

from vibayes import datasets, plotting
from vibayes._figures import new_figure
from vibayes.compiler import can_compile
from vibayes.conjugate import ExactGP
from vibayes.experiments.dkl_models import feature_network, roughness
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.record import Number, Result, Statement
from vibayes.kernels import DeepKernel, SquaredExponential
from vibayes.likelihoods import Gaussian
from vibayes.mcmc import Chains, ModelTarget, ess_bulk, rhat, sample_posterior
from vibayes.mcmc.hmc import HMC, Sampler
from vibayes.prediction import Prediction
from vibayes.training import fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DRAWING", "FIGURES", "paint", "run", "sample", "toy_hmc_20", "toy_hmc_200"]

WIDTHS = (100, 50, 2)
N_CHAINS = 4
# Warm-up, draws, and transitions per draw, by every how many'th point there is. The thesis: 10,000, 1,000 and 10 in one
# chain. With all points, 1,000 and 5 are enough: the largest R-hat of function, evidence and log density is 1.10 after
# 200 draws, 1.04 after 300 and 1.02 after 600. With 20 points chains wander farther (1.19, 1.04 and 1.02 after 100, 250
# and 500 draws) and cost little.
LENGTHS = {1: (1000, 600, 5), 10: (10_000, 1000, 10)}
N_INPUTS = 50
RHAT = 1.05
_ALIKE = "the two features may swap, and their scale is that of the last weights over the lengthscale"
N_LEAPFROG = 20  # the thesis's; its step size of 0.005 is adapted here
# Weights as in the thesis; it gives no priors of hyperparameters. Features of such a network are of size 50, so that
# the lengthscale's prior must be wide.
PRIORS = {
    "kernel.network.*": Normal(0.0, 1.0),
    "*lengthscale": LogNormal(2.0, 2.0),
    "*variance": LogNormal(0.0, 1.0),
    "*noise": LogNormal(-2.0, 1.0),
}


def _grid() -> Float[Tensor, "g 1"]:
    return torch.linspace(-3.0, 9.0, 241)[:, None]


def sample(
    every: int,
    seed: int,
    *,
    n_chains: int = N_CHAINS,
    n_warmup: int | None = None,
    n_samples: int | None = None,
    thin: int | None = None,
    sampler: Sampler | None = None,
    **options: Any,
) -> tuple[Chains, datasets.Split]:
    """Chains of the deep kernel's GP on every so many'th point of Snelson's data, standardised.

    Weights start as draws from their prior and hyperparameters where the data say something: lengthscales at the size
    of the features, the noise variance at 0.1. From very short lengthscales, where all is noise, chains do not return.
    How long chains are stands in `LENGTHS` where it is not given. Other options go to `sample_posterior`.
    """
    given = (n_warmup, n_samples, thin)
    warmup, draws, apart = (usual if one is None else one for one, usual in zip(given, LENGTHS[every], strict=True))
    data = datasets.load("snelson", every=every).standardized("both", ddof=1)
    network = feature_network(1, WIDTHS, last_activation=False)
    kernel = SquaredExponential(WIDTHS[-1], ard=True)
    gp = ExactGP(DeepKernel(network, kernel), Gaussian(0.1))
    target = ModelTarget(gp, (data.x_train, data.y_train), PRIORS)
    start = target.sample_prior(n_chains, torch.Generator().manual_seed(seed))
    for chain in start:
        target.put(chain)
        with torch.no_grad():
            spread = network(data.x_train).std(0)
        kernel.lengthscale.set(spread)
        kernel.variance.set(1.0)
        gp.likelihood.noise.set(0.1)
        chain.copy_(target.current())
    chains = sample_posterior(
        target,
        start=start,
        sampler=HMC(N_LEAPFROG) if sampler is None else sampler,
        n_chains=n_chains,
        n_warmup=warmup,
        n_samples=draws,
        thin=apart,
        seed=seed,
        **{"progress": False, "compile": can_compile(), "checkpoint_seconds": 60.0, **options},
    )
    return chains, data


def _draw(every: int, seed: int, **options: Any) -> Result:
    chains, data = sample(every, seed, **options)
    grid = _grid()
    inputs = (grid - data.x_mean) / data.x_std
    x, y = data.x_train * data.x_std + data.x_mean, data.original_targets(data.y_train)

    def raw(prediction: Prediction) -> tuple[Tensor, Tensor]:
        return prediction.mean * data.y_std + data.y_mean, prediction.std * data.y_std

    se = ExactGP(SquaredExponential(1), Gaussian(1.0))
    fit(se, (data.x_train, data.y_train), progress=False)
    ours, theirs = raw(chains.predict(inputs, n_samples=400)), raw(se.predict(inputs))
    places = torch.linspace(0, len(grid) - 1, N_INPUTS).round().long()
    f = chains.functions(inputs[places]).reshape(chains.n_chains, chains.n_samples, -1)
    worst, density = float(rhat(f).max()), float(rhat(chains.log_density))
    evidence = chains.log_density - torch.func.vmap(torch.func.vmap(chains.target.log_prior))(chains.draws)
    inside = (grid[:, 0] >= 0.0) & (grid[:, 0] <= 6.0)
    outside = (grid[:, 0] < -1.0) | (grid[:, 0] > 7.0)
    wiggle = [roughness(mean[inside]) for mean, _ in (ours, theirs)]
    far = [float(std[outside].mean()) for _, std in (ours, theirs)]
    numbers = [
        Number("mean LML along the chains", float(evidence.mean())),
        Number(f"largest R-hat of the function at {N_INPUTS} inputs", worst),
        Number("R-hat of the log density", density),
        Number("R-hat of the LML", float(rhat(evidence))),
        Number("largest R-hat of the noise and the signal variance", _rhat_of(chains, "noise", "variance")),
        Number("largest R-hat of a lengthscale", _rhat_of(chains, "lengthscale"), note=_ALIKE),
        Number("smallest effective sample size of the function", float(ess_bulk(f).min())),
        Number("divergent transitions", float(chains.diverging.sum())),
        Number("acceptance", float(chains.accept.mean())),
        Number("roughness inside the data, HMC", wiggle[0]),
        Number("roughness inside the data, SE", wiggle[1]),
        Number("mean standard deviation outside the data, HMC", far[0]),
        Number("mean standard deviation outside the data, SE", far[1]),
    ]
    statements = [
        Statement(f"R-hat of the function and of the log density is below {RHAT}", max(worst, density) < RHAT),
        Statement(
            "no overfitting: the mean is hardly more jagged than that of the SE kernel", wiggle[0] < 2 * wiggle[1]
        ),
        Statement("the uncertainty away from the data is greater than that of the SE kernel", far[0] > far[1]),
    ]
    setup = {
        "data": f"snelson, {len(x)} points, standardised",
        "widths": list(WIDTHS),
        "priors": "weights N(0, 1); lengthscales LogNormal(2, 2), variance LogNormal(0, 1), noise LogNormal(-2, 1)",
        "chains": chains.n_chains,
        "warm-up": options.get("n_warmup", LENGTHS[every][0]),
        "draws": chains.n_samples,
        "transitions per draw": options.get("thin", LENGTHS[every][2]),
        "leapfrog": N_LEAPFROG,
        "step sizes": [round(float(step), 4) for step in chains.step_size] if chains.step_size is not None else None,
        "seconds of sampling": round(chains.seconds, 1),
    }
    arrays = {"x": x, "y": y, "grid": grid, "mean": ours[0], "std": ours[1], "se_mean": theirs[0], "se_std": theirs[1]}
    return Result(None, numbers, statements, setup, arrays)


def paint(arrays: Mapping[str, Tensor]) -> "Figure":
    """The two bands side by side."""
    panels = (("DKL, HMC", "mean", "std"), ("SE, maximum of the evidence", "se_mean", "se_std"))
    with plotting.style():
        figure = new_figure(7.2, 2.8)
        for ax, (title, mean, std) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
            band, points = (arrays[mean], arrays[std]), (arrays["x"], arrays["y"])
            plotting.posterior_1d(band, arrays["grid"], data=points, ax=ax, title=title, legend=False)
    return figure


def _rhat_of(chains: Chains, *endings: str) -> float:
    """The largest R-hat of hyperparameters whose names end so; like weights, features and their scales may permute."""
    found = [values for name, values in chains.values.items() if name.endswith(endings)]
    return max(float(rhat(values).max()) for values in found)


def toy_hmc_200(seed: int = 0, **options: Any) -> Result:
    """All 200 points."""
    return _draw(1, seed, **options)


def toy_hmc_20(seed: int = 0, **options: Any) -> Result:
    """Every tenth point."""
    return _draw(10, seed, **options)


FIGURES = {"toy_hmc_200": toy_hmc_200, "toy_hmc_20": toy_hmc_20}
DRAWING = Drawing(
    "dkl-hmc",
    FIGURES,
    {name: f"fig:dkl:{name}" for name in FIGURES},
    {name: "snelson" for name in FIGURES},
    {name: paint for name in FIGURES},
    resumable=tuple(FIGURES),
)
run = DRAWING.run
