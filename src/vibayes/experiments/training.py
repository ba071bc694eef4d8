"""Training and measuring the runs of one group."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vibayes import datasets, metrics
from vibayes.datasets import Split
from vibayes.errors import ConfigurationError
from vibayes.experiments.experiment import Unit
from vibayes.experiments.models import DTYPES, build
from vibayes.experiments.names import check_name
from vibayes.model import Model
from vibayes.training.history import History
from vibayes.training.replicas import fit_many
from vibayes.training.schedules import Schedule, as_schedule

__all__ = ["METRICS", "Watch", "load_split", "measure", "train_group"]

# Rows that go through a model at once when it is measured: bounds memory, and is the same everywhere.
_ROWS = 4096
# Draws for the ELBO and for predictions (thesis: 100).
_DRAWS = 100

Watch = Callable[[int], None]


def load_split(unit: Unit) -> Split:
    """The data of one run."""
    data = dict(unit.options["data"])
    kind = data.pop("split", "published")
    data.pop("units", None)
    dtype = DTYPES[check_name(unit.options.get("dtype", "float64"), DTYPES, "dtype")]
    if kind == "random":
        return datasets.load(unit.dataset, "random", seed=unit.split, dtype=dtype, **data)
    if kind == "generated":
        return datasets.load(unit.dataset, seed=unit.split, dtype=dtype, **data)
    return datasets.load(unit.dataset, unit.split, dtype=dtype, **data)


def train_group(
    units: Sequence[Unit],
    splits: Sequence[Split],
    *,
    device: str,
    checkpoint: Path,
    checkpoint_seconds: float = 15.0,
    chunk: int | None = None,
    watch: Watch | None = None,
) -> tuple[list[Model], list[History]]:
    """Train the runs of a group, which differ in the split only, together.

    Args:
        units: the runs.
        splits: their data.
        device: where to train.
        checkpoint: the file from which a killed group goes on.
        checkpoint_seconds: how often it is written.
        chunk: how many models train at once; chosen by `fit_many` when None.
        watch: called with the step now and then.
    """
    seeds = [int(unit.options.get("seed", 0)) + unit.split for unit in units]
    built = [
        build(unit.builder, split, unit.options, seed) for unit, split, seed in zip(units, splits, seeds, strict=True)
    ]
    models = [model for model, _ in built]
    options = dict(built[0][1])
    if any(other["steps"] != options["steps"] for _, other in built):
        raise ConfigurationError("Runs of one group must have the same number of steps; give --steps.")
    if watch is not None:
        options["lr_schedule"] = _watched(as_schedule(options["lr_schedule"]), watch)
    else:
        options["lr_schedule"] = as_schedule(options["lr_schedule"])
    histories = fit_many(
        models,
        [(split.x_train, split.y_train) for split in splits],
        seed=seeds,
        device=device,
        progress=False,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        chunk=chunk,
        **options,
    )
    return models, histories


def _watched(schedule: Schedule, watch: Watch, every: float = 0.5) -> Schedule:
    """A schedule that also tells how far training is: it is asked for its value at every step."""
    last = 0.0

    def value(step: int) -> float:
        nonlocal last
        now = time.monotonic()
        if now - last > every:
            last = now
            watch(step)
        return schedule(step)

    return value


# -- what is measured -------------------------------------------------------------------------------------------


@torch.no_grad()
def measure(model: Model, split: Split, unit: Unit) -> dict[str, float]:
    """The metrics of a trained model.

    ELBOs are per data point on the scale the model trains on. RMSE and log likelihood are on the scale of the split's
    targets, or with `units="original"` in the original units of the data.
    """
    torch.manual_seed(unit.split)  # where draws differ, their noise is part of the result
    found: dict[str, float] = {}
    for name in unit.metrics:
        if name not in found:
            found |= METRICS[check_name(name, METRICS, "metric")](model, split, unit)
    return {name: found[name] for name in unit.metrics}


def _elbo(model: Model, split: Split, unit: Unit) -> dict[str, float]:
    n = len(split.x_train)
    log_likelihood, kl = 0.0, 0.0
    for rows, targets in zip(torch.split(split.x_train, _ROWS), torch.split(split.y_train, _ROWS), strict=True):
        part = model.elbo(rows, targets, n_samples=_DRAWS)
        log_likelihood += float(part.log_likelihood)
        kl += float(part.kl) * len(rows) / n  # the same in every part, up to Monte Carlo
    return {
        "elbo_per_datapoint": (log_likelihood - kl) / n,
        "loss": (kl - log_likelihood) / n,
        "kl_per_datapoint": kl / n,
    }


def _predictions(part: str) -> "Measure":
    def measured(model: Model, split: Split, unit: Unit) -> dict[str, float]:
        x, y = (split.x_train, split.y_train) if part == "train" else (split.x_test, split.y_test)
        prediction = model.predict(x, n_samples=_DRAWS, batch_size=_ROWS)
        y = y.to(model.device)
        scale = 1.0
        if unit.options["data"].get("units") == "original":
            scale = float(split.y_std)
        return {
            f"{part}_rmse": metrics.rmse(prediction, y) * scale,
            f"{part}_ll": metrics.log_likelihood(prediction, y) - math.log(scale),
        }

    return measured


def _hyperparameters(model: Model, split: Split, unit: Unit) -> dict[str, float]:
    """Noise variance, and the smallest, median and largest lengthscale of the first layer."""
    noise: Any = getattr(model.likelihood, "noise", None)
    kernel: Any = getattr(next(iter(model.layers.values())), "kernel", None)
    lengthscale: Any = getattr(kernel, "lengthscale", None)
    found = {name: math.nan for name in ("noise", "lengthscale_min", "lengthscale_median", "lengthscale_max")}
    if noise is not None:
        found["noise"] = float(_value(noise).mean())
    if lengthscale is not None:
        values = _value(lengthscale).flatten()
        names = ("lengthscale_min", "lengthscale_median", "lengthscale_max")
        found |= dict(zip(names, map(float, (values.min(), values.median(), values.max())), strict=True))
    return found


def _value(parameter: Any) -> Tensor:
    value: Tensor = getattr(parameter, "value", parameter)
    return value.detach().double().cpu()


Measure = Callable[[Model, Split, Unit], Mapping[str, float]]

METRICS: dict[str, Measure] = {
    "elbo_per_datapoint": _elbo,
    "loss": _elbo,
    "kl_per_datapoint": _elbo,
    "train_rmse": _predictions("train"),
    "train_ll": _predictions("train"),
    "test_rmse": _predictions("test"),
    "test_ll": _predictions("test"),
    "noise": _hyperparameters,
    "lengthscale_min": _hyperparameters,
    "lengthscale_median": _hyperparameters,
    "lengthscale_max": _hyperparameters,
}
