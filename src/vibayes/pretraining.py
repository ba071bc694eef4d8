"""Pretraining: a plain network with a linear head of its own, whose features a Gaussian process then takes over."""

from typing import Any

import torch
from torch import Tensor, nn

from vibayes.data import as_rows
from vibayes.errors import ConfigurationError, ShapeError, kind_of
from vibayes.layers.linear import Linear
from vibayes.likelihoods import Gaussian, Likelihood
from vibayes.model import Model
from vibayes.modes import default_dtype, evaluating
from vibayes.posteriors.point import Point
from vibayes.trainable import TrainableModel
from vibayes.training import History, fit

__all__ = ["fit_noise", "pretrain"]


def pretrain(
    network: nn.Module,
    data: tuple[Any, Any] | tuple[Any, Any, Any],
    likelihood: Likelihood | None = None,
    *,
    out_features: int = 1,
    activation: nn.Module | None = None,
    standardize: str | None = None,
    **training: Any,
) -> tuple[Model, History]:
    """Train a network as a plain one, by maximum likelihood, with a linear head behind it.

    The network is trained in place: put it into a `DeepKernel` or before a `GP` layer afterwards and train that with
    the network frozen (`vibayes.stages.freeze`; "fSVDKL" in the thesis), and then jointly (`unfreeze`; "pSVDKL"). Use
    the same `standardize` and the same training rows for all stages: features fitted to rows that are test rows of a
    later stage leak (see the thesis's errata on UTKFace).

    With no likelihood, or a Gaussian one whose noise is fixed, this is training on squared errors; the noise is then
    set to its maximum likelihood value, the mean squared error.

    Args:
        network: from rows to features `[N, W]`.
        data: `(x, y)` or `(x, y, weights)`.
        likelihood: `Gaussian(0.5, learn=False)` by default, for which the loss per row is the squared error.
        out_features: outputs of the head (classes, for a `Categorical`).
        activation: put between features and head, such as `nn.ReLU()`; none by default.
        standardize: as in `Model`.
        **training: keyword arguments of `fit`, such as `steps`, `lr`, `batch_size`, `weight_decay`.

    Returns:
        The plain network as a `Model`, and its history.

    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> features = nn.Sequential(nn.Linear(1, 20), nn.ReLU(), nn.Linear(20, 3))
    >>> model, history = pretrain(features, (x, x[:, 0] ** 2), steps=20, lr=1e-2, progress=False)
    >>> model.predict(x).mean.shape
    torch.Size([40])
    """
    if not isinstance(network, nn.Module):
        raise ConfigurationError(f"network must be a torch module, got {type(network).__name__}.")
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise ConfigurationError(f"data must be (x, y) or (x, y, weights), got {type(data).__name__}.")
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        raise ConfigurationError(f"likelihood must be a likelihood such as Categorical(), got {kind_of(likelihood)}.")
    with torch.no_grad():
        like = next(iter(network.parameters()), torch.zeros(()))
        with evaluating(network):
            found: Tensor = network(as_rows(data[0], "x", dtype=like.dtype, device=like.device)[:2])
    if found.ndim != 2:
        raise ShapeError(f"The network must give features [N, W]; it gave {list(found.shape)}. Flatten its output.")
    chosen = Gaussian(0.5, learn=False) if likelihood is None else likelihood
    middle = [] if activation is None else [activation]
    with default_dtype(like.dtype):  # the head has the network's
        head = Linear(found.shape[1], out_features, posterior=Point(prior=False))
        model = Model(nn.Sequential(network, *middle, head), chosen.to(like.dtype), standardize=standardize)
    model.to(like.device)
    history = fit(model, data, **{"lr": 1e-3, **training})
    if isinstance(chosen, Gaussian) and not chosen.noise.raw.requires_grad:
        fit_noise(model, *data[:2], weights=data[2] if len(data) > 2 else None)
    return model, history


@torch.no_grad()
def fit_noise(model: TrainableModel, x: Any, y: Any, batch_size: int = 4096, *, weights: Any = None) -> float:
    """Set a Gaussian likelihood's noise to its maximum likelihood value given the model's mean, the mean squared error.

    How the thesis gives plain networks a log likelihood after training them on squared errors (its App. "Experimental
    details", UCI).

    Args:
        model: a trained model with a `Gaussian` likelihood.
        x: training inputs, in user units.
        y: training targets.
        batch_size: rows predicted at once.
        weights: of the rows, as in training: the weighted mean squared error.

    Returns:
        The noise variance on the scale the model trains on (the mean over targets).

    >>> import vibayes as vb
    >>> model = vb.Model(vb.Linear(1, 1, posterior=vb.Point(prior=False)), vb.Gaussian(0.5, learn=False))
    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> history = vb.fit(model, (x, 2 * x[:, 0] + 0.1 * torch.cos(70 * x[:, 0])), steps=300, lr=0.05, progress=False)
    >>> round(fit_noise(model, x, 2 * x[:, 0] + 0.1 * torch.cos(70 * x[:, 0])), 3)
    0.005
    """
    if type(model.likelihood) is not Gaussian:
        found = type(model.likelihood).__name__
        raise ConfigurationError(f"fit_noise sets the noise of a Gaussian likelihood, got {found}.")
    batch = model.prepare(x, y, weights)
    mean = model.predict(x, batch_size=batch_size).mean.reshape(batch.y.shape)
    errors = (model.units.targets(mean) - batch.y).square()
    noise = model.likelihood.noise
    if batch.weights is not None:
        share = batch.weights / batch.weights.mean()
        errors = errors * share.reshape(-1, *[1] * (errors.ndim - 1))
    value = errors.mean(0) if noise.raw.numel() > 1 else errors.mean()
    noise.set(value.clamp_min(torch.finfo(value.dtype).tiny))  # errors of exactly zero have no logarithm
    return float(noise.value.mean())
