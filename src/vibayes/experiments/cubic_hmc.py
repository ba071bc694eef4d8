"""The reference of the cubic toy: its Bayesian network sampled by NUTS (thesis, Fig. "toy", the panel of HMC)."""

import itertools
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import datasets, plotting
from vibayes._figures import new_figure
from vibayes.compiler import can_compile
from vibayes.experiments.record import Number, Result, Statement
from vibayes.layers import Linear
from vibayes.likelihoods import Gaussian
from vibayes.mcmc import NUTS, Chains, ess_bulk, rhat, sample_posterior
from vibayes.model import Model
from vibayes.posteriors import Point

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "DATA_SEED",
    "WIDTHS",
    "Cubic",
    "Reference",
    "cubic",
    "cubic_hmc",
    "cubic_network",
    "paint",
    "reference",
    "sample",
]

# The thesis gives neither its data nor seeds: ours.
DATA_SEED = 0
WIDTHS = (1, 50, 50, 1)
# The thesis runs one chain of 20,000 transitions with 20 hand-tuned leapfrog steps. NUTS with up to 255 adapted ones
# gives draws that are nearly independent, so that far fewer will do.
N_CHAINS, N_WARMUP, N_SAMPLES, MAX_DEPTH = 4, 500, 500, 8
N_INPUTS = 50
RHAT = 1.05


class Cubic(NamedTuple):
    """The cubic with a gap, standardised as the thesis has it, with its true noise variance on that scale.

    Attributes:
        x: inputs `[N, 1]`.
        y: targets `[N]`.
        grid: inputs `[G, 1]` to predict at.
        noise: the noise variance.
        gap: which rows of the grid lie well inside the gap.
        near: which lie between the first datum and the last.
    """

    x: Float[Tensor, "n 1"]
    y: Float[Tensor, " n"]
    grid: Float[Tensor, "g 1"]
    noise: float
    gap: Tensor
    near: Tensor


def cubic() -> Cubic:
    """The data of all panels."""
    split = datasets.cubic(DATA_SEED)
    x, y, raw = split.x_train, split.y_train, split.x_test[:, 0]
    grid = (split.x_test - x.mean(0)) / x.std(0)
    noise = split.metadata["noise_variance"] / float(y.var())
    near = (raw >= x.min()) & (raw <= x.max())
    return Cubic((x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std(), grid, noise, raw.abs() < 1.5, near)


def cubic_network() -> nn.Sequential:
    """Two hidden layers of 50 ReLU units with NealPrior weights as parameters."""
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(WIDTHS):
        layers += [Linear(inside, outside, posterior=Point()), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def sample(
    seed: int = 0,
    *,
    n_chains: int = N_CHAINS,
    n_warmup: int = N_WARMUP,
    n_samples: int = N_SAMPLES,
    max_depth: int = MAX_DEPTH,
    **options: Any,
) -> Chains:
    """Chains of the network on the cubic data, from draws of the prior; the noise variance is fixed at its true value.

    Options go to `sample_posterior`.
    """
    data = cubic()
    model = Model(cubic_network(), Gaussian(data.noise, learn=False))
    return sample_posterior(
        model,
        (data.x, data.y),
        sampler=NUTS(max_depth),
        n_chains=n_chains,
        n_warmup=n_warmup,
        n_samples=n_samples,
        seed=seed,
        **{"progress": False, "compile": can_compile(), **options},
    )


class Reference(NamedTuple):
    """What the chains say.

    Attributes:
        mean: of the function on the grid.
        std: its standard deviation.
        functions: a few draws of it `[5, G]`.
        rhat: the largest of the function at `N_INPUTS` inputs.
        rhat_log_density: of the log density.
        ess: the smallest effective sample size of the function.
        ess_log_density: that of the log density.
        divergent: how many transitions diverged.
        leapfrog: steps per draw.
        seconds: of sampling, warm-up included.
    """

    mean: Float[Tensor, " g"]
    std: Float[Tensor, " g"]
    functions: Float[Tensor, "s g"]
    rhat: float
    rhat_log_density: float
    ess: float
    ess_log_density: float
    divergent: int
    leapfrog: float
    seconds: float


@cache
def reference(seed: int = 0, **options: Any) -> Reference:
    """Sample, and see whether the chains agree about the function; weights permute and never do."""
    chains = sample(seed, **options)
    grid = cubic().grid
    inputs = torch.linspace(float(grid.min()), float(grid.max()), N_INPUTS, dtype=grid.dtype)[:, None]
    both = chains.functions(torch.cat((grid, inputs)))  # [C S, G + N_INPUTS]
    f = both[:, len(grid) :].reshape(chains.n_chains, chains.n_samples, -1)
    on_grid = both[:, : len(grid)]
    return Reference(
        mean=on_grid.mean(0),
        std=on_grid.std(0),
        functions=on_grid[:: max(1, len(on_grid) // 5)][:5],
        rhat=float(rhat(f).max()),
        rhat_log_density=float(rhat(chains.log_density)),
        ess=float(ess_bulk(f).min()),
        ess_log_density=float(ess_bulk(chains.log_density)),
        divergent=int(chains.diverging.sum()),
        leapfrog=float(chains.n_leapfrog.double().mean()),
        seconds=chains.seconds,
    )


def cubic_hmc(seed: int = 0, **options: Any) -> Result:
    """The band of one standard deviation of the function, and whether the chains agree."""
    data, found = cubic(), reference(seed, **options)
    at_data = (torch.cdist(data.grid, data.x).min(1).values < 0.1) & data.near
    gap, inside = float(found.std[data.gap].mean()), float(found.std[at_data].mean())
    numbers = [
        Number(f"largest R-hat of the function at {N_INPUTS} inputs", found.rhat),
        Number("R-hat of the log density", found.rhat_log_density),
        Number("smallest effective sample size of the function", found.ess),
        Number("effective sample size of the log density", found.ess_log_density),
        Number("divergent transitions", found.divergent),
        Number("leapfrog steps per draw", found.leapfrog),
        Number("standard deviation in the gap", gap),
        Number("standard deviation at the data", inside),
    ]
    worst = max(found.rhat, found.rhat_log_density)
    statements = [
        Statement(f"R-hat of the function and of the log density is below {RHAT}", worst < RHAT),
        Statement("the uncertainty in the gap exceeds that at the data", gap > 2 * inside),
    ]
    setup = {
        "data": "cubic, standardised",
        "data_seed": DATA_SEED,
        "widths": list(WIDTHS),
        "prior": "NealPrior",
        "start": "draws of the prior",
        "chains": options.get("n_chains", N_CHAINS),
        "warm-up": options.get("n_warmup", N_WARMUP),
        "draws": options.get("n_samples", N_SAMPLES),
        "sampler": f"NUTS, depth at most {options.get('max_depth', MAX_DEPTH)}",
        "seconds of sampling": round(found.seconds, 1),
    }
    arrays = {"x": data.x, "y": data.y, "grid": data.grid, "mean": found.mean, "std": found.std}
    return Result(None, numbers, statements, setup, arrays | {"functions": found.functions})


def paint(arrays: Mapping[str, Tensor]) -> "Figure":
    """The band, a few draws and the data."""
    band, points = (arrays["mean"], arrays["std"]), (arrays["x"], arrays["y"])
    with plotting.style():
        figure = new_figure(4.4, 3.0)
        ax = figure.subplots()
        plotting.posterior_1d(
            band, arrays["grid"], data=points, samples=arrays["functions"], ax=ax, title="HMC", legend=False
        )
    return figure
