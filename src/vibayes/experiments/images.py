"""Bayesian image networks as models of the experiments."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from vibayes.augment import Augment, Compose, RandomCrop, RandomFlip
from vibayes.datasets import Split
from vibayes.errors import ConfigurationError
from vibayes.experiments.names import check_name
from vibayes.experiments.networks import NETWORKS, Bayesian
from vibayes.likelihoods import Categorical
from vibayes.model import Model
from vibayes.posteriors import GlobalInducing, MeanField
from vibayes.priors import NealPrior, Prior, ScalePrior, StandardPrior
from vibayes.spatial_prior import SpatialIWPrior

__all__ = ["AUGMENTATIONS", "POSTERIORS", "PRIORS", "image_model"]

PRIORS: dict[str, type[Prior]] = {
    "NealPrior": NealPrior,
    "StandardPrior": StandardPrior,
    "ScalePrior": ScalePrior,
    "SpatialIWPrior": SpatialIWPrior,
}
POSTERIORS = ("factorised", "local inducing", "fac->gi", "global inducing")
AUGMENTATIONS: dict[str, Augment] = {"flip and crop": Compose(RandomCrop(4), RandomFlip())}


def image_model(posterior: str, split: Split, options: Mapping[str, Any]) -> Model:
    """A network of the thesis with one of its posteriors in place.

    Options of the section `model`: `network` (a name in `NETWORKS`), `channels`, `prior`, `n_inducing`,
    `log_precision`, `last_log_precision`, and `normalize` (batch normalisation by inducing statistics, of `resnet18`).
    Inducing images are the first training images, and the last layer's pseudo-outputs start at their labels. Layers
    with local inducing points have as many as weights per output, but no more than `n_inducing`.

    Args:
        posterior: a name in `POSTERIORS`.
        split: the data.
        options: all options of a run.
    """
    chosen = options["model"]
    name = check_name(chosen.get("network", "small_resnet"), NETWORKS, "network")
    prior = PRIORS[check_name(chosen.get("prior", "SpatialIWPrior"), PRIORS, "prior")]()
    most_inducing = int(chosen.get("n_inducing", 500))
    n_inducing = min(most_inducing, len(split.x_train))
    if split.x_train.ndim != 4:
        raise ConfigurationError(f"{split.name} holds no images; this model needs images [N, C, H, W].")
    channels, size = split.x_train.shape[1], split.x_train.shape[-1]
    classes = int(split.y_train.max()) + 1
    labels = nn.functional.one_hot(split.y_train[:n_inducing], classes).to(torch.get_default_dtype())
    hidden = GlobalInducing(log_precision=chosen.get("log_precision", -4.0))
    last = GlobalInducing(pseudo_outputs=labels, log_precision=chosen.get("last_log_precision", 0.0))
    normalize = bool(chosen.get("normalize", False))
    if normalize and name != "resnet18":  # its convolutions would go without a bias, and nothing would take its place
        raise ConfigurationError(f"The network {name} has no normalisation. Use normalize=false, or network=resnet18.")
    layers = {
        "factorised": lambda: Bayesian(prior, MeanField(), normalize=normalize),
        "local inducing": lambda: Bayesian(prior, "local", normalize=normalize, most_local=most_inducing),
        "fac->gi": lambda: Bayesian(prior, MeanField(), last, normalize=normalize),
        "global inducing": lambda: Bayesian(prior, hidden, last, normalize=normalize),
    }[check_name(posterior, POSTERIORS, "posterior")]()
    built = NETWORKS[name](layers, channels, int(chosen.get("channels", 32)), classes, size)
    inducing = split.x_train[:n_inducing] if posterior in ("fac->gi", "global inducing") else None
    return Model(built, Categorical(), inducing=inducing)
