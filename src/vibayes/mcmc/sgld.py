"""Stochastic-gradient Langevin dynamics and Hamiltonian Monte Carlo, as torch optimizers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from vibayes.data import check_count
from vibayes.errors import ConfigurationError

__all__ = ["SGHMC", "SGLD", "robbins_monro"]

# The factor of the learning rate in an epoch, counted from 0.
EpochSchedule = Callable[[int], float]

_REDUCTIONS = ("mean", "sum", "total")


def robbins_monro(decay: float = 0.4) -> EpochSchedule:
    """`lr_t = lr_0 / (1 + decay t)` in epoch t (thesis, App. "Implementation details", read as in the errata).

    Its sum is infinite and the sum of its squares finite, as convergence asks for.

    >>> [round(robbins_monro(0.4)(t), 3) for t in (0, 1, 5)]
    [1.0, 0.714, 0.333]
    """
    if not (math.isfinite(decay) and decay >= 0):
        raise ConfigurationError(f"decay must not be negative, got {decay}.")
    return lambda epoch: 1.0 / (1.0 + decay * epoch)


class _StochasticGradient(torch.optim.Optimizer, ABC):
    """What both share: the scale of the gradient, the clock of epochs, and the noise."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        defaults: dict[str, Any],
        *,
        n_data: int | None,
        batch_size: int | None,
        reduction: str,
        prior_precision: float,
        lr_schedule: EpochSchedule | None,
        temperature: float,
        seed: int | None,
    ) -> None:
        name = type(self).__name__
        if n_data is None or batch_size is None:
            raise ConfigurationError(
                f"{name} needs n_data, the number of training rows, and batch_size: the noise must match a gradient "
                f"that stands for all rows. Use {name}(parameters, lr, n_data=len(x), batch_size=100)."
            )
        self.n_data, self.batch_size = check_count(n_data, "n_data"), check_count(batch_size, "batch_size")
        if self.batch_size > self.n_data:
            raise ConfigurationError(f"batch_size ({batch_size}) must not exceed n_data ({n_data}).")
        if not (math.isfinite(lr) and lr > 0):
            raise ConfigurationError(f"lr must be positive, got {lr}.")
        if reduction not in _REDUCTIONS:
            raise ConfigurationError(f"reduction must be one of {_REDUCTIONS}, got {reduction!r}.")
        if not (math.isfinite(prior_precision) and prior_precision >= 0):
            raise ConfigurationError(f"prior_precision must not be negative, got {prior_precision}.")
        if not (math.isfinite(temperature) and temperature >= 0):
            raise ConfigurationError(f"temperature must not be negative, got {temperature}.")
        super().__init__(params, {"lr": lr, "prior_precision": prior_precision, **defaults})
        self.temperature, self.reduction = temperature, reduction
        self.lr_schedule = lr_schedule or (lambda epoch: 1.0)
        self.steps = 0
        self._generators: dict[torch.device, torch.Generator] = {}
        self._seed = seed

    @property
    def epoch(self) -> int:
        """How many times all rows have been seen, rounded down."""
        return self.steps * self.batch_size // self.n_data

    @property
    def gradient_scale(self) -> float:
        """What takes the gradient of the loss to that of the negative log likelihood of all rows."""
        if self.reduction == "mean":
            return float(self.n_data)
        return self.n_data / self.batch_size if self.reduction == "sum" else 1.0

    def _noise(self, like: Tensor) -> Tensor:
        if self._seed is None:
            return torch.randn_like(like)
        if like.device not in self._generators:
            self._generators[like.device] = torch.Generator(like.device).manual_seed(self._seed)
        generator = self._generators[like.device]
        return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)

    @abstractmethod
    def _move(self, parameter: Tensor, gradient: Tensor, lr: float, group: dict[str, Any]) -> None:
        """Change a parameter in place, given the gradient of the potential energy."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move all parameters once; a closure that computes the loss and its gradient is called first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        factor = self.lr_schedule(self.epoch)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = self.gradient_scale * parameter.grad + group["prior_precision"] * parameter
                    self._move(parameter, gradient, factor * group["lr"], group)
        self.steps += 1
        return loss

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with the number of steps and the noise's generators."""
        generators = {str(device): g.get_state() for device, g in self._generators.items()}
        return {**super().state_dict(), "steps": self.steps, "generators": generators}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put it back."""
        state = dict(state_dict)
        self.steps = int(state.pop("steps"))
        for device, kept in state.pop("generators").items():
            place = torch.device(device)
            self._generators[place] = torch.Generator(place)
            self._generators[place].set_state(kept)
        super().load_state_dict(state)


class SGLD(_StochasticGradient):
    r"""Stochastic-gradient Langevin dynamics (Welling & Teh 2011).

    `theta <- theta - lr/2 grad U + sqrt(lr T) eps`, with `U = -log p(y | theta) - log p(theta)` over all rows,
    estimated on a minibatch. With a step size that falls (`robbins_monro`) it samples `exp(-U / T)`.

    Args:
        params: parameters, or groups of them as in torch; `lr` and `prior_precision` may differ by group.
        lr: the step size for `U`. The thesis's rates are divided by the number of rows: `lr=1e-3 / n_data`.
        n_data: rows of the whole data set.
        batch_size: rows of a minibatch.
        reduction: what the loss is that `backward` was called on: `"mean"` or `"sum"` of the negative log likelihood
            over the minibatch's rows, or `"total"`, an estimate of the negative log joint density of all rows, such as
            `-model.elbo(...).objective`.
        prior_precision: of a Gaussian prior `N(0, 1 / precision)` that the loss does not contain.
        lr_schedule: factor of `lr` in each epoch, e.g. `robbins_monro(0.4)`; constant when None.
        temperature: `T`; 0 is gradient descent.
        seed: of the noise; torch's generator when None.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.zeros(3))
    >>> optimizer = SGLD([weight], lr=1e-4, n_data=1000, batch_size=100, lr_schedule=robbins_monro())
    >>> weight.square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.epoch
    0
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        n_data: int | None = None,
        batch_size: int | None = None,
        reduction: str = "mean",
        prior_precision: float = 0.0,
        lr_schedule: EpochSchedule | None = None,
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            {},
            n_data=n_data,
            batch_size=batch_size,
            reduction=reduction,
            prior_precision=prior_precision,
            lr_schedule=lr_schedule,
            temperature=temperature,
            seed=seed,
        )

    def _move(self, parameter: Tensor, gradient: Tensor, lr: float, group: dict[str, Any]) -> None:
        parameter.add_(gradient, alpha=-0.5 * lr)
        parameter.add_(self._noise(parameter), alpha=math.sqrt(lr * self.temperature))


