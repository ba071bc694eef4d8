"""Many models at once: seconds per joint step of `fit_many`, eager, compiled and as a CUDA graph.

For every number of replicas R the table gives milliseconds per step of all replicas together, the time of one model
alone in the same run, the gain (how much faster R replicas are together than one after the other), peak memory, and the
arithmetic of a step's matrix products and factorizations with the share of the device's peak that it reaches.

    python benchmarks/replicas.py --device cuda --out replicas.json
    python benchmarks/replicas.py --device cpu --replicas 1 20 --gpytorch
    python benchmarks/replicas.py --device cuda --replicas 20 --model DGP --modes graph compiled-graph
    python benchmarks/replicas.py --device cuda --replicas 40 --model "BNN global inducing" --inducing 455 --modes graph

Models are sparse GPs, or the deep ones of the experiments: deep GPs of five layers, networks of 50 units in two hidden
layers, 10 draws.
"""

import argparse
import gc
import json
import math
import platform
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import vibayes as vb
from vibayes.experiments import catalogue  # noqa: F401  (adds its models)
from vibayes.experiments.models import build
from vibayes.training.adam import AdamRun
from vibayes.training.batches import InMemory
from vibayes.training.problem import Single
from vibayes.training.progress import Progress
from vibayes.training.run import Options
from vibayes.training.stacked import Stacked

D = 13  # Boston


def model_and_source(r: int, chosen: argparse.Namespace) -> tuple[vb.Model, InMemory]:
    generator = torch.Generator().manual_seed(r)
    x = torch.randn(chosen.rows, D, generator=generator, dtype=torch.get_default_dtype())
    y = x[:, 0].sin() + 0.1 * torch.randn(chosen.rows, generator=generator, dtype=torch.get_default_dtype())
    M = chosen.inducing
    if chosen.model == "SVGP":
        kernel = vb.SquaredExponential(D, ard=True, lengthscale=D**0.5)
        model = vb.Model(vb.GP(1, kernel=kernel, posterior=vb.LocalInducing(M, inputs=x[:M])), vb.Gaussian(0.1))
    else:
        split: Any = SimpleNamespace(x_train=x, y_train=y[:, None])
        deep = {"depth": chosen.depth, "n_inducing": M, "log_precision": -2.0}
        given = {"model": deep, "training": {"steps": 1}, "dtype": str(x.dtype).removeprefix("torch.")}
        model, _ = build(chosen.model, split, given, r)
    model.to(chosen.device).initialize(x, y)
    source = InMemory(x, y, None, chosen.batch_size, r)
    source.begin(model)
    return model, source


def options(steps: int, draws: int, **more: Any) -> Options:
    return Options(
        steps=steps,
        max_steps=steps,
        lr_schedule=lambda _: 1.0,
        kl_weight=lambda _: 1.0,
        n_samples=draws,
        log_every=10**9,
        tolerance=1e-3,
        **more,
    )


def time_run(replicas: int, chosen: argparse.Namespace, **more: Any) -> dict[str, float]:
    cuda = chosen.device.startswith("cuda")
    steps, draws = chosen.steps, 1 if chosen.model == "SVGP" else chosen.draws
    gc.collect()  # graphs of earlier runs sit in reference cycles and hold their memory
    before = torch.cuda.memory_allocated() if cuda else 0
    pairs = [model_and_source(r, chosen) for r in range(replicas)]
    models, sources = [p[0] for p in pairs], [p[1] for p in pairs]
    problem = Single(models[0], sources[0], draws) if replicas == 1 else Stacked(models, sources, draws)
    how = options(steps, draws, **more)
    run = AdamRun(problem, how, lambda state, force=False: None, Progress(None, show=False), [1e-3] * replicas)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    warm_up = 6
    for _ in range(warm_up):
        run._advance()
    if cuda:
        torch.cuda.synchronize()
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    for _ in range(steps):
        run._advance()
    if cuda:
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / steps
    if chosen.profile:
        profile(run, cuda)
    memory = (torch.cuda.max_memory_allocated() - before) / 2**20 if cuda else float("nan")
    gflop = replicas * flop(models[0], sources[0], draws) / 1e9
    return {
        "ms": 1e3 * seconds,
        "first_steps_s": first,
        "kind": run.one_step.step.kind,
        "peak_MiB": memory,
        "gflop": gflop,
    }


