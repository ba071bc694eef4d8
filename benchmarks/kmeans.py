"""Seconds that `choose_inducing(method="kmeans")` takes, beside scikit-learn's KMeans on the same rows.

    python benchmarks/kmeans.py

Rows are standard normal, the hardest case: nothing converges early. Sums of squared distances stand beside the times,
since a start that is fast and bad is no gain. Medians of `--repeats` runs; needs scikit-learn.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.cluster import KMeans

from vibayes import choose_inducing


def timed(call: Callable[[int], np.ndarray], repeats: int) -> tuple[float, np.ndarray]:
    """Median seconds, and what the last call gave."""
    seconds = []
    for seed in range(repeats):
        begin = time.perf_counter()
        found = call(seed)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), found


def squares(rows: torch.Tensor, centres: np.ndarray) -> float:
    """The mean squared distance of rows to the nearest centre."""
    return float(torch.cdist(rows, torch.as_tensor(centres)).min(1).values.square().mean())


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    for n_rows, width, n_centres in ((2_000, 8, 100), (7_373, 8, 100), (20_000, 8, 300), (20_000, 50, 300)):
        x = torch.randn(n_rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

        def ours(seed: int, x: torch.Tensor = x, n: int = n_centres) -> np.ndarray:
            return choose_inducing(x, n, seed=seed).numpy()

        def theirs(seed: int, x: torch.Tensor = x, n: int = n_centres) -> np.ndarray:
            return KMeans(n, n_init=1, max_iter=50, random_state=seed).fit(x.numpy()).cluster_centers_

        (a, found), (b, other) = timed(ours, repeats), timed(theirs, repeats)
        print(
            f"{n_rows:>6} x {width:<3} {n_centres} centres: ours {a:.3f} s, scikit-learn {b:.3f} s, ratio {a / b:.2f}; "
            f"squares {squares(x, found):.4f} and {squares(x, other):.4f}"
        )


if __name__ == "__main__":
    main()
