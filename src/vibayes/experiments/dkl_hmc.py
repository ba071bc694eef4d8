"""Fully Bayesian deep kernel learning on one input (thesis, Fig. "hmc"): weights and hyperparameters are sampled."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import LogNormal, Normal

from vibayes import datasets, plotting
from vibayes._figures import new_figure
from vibayes.conjugate import ExactGP
from vibayes.experiments.dkl_models import feature_network
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.record import Number, Result, Statement
from vibayes.kernels import DeepKernel, SquaredExponential
from vibayes.likelihoods import Gaussian
from vibayes.mcmc import Chains, ModelTarget, ess_bulk, rhat, sample_posterior
from vibayes.mcmc.hmc import HMC, Sampler
from vibayes.prediction import Prediction
from vibayes.training import fit

__all__ = ["FIGURES", "run", "sample", "toy_hmc_20", "toy_hmc_200"]

WIDTHS = (100, 50, 2)
# Few transitions of 20 steps are not enough: after 200 draws the function's R-hat was 1.07 with all points, after 300
# it was 1.29 with 20 points.
N_CHAINS, N_WARMUP, N_SAMPLES, THIN = 4, 1000, 500, 5
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
    n_warmup: int = N_WARMUP,
    n_samples: int = N_SAMPLES,
    thin: int = THIN,
    sampler: Sampler | None = None,
    progress: bool = False,
) -> tuple[Chains, datasets.Split]:
    """Chains of the deep kernel's GP on every so many'th point of Snelson's data, standardised.

    Weights start as draws from their prior and hyperparameters where the data say something: lengthscales at the size
    of the features, the noise variance at 0.1. From very short lengthscales, where all is noise, chains do not return.
    """
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
        n_warmup=n_warmup,
        n_samples=n_samples,
        thin=thin,
        seed=seed,
        progress=progress,
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
    ours, theirs = raw(chains.predict(inputs, n_samples=200)), raw(se.predict(inputs))
    f = chains.functions(data.x_train[:: max(1, len(data.x_train) // 20)])
    f = f.reshape(chains.n_chains, chains.n_samples, -1)
    evidence = chains.log_density - torch.func.vmap(torch.func.vmap(chains.target.log_prior))(chains.draws)
    inside = (grid[:, 0] >= 0.0) & (grid[:, 0] <= 6.0)
    outside = (grid[:, 0] < -1.0) | (grid[:, 0] > 7.0)
    wiggle = [_roughness(mean[inside]) for mean, _ in (ours, theirs)]
    far = [float(std[outside].mean()) for _, std in (ours, theirs)]
    numbers = [
        Number("mean LML along the chains", float(evidence.mean())),
        Number("largest R-hat of the function at training inputs", float(rhat(f).max())),
        Number("smallest effective sample size of the function", float(ess_bulk(f).min())),
        Number("R-hat of the log density", float(rhat(chains.log_density))),
        Number("divergent transitions", float(chains.diverging.sum())),
        Number("acceptance", float(chains.accept.mean())),
        Number("roughness inside the data, HMC", wiggle[0]),
        Number("roughness inside the data, SE", wiggle[1]),
        Number("mean standard deviation outside the data, HMC", far[0]),
        Number("mean standard deviation outside the data, SE", far[1]),
    ]
    statements = [
        Statement("the chains agree: R-hat of the function is below 1.05", float(rhat(f).max()) < 1.05),
        Statement(
            "no overfitting: the mean is hardly more jagged than that of the SE kernel", wiggle[0] < 2 * wiggle[1]
        ),
        Statement("the uncertainty away from the data is greater than that of the SE kernel", far[0] > far[1]),
    ]
    with plotting.style():
        figure = new_figure(7.2, 2.8)
        panels = (("DKL, HMC", ours), ("SE, maximum of the evidence", theirs))
        for ax, (title, band) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
            plotting.posterior_1d(band, grid, data=(x, y), ax=ax, title=title, legend=False)
    setup = {
        "data": f"snelson, {len(x)} points, standardised",
        "widths": list(WIDTHS),
        "priors": "weights N(0, 1); lengthscales LogNormal(2, 2), variance LogNormal(0, 1), noise LogNormal(-2, 1)",
        "chains": chains.n_chains,
        "warm-up": options.get("n_warmup", N_WARMUP),
        "draws": chains.n_samples,
        "transitions per draw": options.get("thin", THIN),
        "leapfrog": N_LEAPFROG,
    }
    return Result(figure, numbers, statements, setup)


def _roughness(mean: Tensor) -> float:
    """Mean absolute second difference."""
    return float((mean[2:] - 2 * mean[1:-1] + mean[:-2]).abs().mean()) * 1e3


def toy_hmc_200(seed: int = 0, **options: Any) -> Result:
    """All 200 points."""
    return _draw(1, seed, **options)


def toy_hmc_20(seed: int = 0, **options: Any) -> Result:
    """Every tenth point."""
    return _draw(10, seed, **options)


FIGURES = {"toy_hmc_200": toy_hmc_200, "toy_hmc_20": toy_hmc_20}
run = Drawing(
    "dkl-hmc", FIGURES, {name: f"fig:dkl:{name}" for name in FIGURES}, {name: "snelson" for name in FIGURES}
).run
