"""`vibayes compare` against scikit-learn's GP, NGBoost and a neural network, on UCI tables written as CSV.

    VIBAYES_DATA=... python benchmarks/compare_tables.py --datasets concrete energy yacht wine --splits 0-4
    VIBAYES_DATA=... python benchmarks/compare_tables.py --datasets boston yacht energy --splits 0-19 \\
        --only "exact GP" "sklearn GP"

Each published split is written as a CSV file, read back and compared with the default budget; the rows that the split
tests are held out. The others are trained on the same rows: our `GPRegressor` with its defaults ("exact GP", only where
asked for), scikit-learn's `GaussianProcessRegressor` (ARD squared exponential plus noise), NGBoost with its defaults
(`pip install ngboost`), and an `MLPRegressor` whose residuals' spread, from five-fold cross-validation, makes Gaussian
intervals. Log likelihoods are in the table's units. Results are kept in a JSON file after every run, and what is in it
is not run again.
"""

import argparse
import json
import math
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from vibayes.compare import compare, prepare
from vibayes.datasets.files import Store
from vibayes.experiments.names import parse_numbers
from vibayes.tables import read_table

OURS = "compare"


def arrays(name: str) -> dict[str, np.ndarray]:
    return dict(Store(None, None, None, True).arrays(f"uci/{name}.npz", source=name))


def ours(data: dict[str, np.ndarray], split: int, options: argparse.Namespace) -> dict[str, Any]:
    frame = pd.DataFrame(data["X"], columns=[f"x{i}" for i in range(data["X"].shape[1])])
    frame["y"] = data["y"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        frame.to_csv(path, index=False)
        table = read_table(path)
    prepared = prepare(table, ["y"], task="regression", test=data[f"test_{split}"].astype(np.int64))
    begin = time.monotonic()
    found = compare(prepared, minutes=options.budget, seeds=options.seeds, families=options.models)
    winner = found.winner
    scores = winner.scores[winner.best]
    return {
        "winner": winner.family,
        "evidence": {r.family: r.elbo for r in found.results},
        "test_ll": {r.family: r.scores[r.best]["log_likelihood"] for r in found.results},
        "ll": scores["log_likelihood"],
        "rmse": scores["rmse"],
        "inside": scores["coverage_95"] * len(prepared.test),
        "rows": len(prepared.test),
        "budget_minutes": options.budget,
        "seconds": time.monotonic() - begin,
    }


def gaussian(y: np.ndarray, mean: np.ndarray, std: np.ndarray | float, begin: float) -> dict[str, float]:
    inside = np.abs(y - mean) <= stats.norm.ppf(0.975) * std
    return {
        "ll": float(stats.norm.logpdf(y, mean, std).mean()),
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        "inside": float(inside.sum()),
        "seconds": time.monotonic() - begin,
    }


def sklearn_gp(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    begin = time.monotonic()
    d = x.shape[1]
    kernel = ConstantKernel(1.0) * RBF(np.full(d, math.sqrt(d)), (1e-2, 1e4)) + WhiteKernel(0.1, (1e-6, 10.0))
    model = make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True, random_state=0))
    model.fit(x, y)
    mean, std = model.predict(x_test, return_std=True)
    return gaussian(y_test, mean, std, begin)


def ngboost(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    from ngboost import NGBRegressor

    begin = time.monotonic()
    found = NGBRegressor(verbose=False, random_state=0).fit(x, y).pred_dist(x_test)
    return gaussian(y_test, found.loc, found.scale, begin)


def mlp(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.model_selection import cross_val_predict
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    begin = time.monotonic()
    network = MLPRegressor(hidden_layer_sizes=(50, 50), max_iter=2000, random_state=0)
    model = TransformedTargetRegressor(make_pipeline(StandardScaler(), network), transformer=StandardScaler())
    residuals = y - cross_val_predict(model, x, y, cv=5)
    return gaussian(y_test, model.fit(x, y).predict(x_test), float(residuals.std()), begin)


def exact_gp(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    from vibayes.sklearn import GPRegressor

    begin = time.monotonic()
    mean, std = GPRegressor(device="cpu").fit(x, y).predict(x_test, return_std=True)
    return gaussian(y_test, mean, std, begin)


OTHERS = {"exact GP": exact_gp, "sklearn GP": sklearn_gp, "NGBoost": ngboost, "MLP": mlp}
USUAL = (OURS, "sklearn GP", "NGBoost", "MLP")


def run(name: str, split: int, method: str, options: argparse.Namespace) -> dict[str, Any]:
    data = arrays(name)
    if method == OURS:
        return ours(data, split, options)
    train, test = data[f"train_{split}"], data[f"test_{split}"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = OTHERS[method](data["X"][train], data["y"][train], data["X"][test], data["y"][test])
    return {**found, "rows": len(test)}


def show(name: str, runs: list[dict[str, Any]], methods: tuple[str, ...]) -> None:
    """Means over splits with standard errors; margins of the first method over the others, paired."""

    def values(method: str, score: str) -> np.ndarray:
        return np.array([r[method][score] for r in runs])

    def summary(of: np.ndarray, digits: int = 3) -> str:
        error = of.std(ddof=1) / math.sqrt(len(of)) if len(of) > 1 else math.nan
        return f"{of.mean():7.{digits}f} ± {error:.{digits}f}"

    print(f"\n{name}: {len(runs)} splits")
    if OURS in methods:
        winners = Counter(r[OURS]["winner"] for r in runs)
        print("  winners: " + ", ".join(f"{family} {n}" for family, n in winners.most_common()))
    for method in methods:
        covered = values(method, "inside").sum() / values(method, "rows").sum()
        margin = summary(values(methods[0], "ll") - values(method, "ll")) if method != methods[0] else ""
        print(
            f"  {method:11s} LL {summary(values(method, 'll'))}  RMSE {summary(values(method, 'rmse'))}  "
            f"coverage {covered:.3f}  {values(method, 'seconds').mean():5.0f} s  {margin and 'margin ' + margin}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["concrete", "energy", "yacht", "wine"])
    parser.add_argument("--splits", default="0-4")
    parser.add_argument("--only", nargs="+", choices=(OURS, *OTHERS), help="these methods")
    parser.add_argument("--budget", type=float, default=5.0, help="minutes of a comparison")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", help="only these families")
    parser.add_argument("--out", type=Path, default=Path("compare-tables.json"))
    options = parser.parse_args()
    methods = tuple(options.only or USUAL)
    kept: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    splits = parse_numbers(options.splits)
    for name in options.datasets:
        for split in splits:
            entry = kept.setdefault(f"{name} {split}", {})
            for method in methods:
                if method in entry:
                    continue
                entry[method] = run(name, split, method, options)
                options.out.write_text(json.dumps(kept, indent=1))
                found = entry[method]
                told = f"LL {found['ll']:.3f} in {found['seconds']:.0f} s"
                print(f"{name} {split} {method}: {found.get('winner', '')} {told}", flush=True)
        show(name, [kept[f"{name} {split}"] for split in splits], methods)


if __name__ == "__main__":
    main()
