"""Train a model with an optimizer and a loop of your own: no `fit`.

A vibayes model is a `torch.nn.Module`. `model.initialize` looks at the data once (units, inducing points);
`model.elbo(x, y)` is the bound, a tensor to differentiate. All that `fit` adds is comfort: roll-backs, schedules,
checkpoints, stopping.

    python examples/plain_torch_loop.py
"""

import argparse

import torch
from torch import nn

import vibayes as vb


def main(arguments: list[str] | None = None) -> float:
    """Train a two-layer deep GP on a noisy wave; returns its bound per data row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    chosen = parser.parse_args(arguments)

    torch.manual_seed(0)
    x = torch.rand(200, 1, dtype=torch.float64) * 6 - 3
    y = torch.sin(3 * x[:, 0]) * (x[:, 0] > 0) + 0.1 * torch.randn(200, dtype=torch.float64)

    network = nn.Sequential(vb.GP(2, kernel=vb.SquaredExponential(1)), vb.GP(1, kernel=vb.SquaredExponential(2)))
    model = vb.Model(network, vb.Gaussian(0.1), inducing=x[:30], standardize="both").double()
    model.initialize(x, y)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    for step in range(chosen.steps):
        rows = torch.randint(len(x), (50,))  # a minibatch; n_data scales its log likelihood up
        elbo = model.elbo(x[rows], y[rows], n_samples=5, n_data=len(x), kl_weight=min(1.0, (step + 1) / 100))
        optimizer.zero_grad()
        (-elbo.objective).backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: {float(elbo.per_datapoint.detach()):.3f} nats per row")

    with torch.no_grad():
        bound = model.elbo(x, y, n_samples=100)
    lower, upper = model.predict(x).interval(0.95)
    covered = ((lower <= y) & (y <= upper)).double().mean()
    print(f"bound {float(bound.per_datapoint):.3f} nats per row; 95% intervals cover {100 * covered:.0f}% of the rows")
    return float(bound.per_datapoint)


if __name__ == "__main__":
    main()