def profile(run: AdamRun, cuda: bool) -> None:
    with torch.profiler.profile() as found:
        for _ in range(10):
            run._advance()
        if cuda:
            torch.cuda.synchronize()
    order = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=100))


def flop(model: vb.Model, source: InMemory, draws: int) -> int:
    """Of one model's step."""
    one = Stacked([model], [source], draws)
    one.load(0)
    ours = {
        torch.ops.vibayes.factorize: factorize_flop,
        torch.ops.vibayes.weighted_grams: grams_flop,
        torch.ops.vibayes.weighted_grams_backward: grams_flop,
    }
    with FlopCounterMode(display=False, custom_mapping=ours) as counter:
        torch.autograd.grad(one.bound().objective().sum(), one.parameters)
    return counter.get_total_flops()


def factorize_flop(shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    """A Cholesky factorization and the inverse of its factor, n^3 / 3 each."""
    return int(2 * math.prod(shape[:-2]) * shape[-1] ** 3 / 3)


def grams_flop(design: tuple[int, ...], weights: tuple[int, ...], *_: Any, **__: Any) -> int:
    """A product of the size of the design for every output."""
    return 2 * math.prod(design) * design[-1] * weights[-2]


def gpytorch_ms(chosen: argparse.Namespace) -> float:
    from svgp_step import gpytorch_step

    x = torch.randn(chosen.batch_size or chosen.rows, D)
    step = gpytorch_step(x, x[:, 0].sin(), torch.randn(chosen.inducing, D))
    for _ in range(5):
        step()
    begin = time.perf_counter()
    for _ in range(chosen.steps):
        step()
    return 1e3 * (time.perf_counter() - begin) / chosen.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 20, 100])
    parser.add_argument("--model", default="SVGP", help="SVGP, or one of the experiments: DGP, DWP-AB, ...")
    parser.add_argument("--depth", type=int, default=5, help="of deep models")
    parser.add_argument("--draws", type=int, default=10, help="of deep models")
    parser.add_argument("--rows", type=int, default=455, help="N; Boston has 455")
    parser.add_argument("--inducing", type=int, default=100)
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"])
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--modes", nargs="+", default=None, help="eager, graph, compiled")
    parser.add_argument("--gpytorch", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print what ten further steps spend their time on")
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
    for dtype in (getattr(torch, name) for name in arguments.dtypes):
        torch.set_default_dtype(dtype)
        for mode in modes:
            alone = None
            for R in arguments.replicas:
                row: dict[str, Any] = {"dtype": str(dtype), "mode": mode, "R": R}
                try:
                    row |= time_run(R, arguments, **settings[mode])
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
            ms = gpytorch_ms(arguments)
            rows.append({"dtype": str(dtype), "mode": "gpytorch", "R": 1, "ms": ms})
            print(f"{dtype!s:14} {'gpytorch':14} R=   1 {ms:9.3f} ms")
    if arguments.out is not None:
        device = torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine()
        about = {
            "device": device,
            "torch": torch.__version__,
            "model": arguments.model,
            "depth": None if arguments.model == "SVGP" else arguments.depth,
            "draws": None if arguments.model == "SVGP" else arguments.draws,
            "N": arguments.rows,
            "D": D,
            "M": arguments.inducing,
            "batch_size": arguments.batch_size,
            "threads": torch.get_num_threads(),
            "vibayes": vb.__version__,
        }
        arguments.out.write_text(json.dumps({"about": about, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
