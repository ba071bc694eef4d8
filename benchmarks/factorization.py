"""Cholesky factors with their inverses: ours against cuSOLVER (or LAPACK) with triangular solves, in one run.

    python benchmarks/factorization.py [--device cuda] [--out times.json]

On a GPU calls are replayed from a CUDA graph, so that only the device is timed. Needs torch alone.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from vibayes.operators.factorization import factorize

CASES = ((20, 100), (200, 100), (2000, 100), (200, 20), (5, 128), (5, 1000))


def plain(K: Tensor) -> tuple[Tensor, Tensor]:
    L = torch.linalg.cholesky_ex(K).L
    eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    return L, torch.linalg.solve_triangular(L, eye, upper=False)


def microseconds(call: Callable[[], object], device: str, repeats: int) -> float:
    for _ in range(3):
        call()
    if device == "cpu":
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        return 1e6 * statistics.median(times)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        graph.replay()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for dtype in (torch.float64, torch.float32):
        for batch, n in CASES:
            root = torch.randn(batch, n, n, dtype=dtype, device=arguments.device)
            K = root @ root.mT / n + 0.1 * torch.eye(n, dtype=dtype, device=arguments.device)
            ours = microseconds(lambda K=K: factorize(K), arguments.device, arguments.repeats)
            theirs = microseconds(lambda K=K: plain(K), arguments.device, arguments.repeats)
            exact = torch.linalg.cholesky(K.double())
            identity = torch.eye(n, dtype=torch.float64, device=arguments.device)
            errors = [float((f(K)[1].double() @ exact - identity).abs().max()) for f in (factorize, plain)]
            rows.append(
                {
                    "batch": batch,
                    "n": n,
                    "dtype": str(dtype).removeprefix("torch."),
                    "ours_us": ours,
                    "library_us": theirs,
                    "ours_error": errors[0],
                    "library_error": errors[1],
                }
            )
            print(
                f"{batch:5d} x {n:4d} {dtype}: {ours:8.0f} us, library {theirs:8.0f} us, {theirs / ours:4.1f} x; "
                f"errors {errors[0]:.1e}, {errors[1]:.1e}",
                flush=True,
            )
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"device": arguments.device, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
