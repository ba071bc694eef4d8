"""The models of chapter 3: deep kernel learning, and the plain networks beside it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from vibayes.conjugate import ExactGP
from vibayes.datasets import Split
from vibayes.errors import ConfigurationError
from vibayes.experiments.models import MODELS, Builder, training_options
from vibayes.kernels import DeepKernel, SquaredExponential, spectral_normalize
from vibayes.layers import GP, Linear
from vibayes.likelihoods import Gaussian
from vibayes.model import Model
from vibayes.posteriors import LocalInducing, Point
from vibayes.pretraining import fit_noise

Training = dict[str, Any]

__all__ = ["DKL_MODELS", "FULL_BATCH", "FULL_BATCH_STEPS", "feature_network", "glorot", "roughness"]

# Methods with full batches stop at so many steps (thesis: for its computing budget); their rates fall where others' do.
FULL_BATCH = ("DKL", "VDKL", "fNN")
FULL_BATCH_STEPS = 8000


def feature_network(in_features: int, widths: Sequence[int], *, last_activation: bool = True) -> nn.Sequential:
    """A ReLU network with these widths, started as Keras starts it.

    Args:
        in_features: width of the inputs.
        widths: of the hidden layers; the last is the feature dimension Q.
        last_activation: whether the features have passed a ReLU.

    >>> feature_network(13, [50, 50])
    Sequential(
      (0): Linear(in_features=13, out_features=50, bias=True)
      (1): ReLU()
      (2): Linear(in_features=50, out_features=50, bias=True)
      (3): ReLU()
    )
    """
    if not widths:
        raise ConfigurationError("A network needs at least one hidden width.")
    layers: list[nn.Module] = []
    for inside, outside in zip([in_features, *widths], widths, strict=False):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return glorot(nn.Sequential(*(layers if last_activation else layers[:-1])))


def glorot(network: nn.Sequential) -> nn.Sequential:
    """Glorot-uniform weights and biases of zero, the start of Keras, in which the thesis's networks were written."""
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network


def _features(split: Split, chosen: Mapping[str, Any]) -> nn.Sequential:
    network = feature_network(split.x_train.shape[1], chosen["widths"])
    coefficient = chosen.get("spectral_norm")
    if coefficient is not None:
        spectral_normalize(network, coefficient, in_place=True)
    return network


def _training(options: Mapping[str, Any], n_data: int, full: bool) -> Training:
    """Keyword arguments of `fit`; full batches take as many steps as the minibatches would, up to a limit."""
    found = training_options(options, n_data)
    found["weight_decay"] = options["training"].get("weight_decay", 0.0)
    if full:
        found["batch_size"] = None
        found["steps"] = min(found["steps"], FULL_BATCH_STEPS)
    return found


def _kernel(chosen: Mapping[str, Any]) -> SquaredExponential:
    return SquaredExponential(
        chosen["widths"][-1], ard=True, lengthscale=chosen.get("lengthscale", 1.0), variance=chosen.get("variance", 1.0)
    )


def dkl(split: Split, options: Mapping[str, Any]) -> tuple[ExactGP, Training]:
    """Exact deep kernel learning, full batch."""
    chosen = options["model"]
    kernel = DeepKernel(_features(split, chosen), _kernel(chosen))
    return ExactGP(kernel, _noise(chosen)), _training(options, len(split.x_train), full=True)


def _svdkl(full: bool) -> Builder:
    """Stochastic variational deep kernel learning, with minibatches or (VDKL) full batches."""

    def builder(split: Split, options: Mapping[str, Any]) -> tuple[Model, Training]:
        chosen = options["model"]
        layer = GP(1, kernel=_kernel(chosen), posterior=LocalInducing(chosen["n_inducing"]))
        model = Model(nn.Sequential(_features(split, chosen), layer), _noise(chosen))
        return model, _training(options, len(split.x_train), full)

    return builder


def _noise(chosen: Mapping[str, Any]) -> Gaussian:
    return Gaussian(math.exp(chosen.get("log_noise", -4.0)))


def _network(full: bool) -> Builder:
    """A plain network trained on squared errors; its noise is the maximum likelihood one, set after training."""

    def builder(split: Split, options: Mapping[str, Any]) -> tuple[Model, Training]:
        chosen = options["model"]
        head = Linear(chosen["widths"][-1], 1, posterior=Point(prior=False))
        # with this noise the negative log likelihood per row is the squared error, up to a constant
        model = Model(nn.Sequential(_features(split, chosen), head), Gaussian(0.5, learn=False))
        training = _training(options, len(split.x_train), full)
        training["after"] = _set_noise
        return model, training

    return builder


def roughness(mean: Tensor) -> float:
    """Mean absolute second difference of a function's values on a grid, in thousandths."""
    return float((mean[2:] - 2 * mean[1:-1] + mean[:-2]).abs().mean()) * 1e3


def _set_noise(model: Model, split: Split) -> None:
    fit_noise(model, split.x_train, split.y_train)


DKL_MODELS: dict[str, Builder] = {
    "DKL": dkl,
    "VDKL": _svdkl(full=True),
    "SVDKL": _svdkl(full=False),
    "fNN": _network(full=True),
    "sNN": _network(full=False),
}
MODELS.update(DKL_MODELS)
