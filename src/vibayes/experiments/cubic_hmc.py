"""The reference of the cubic toy: its Bayesian network sampled by NUTS (thesis, Fig. "toy", the panel of HMC)."""

import itertools
from typing import Any

import torch
from torch import nn

from vibayes import datasets, plotting
from vibayes._figures import new_figure
from vibayes.experiments.record import Number, Result, Statement
from vibayes.layers import Linear
from vibayes.likelihoods import Gaussian
from vibayes.mcmc import NUTS, Chains, ess_bulk, rhat, sample_posterior
from vibayes.model import Model
from vibayes.posteriors import Point

__all__ = ["WIDTHS", "cubic_hmc", "cubic_network", "sample"]

WIDTHS = (1, 50, 50, 1)
# The thesis runs one chain of 20,000 transitions with 20 hand-tuned leapfrog steps. NUTS with up to 255 adapted ones
# gives draws that are nearly independent, so that far fewer will do.
N_CHAINS, N_WARMUP, N_SAMPLES, MAX_DEPTH = 4, 500, 500, 8
N_INPUTS = 50
RHAT = 1.05


def cubic_network() -> nn.Sequential:
    """Two hidden layers of 50 ReLU units with NealPrior weights as parameters."""
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(WIDTHS):
        layers += [Linear(inside, outside, posterior=Point()), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def sample(
    data: datasets.Split,
    seed: int = 0,
    *,
    n_chains: int = N_CHAINS,
    n_warmup: int = N_WARMUP,
    n_samples: int = N_SAMPLES,
    max_depth: int = MAX_DEPTH,
    **options: Any,
) -> Chains:
    """Chains of the network on the cubic data, the noise variance fixed at its true value."""
    noise = data.metadata["noise_variance"] / float(data.y_train.var(correction=0))
    model = Model(cubic_network(), Gaussian(noise, learn=False), standardize="both")
    return sample_posterior(
        model,
        (data.x_train, data.y_train),
        sampler=NUTS(max_depth),
        n_chains=n_chains,
        n_warmup=n_warmup,
        n_samples=n_samples,
        seed=seed,
        **{"progress": False, **options},
    )


def cubic_hmc(seed: int = 0, **options: Any) -> Result:
    """The predictive band of one standard deviation, and whether the chains agree."""
    data = datasets.cubic(0)
    chains = sample(data, seed, **options)
    grid = data.x_test
    prediction = chains.predict(grid, n_samples=400)
    inputs = torch.linspace(float(grid.min()), float(grid.max()), N_INPUTS)[:, None]
    f = chains.functions(inputs).reshape(chains.n_chains, chains.n_samples, -1)
    std = prediction.epistemic.sqrt()
    gap, inside = (grid[:, 0].abs() < 1.0), (grid[:, 0].abs() > 2.5) & (grid[:, 0].abs() < 3.5)
    worst, density = float(rhat(f).max()), float(rhat(chains.log_density))
    widths = float(std[gap].mean()), float(std[inside].mean())
    numbers = [
        Number(f"largest R-hat of the function at {N_INPUTS} inputs", worst),
        Number("R-hat of the log density", density),
        Number("smallest effective sample size of the function", float(ess_bulk(f).min())),
        Number("divergent transitions", float(chains.diverging.sum())),
        Number("leapfrog steps per draw", float(chains.n_leapfrog.double().mean())),
        Number("standard deviation of the function in the gap", widths[0]),
        Number("standard deviation of the function at the data", widths[1]),
    ]
    statements = [
        Statement(f"R-hat of the function and of the log density is below {RHAT}", max(worst, density) < RHAT),
        Statement("the uncertainty in the gap exceeds that at the data", widths[0] > 2 * widths[1]),
    ]
    with plotting.style():
        figure = new_figure(4.4, 3.0)
        band = (prediction.mean, prediction.std)
        points = (data.x_train, data.y_train)
        plotting.posterior_1d(band, grid, data=points, ax=figure.subplots(), title="HMC", legend=False)
    setup = {
        "data": "cubic, seed 0, standardised inside the model",
        "widths": list(WIDTHS),
        "prior": "NealPrior",
        "chains": chains.n_chains,
        "warm-up": options.get("n_warmup", N_WARMUP),
        "draws": chains.n_samples,
        "sampler": f"NUTS, depth at most {options.get('max_depth', MAX_DEPTH)}",
    }
    return Result(figure, numbers, statements, setup)
