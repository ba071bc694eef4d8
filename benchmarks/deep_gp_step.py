"""One training step of a five-layer deep GP with global inducing points, Boston sizes.

N=455, 13 inputs, width 13, 100 inducing points, 10 draws; forward and backward pass of the bound. The comparison is a
deep GP of the same size in GPyTorch (one inducing set per layer, doubly stochastic bound), timed in the same run,
before ours and with the allocator as it is. Milliseconds are medians, with the least in brackets.

    python benchmarks/deep_gp_step.py --gpytorch --compiled
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import gpytorch
import torch
from torch import nn

import vibayes as vb
from vibayes.training.graph import compiled as through_compiler
from vibayes.training.memory import keep_freed_memory

N, D, M, S = 455, 13, 100, 10


def deep_gp(x: torch.Tensor, depth: int, posterior: str) -> vb.Model:
    def layer(i: int) -> vb.GP:
        last = i == depth - 1
        q: vb.posteriors.Posterior = vb.LocalInducing(M) if posterior == "local" else vb.GlobalInducing("full")
        if posterior.startswith("wishart") and not last:
            q = vb.GeneralizedWishart(posterior.removeprefix("wishart "))
        kernel = vb.SquaredExponential(D, ard=i == 0, lengthscale=D**0.5)
        mean = None if last or posterior.startswith("wishart") else vb.IdentityMean()
        return vb.GP(1 if last else D, kernel=kernel, mean=mean, noise=None if last else 1e-2, posterior=q)

    network = nn.Sequential(*[layer(i) for i in range(depth)])
    return vb.Model(network, vb.Gaussian(0.05), inducing=None if posterior == "local" else x[:M])


def vibayes_step(x: torch.Tensor, y: torch.Tensor, depth: int, posterior: str, compiled: bool) -> Callable[[], None]:
    model = deep_gp(x, depth, posterior)
    model.initialize(x, y)
    batch = model.prepare(x, y)
    bound = through_compiler(model, x.device) if compiled else model
    parameters = [p for p in model.parameters() if p.requires_grad]

    def step() -> None:
        torch.autograd.grad(-bound(batch.x, batch.y, n_samples=S).objective(), parameters)

    return step


class GPyTorchLayer(gpytorch.models.deep_gps.DeepGPLayer):
    def __init__(self, output_dims: int | None) -> None:
        batch = torch.Size([output_dims]) if output_dims else torch.Size([])
        inducing = torch.randn(*batch, M, D)
        q = gpytorch.variational.CholeskyVariationalDistribution(M, batch_shape=batch)
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, q), D, output_dims)
        self.mean_module = gpytorch.means.ZeroMean(batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel(batch_shape=batch), batch_shape=batch
        )

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class GPyTorchDeepGP(gpytorch.models.deep_gps.DeepGP):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([GPyTorchLayer(D) for _ in range(depth - 1)] + [GPyTorchLayer(None)])

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        for layer in self.layers:
            x = layer(x)
        return x


def gpytorch_step(x: torch.Tensor, y: torch.Tensor, depth: int) -> Callable[[], None]:
    model, likelihood = GPyTorchDeepGP(depth), gpytorch.likelihoods.GaussianLikelihood()
    bound = gpytorch.mlls.DeepApproximateMLL(gpytorch.mlls.VariationalELBO(likelihood, model, N))
    parameters = [*model.parameters(), *likelihood.parameters()]

    def step() -> None:
        with gpytorch.settings.num_likelihood_samples(S):
            torch.autograd.grad(-bound(model(x), y), parameters)

    return step


def timed(step: Callable[[], None], repeats: int) -> dict[str, float]:
    for _ in range(2):
        step()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    return {"median": statistics.median(times), "least": min(times)}


def shown(found: dict[str, float]) -> str:
    return f"{found['median']:8.1f} ms ({found['least']:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--gpytorch", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    x = torch.randn(N, D)
    y = x[:, 0].sin() + 0.1 * torch.randn(N)
    rows = {}
    if arguments.gpytorch:
        rows["gpytorch"] = timed(gpytorch_step(x, y, arguments.depth), max(3, arguments.repeats // 4))
        print(f"GPyTorch: {shown(rows['gpytorch'])}", flush=True)
    keep_freed_memory()  # as `fit` does
    for posterior in ("global", "wishart plain", "wishart AB", "local"):
        for compiled in (False, True) if arguments.compiled else (False,):
            name = f"{posterior}, compiled" if compiled else posterior
            rows[name] = timed(vibayes_step(x, y, arguments.depth, posterior, compiled), arguments.repeats)
            ratio = ""
            if arguments.gpytorch:
                medians, least = (rows["gpytorch"][kind] / rows[name][kind] for kind in ("median", "least"))
                ratio = f", GPyTorch takes {medians:.1f} ({least:.1f}) times as long"
            print(f"vibayes, {name}: {shown(rows[name])}{ratio}", flush=True)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"depth": arguments.depth, "ms": rows}, indent=2))


if __name__ == "__main__":
    main()
