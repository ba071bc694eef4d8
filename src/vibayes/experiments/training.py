"""Training and measuring the runs of one group."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vibayes.experiments.bnn_models
import vibayes.experiments.dkl_models  # noqa: F401  (adds its models)
from vibayes import datasets, metrics
from vibayes.conjugate import ExactGP
from vibayes.datasets import Split
from vibayes.errors import ConfigurationError, DataError
from vibayes.experiments.choosing import train_best
from vibayes.experiments.experiment import Unit
from vibayes.experiments.models import DTYPES, AnyModel, build
from vibayes.experiments.names import check_name
from vibayes.experiments.options import SPLITS
from vibayes.model import Model
from vibayes.stages import network_weights
from vibayes.training.history import History
from vibayes.training.replicas import fit_many
from vibayes.training.schedules import Schedule, as_schedule

__all__ = ["METRICS", "Watch", "load_split", "measure", "train_group"]

# Rows that go through a model at once when it is measured: bounds memory, and is the same everywhere.
_ROWS = 4096
# Draws for the ELBO and for predictions (thesis: 100).
_DRAWS = 100
# Bins of confidence in calibration curves (thesis: 20).
_BINS = 20
# Data in which a classifier has no business to be sure.
_OUTSIDE = {"cifar10": "svhn", "mnist": "fashion_mnist"}

Watch = Callable[[int, int], None]


def load_split(unit: Unit) -> Split:
    """The data of one run."""
    data = dict(unit.options["data"])
    kind = check_name(data.pop("split", "published"), SPLITS, "split option")
    data.pop("units", None)
    dtype = DTYPES[check_name(unit.options.get("dtype", "float64"), DTYPES, "dtype")]
    if kind == "random":
        return datasets.load(unit.dataset, "random", seed=unit.split, dtype=dtype, **data)
    if kind == "generated":
        if datasets.info(unit.dataset).kind != "generated":
            raise ConfigurationError(f"{unit.dataset} is not generated; use split=published or split=random.")
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
    compile: bool = False,
    watch: Watch | None = None,
) -> tuple[list[AnyModel], list[History]]:
    """Train the runs of a group, which differ in the split only, together.

    Args:
        units: the runs.
        splits: their data.
        device: where to train.
        checkpoint: the file from which a killed group goes on.
        checkpoint_seconds: how often it is written.
        chunk: how many models train at once; chosen by `fit_many` when None.
        compile: whether steps go through `torch.compile`.
        watch: called now and then with the step and the number of steps.
    """
    seeds = [int(unit.options.get("seed", 0)) + unit.split for unit in units]
    built = [
        build(unit.builder, split, unit.options, seed) for unit, split, seed in zip(units, splits, seeds, strict=True)
    ]
    models = [model for model, _ in built]
    options = dict(built[0][1])
    after: Callable[[AnyModel, Split], None] | None = options.pop("after", None)
    if any(other["steps"] != options["steps"] for _, other in built):
        raise ConfigurationError("Runs of one group must have the same number of steps; give --steps.")
    if watch is not None:
        steps = options["steps"]  # builders may limit them
        options["lr_schedule"] = _watched(as_schedule(options["lr_schedule"]), lambda step: watch(step, steps))
    else:
        options["lr_schedule"] = as_schedule(options["lr_schedule"])
    choices: Mapping[str, Sequence[Any]] | None = options.pop("choices", None)
    options |= {"seed": seeds, "device": device, "progress": False, "chunk": chunk, "compile": compile}
    options |= {"checkpoint": checkpoint, "checkpoint_seconds": checkpoint_seconds}
    with _tuned_convolutions():
        if choices is None:
            histories = fit_many(models, [(split.x_train, split.y_train) for split in splits], **options)
        else:
            models, histories = train_best(partial(_built, units, splits, seeds), splits, choices, **options)
    if after is not None:
        for model, split in zip(models, splits, strict=True):
            after(model, split)
    return models, histories


def _built(units: Sequence[Unit], splits: Sequence[Split], seeds: Sequence[int], start: int) -> list[AnyModel]:
    """The models of a group as they start, with `start` added to their seeds."""
    return [build(u.builder, split, u.options, s + start)[0] for u, split, s in zip(units, splits, seeds, strict=True)]


@contextmanager
def _tuned_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms once and keep the fastest: all steps of a run are alike, so that it pays."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _watched(schedule: Schedule, watch: Callable[[int], None], every: float = 0.5) -> Schedule:
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
def measure(model: AnyModel, split: Split, unit: Unit) -> dict[str, Any]:
    """The metrics of a trained model: numbers, and of `calibration` the columns of a table.

    ELBOs are per data point on the scale the model trains on. RMSE and log likelihood are on the scale of the split's
    targets, or with `units="original"` in the original units of the data.
    """
    torch.manual_seed(unit.split)  # where draws differ, their noise is part of the result
    found: dict[str, Any] = {}
    for name in unit.metrics:
        if name not in found:
            found |= METRICS[check_name(name, METRICS, "metric")](model, split, unit)
    return {name: found[name] for name in unit.metrics}


def _how(unit: Unit) -> dict[str, Any]:
    """Draws, and rows at once, from the section `measure` of the options."""
    chosen = unit.options.get("measure", {})
    return {"n_samples": int(chosen.get("draws", _DRAWS)), "batch_size": int(chosen.get("rows", _ROWS))}


def _elbo(model: AnyModel, split: Split, unit: Unit) -> dict[str, float]:
    n, how = len(split.x_train), _how(unit)
    if isinstance(model, Model) and model.likelihood.kind == "regression" and _is_plain(model):
        return _squared_error(model, split, unit)
    log_likelihood, kl = 0.0, 0.0
    parts = zip(*(torch.split(rows, how["batch_size"]) for rows in (split.x_train, split.y_train)), strict=True)
    for rows, targets in parts:
        part = model.elbo(rows, targets, n_samples=how["n_samples"])
        log_likelihood += float(part.log_likelihood)
        kl += float(part.kl) * len(rows) / n  # the same in every part, up to Monte Carlo
    return {
        "elbo_per_datapoint": (log_likelihood - kl) / n,
        "loss": (kl - log_likelihood) / n,
        "kl_per_datapoint": kl / n,
        "lml_per_datapoint": (log_likelihood - kl) / n if isinstance(model, ExactGP) else math.nan,
    }


def _is_plain(model: Model) -> bool:
    """Whether a network has nothing to infer but one value of each weight."""
    return all(layer.deterministic for layer in model.layers.values())


def _squared_error(model: Model, split: Split, unit: Unit) -> dict[str, float]:
    """A plain network has no evidence; its loss is the mean squared error with the penalty of weight decay."""
    prediction = model.predict(split.x_train, **_how(unit))
    error = metrics.rmse(prediction, split.y_train.to(model.device)) ** 2
    square = sum(float(weight.square().sum()) for weight in network_weights(model).values())
    decay = float(unit.options["training"].get("weight_decay") or 0.0)
    nothing = dict.fromkeys(("elbo_per_datapoint", "kl_per_datapoint", "lml_per_datapoint"), math.nan)
    return {"loss": error + 0.5 * decay * square, **nothing}


def _predictions(part: str) -> "Measure":
    def measured(model: AnyModel, split: Split, unit: Unit) -> dict[str, Any]:
        x, y = (split.x_train, split.y_train) if part == "train" else (split.x_test, split.y_test)
        prediction = model.predict(x, **_how(unit))
        y = y.to(model.device)
        if model.likelihood.kind == "classes":
            return {
                f"{part}_ll": metrics.log_likelihood(prediction, y),
                "accuracy_percent": 100.0 * metrics.accuracy(prediction, y),
                "ece": metrics.ece(prediction, y, bins=_BINS),
                "calibration": _calibration(metrics.calibration_curve(prediction, y, bins=_BINS)),
                "misclassified_ll": metrics.misclassified_log_likelihood(prediction, y),
                "entropy": metrics.mean_entropy(prediction),
            }
        scale = 1.0
        if unit.options["data"].get("units") == "original":
            scale = float(split.y_std)
        return {
            f"{part}_rmse": metrics.rmse(prediction, y) * scale,
            f"{part}_ll": metrics.log_likelihood(prediction, y) - math.log(scale),
        }

    return measured


def _calibration(curve: metrics.CalibrationCurve) -> dict[str, list[float]]:
    """The bins of a calibration curve that are not empty, column by column."""
    there = curve.count > 0
    return {name: [round(v, 5) for v in values[there].tolist()] for name, values in vars(curve).items()}


def _entropy_ratio(model: AnyModel, split: Split, unit: Unit) -> dict[str, float]:
    """Mean entropy of test predictions over that of predictions for another data set, in the same units."""
    try:
        other = datasets.load(_OUTSIDE[unit.dataset], dtype=model.dtype).standardized("inputs", like=split)
    except (KeyError, DataError):  # where there is no such set, or not its files
        return {"entropy_ratio": math.nan}
    inside, outside = (model.predict(x, **_how(unit)) for x in (split.x_test, other.x_test))
    return {"entropy_ratio": metrics.entropy_ratio(inside, outside)}


def _hyperparameters(model: AnyModel, split: Split, unit: Unit) -> dict[str, float]:
    """Noise variance, and the smallest, median and largest lengthscale of the first layer."""
    noise: Any = getattr(model.likelihood, "noise", None)
    owner: Any = next(iter(model.layers.values())) if isinstance(model, Model) else model
    kernel: Any = getattr(owner, "kernel", None)
    kernel = getattr(kernel, "on_features", kernel)
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


Measure = Callable[[AnyModel, Split, Unit], Mapping[str, Any]]

METRICS: dict[str, Measure] = {
    "elbo_per_datapoint": _elbo,
    "loss": _elbo,
    "kl_per_datapoint": _elbo,
    "lml_per_datapoint": _elbo,
    "train_rmse": _predictions("train"),
    "train_ll": _predictions("train"),
    "test_rmse": _predictions("test"),
    "test_ll": _predictions("test"),
    "accuracy_percent": _predictions("test"),
    "ece": _predictions("test"),
    "calibration": _predictions("test"),
    "misclassified_ll": _predictions("test"),
    "entropy_ratio": _entropy_ratio,
    "noise": _hyperparameters,
    "lengthscale_min": _hyperparameters,
    "lengthscale_median": _hyperparameters,
    "lengthscale_max": _hyperparameters,
}
