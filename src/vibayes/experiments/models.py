"""The models of the experiments, built by name with options.

A builder takes the data and the options of a run and returns the model and the keyword arguments for training it.
New model families add a function here and a line to `MODELS`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from vibayes.datasets import Split
from vibayes.errors import ConfigurationError
from vibayes.experiments.names import check_name
from vibayes.kernels import SquaredExponential
from vibayes.layers import GP
from vibayes.likelihoods import Gaussian
from vibayes.model import Model
from vibayes.posteriors import LocalInducing
from vibayes.training import schedules

__all__ = ["MODELS", "Builder", "build", "n_steps", "training_options"]

Builder = Callable[[Split, Mapping[str, Any]], tuple[Model, dict[str, Any]]]

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def svgp(split: Split, options: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
    """A sparse variational GP: squared exponential kernel, whitened Gaussian posterior, k-means start."""
    chosen = options["model"]
    width = split.x_train.shape[1]
    lengthscale = chosen.get("lengthscale", 1.0)
    kernel = SquaredExponential(
        width,
        ard=chosen.get("ard", True),
        lengthscale=math.sqrt(width) if lengthscale == "sqrt(D)" else lengthscale,
        variance=chosen.get("variance", 1.0),
    )
    layer = GP(1, kernel=kernel, posterior=LocalInducing(chosen["n_inducing"]))
    return Model(layer, Gaussian(chosen.get("noise", 1.0))), training_options(options, len(split.x_train))


MODELS: dict[str, Builder] = {"SVGP": svgp}


def build(name: str, split: Split, options: Mapping[str, Any], seed: int) -> tuple[Model, dict[str, Any]]:
    """The model of one run, in the run's dtype, and how to train it."""
    builder = MODELS[check_name(name, MODELS, "model")]
    dtype = DTYPES[check_name(options.get("dtype", "float64"), DTYPES, "dtype")]
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_default_dtype(dtype)
        try:
            return builder(split, options)
        finally:
            torch.set_default_dtype(before)


def n_steps(training: Mapping[str, Any], n_data: int) -> int:
    """The steps asked for, or those of the epochs asked for.

    >>> n_steps({"epochs": 400, "batch_size": 32}, 455)
    6000
    """
    if training.get("steps") is not None:
        return int(training["steps"])
    if training.get("epochs") is None:
        raise ConfigurationError("The training options need steps or epochs.")
    batch = training.get("batch_size") or n_data
    return int(training["epochs"]) * math.ceil(n_data / batch)


def training_options(options: Mapping[str, Any], n_data: int) -> dict[str, Any]:
    """Keyword arguments of `fit`. The rate falls by `lr_factor` at the fractions `lr_drops` of all steps."""
    training = options["training"]
    steps = n_steps(training, n_data)
    drops = [round(fraction * steps) for fraction in training.get("lr_drops", ())]
    factors = [training.get("lr_factor", 0.1) ** k for k in range(len(drops) + 1)]
    return {
        "steps": steps,
        "batch_size": training.get("batch_size"),
        "lr": training.get("lr", 1e-3),
        "lr_schedule": schedules.piecewise(drops, factors) if drops else 1.0,
        "kl_weight": training.get("kl_weight", 1.0),
        "n_samples": training.get("n_samples"),
        "log_every": training.get("log_every", 50),
    }
