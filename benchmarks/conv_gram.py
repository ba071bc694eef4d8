"""The normal equations of a convolution: autocorrelations against extracted patches, time and peak memory.

Computes `D^T Lambda D`, `D^T Lambda Y` and their gradients with respect to images, pseudo-outputs and precisions, as
one layer with global inducing points does in a training step, in three ways: from autocorrelations (what `Conv2d` does
where it can), from patches of a few images at a time (what it does elsewhere), and from all patches at once. Needs
torch and numpy only.

    python benchmarks/conv_gram.py --device cpu --images 100 --out results.json
    python benchmarks/conv_gram.py --device cuda --images 500
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from vibayes.convolution import Geometry, autocorrelation_equations, patch_equations, patches

Equations = Callable[[Tensor, Tensor, Tensor, Geometry], tuple[Tensor, Tensor]]


def all_patches(x: Tensor, y: Tensor, precision: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """What autograd makes of the design written out."""
    D = patches(x, geometry, circular=True)  # [M, locations, K]
    weighted = (precision[:, None, None] * D).flatten(0, 1)
    return weighted.mT @ D.flatten(0, 1), weighted.mT @ y.flatten(2).mT.flatten(0, 1)


WAYS: dict[str, Equations] = {
    "autocorrelation": autocorrelation_equations,
    "patches, few at a time": patch_equations,
    "patches, all": all_patches,
}


def peak_memory(device: torch.device, function: Callable[[], object]) -> float:
    """Largest amount of memory in use at once beyond what was there before, in MB."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    now = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most / 1e6


def measure(way: Equations, device: torch.device, images: int, size: int, channels: int, repeats: int) -> dict:
    generator = torch.Generator().manual_seed(0)
    geometry = Geometry((3, 3), padding=(1, 1))
    x, y = (torch.randn(images, channels, size, size, generator=generator).to(device) for _ in range(2))
    precision = torch.rand(images, generator=generator).to(device)
    inputs = [t.requires_grad_() for t in (x, y, precision)]

    def step() -> None:
        G, h = way(*inputs, geometry)
        torch.autograd.grad(G.sum() + h.sum(), inputs)

    def timed() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    timed()
    return {"ms": 1e3 * statistics.median(timed() for _ in range(repeats)), "MB": peak_memory(device, step)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--channels", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device = torch.device(given.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads, {given.images} images, float32\n")
    print("| pixels | channels | " + " | ".join(f"{way}: ms | MB" for way in WAYS) + " |")
    print("| --- " * (2 + 2 * len(WAYS)) + "|")
    rows = []
    for size in given.sizes:
        for channels in given.channels:
            found = {k: measure(w, device, given.images, size, channels, given.repeats) for k, w in WAYS.items()}
            cells = " | ".join(f"{f['ms']:.1f} | {f['MB']:.0f}" for f in found.values())
            print(f"| {size} | {channels} | {cells} |", flush=True)
            rows.append({"pixels": size, "channels": channels, **found})
    if given.out is not None:
        given.out.write_text(json.dumps({"device": name, "images": given.images, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
