"""One training step of a sparse variational GP: vibayes against GPyTorch, same data, sizes and machine.

Both compute the whitened bound of one minibatch, its gradient, and an Adam update. Steps of the two alternate, so
that whatever else the machine does falls on all; the table gives medians and their ratio (above one: vibayes is
faster), for vibayes as it is and through `torch.compile` (`fit(..., compile=True)`).

    python benchmarks/svgp_step.py --out results.json
"""

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import gpytorch
import torch

import vibayes as vb

BATCH, D, N_DATA = 1000, 9, 41_157


class GPyTorchSVGP(gpytorch.models.ApproximateGP):
    def __init__(self, inducing: torch.Tensor) -> None:
        q = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, q, learn_inducing_locations=True))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=inducing.shape[1]))

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_step(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Callable[[], float]:
    model = GPyTorchSVGP(z.clone())
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=N_DATA)
    parameters = [*model.parameters(), *likelihood.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = -bound(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    model.train()
    likelihood.train()
    return step


def vibayes_step(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, compiled: bool = False) -> Callable[[], float]:
    kernel = vb.SquaredExponential(D, ard=True, lengthscale=0.6931, variance=0.6931)
    gp = vb.GP(1, kernel=kernel, posterior=vb.LocalInducing(len(z), inputs=z))
    model = vb.Model(gp, vb.Gaussian(0.6932))
    batch = model.prepare(x, y)
    bound = torch.compile(model) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = -bound(batch.x, batch.y, scale=N_DATA / BATCH).objective()
        loss.backward()
        optimizer.step()
        return float(loss.detach()) / N_DATA

    return step


def measure(steps: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 3):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            if repeat >= 3:
                times[name].append(time.perf_counter() - begin)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        for M in (100, 500):
            torch.manual_seed(0)
            x, z = torch.randn(BATCH, D), torch.randn(M, D)
            y = x[:, 0].sin() + 0.1 * torch.randn(BATCH)
            torch._dynamo.reset()
            steps = {
                "vibayes": vibayes_step(x, y, z),
                "compiled": vibayes_step(x, y, z, compiled=True),
                "gpytorch": gpytorch_step(x, y, z),
            }
            times = measure(steps, arguments.repeats)
            ms = {name: 1e3 * statistics.median(found) for name, found in times.items()}
            row = {"dtype": str(dtype), "M": M, **{f"{name}_ms": value for name, value in ms.items()}}
            for name in ("vibayes", "compiled"):
                row[f"{name}_ratio"] = ms["gpytorch"] / ms[name]
                row[f"{name}_best_ratio"] = min(times["gpytorch"]) / min(times[name])
            rows.append(row)
            print(
                f"{dtype!s:14} M={M:4d}  gpytorch {ms['gpytorch']:6.2f} ms"
                f"  vibayes {ms['vibayes']:6.2f} ms, ratio {row['vibayes_ratio']:.2f}"
                f"  compiled {ms['compiled']:6.2f} ms, ratio {row['compiled_ratio']:.2f}",
                flush=True,
            )
    if arguments.out is not None:
        about = {
            "machine": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "gpytorch": gpytorch.__version__,
            "vibayes": vb.__version__,
            "batch": BATCH,
        }
        arguments.out.write_text(json.dumps({"about": about, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
