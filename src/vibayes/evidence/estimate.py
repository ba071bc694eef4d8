"""An estimate of the log evidence, and importance weights of variational models."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.data import check_count
from vibayes.errors import ConfigurationError
from vibayes.model import Model

__all__ = ["Evidence", "importance_weighted"]

# Joint draws that `importance_weighted` holds at once.
_DRAWS_PER_PASS = 100


@dataclass(frozen=True)
class Evidence:
    """An estimate of `log p(y)` in nats, on the scale the model trains on.

    Attributes:
        value: the estimate.
        stderr: its standard error, from the spread of the weights. Too small where few particles carry the weight:
            look at `ess`.
        kind: what the estimate is in expectation.
        log_weights: of the particles.
        ess: effective number of particles, `(sum w)^2 / sum w^2`.
        n_data: rows of data, where a model was given.
        log_jacobian: what a row's log density loses in user units.
    """

    value: float
    stderr: float
    kind: str
    log_weights: Float[Tensor, " n"]
    ess: float
    n_data: float = 0
    log_jacobian: float = 0.0

    @classmethod
    def of(cls, log_weights: Tensor, side: str, n_data: float = 0, log_jacobian: float = 0.0) -> "Evidence":
        """From weights whose mean estimates `p(y)` (side `"lower"`), or `1 / p(y)` (`"upper"`)."""
        log_weights = log_weights.detach().double().cpu()
        n = len(log_weights)
        log_mean = float(torch.logsumexp(log_weights, 0)) - math.log(n)
        share = torch.softmax(log_weights, 0)
        ess = float(1.0 / share.square().sum())
        # delta method: the variance of the mean weight over its square
        stderr = math.sqrt(max(n / ess - 1.0, 0.0) / (n - 1)) if n > 1 else math.nan
        value = log_mean if side == "lower" else -log_mean
        return cls(value, stderr, f"{side} bound in expectation", log_weights, ess, n_data, log_jacobian)

    @property
    def per_datapoint(self) -> float:
        """`value / n_data`."""
        if not self.n_data:
            raise ConfigurationError("This estimate is of a plain Target, whose number of rows is not known.")
        return self.value / self.n_data

    @property
    def in_user_units(self) -> float:
        """The evidence of the targets in user units: `value - n_data * sum_p log(scale_p)`."""
        return self.value - self.n_data * self.log_jacobian

    def __repr__(self) -> str:
        return (
            f"Evidence({self.value:.3f} +- {self.stderr:.3f}, {self.kind}, {len(self.log_weights)} particles, "
            f"effectively {self.ess:.1f})"
        )


@torch.no_grad()
def importance_weighted(model: Model, data: Any, n_samples: int = 1000) -> Evidence:
    r"""The importance-weighted bound of a variational model (Burda, Grosse & Salakhutdinov 2016).

    `log 1/S sum_s p(y | f_s) p(f_s) / q(f_s)` over joint draws of the function from the approximate posterior: above
    the ELBO, below the log evidence in expectation, and tending to it with more draws.

    Args:
        model: any `Model` with a density for its posterior.
        data: `(x, y)`.
        n_samples: S.

    >>> import torch, vibayes as vb
    >>> gp = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(5))
    >>> model = vb.Model(gp, vb.Gaussian(0.1))
    >>> x = torch.linspace(-1, 1, 8)[:, None]
    >>> _ = vb.fit(model, (x, x[:, 0]), steps=5, progress=False)
    >>> vb.evidence.importance_weighted(model, (x, x[:, 0]), 10).n_data
    8
    """
    if not isinstance(model, Model):
        raise ConfigurationError(
            f"importance_weighted takes a variational Model; {type(model).__name__} has its evidence or bound in "
            "closed form, and ais for that of its hyperparameters."
        )
    check_count(n_samples, "n_samples")
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ConfigurationError("data must be (x, y).")
    sizes = [_DRAWS_PER_PASS] * (n_samples // _DRAWS_PER_PASS) + [n_samples % _DRAWS_PER_PASS]
    parts = [model.log_weights(data[0], data[1], size) for size in sizes if size]
    return Evidence.of(torch.cat(parts), "lower", len(data[1]), float(model.units.log_jacobian()))
