"""Deep ensembles: networks trained from different starts, and the mixture of their predictions."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vibayes.errors import ConfigurationError
from vibayes.likelihoods import Mixture
from vibayes.prediction import Prediction
from vibayes.trainable import TrainableModel
from vibayes.training import History, fit_many

__all__ = ["Ensemble", "deep_ensemble", "mix"]


class Ensemble:
    """Several models of the same data as one: its prediction is the mixture of theirs, with equal weights.

    Args:
        members: trained models.
        histories: how they were trained, where that is known.

    >>> import vibayes as vb
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> members = [vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(s)) for s in (0.1, 0.2)]
    >>> for member in members:
    ...     member.condition(x, x[:, 0])
    >>> Ensemble(members).predict(x)
    Prediction(regression, 20 rows, 2 draws; .mean .std .quantile .interval .cdf .log_prob .sample)
    """

    def __init__(self, members: Sequence[TrainableModel], histories: Sequence[History] = ()) -> None:
        self.members, self.histories = list(members), list(histories)
        if not self.members:
            raise ConfigurationError("An ensemble needs at least one member.")

    def predict(self, x: Any, n_samples: int = 100, batch_size: int | None = None) -> Prediction:
        """The mixture of the members' predictions; `n_samples` is for members whose draws differ."""
        return mix([m.predict(x, n_samples=n_samples, batch_size=batch_size) for m in self.members])  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self.members)


def deep_ensemble(
    build: Callable[[], TrainableModel], data: Any, n_members: int = 5, *, seed: int = 0, **training: Any
) -> Ensemble:
    """Train networks of one architecture from different starts and orders of minibatches (Lakshminarayanan et al. 2017).

    Args:
        build: makes a new model, such as a network that ends in `Linear(..., posterior=Point())`.
        data: `(x, y)` or `(x, y, weights)`.
        n_members: how many.
        seed: of the first member; the others follow.
        **training: keyword arguments of `fit_many`: members train together.

    >>> import vibayes as vb
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> def build():
    ...     net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), vb.Linear(8, 1, posterior=vb.Point()))
    ...     return vb.Model(net, vb.Gaussian(0.1))
    >>> ensemble = deep_ensemble(build, (x, x[:, 0]), 3, steps=10, progress=False)
    >>> len(ensemble), ensemble.predict(x).n_draws
    (3, 3)
    """
    models = []
    with torch.random.fork_rng(devices=[]):
        for r in range(n_members):
            torch.manual_seed(seed + r)
            models.append(build())
    histories = fit_many(models, [data] * n_members, seed=[seed + r for r in range(n_members)], **training)
    return Ensemble(models, histories)


def mix(predictions: Sequence[Prediction]) -> Prediction:
    """One prediction that is the mixture, with equal weights, of several of the same rows.

    Noise and scales may differ between them; kinds, units and numbers of targets may not.
    """
    if not predictions:
        raise ConfigurationError("mix needs at least one prediction, got none.")
    first = predictions[0]
    for other in predictions:
        alike = type(other.mixture) is type(first.mixture) and len(other) == len(first)
        if not alike or not (torch.equal(other._loc, first._loc) and torch.equal(other._scale, first._scale)):
            raise ConfigurationError("mix joins predictions of the same rows, kind and units; these differ.")
    return first._with(_mix([p.mixture for p in predictions]), None)


def _mix(mixtures: Sequence[Mixture]) -> Mixture:
    first = mixtures[0]
    joined: dict[str, Any] = {}
    for field in dataclasses.fields(first):
        values = [getattr(m, field.name) for m in mixtures]
        if field.name == "log_weights":
            joined[field.name] = torch.cat(values) - math.log(len(mixtures))
        elif field.name in first.ROWS:
            joined[field.name] = torch.cat(values)
        elif isinstance(values[0], Tensor):  # one per draw, or shared by the draws of one mixture
            parts = [v.expand(m.n_draws, *v.shape[1:]) for v, m in zip(values, mixtures, strict=True)]
            joined[field.name] = torch.cat(parts)
        elif field.name == "spacing":
            joined[field.name] = min(values)
        elif field.name == "exact":
            joined[field.name] = all(values)
        elif any(value != values[0] for value in values):
            raise ConfigurationError(f"mix joins predictions with the same {field.name}; these have {values}.")
    return dataclasses.replace(first, **joined)
