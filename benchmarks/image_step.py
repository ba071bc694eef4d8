"""One training step of the thesis's image networks: Bayesian against plain, on images of CIFAR-10's size.

Each row is a step of `fit` (minibatch, bound, gradient, Adam) with 500 images and, for global inducing points, 500
inducing images; the plain network is the same architecture trained with torch's own Adam on the cross-entropy. Random
images: the arithmetic is that of real ones. Needs torch, numpy, safetensors and jaxtyping only.

    python benchmarks/image_step.py --device cuda
    python benchmarks/image_step.py --device cpu --batch 20 --inducing 20 --steps 4
    python benchmarks/image_step.py --device cuda --network resnet18 --profile
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import vibayes as vb
from vibayes.datasets import Split
from vibayes.experiments.images import POSTERIORS, image_model
from vibayes.experiments.networks import NETWORKS, Plain
from vibayes.training.history import Logged

N_DATA = 2000


def data() -> Split:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(N_DATA, 3, 32, 32, generator=generator), torch.arange(N_DATA) % 10
    return Split(x, y, x[:10], y[:10], name="random images")


def plain(network: str, channels: int, given: argparse.Namespace) -> float:
    """Milliseconds per step of the network without any of this package."""
    device = torch.device(given.device)
    net = NETWORKS[network](Plain(normalize=network == "resnet18"), 3, channels, 10, 32).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    split = data().to(device)

    def step() -> None:
        rows = torch.randint(0, N_DATA, (given.batch,), device=device)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(net(split.x_train[rows]), split.y_train[rows]).backward()
        optimizer.step()

    return timed(step, given.steps, device)


def timed(step: Callable[[], None], steps: int, device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for _ in range(3):
        step()
    wait()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return 1e3 * (time.perf_counter() - begin) / steps


def bayesian(posterior: str, network: str, channels: int, given: argparse.Namespace) -> tuple[float, float]:
    """Milliseconds per step of `fit`, and peak memory in GB on a GPU."""
    torch.manual_seed(0)
    split = data()
    normalize = network == "resnet18" and posterior in ("fac->gi", "global inducing")
    chosen = {"network": network, "channels": channels, "n_inducing": given.inducing, "prior": given.prior}
    model = image_model(posterior, split, {"model": {**chosen, "normalize": normalize}})
    seconds: list[float] = []

    def log(entry: Logged) -> None:
        seconds.append(entry.seconds)
        if given.profile and len(seconds) == 1:
            profiler.start()

    cuda = given.device.startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if cuda else [])]
    profiler = torch.profiler.profile(activities=kinds)
    vb.fit(
        model,
        (split.x_train, split.y_train),
        steps=2 * given.steps,
        batch_size=given.batch,
        n_samples=1,
        lr=1e-3,
        log_every=given.steps,
        device=given.device,
        graph=None if given.graph else False,
        compile=given.compiled,
        progress=False,
        callback=log,
    )
    if given.profile:
        profiler.stop()
        order = "self_cuda_time_total" if cuda else "self_cpu_time_total"
        print(profiler.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=90))
    memory = torch.cuda.max_memory_allocated() / 1e9 if cuda else float("nan")
    return 1e3 * (seconds[-1] - seconds[0]) / given.steps, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--network", default="small_resnet", choices=list(NETWORKS))
    parser.add_argument("--posteriors", nargs="+", default=list(POSTERIORS), choices=POSTERIORS)
    parser.add_argument("--prior", default="SpatialIWPrior")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--inducing", type=int, default=500)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--eager", dest="graph", action="store_false", help="no CUDA graphs")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.backends.cudnn.benchmark = True  # steps are alike: find the fastest convolutions, for all alike
    channels = 64 if given.network == "resnet18" else 32
    name = torch.cuda.get_device_name() if given.device.startswith("cuda") else platform.machine()
    print(f"{name}, torch {torch.__version__}, {given.network}, {given.batch} + {given.inducing} images, float32")
    base = plain(given.network, channels, given)
    print(f"plain torch: {base:.1f} ms", flush=True)
    rows = {"plain": base}
    for posterior in given.posteriors:
        try:
            rows[posterior], memory = bayesian(posterior, given.network, channels, given)
        except Exception as error:  # a posterior that does not fit must not hide the others
            print(f"{posterior}: failed: {str(error)[:300]}", flush=True)
            continue
        ratio = rows[posterior] / base
        print(f"{posterior}: {rows[posterior]:.1f} ms, {ratio:.1f} times plain, {memory:.1f} GB", flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps({"device": name, "network": given.network, "ms": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
