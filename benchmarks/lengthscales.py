"""One lengthscale for all inputs against one for each, by how many rows there are for each input.

Exact GPs on some of the training rows of UCI tables (split 0), and on made-up tables with columns that say nothing.
Scores are mean log densities of other training rows; test rows are not looked at. `prior` is a lengthscale for each
input under a log-normal prior around sqrt(D), of standard deviation 1.

    VIBAYES_DATA=... python benchmarks/lengthscales.py --seeds 6
"""

import argparse
import math
import statistics
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import LogNormal

import vibayes as vb
from vibayes import families

TABLES = ("boston", "concrete", "energy", "wine", "yacht", "naval", "kin8nm", "power")
KINDS = ("one", "each", "prior")
HELD_OUT = 300


def score(kind: str, x: Tensor, y: Tensor, n: int) -> float:
    """Mean log density of the rows behind the first `n`, by a GP of these."""
    d = x.shape[1]
    kernel = vb.SquaredExponential(d, ard=kind != "one", lengthscale=math.sqrt(d))
    if kind == "prior":
        prior = LogNormal(torch.tensor(0.5 * math.log(d)), torch.tensor(1.0))
        kernel.lengthscale = vb.Positive(torch.full((d,), math.sqrt(d)), prior=prior)
    model = vb.ExactGP(kernel, families.noise(1, least=1e-6), standardize="both")
    vb.fit(model, (x[:n], y[:n]), progress=False)
    return float(model.predict(x[n : n + HELD_OUT]).log_prob(y[n : n + HELD_OUT]).mean())


def made_up(n: int, d: int, seed: int) -> tuple[Tensor, Tensor]:
    """Five columns of a linear function, and columns that say nothing."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n + HELD_OUT, d, generator=generator)
    y = x[:, :5] @ torch.tensor([1.0, -1.0, 0.5, 0.5, 2.0]) + 0.3 * torch.randn(len(x), generator=generator)
    return x, y


def cases(seeds: int) -> Iterator[tuple[str, int, list[tuple[Tensor, Tensor]]]]:
    """Name, number of rows that train, and the data of every seed."""
    for n, d in ((40, 20), (60, 100), (130, 300)):
        yield f"made up, {n} rows of {d}", n, [made_up(n, d, seed) for seed in range(seeds)]
    for per_input in (2, 3, 5, 8, 12, 25):
        for name in TABLES:
            split = vb.datasets.load(name, split=0)
            x, y = torch.as_tensor(split.x_train), torch.as_tensor(split.y_train).reshape(-1)
            n = per_input * x.shape[1]
            if n + 60 <= len(x):
                orders = [torch.randperm(len(x), generator=torch.Generator().manual_seed(s)) for s in range(seeds)]
                yield f"{per_input:2d} rows for each input, {name}", n, [(x[order], y[order]) for order in orders]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    print(f"{'medians (worst) over seeds':34s} " + " ".join(f"{kind:>18s}" for kind in KINDS))
    for name, n, data in cases(options.seeds):
        found = [[score(kind, x.double(), y.double(), n) for x, y in data] for kind in KINDS]
        shown = (f"{statistics.median(scores):8.2f} ({min(scores):7.2f})" for scores in found)
        print(f"{name:34s} " + " ".join(shown), flush=True)


if __name__ == "__main__":
    main()