class SGHMC(_StochasticGradient):
    r"""Stochastic-gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin 2014, Eq. 15).

    `v <- (1 - friction) v - lr grad U + sqrt(2 (friction - noise_estimate) lr T) eps`, `theta <- theta + v`: Langevin
    dynamics with momentum, which moves faster along narrow valleys.

    Args:
        params: as in `SGLD`.
        lr: `eta` of the paper, the square of a leapfrog step size.
        friction: `alpha`, in (0, 1]: one minus the momentum's decay.
        noise_estimate: `beta`, the part of the friction that the minibatches' own noise makes up for; below `friction`.
        n_data: as in `SGLD`, and so are all the rest.
        batch_size: rows of a minibatch.
        reduction: see `SGLD`.
        prior_precision: see `SGLD`.
        lr_schedule: see `SGLD`.
        temperature: see `SGLD`.
        seed: see `SGLD`.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.zeros(3))
    >>> optimizer = SGHMC([weight], lr=1e-6, n_data=1000, batch_size=100)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        friction: float = 0.1,
        noise_estimate: float = 0.0,
        n_data: int | None = None,
        batch_size: int | None = None,
        reduction: str = "mean",
        prior_precision: float = 0.0,
        lr_schedule: EpochSchedule | None = None,
        temperature: float = 1.0,
        seed: int | None = None,
    ) -> None:
        if not 0.0 < friction <= 1.0:
            raise ConfigurationError(f"friction must lie in (0, 1], got {friction}.")
        if not 0.0 <= noise_estimate < friction:
            raise ConfigurationError(f"noise_estimate must lie in [0, friction), got {noise_estimate}.")
        super().__init__(
            params,
            lr,
            {"friction": friction, "noise_estimate": noise_estimate},
            n_data=n_data,
            batch_size=batch_size,
            reduction=reduction,
            prior_precision=prior_precision,
            lr_schedule=lr_schedule,
            temperature=temperature,
            seed=seed,
        )

    def _move(self, parameter: Tensor, gradient: Tensor, lr: float, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["velocity"] = torch.zeros_like(parameter)
        velocity: Tensor = state["velocity"]
        noise = math.sqrt(2.0 * (group["friction"] - group["noise_estimate"]) * lr * self.temperature)
        velocity.mul_(1.0 - group["friction"]).add_(gradient, alpha=-lr).add_(self._noise(parameter), alpha=noise)
        parameter.add_(velocity)
