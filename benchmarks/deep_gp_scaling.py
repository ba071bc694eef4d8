"""Time and memory of a training step of deep GPs and deep Wishart processes by M, depth and batch size.

A step costs O(L (M^3 + B M^2)) for L layers, M inducing points and batches of B rows, whatever the size N of the data
set. Each of the three grows while the others stay; the last column is the exponent between neighbouring rows, which
tends to 1 for depth and batch size, to between 2 and 3 for M, and to 0 for N. Memory is the peak of the device on
CUDA, and on a CPU that of all tensors allocated in a step.

    python benchmarks/deep_gp_scaling.py                 # everything, on CUDA if there is one
    python benchmarks/deep_gp_scaling.py --quick         # reduced sizes
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import vibayes as vb

D, S, BATCH = 13, 10, 500
Row = dict[str, float | int | str]


def model(posterior: str, x: torch.Tensor, m: int, depth: int) -> vb.Model:
    """A deep GP with global inducing points, or the deep Wishart process of the same prior."""

    def layer(i: int) -> vb.GP:
        last = i == depth - 1
        hidden = vb.GlobalInducing("full") if posterior == "DGP" else vb.GeneralizedWishart("AB")
        kernel = vb.SquaredExponential(D, ard=i == 0, lengthscale=D**0.5)
        return vb.GP(1 if last else D, kernel=kernel, posterior=vb.GlobalInducing("full") if last else hidden)

    return vb.Model(nn.Sequential(*map(layer, range(depth))), vb.Gaussian(0.05), inducing=x[:m])


def measure(posterior: str, device: str, *, m: int, depth: int, n: int, batch: int, repeats: int) -> Row:
    """Median milliseconds and peak memory of a step: batch, bound, gradient."""
    torch.manual_seed(0)
    x = torch.randn(n, D)
    y = x[:, 0].sin() + 0.1 * torch.randn(n)
    net = model(posterior, x, m, depth).to(device)
    net.initialize(x[:2000].to(device), y[:2000].to(device))
    x, y = x.to(device), net.prepare(x[:1], y[:1]).y.new_tensor(y.tolist())[:, None]
    parameters = [p for p in net.parameters() if p.requires_grad]

    def step() -> None:
        rows = torch.randint(n, (batch,), device=device)
        bound = net(x[rows], y[rows], scale=n / batch, n_samples=S)
        torch.autograd.grad(-bound.objective(), parameters)

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    step()
    peak = peak_memory(step, device)
    times = []
    for _ in range(repeats):
        wait()
        begin = time.perf_counter()
        step()
        wait()
        times.append(1e3 * (time.perf_counter() - begin))
    sizes = {"M": m, "depth": depth, "N": n, "batch": batch}
    return {"model": posterior, **sizes, "ms": statistics.median(times), "MiB": peak / 2**20}


def peak_memory(step: object, device: str) -> float:
    """The largest number of bytes held at once during a step."""
    assert callable(step)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    held = peak = 0.0
    for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def sweeps(quick: bool) -> Iterator[tuple[str, list[dict[str, int]]]]:
    """What grows, and the sizes."""
    ms, depths = ([50, 100, 200], [2, 5]) if quick else ([50, 100, 200, 400], [2, 5, 10])
    batches, ns = ([250, 500, 1000], [500, 5000]) if quick else ([500, 1000, 2000, 4000], [500, 5000, 50_000])
    depth = 2 if quick else 5
    yield "M", [{"m": m, "depth": depth, "n": 2000, "batch": BATCH} for m in ms]
    yield "depth", [{"m": 100, "depth": d, "n": 2000, "batch": BATCH} for d in depths]
    yield "batch", [{"m": 100, "depth": depth, "n": 5000, "batch": b} for b in batches]
    yield "N", [{"m": 100, "depth": depth, "n": n, "batch": BATCH} for n in ns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--models", nargs="+", choices=("DGP", "DWP-AB"), default=["DGP", "DWP-AB"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_default_dtype(getattr(torch, arguments.dtype))
    print(f"{arguments.device}, {arguments.dtype}, {S} draws, {D} inputs, width {D}")
    found: dict[str, list[Row]] = {}
    for name in arguments.models:
        for what, sizes in sweeps(arguments.quick):
            print(f"{name}, growing {what}:")
            rows = found[f"{name} {what}"] = []
            for size in sizes:
                row = measure(name, arguments.device, repeats=arguments.repeats, **size)
                grown = ""
                if rows:
                    before, growth = rows[-1], math.log(float(row[what]) / float(rows[-1][what]))
                    slopes = (math.log(float(row[key]) / float(before[key])) / growth for key in ("ms", "MiB"))
                    grown = "  time ^{:.2f}, memory ^{:.2f}".format(*slopes)
                rows.append(row)
                print(f"  {what} = {row[what]:>6}: {row['ms']:9.1f} ms {row['MiB']:9.1f} MiB{grown}", flush=True)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"device": arguments.device, "rows": found}, indent=2))


if __name__ == "__main__":
    main()
