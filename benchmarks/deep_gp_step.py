"""One training step of a five-layer deep GP with global inducing points, Boston sizes.

N=455, 13 inputs, width 13, 100 inducing points, 10 draws; forward and backward pass of the bound. The comparison is a
deep GP of the same size in GPyTorch (one inducing set per layer, doubly stochastic bound), timed in the same run.
Everything is timed in a process of its own, as memory that one leaves behind slows the next by a tenth, and in turns
over several rounds. Milliseconds are medians, with the least in brackets. On a GPU ours are timed as CUDA graphs too,
which is how `fit` runs them there.

    python benchmarks/deep_gp_step.py --gpytorch --compiled --rounds 3
    python benchmarks/deep_gp_step.py --gpytorch --compiled --device cuda --repeats 60
"""

import argparse
import json
import multiprocessing
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import gpytorch
import torch
from torch import nn

import vibayes as vb
from vibayes.training.graph import Compiled
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
    model = deep_gp(x, depth, posterior).to(x.device)
    model.initialize(x, y)
    batch = model.prepare(x, y)
    bound = Compiled(model, x.device) if compiled else model
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
    model, likelihood = GPyTorchDeepGP(depth).to(x.device), gpytorch.likelihoods.GaussianLikelihood().to(x.device)
    bound = gpytorch.mlls.DeepApproximateMLL(gpytorch.mlls.VariationalELBO(likelihood, model, N))
    parameters = [*model.parameters(), *likelihood.parameters()]

    def step() -> None:
        with gpytorch.settings.num_likelihood_samples(S):
            torch.autograd.grad(-bound(model(x), y), parameters)

    return step


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def times(name: str, depth: int, repeats: int, device: str) -> list[float]:
    """Milliseconds of steps of what is named, of which those of a GPU end when it has finished."""
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    x = torch.randn(N, D)
    y = x[:, 0].sin() + 0.1 * torch.randn(N)
    x, y = x.to(device), y.to(device)
    posterior, *how = name.split(", ")
    if posterior == "GPyTorch":
        step = gpytorch_step(x, y, depth)
    else:
        keep_freed_memory()  # as `fit` does
        step = vibayes_step(x, y, depth, posterior, "compiled" in how)
        step = captured(step) if "graph" in how else step
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    for _ in range(2):
        step()
    found = []
    for _ in range(repeats):
        wait()
        begin = time.perf_counter()
        step()
        wait()
        found.append(1e3 * (time.perf_counter() - begin))
    return found


def in_a_process(name: str, given: argparse.Namespace) -> list[float]:
    repeats = given.repeats if name != "GPyTorch" else max(3, given.repeats // 4)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as one:
        return one.submit(times, name, given.depth, repeats, given.device).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=8, help="steps in every round")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--posteriors", nargs="+", default=["global", "wishart plain", "wishart AB", "local"])
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--gpytorch", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    cuda = given.device.startswith("cuda")
    machine = torch.cuda.get_device_name() if cuda else f"{platform.machine()}, {torch.get_num_threads()} threads"
    print(f"{machine}, torch {torch.__version__}, float64", flush=True)
    names = ["GPyTorch"] if given.gpytorch else []
    for posterior in given.posteriors:
        names += [posterior, *[f"{posterior}, graph"] * cuda]
        names += [f"{posterior}, compiled", *[f"{posterior}, compiled, graph"] * cuda] if given.compiled else []
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(given.rounds):
        for name in names:
            found[name] += in_a_process(name, given)
    rows = {name: {"median": statistics.median(ms), "least": min(ms)} for name, ms in found.items()}
    for name, row in rows.items():
        ratio = ""
        if given.gpytorch and name != "GPyTorch":
            medians, least = (rows["GPyTorch"][kind] / row[kind] for kind in ("median", "least"))
            ratio = f", GPyTorch takes {medians:.1f} ({least:.1f}) times as long"
        print(f"{name}: {row['median']:8.2f} ms ({row['least']:.2f}){ratio}")
    if given.out is not None:
        given.out.write_text(json.dumps({"depth": given.depth, "machine": machine, "ms": rows}, indent=2))


if __name__ == "__main__":
    main()
