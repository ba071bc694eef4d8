"""One training step of a Bayesian neural network beside a plain torch network of the same shape.

13-50-50-1 with ReLU, N=455, 100 inducing points, 10 draws; forward and backward pass of the bound. The plain network
makes 10 forward passes (as one batch of 10 x 455 rows) and one backward pass of a Gaussian log likelihood. Steps of
all models are interleaved, so that other load touches them alike; the least time of each is compared. On a busy machine
take processor time instead of wall-clock time, on one thread.

    python benchmarks/bnn_step.py
    python benchmarks/bnn_step.py --threads 1 --processor-time
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import vibayes as vb
from vibayes.training.memory import keep_freed_memory

N, D, H, M, S = 455, 13, 50, 100, 10

POSTERIORS: dict[str, Callable[[], tuple[vb.posteriors.Posterior, vb.posteriors.Posterior]]] = {
    "global inducing": lambda: (vb.GlobalInducing(), vb.GlobalInducing()),
    "global inducing, per output": lambda: (vb.GlobalInducing("per_output"), vb.GlobalInducing("per_output")),
    "global inducing, full": lambda: (vb.GlobalInducing("full"), vb.GlobalInducing("full")),
    "fac -> gi": lambda: (vb.MeanField(), vb.GlobalInducing()),
    "local inducing": lambda: (vb.LocalInducing(M), vb.LocalInducing(M)),
    "mean field": lambda: (vb.MeanField(), vb.MeanField()),
    "point": lambda: (vb.Point(), vb.Point()),
}


def bayesian_step(x: torch.Tensor, y: torch.Tensor, kind: str) -> Callable[[], None]:
    hidden, last = POSTERIORS[kind]()
    network = nn.Sequential(
        vb.Linear(D, H, posterior=hidden),
        nn.ReLU(),
        vb.Linear(H, H, posterior=hidden),
        nn.ReLU(),
        vb.Linear(H, 1, posterior=last),
    )
    needs = any(layer.posterior.takes_inducing for layer in network if isinstance(layer, vb.Linear))
    model = vb.Model(network, vb.Gaussian(0.05), inducing=x[:M] if needs else None)
    parameters = [p for p in model.parameters() if p.requires_grad]

    def step() -> None:
        torch.autograd.grad(-model(x, y, n_samples=S).objective(), parameters)

    return step


def plain_step(x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    network = nn.Sequential(nn.Linear(D, H), nn.ReLU(), nn.Linear(H, H), nn.ReLU(), nn.Linear(H, 1))
    parameters = list(network.parameters())
    rows, targets = x.repeat(S, 1), y.repeat(S, 1)

    def step() -> None:
        torch.autograd.grad((network(rows) - targets).square().mean(), parameters)

    return step


def least(steps: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """The least milliseconds of each step, after a few calls to warm up."""
    found = {name: float("inf") for name in steps}
    for turn in range(rounds + 3):
        for name, step in steps.items():
            start = clock()
            step()
            if turn >= 3:
                found[name] = min(found[name], 1e3 * (clock() - start))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as `fit` does
    results = {}
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        torch.manual_seed(0)
        x = torch.randn(N, D)
        y = torch.sin(x.sum(1, keepdim=True))
        steps = {"plain network": plain_step(x, y)} | {kind: bayesian_step(x, y, kind) for kind in POSTERIORS}
        found = least(steps, options.rounds, time.process_time if options.processor_time else time.perf_counter)
        for name, milliseconds in found.items():
            ratio = milliseconds / found["plain network"]
            print(f"{str(dtype).removeprefix('torch.')}  {name:30s} {milliseconds:8.2f} ms  {ratio:6.1f} x")
        results[str(dtype)] = found
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
