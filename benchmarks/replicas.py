"""Many sparse GPs at once: seconds per joint step of `fit_many`, eager, compiled and as a CUDA graph.

For every number of replicas R the table gives milliseconds per step of all replicas together, the time of one model
alone in the same run, the gain (how much faster R replicas are together than one after the other), peak memory, and the
arithmetic of a step's matrix products and factorizations with the share of the device's peak that it reaches.

    python benchmarks/replicas.py --device cuda --out replicas.json
    python benchmarks/replicas.py --device cpu --replicas 1 20 --gpytorch
"""

import argparse
import gc
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import vibayes as vb
from vibayes.training.adam import AdamRun
from vibayes.training.batches import InMemory
from vibayes.training.problem import Single
from vibayes.training.progress import Progress
from vibayes.training.run import Options
from vibayes.training.stacked import Stacked

N, D, M = 455, 13, 100  # Boston


def model_and_source(r: int, batch_size: int | None, device: str) -> tuple[vb.Model, InMemory]:
    generator = torch.Generator().manual_seed(r)
    x = torch.randn(N, D, generator=generator, dtype=torch.get_default_dtype())
    y = x[:, 0].sin() + 0.1 * torch.randn(N, generator=generator, dtype=torch.get_default_dtype())
    kernel = vb.SquaredExponential(D, ard=True, lengthscale=D**0.5)
    model = vb.Model(vb.GP(1, kernel=kernel, posterior=vb.LocalInducing(M, inputs=x[:M])), vb.Gaussian(0.1))
    model.to(device).initialize(x, y)
    source = InMemory(x, y, None, batch_size, r)
    source.begin(model)
    return model, source


def options(steps: int, **more: Any) -> Options:
    return Options(
        steps=steps,
        max_steps=steps,
        lr_schedule=lambda _: 1.0,
        kl_weight=lambda _: 1.0,
        n_samples=1,
        log_every=10**9,
        tolerance=1e-3,
        **more,
    )


def time_run(replicas: int, batch_size: int | None, device: str, steps: int, **more: Any) -> dict[str, float]:
    cuda = device.startswith("cuda")
    gc.collect()  # graphs of earlier runs sit in reference cycles and hold their memory
    before = torch.cuda.memory_allocated() if cuda else 0
    pairs = [model_and_source(r, batch_size, device) for r in range(replicas)]
    models, sources = [p[0] for p in pairs], [p[1] for p in pairs]
    problem = Single(models[0], sources[0], 1) if replicas == 1 else Stacked(models, sources, 1)
    run = AdamRun(
        problem, options(steps, **more), lambda state, force=False: None, Progress(None, show=False), [1e-3] * replicas
    )
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    warm_up = 6
    for _ in range(warm_up):
        run._advance()
    if cuda:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        run._advance()
    if cuda:
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / steps
    memory = (torch.cuda.max_memory_allocated() - before) / 2**20 if cuda else float("nan")
    gflop = replicas * flop(models[0], sources[0]) / 1e9
    return {"ms": 1e3 * seconds, "kind": run._one_step.kind, "peak_MiB": memory, "gflop": gflop}


def flop(model: vb.Model, source: InMemory) -> int:
    """Of one model's step."""
    one = Stacked([model], [source], 1)
    one.load(0)
    with FlopCounterMode(display=False, custom_mapping={torch.ops.vibayes.factorize: factorize_flop}) as counter:
        torch.autograd.grad(one.bound().objective().sum(), one.parameters)
    return counter.get_total_flops()


def factorize_flop(shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    """A Cholesky factorization and the inverse of its factor, n^3 / 3 each."""
    return int(2 * math.prod(shape[:-2]) * shape[-1] ** 3 / 3)


def gpytorch_ms(batch_size: int | None, steps: int) -> float:
    from svgp_step import gpytorch_step

    x = torch.randn(batch_size or N, D)
    step = gpytorch_step(x, x[:, 0].sin(), torch.randn(M, D))
    for _ in range(5):
        step()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return 1e3 * (time.perf_counter() - begin) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 20, 100])
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--modes", nargs="+", default=None, help="eager, graph, compiled")
    parser.add_argument("--gpytorch", action="store_true")
    parser.add_argument("--peak", type=float, default=67.0, help="TFLOP/s of the device (H200: 67 in both dtypes)")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cuda = arguments.device.startswith("cuda")
    modes = arguments.modes or (["eager", "graph", "compiled"] if cuda else ["eager"])
    settings = {
        "eager": {"graph": False},
        "graph": {"graph": True},
        "compiled": {"graph": False, "compile": True},
        "compiled-graph": {"graph": True, "compile": True},
    }
    rows: list[dict[str, Any]] = []
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        for mode in modes:
            alone = None
            for R in arguments.replicas:
                row: dict[str, Any] = {"dtype": str(dtype), "mode": mode, "R": R}
                try:
                    row |= time_run(R, arguments.batch_size, arguments.device, arguments.steps, **settings[mode])
                    alone = row["ms"] if R == 1 else alone
                    row["gain"] = R * alone / row["ms"] if alone else float("nan")
                    row["of_peak"] = row["gflop"] / row["ms"] / arguments.peak
                    shown = f"{row['ms']:9.3f} ms  {row['kind']:6} gain {row['gain']:6.2f}  {row['peak_MiB']:8.0f} MiB"
                    shown += f"  {row['gflop']:7.2f} GFLOP  {row['of_peak']:.1%} of peak"
                except Exception as error:  # a mode that fails is a row that says so
                    row["error"] = shown = f"{type(error).__name__}: {str(error)[:100]}"
                rows.append(row)
                print(f"{dtype!s:14} {mode:14} R={R:4d} {shown}", flush=True)
        if arguments.gpytorch:
            ms = gpytorch_ms(arguments.batch_size, arguments.steps)
            rows.append({"dtype": str(dtype), "mode": "gpytorch", "R": 1, "ms": ms})
            print(f"{dtype!s:14} {'gpytorch':14} R=   1 {ms:9.3f} ms")
    if arguments.out is not None:
        device = torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine()
        about = {
            "device": device,
            "torch": torch.__version__,
            "N": N,
            "D": D,
            "M": M,
            "batch_size": arguments.batch_size,
            "threads": torch.get_num_threads(),
            "vibayes": vb.__version__,
        }
        arguments.out.write_text(json.dumps({"about": about, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
