"""Why factorised networks with ScalePrior collapse in the thesis's tables, and ours do not.

In the public code that goes with chapter 4, a layer with this prior, and with no other, has a KL divergence of weights
with variance `v / K` (K is the fan-in), while its values get the noise of weights with variance `v`: a slip. And its
prior has covariance `sqrt(s) / K`, where the text has `1 / (s K)`. The columns have both, the slip alone, and neither.
Bounds are per row, on standardised targets; the other scores are in the units of the data. Rates fall to a hundredth in
the second half.

    VIBAYES_DATA=... python benchmarks/factorised_scale.py --splits 5 --steps 5000
"""

import argparse
import math
import statistics
from typing import Any

import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.experiments.reference import load_table
from vibayes.posteriors.base import Diagonal, Gaussian, Site
from vibayes.training import schedules

TABLES = ("boston", "energy", "yacht")
METRICS = {"elbo_per_datapoint": "tab_gi_uci_elbos", "test_ll": "tab_gi_uci_lls", "test_rmse": "tab_gi_uci_rmse"}


class Slip(vb.Linear):
    """A layer whose values have the noise of weights `sqrt(K)` times as uncertain as those of its KL divergence."""

    def moments(
        self, rows: Tensor, site: Site, q: Gaussian | Diagonal, joint: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        assert isinstance(q, Diagonal)
        assert q.std is not None
        return super().moments(rows, site, Diagonal(q.mean, q.std * math.sqrt(self.fan_in)), joint)


CASES = {"as published": (Slip, "sqrt(s)"), "slip": (Slip, "1/s"), "right": (vb.Linear, "1/s")}


def network(layer: type[vb.Linear], covariance: str, inputs: int) -> nn.Sequential:
    """Two hidden layers of 50 units."""
    options: dict[str, Any] = {"prior": vb.ScalePrior(covariance), "posterior": vb.MeanField()}
    return nn.Sequential(
        layer(inputs, 50, **options), nn.ReLU(), layer(50, 50, **options), nn.ReLU(), layer(50, 1, **options)
    )


def scores(layer: type[vb.Linear], covariance: str, split: vb.datasets.Split, steps: int) -> dict[str, float]:
    """Train on one split: the bound per row as these layers have it, and how well they predict test rows."""
    torch.manual_seed(split.split or 0)
    noise = vb.Positive(math.exp(-3.0), scale=10.0)
    model = vb.Model(network(layer, covariance, split.x_train.shape[1]), vb.Gaussian(noise), standardize="both")
    data = (split.x_train, split.y_train)
    falling = schedules.exponential(1.0, 0.01, steps, hold=steps // 2)
    vb.fit(model, data, steps=steps, lr=0.01, lr_schedule=falling, n_samples=1, progress=False)
    with torch.no_grad():
        prediction = model.predict(split.x_test, n_samples=100)
        return {
            "elbo_per_datapoint": float(model.elbo(*data, n_samples=100).per_datapoint),
            "test_ll": vb.metrics.log_likelihood(prediction, split.y_test),
            "test_rmse": vb.metrics.rmse(prediction, split.y_test),
        }


def printed(table: str, metric: str) -> str:
    """The thesis's number."""
    rows = load_table(METRICS[metric])
    wanted = {"dataset": table, "model": "factorised", "prior": "ScalePrior"}
    return next(row["value"] for row in rows if wanted.items() <= row.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    print(f"# means over {options.splits} splits, {options.steps} steps, torch {torch.__version__}")
    print(f"{'':28s} {'thesis':>14s} " + " ".join(f"{case:>14s}" for case in CASES))
    for table in TABLES:
        splits = [vb.datasets.load(table, split=number, dtype=torch.float64) for number in range(options.splits)]
        found = [[scores(*case, split, options.steps) for split in splits] for case in CASES.values()]
        for metric in METRICS:
            means = (statistics.mean(one[metric] for one in each) for each in found)
            shown = " ".join(f"{mean:14.2f}" for mean in means)
            print(f"{table:8s} {metric:19s} {printed(table, metric):>14s} {shown}", flush=True)


if __name__ == "__main__":
    main()
