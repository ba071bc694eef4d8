"""A sweep of seconds, for the tests; as a script it runs it: `tiny.py OUT GROUP CHECKPOINT_SECONDS [EXECUTOR]`."""

import os
import sys
from pathlib import Path

import torch

from vibayes.experiments.executors import make_executor
from vibayes.experiments.experiment import Experiment, ModelSpec
from vibayes.experiments.runner import Settings, run_sweep
from vibayes.experiments.sweep import expand

TINY = Experiment(
    name="tiny",
    title="A tiny sweep",
    labels=("tab:tiny",),
    datasets=("diabetes",),
    splits={"diabetes": (0, 1, 2, 3)},
    models={
        "SVGP": ModelSpec("SVGP", {"model": {"n_inducing": 5, "noise": 1.0}}),
        "SVDKL": ModelSpec("not built yet"),
    },
    options={
        "data": {"split": "random", "standardize": "both", "n_train": 40, "n_test": 20},
        "training": {
            "steps": int(os.environ.get("TINY_STEPS", "60")),
            "batch_size": 10,
            "lr": 0.01,
            "lr_drops": [0.5],
            "log_every": 5,
        },
    },
    metrics=(
        "elbo_per_datapoint",
        "loss",
        "train_rmse",
        "test_rmse",
        "train_ll",
        "test_ll",
        "noise",
        "lengthscale_max",
    ),
    tables=(),
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    out, group, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    executor = make_executor(sys.argv[4] if len(sys.argv) > 4 else "process")
    settings = Settings(
        out, device="cpu", group=group, chunk=group, checkpoint_seconds=seconds, show=False, command="tiny"
    )
    summary = run_sweep(expand(TINY), settings, executor)
    print(f"trained={summary.trained} elsewhere={summary.elsewhere} left={summary.left} failed={summary.failed}")
    sys.exit(0 if summary.ok else 1)
