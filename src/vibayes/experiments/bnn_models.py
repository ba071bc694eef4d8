"""Fully connected Bayesian networks of the experiments in chapter 4."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vibayes.datasets import Split
from vibayes.experiments.models import MODELS, Builder, training_options
from vibayes.experiments.names import check_name
from vibayes.layers import Linear
from vibayes.likelihoods import Gaussian
from vibayes.model import Model
from vibayes.parameters import Positive
from vibayes.posteriors import FromPrior, GlobalInducing, LocalInducing, MeanField
from vibayes.posteriors.base import Posterior
from vibayes.priors import NealPrior, Prior, ScalePrior, StandardPrior

__all__ = ["FAMILIES", "bnn_model", "bnn_network"]

# The thesis's names of approximating families; "a->b" has b in the last layer.
FAMILIES = ("factorised", "local inducing", "global inducing", "fac->gi", "rand->gi")

# "M = batch size" with batches of 10,000 rows, or all where there are fewer.
_MOST_INDUCING = 10_000


def bnn_network(
    family: str,
    widths: Sequence[int],
    *,
    n_inducing: int,
    prior: Prior | None = None,
    precision: str = "diagonal",
    outputs: Tensor | None = None,
    activation: type[nn.Module] | None = nn.ReLU,
    bias: bool = True,
) -> nn.Sequential:
    """A fully connected network with one family of posteriors.

    Args:
        family: one of `FAMILIES`.
        widths: of the inputs, the hidden layers and the output.
        n_inducing: how many inducing points local posteriors have.
        prior: of all layers.
        precision: of pseudo-outputs.
        outputs: starting pseudo-outputs of a global last layer.
        activation: between layers; None for a linear network.
        bias: whether layers have one.
    """
    check_name(family, FAMILIES, "family of posteriors")
    lower, upper = {
        "factorised": ("fac", "fac"),
        "local inducing": ("li", "li"),
        "global inducing": ("gi", "gi"),
        "fac->gi": ("fac", "gi"),
        "rand->gi": ("rand", "gi"),
    }[family]

    def posterior(kind: str, last: bool) -> Posterior:
        if kind == "gi":
            return GlobalInducing(precision, pseudo_outputs=outputs if last else None)
        if kind == "li":
            return LocalInducing(n_inducing, precision=precision)
        return MeanField() if kind == "fac" else FromPrior()

    modules: list[nn.Module] = []
    for number, (width, next_width) in enumerate(itertools.pairwise(widths)):
        last = number == len(widths) - 2
        if number > 0 and activation is not None:
            modules.append(activation())
        kind = upper if last else lower
        modules.append(Linear(width, next_width, bias, prior=prior, posterior=posterior(kind, last)))
    return nn.Sequential(*modules)


def bnn_model(x: Tensor, network: nn.Sequential, likelihood: Gaussian) -> Model:
    """The model of a network, with inducing inputs where its family has global ones."""
    needs = any(m.posterior.takes_inducing for m in network if isinstance(m, Linear))
    return Model(network, likelihood, inducing=x if needs else None)


def _prior(chosen: Mapping[str, Any]) -> Prior:
    name = check_name(chosen.get("prior", "NealPrior"), ("NealPrior", "StandardPrior", "ScalePrior"), "prior")
    if name == "ScalePrior":
        return ScalePrior(chosen.get("scale_covariance", "1/s"))
    return NealPrior() if name == "NealPrior" else StandardPrior()


def _bnn(family: str) -> Builder:
    """Builder of a regression network.

    Options of the section `model`: `prior`, `scale_covariance` (the reading of ScalePrior), `hidden_layers`, `width`,
    `n_inducing` (None: all rows up to 10,000), `precision`, `log_noise` and `noise_scale`. Global inducing inputs and
    the last layer's pseudo-outputs start at the first training rows, local ones standard normal.
    """

    def builder(split: Split, options: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
        chosen = options["model"]
        n_inducing = min(chosen.get("n_inducing") or _MOST_INDUCING, len(split.x_train))
        hidden = [int(chosen.get("width", 50))] * int(chosen.get("hidden_layers", 2))
        network = bnn_network(
            family,
            [split.x_train.shape[1], *hidden, 1],
            n_inducing=n_inducing,
            prior=_prior(chosen),
            precision=chosen.get("precision", "per_output"),
            outputs=split.y_train[:n_inducing].reshape(n_inducing, -1),
        )
        noise = Positive(math.exp(chosen.get("log_noise", -3.0)), scale=chosen.get("noise_scale", 10.0))
        model = bnn_model(split.x_train[:n_inducing].to(torch.get_default_dtype()), network, Gaussian(noise))
        return model, training_options(options, len(split.x_train))

    return builder


MODELS.update({f"BNN {family}": _bnn(family) for family in FAMILIES})
