"""Deep ensembles: networks trained from different starts, and the mixture of their predictions."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from vibayes.data import check_count
from vibayes.errors import ConfigurationError, kind_of
from vibayes.prediction import Prediction
from vibayes.trainable import TrainableModel
from vibayes.training import History, fit_many

__all__ = ["Ensemble", "deep_ensemble"]


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
        for member in self.members:
            if not isinstance(member, TrainableModel):
                raise ConfigurationError(f"An ensemble is made of trained models, got {kind_of(member)}.")

    def predict(self, x: Any, n_samples: int = 100, batch_size: int | None = None) -> Prediction:
        """The mixture of the members' predictions; `n_samples` is for members whose draws differ."""
        parts = [member.predict(x, n_samples=n_samples, batch_size=batch_size) for member in self.members]
        return Prediction.mixture_of(parts)

    def __len__(self) -> int:
        return len(self.members)


def deep_ensemble(
    build: Callable[[], TrainableModel], data: Any, n_members: int = 5, *, seed: int = 0, **training: Any
) -> Ensemble:
    """Train networks of one architecture from different starts, in different orders of minibatches.

    Deep ensembles: Lakshminarayanan et al. 2017.

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
    check_count(n_members, "n_members")
    if isinstance(build, nn.Module) or not callable(build):
        raise ConfigurationError(f"build must be a function that makes a new model, got {kind_of(build)}.")
    models = []
    with torch.random.fork_rng(devices=[]):
        for r in range(n_members):
            torch.manual_seed(seed + r)
            models.append(build())
    histories = fit_many(models, [data] * n_members, seed=[seed + r for r in range(n_members)], **training)
    return Ensemble(models, histories)
