"""What each part of a deep GP's start is worth, on the wave of docs/how-to/deep-gp.md: one part left out at a time.

Bounds in nats per row after 500 steps; means over seeds of starts and training, and the lowest and highest.

    python benchmarks/deep_gp_start.py --seeds 3
"""

import argparse
import statistics
from typing import Any

import torch
from torch import Tensor

import vibayes as vb

LEFT_OUT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "lr=0.03 (0.01 instead)": {"lr": 0.01},
    "IdentityMean": {"mean": None},
    "log_precision=2.0 (0 instead)": {"log_precision": None},
    "full precision (diagonal instead)": {"precision": "diagonal"},
    "k-means centres (first rows instead)": {"inducing": None},
}


def wave() -> tuple[Tensor, Tensor]:
    """A wave whose frequency rises."""
    torch.manual_seed(0)
    x = torch.rand(150, 1) * 5 - 2
    return x, torch.sin(1.5 * x[:, 0].exp()) + 0.05 * torch.randn(150)


def bound(x: Tensor, y: Tensor, seed: int, changes: dict[str, Any]) -> float:
    """Train one deep GP, and measure its bound."""
    given = {
        "lr": 0.03,
        "mean": vb.IdentityMean(),
        "log_precision": 2.0,
        "precision": "full",
        "inducing": vb.choose_inducing(x, 50),
        **changes,
    }
    torch.manual_seed(seed)
    hidden = vb.GlobalInducing(given["precision"])
    sure = vb.GlobalInducing(given["precision"], log_precision=given["log_precision"])
    first = vb.GP(1, kernel=vb.SquaredExponential(1), mean=given["mean"], posterior=hidden)
    last = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=sure)
    inducing = x[:50] if given["inducing"] is None else given["inducing"]
    model = vb.Model(torch.nn.Sequential(first, last), vb.Gaussian(0.1), inducing=inducing, standardize="both")
    falling = vb.schedules.piecewise([350], [1.0, 0.1])
    vb.fit(model, (x, y), steps=500, lr=given["lr"], lr_schedule=falling, n_samples=5, seed=seed, progress=False)
    with torch.no_grad():
        return float(model.elbo(x, y, n_samples=100).per_datapoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    x, y = wave()
    print(f"{'left out':38s}  mean  (lowest, highest)")
    for name, changes in LEFT_OUT.items():
        found = [bound(x, y, seed, changes) for seed in range(options.seeds)]
        print(f"{name:38s} {statistics.mean(found):5.2f}  ({min(found):.2f}, {max(found):.2f})", flush=True)


if __name__ == "__main__":
    main()
