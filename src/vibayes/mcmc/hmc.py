"""Hamiltonian Monte Carlo: leapfrog trajectories, for all chains at once.

Everything works in coordinates scaled by the posterior's standard deviations (`scale`, from warm-up), in which
momenta are standard normal. That is the same as a diagonal mass matrix `1 / scale^2`.
"""

import math
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vibayes.data import check_count
from vibayes.errors import ConfigurationError
from vibayes.mcmc.target import Evaluation

__all__ = ["HMC", "Evaluate", "Sampler", "State", "Transition", "leapfrog"]

# A trajectory whose energy is wrong by more than this has diverged (as in Stan).
DIVERGENCE = 1000.0


class Evaluate(Protocol):
    """The density and its gradient at the positions of all chains."""

    def __call__(self, theta: Float[Tensor, "c d"], /) -> Evaluation:
        """Evaluate."""


class State(NamedTuple):
    """Where C chains are: positions `[C, D]`, log densities `[C]` and gradients `[C, D]`."""

    position: Float[Tensor, "c d"]
    log_density: Float[Tensor, " c"]
    gradient: Float[Tensor, "c d"]

    @classmethod
    def at(cls, position: Tensor, evaluate: Evaluate) -> "State":
        """The state at these positions."""
        found = evaluate(position)
        return cls(position, found.log_density, found.gradient)

    def where(self, mask: Tensor, other: "State") -> "State":
        """This state for chains in the mask, another for the rest."""
        wide = mask[:, None]
        return State(
            torch.where(wide, self.position, other.position),
            torch.where(mask, self.log_density, other.log_density),
            torch.where(wide, self.gradient, other.gradient),
        )


class Transition(NamedTuple):
    """One transition of every chain.

    Attributes:
        state: where the chains are now.
        accept: mean acceptance probability along the trajectory, which the step size is adapted to.
        diverging: whether the trajectory diverged.
        n_leapfrog: how many leapfrog steps it took.
    """

    state: State
    accept: Float[Tensor, " c"]
    diverging: Bool[Tensor, " c"]
    n_leapfrog: Int[Tensor, " c"]


class Sampler(Protocol):
    """A Markov kernel that leaves the target's density invariant."""

    def transition(
        self, evaluate: Evaluate, state: State, step_size: Tensor, scale: Tensor, generator: torch.Generator
    ) -> Transition:
        """Move every chain once.

        Args:
            evaluate: the density.
            state: where the chains are.
            step_size: `[C]`.
            scale: `[D]`, the standard deviations that momenta are scaled by.
            generator: where random numbers come from.
        """


def leapfrog(evaluate: Evaluate, state: State, momentum: Tensor, step: Float[Tensor, "c d"]) -> tuple[State, Tensor]:
    """One leapfrog step; `step` is the step size times the scale, and may be negative, which goes back in time."""
    momentum = torch.addcmul(momentum, step, state.gradient, value=0.5)
    state = State.at(torch.addcmul(state.position, step, momentum), evaluate)
    return state, torch.addcmul(momentum, step, state.gradient, value=0.5)


def energy(state: State, momentum: Tensor) -> Float[Tensor, " c"]:
    """The Hamiltonian `-log density + |momentum|^2 / 2`."""
    return 0.5 * momentum.square().sum(1) - state.log_density


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers from a generator."""
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers uniform in [0, 1) from a generator."""
    return torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=generator)


class HMC:
    r"""Hamiltonian Monte Carlo with a fixed number of leapfrog steps (Duane et al. 1987; Neal 2011).

    A momentum is drawn, the trajectory is followed for `n_leapfrog` steps, and its end is accepted with probability
    `min(1, exp(H_start - H_end))`.

    Args:
        n_leapfrog: leapfrog steps of one transition (thesis: 20).
        jitter: the step size of every transition is multiplied by a number uniform in `1 -+ jitter`, so that no
            trajectory keeps returning to where it began.

    >>> HMC(n_leapfrog=10)
    HMC(n_leapfrog=10, jitter=0.1)
    """

    def __init__(self, n_leapfrog: int = 20, *, jitter: float = 0.1) -> None:
        self.n_leapfrog = check_count(n_leapfrog, "n_leapfrog")
        if not (math.isfinite(jitter) and 0.0 <= jitter < 1.0):
            raise ConfigurationError(f"jitter must lie in [0, 1), got {jitter}.")
        self.jitter = jitter

    def __repr__(self) -> str:
        return f"HMC(n_leapfrog={self.n_leapfrog}, jitter={self.jitter})"

    def transition(
        self, evaluate: Evaluate, state: State, step_size: Tensor, scale: Tensor, generator: torch.Generator
    ) -> Transition:
        """Follow one trajectory in every chain and accept or refuse its end."""
        start = normal(state.position, generator)
        step = step_size * (1.0 + self.jitter * (2.0 * uniform(step_size, generator) - 1.0))
        end, momentum, scaled = state, start, step[:, None] * scale
        for _ in range(self.n_leapfrog):
            end, momentum = leapfrog(evaluate, end, momentum, scaled)
        gain = torch.nan_to_num(energy(state, start) - energy(end, momentum), nan=-torch.inf)
        accept = gain.exp().clamp_max(1.0)
        taken = uniform(accept, generator) < accept
        count = torch.full_like(taken, self.n_leapfrog, dtype=torch.long)
        return Transition(end.where(taken, state), accept, gain < -DIVERGENCE, count)
