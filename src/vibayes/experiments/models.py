"""The models of the experiments, built by name with options.

A builder takes the data and the options of a run and returns the model and the keyword arguments for training it.
New model families add a function here and a line to `MODELS`.
"""

import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vibayes import linalg
from vibayes.conjugate.base import ConjugateModel
from vibayes.datasets import Split
from vibayes.errors import ConfigurationError
from vibayes.experiments.experiment import OPTIONAL
from vibayes.experiments.images import AUGMENTATIONS, POSTERIORS, image_model
from vibayes.experiments.names import check_name
from vibayes.inducing import choose_inducing
from vibayes.kernels import SquaredExponential
from vibayes.layers import GP, InverseWishartProcess, Layer
from vibayes.likelihoods import Gaussian
from vibayes.means import IdentityMean
from vibayes.model import Model
from vibayes.modes import default_dtype
from vibayes.parameters import Positive
from vibayes.posteriors import GeneralizedWishart, GlobalInducing, LocalInducing
from vibayes.posteriors.base import Posterior
from vibayes.training import schedules

__all__ = ["MODELS", "AnyModel", "Builder", "build", "n_steps", "training_options", "tried"]

logger = logging.getLogger("vibayes")

AnyModel = Model | ConjugateModel
Builder = Callable[[Split, Mapping[str, Any]], tuple[AnyModel, dict[str, Any]]]

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def svgp(split: Split, options: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
    """A sparse variational GP: squared exponential kernel, whitened Gaussian posterior, k-means start."""
    chosen = options["model"]
    width = split.x_train.shape[1]
    kernel = SquaredExponential(
        width,
        ard=chosen.get("ard", True),
        lengthscale=_lengthscale(chosen, width, 1.0),
        variance=chosen.get("variance", 1.0),
    )
    layer = GP(1, kernel=kernel, posterior=LocalInducing(chosen["n_inducing"]))
    return Model(layer, Gaussian(chosen.get("noise", 1.0))), training_options(options, len(split.x_train))


# -- deep models ------------------------------------------------------------------------------------------------

# The posterior of a layer from the options, the split, the number of inducing points, and whether the layer is last.
_LayerPosterior = Callable[[Mapping[str, Any], Split, int, bool], Posterior]


@functools.cache  # once, not for every split
def _warn_of_little_jitter(jitter: float) -> None:
    logger.warning(
        "A jitter of %.0e is little for float32, which then loses digits that the bound needs. Set jitter=%.0e, or "
        "train in float64.",
        jitter,
        linalg.JITTER,
    )


def _deep(posterior: _LayerPosterior, *, inverse: bool = False) -> Builder:
    """Builder of a deep GP: `model.depth` GP layers, all but the last as wide as the inputs.

    With `inverse`, those but the last are inverse Wishart layers, whose degrees of freedom start at `dof`.

    Options of the section `model`: `depth`, `n_inducing`, `lengthscale` (a number or `"sqrt(D)"`), `variance`,
    `hidden_variance` (that of hidden layers, where it differs), `ard` (`"first"` layer only, or `"all"`), `skip`
    (identity means in hidden layers), `layer_noise` (start of the variance of the hidden layers' noise; None for none),
    `log_noise` and `noise_scale` (start and scaling of the likelihood's log noise variance), `jitter` (relative to a
    kernel's variance), what the posterior asks for, and of global inducing inputs `inducing` (the `"first"` training
    rows, or `"greedy"` ones, which leave the first layer's kernel least to explain) and `learn_inducing` (whether they
    move).
    """

    def builder(split: Split, options: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
        chosen = options["model"]
        depth = _depth(chosen)
        ard = check_name(chosen.get("ard", "first"), ("first", "all"), "ard option")
        width = split.x_train.shape[1]
        n_inducing = min(int(chosen.get("n_inducing", 100)), len(split.x_train))
        variance = chosen.get("variance", 1.0)
        start = _start_rows(split, n_inducing, chosen)
        layers: list[Layer] = []
        for number in range(depth):
            last = number == depth - 1
            kernel = SquaredExponential(
                width,
                ard=ard == "all" or number == 0,
                lengthscale=_lengthscale(chosen, width),
                variance=variance if last else chosen.get("hidden_variance", variance),
            )
            if inverse and not last:
                dof = chosen.get("dof", 50.0)
                layers.append(InverseWishartProcess(kernel=kernel, dof=dof, out_features=width))
                continue
            layers.append(
                GP(
                    1 if last else width,
                    kernel=kernel,
                    mean=IdentityMean() if chosen.get("skip", False) and not last else None,
                    noise=None if last else chosen.get("layer_noise"),
                    posterior=posterior(chosen, start, n_inducing, last),
                )
            )
        noise = Positive(math.exp(chosen.get("log_noise", -3.0)), scale=chosen.get("noise_scale", 10.0))
        shared = None if all(layer.posterior.local for layer in layers) else start.x_train[:n_inducing]
        model = Model(nn.Sequential(*layers), Gaussian(noise), inducing=shared)
        if model.inducing is not None:
            model.inducing.requires_grad_(chosen.get("learn_inducing", True))
        if chosen.get("jitter") is not None:
            model.jitter.fill_(chosen["jitter"])
            if chosen["jitter"] < linalg.JITTER and model.dtype == torch.float32:
                _warn_of_little_jitter(float(chosen["jitter"]))
        _start_factors(layers[:-1], chosen.get("hidden_std"))
        return model, training_options(options, len(split.x_train))

    return builder


def _lengthscale(chosen: Mapping[str, Any], width: int, default: float | str = "sqrt(D)") -> float:
    found = chosen.get("lengthscale", default)
    return math.sqrt(width) if found == "sqrt(D)" else float(found)


def _start_rows(split: Split, n_inducing: int, chosen: Mapping[str, Any]) -> Split:
    """The split with the rows first that inducing inputs start at."""
    if check_name(chosen.get("inducing", "first"), ("first", "greedy"), "inducing option") == "first":
        return split
    x, y = split.x_train, split.y_train
    kernel = SquaredExponential(x.shape[1], lengthscale=_lengthscale(chosen, x.shape[1])).to(x.dtype)
    rows = torch.cdist(choose_inducing(x, n_inducing, "greedy", kernel), x).argmin(1)
    return replace(split, x_train=x[rows], y_train=y[rows])


def _depth(chosen: Mapping[str, Any]) -> int:
    depth = chosen.get("depth")
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise ConfigurationError(f"A deep model needs the option depth, its number of GP layers; got {depth!r}.")
    return depth


@torch.no_grad()
def _start_factors(hidden: list[Layer], std: float | None) -> None:
    """Start the whitened posteriors of the hidden layers at a small standard deviation."""
    for layer in hidden:
        if std is not None and isinstance(layer.posterior, LocalInducing) and layer.posterior.form == "whitened":
            layer.posterior.raw_factor.diagonal(dim1=-2, dim2=-1).fill_(math.log(std))


def _last(chosen: Mapping[str, Any]) -> str:
    """The last layer's precision: `last` is `"full"`, or `"natural"` for one that natural gradients move."""
    return check_name(chosen.get("last", "full"), ("full", "natural"), "last option")


def _hidden_outputs(chosen: Mapping[str, Any], inputs: torch.Tensor) -> torch.Tensor | None:
    """Where pseudo-outputs of hidden layers start: None for at random.

    Or with `hidden_outputs` at the inducing inputs themselves (`"inputs"`), or at zero (`"zeros"`, with identity means
    the same).
    """
    starts = {"normal": None, "inputs": inputs, "zeros": torch.zeros_like(inputs)}
    return starts[check_name(chosen.get("hidden_outputs", "normal"), starts, "hidden_outputs option")]


def _global(chosen: Mapping[str, Any], split: Split, n_inducing: int, last: bool) -> Posterior:
    """Global inducing points, full precision; the last layer's pseudo-outputs start at the targets."""
    if last:
        # given, and not left to the nearest rows: these may be others where inputs are repeated
        targets = split.y_train[:n_inducing].reshape(n_inducing, -1)
        return GlobalInducing(
            _last(chosen), pseudo_outputs=targets, log_precision=chosen.get("last_log_precision", 0.0)
        )
    return GlobalInducing(
        chosen.get("precision", "full"),
        pseudo_outputs=_hidden_outputs(chosen, split.x_train[:n_inducing]),
        log_precision=chosen.get("log_precision", -4.0),
    )


def _wishart(mixing: str) -> _LayerPosterior:
    """Wishart posteriors below a layer with global inducing points."""

    def posterior(chosen: Mapping[str, Any], split: Split, n_inducing: int, last: bool) -> Posterior:
        return _global(chosen, split, n_inducing, last) if last else GeneralizedWishart(mixing)

    return posterior


def _local(chosen: Mapping[str, Any], split: Split, n_inducing: int, last: bool) -> Posterior:
    """Local inducing points by pseudo-observations: inputs and outputs standard normal, log precision 0, full.

    With `local_inputs` the inputs start at k-means centres of what comes in (`"kmeans"`).
    """
    inputs = torch.randn(n_inducing, split.x_train.shape[1])
    at = check_name(chosen.get("local_inputs", "normal"), ("normal", "kmeans"), "local_inputs option")
    if at == "kmeans" and chosen.get("hidden_outputs") == "inputs":
        raise ConfigurationError('With local_inputs="kmeans" the inputs are not known yet: hidden_outputs="zeros".')
    return LocalInducing(
        n_inducing,
        form="pseudo",
        precision=_last(chosen) if last else chosen.get("precision", "full"),
        inputs=inputs if at == "normal" else None,
        pseudo_outputs=None if last else _hidden_outputs(chosen, inputs),
        log_precision=None if last else chosen.get("log_precision"),
    )


def _dsvi(chosen: Mapping[str, Any], split: Split, n_inducing: int, last: bool) -> Posterior:
    """Local inducing points as in doubly stochastic variational inference: whitened, k-means start."""
    if last and _last(chosen) == "natural":
        return LocalInducing(n_inducing, form="pseudo", precision="natural")
    return LocalInducing(n_inducing, form="whitened")


def _image(posterior: str) -> Builder:
    """Builder of an image network; see `images.image_model`."""

    def builder(split: Split, options: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
        return image_model(posterior, split, options), training_options(options, len(split.x_train))

    return builder


MODELS: dict[str, Builder] = {
    "SVGP": svgp,
    "DGP": _deep(_global),
    "DGP-local": _deep(_local),
    "DGP-DSVI": _deep(_dsvi),
    "DWP": _deep(_wishart("plain")),
    "DWP-A": _deep(_wishart("A")),
    "DWP-AB": _deep(_wishart("AB")),
    **{f"image {posterior}": _image(posterior) for posterior in POSTERIORS},
    "DIWP": _deep(_global, inverse=True),
}


class _Noting(Mapping[str, Any]):
    """Options that note which of them were looked at."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options, self.unread = options, set(options)

    def __getitem__(self, key: str) -> Any:
        self.unread.discard(key)
        return self.options[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)


@functools.cache  # once, not for every split
def _warn_of_unused(name: str, unused: tuple[str, ...]) -> None:
    logger.warning("%s makes no use of the option %s: its results are those without it.", name, ", ".join(unused))


def build(name: str, split: Split, options: Mapping[str, Any], seed: int) -> tuple[AnyModel, dict[str, Any]]:
    """The model of one run, in the run's dtype, and how to train it.

    Options that models may do without and this one does not look at are named in a warning.
    """
    builder = MODELS[check_name(name, MODELS, "model")]
    chosen = _Noting(options.get("model", {}))
    options = {**options, "model": chosen}
    dtype = DTYPES[check_name(options.get("dtype", "float64"), DTYPES, "dtype")]
    with torch.random.fork_rng(devices=[]), default_dtype(dtype):
        torch.manual_seed(seed)
        built = builder(split, options)
    unused = sorted(chosen.unread & set(OPTIONAL["model"]))
    if unused:
        _warn_of_unused(name, tuple(unused))
    return built


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
    """Keyword arguments of `fit`.

    The rate falls by `lr_factor` at the fractions `lr_drops` of all steps; with `lr_end` it falls evenly instead, from
    the fraction `lr_hold` of all steps on, to that part of itself; with `lr_warmup`, a number of steps, it rises first.
    With `kl_warmup`, a number of steps, the KL weight rises linearly from 0 to `kl_weight` over the first of them; with
    `kl_rise`, a fraction, it starts at 0 and rises by that fraction of `kl_weight` after every `kl_epochs` epochs.
    `augment` is a name in `AUGMENTATIONS`. What stands in `lr_choices` and `batch_choices`, and as many `starts`, are
    tried, and the best bound is kept.
    """
    training = options["training"]
    steps, choices = n_steps(training, n_data), tried(training)
    return {
        "steps": steps,
        "batch_size": training.get("batch_size"),
        "lr": training.get("lr", 1e-3),
        "lr_schedule": _lr_schedule(training, steps),
        "kl_weight": _kl_schedule(training, n_data),
        "n_samples": training.get("n_samples"),
        "natural_rate": training.get("natural_rate", 0.1),
        "log_every": training.get("log_every", 50),
        **_augmentation(training),
        **({"choices": choices} if choices else {}),
    }


def _lr_schedule(training: Mapping[str, Any], steps: int) -> float | schedules.Schedule:
    """The factor of the learning rate."""
    found: float | schedules.Schedule = 1.0
    drops = [round(fraction * steps) for fraction in training.get("lr_drops", ())]
    if training.get("lr_end") is not None:
        found = schedules.exponential(1.0, training["lr_end"], steps, hold=int(training.get("lr_hold", 0.0) * steps))
    elif drops:
        found = schedules.piecewise(drops, [training.get("lr_factor", 0.1) ** k for k in range(len(drops) + 1)])
    return schedules.warmup(training["lr_warmup"], found) if training.get("lr_warmup") else found


def _kl_schedule(training: Mapping[str, Any], n_data: int) -> float | schedules.Schedule:
    """The weight of the KL: a number, or rising linearly, or in steps."""
    kl_weight, kl_warmup, kl_rise = training.get("kl_weight", 1.0), training.get("kl_warmup"), training.get("kl_rise")
    if kl_rise:
        epoch = math.ceil(n_data / (training.get("batch_size") or n_data))
        return schedules.staircase(0.0, kl_rise * kl_weight, int(training.get("kl_epochs", 10)) * epoch, kl_weight)
    return schedules.linear(0.0, kl_weight, kl_warmup) if kl_warmup else float(kl_weight)


def tried(training: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What training is tried with, by name; see `choosing.train_best`.

    >>> tried({"lr_choices": [0.003, 0.01], "starts": 2})
    {'lr': [0.003, 0.01], 'start': [0, 1000]}
    """
    starts = training.get("starts", 1)
    if isinstance(starts, bool) or not isinstance(starts, int) or starts < 1:
        raise ConfigurationError(f"The option starts is how many starts are tried, at least 1; got {starts!r}.")
    found = {
        "lr": training.get("lr_choices"),
        "batch_size": training.get("batch_choices"),
        # far apart: the seed of a split is its number
        "start": [1000 * k for k in range(starts)] if starts > 1 else None,
    }
    return {name: list(values) for name, values in found.items() if values}


def _augmentation(training: Mapping[str, Any]) -> dict[str, Any]:
    name = training.get("augment")
    return {} if name is None else {"augment": AUGMENTATIONS[check_name(name, AUGMENTATIONS, "augmentation")]}
