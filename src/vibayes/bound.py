"""The bound on the log evidence: what a pass returns, and what a person reads."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Bound", "Elbo"]


class Bound(NamedTuple):
    """The terms of the bound as tensors, one entry per draw (a pytree, so that `vmap` can return it).

    Attributes:
        log_likelihood: `[S]`, expected log likelihood of all data rows, scaled to the whole data set.
        log_ratio: `[S]`, sum over layers of `log p - log q` (or `-KL`).
        log_prior: log-prior of the hyperparameters; of `ExactGP(conditional=...)` less the evidence of the given rows.
        failures: for every factorization site, how many failed; zero is success.
        targets: what buffers that natural gradients move are to move towards, by name.
    """

    log_likelihood: Tensor
    log_ratio: Tensor
    log_prior: Tensor
    failures: dict[str, Tensor]
    targets: dict[str, Tensor]

    def objective(self, kl_weight: float | Tensor = 1.0) -> Tensor:
        """What training maximises: `E[log likelihood] + kl_weight E[log p - log q] + log prior`."""
        return self.log_likelihood.mean() + kl_weight * self.log_ratio.mean() + self.log_prior


@dataclass(frozen=True)
class Elbo:
    """The evidence lower bound in nats, on the scale the model trains on.

    Attributes:
        log_likelihood: expected log likelihood of the data.
        kl: the divergence of the posterior from the prior.
        n_data: how many data rows it is a bound for.
        stderr: Monte Carlo standard error of `value` over draws (zero when it is closed-form, NaN for one draw).
        kl_weight: the weight of `kl` in `objective`; `value` is never tempered.
        log_prior: log-prior of the hyperparameters, which enters `objective` only; of `ExactGP(conditional=...)` less
            the evidence of the given rows, so that `objective` is the conditional evidence.
        log_jacobian: what a row's log density loses in user units.

    >>> import vibayes as vb
    >>> model = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.5))
    >>> elbo = model.elbo(torch.zeros(2, 1), torch.zeros(2))
    >>> bool(elbo.per_datapoint == elbo.value / 2), float(elbo.stderr)
    (True, 0.0)
    """

    log_likelihood: Tensor
    kl: Tensor
    n_data: int
    stderr: Tensor
    kl_weight: float | Tensor
    log_prior: Tensor
    log_jacobian: Tensor

    @classmethod
    def of(
        cls,
        bound: Bound,
        *,
        n_data: int,
        log_jacobian: Tensor,
        kl_weight: float | Tensor = 1.0,
        exact: bool = False,
    ) -> "Elbo":
        """From the terms of a pass; `exact` when nothing in it is Monte Carlo."""
        per_draw = (bound.log_likelihood + bound.log_ratio).detach()
        draws = per_draw.numel()
        stderr = per_draw.std() / draws**0.5 if draws > 1 else torch.full_like(per_draw[0], torch.nan)
        return cls(
            log_likelihood=bound.log_likelihood.mean(),
            kl=0.0 - bound.log_ratio.mean(),  # not -0.0
            n_data=n_data,
            stderr=torch.zeros_like(stderr) if exact else stderr,
            kl_weight=kl_weight,
            log_prior=bound.log_prior,
            log_jacobian=log_jacobian,
        )

    @property
    def value(self) -> Tensor:
        """The bound on the log evidence, total nats."""
        return self.log_likelihood - self.kl

    @property
    def objective(self) -> Tensor:
        """The bound with the weighted KL and the hyperparameters' log-prior: maximise this."""
        return self.log_likelihood - self.kl_weight * self.kl + self.log_prior

    @property
    def per_datapoint(self) -> Tensor:
        """`value / n_data`, nats per data row."""
        return self.value / self.n_data

    @property
    def in_user_units(self) -> Tensor:
        """The bound for the targets in user units: `value - n_data * sum_p log(scale_p)`."""
        return self.value - self.n_data * self.log_jacobian

    def __repr__(self) -> str:
        names = ("value", "log_likelihood", "kl", "per_datapoint", "stderr")
        shown = (f"{name}={float(getattr(self, name).detach()):.4f}" for name in names)
        return f"Elbo({', '.join(shown)})"
