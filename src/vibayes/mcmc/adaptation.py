"""Warm-up: step sizes by dual averaging, and the scales of parameters from the chains themselves."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.mcmc.hmc import Evaluate, State, energy, leapfrog, normal

__all__ = ["DualAveraging", "Scales", "Warmup", "first_step_size", "windows"]


class DualAveraging:
    r"""Step sizes whose acceptance rate is the one asked for (Hoffman & Gelman 2014, Sec. 3.2; Nesterov 2009).

    `log e_t = mu - sqrt(t) / (gamma (t + t0)) sum_s (delta - accept_s)`, and the average of the `log e_t` with weights
    `t^-kappa` is what sampling uses. One step size per chain.

    Args:
        step_size: `[C]` to begin with; the search is drawn towards ten times these.
        target: `delta`, the acceptance rate.
    """

    gamma, t0, kappa = 0.05, 10.0, 0.75

    def __init__(self, step_size: Float[Tensor, " c"], target: float) -> None:
        self.target = target
        self.restart(step_size)

    def restart(self, step_size: Float[Tensor, " c"]) -> None:
        """Forget the past, from these step sizes."""
        self.mu = (10.0 * step_size).log()
        self.log_step = step_size.log()
        self.log_average = torch.zeros_like(step_size)
        self.error = torch.zeros_like(step_size)
        self.count = 0

    def update(self, accept: Float[Tensor, " c"]) -> None:
        """Take in the acceptance rates of one transition."""
        self.count += 1
        weight = 1.0 / (self.count + self.t0)
        self.error = (1.0 - weight) * self.error + weight * (self.target - accept)
        self.log_step = self.mu - math.sqrt(self.count) / self.gamma * self.error
        share = self.count**-self.kappa
        self.log_average = share * self.log_step + (1.0 - share) * self.log_average

    @property
    def step_size(self) -> Float[Tensor, " c"]:
        """For the next transition of the warm-up."""
        return self.log_step.exp()

    @property
    def average(self) -> Float[Tensor, " c"]:
        """For sampling."""
        return (self.log_average if self.count else self.log_step).exp()

    def state(self) -> dict[str, Tensor | int]:
        """All that it remembers."""
        names = ("mu", "log_step", "log_average", "error")
        return {**{name: getattr(self, name) for name in names}, "count": self.count}

    def restore(self, state: Mapping[str, Tensor | int]) -> None:
        """Put it back."""
        for name, value in state.items():
            setattr(self, name, value.to(self.mu.device) if isinstance(value, Tensor) else value)


class Scales:
    """Variances of the parameters within chains, pooled over chains (Welford's sums).

    Pooled, because parameters have the same scale in all chains; within chains, because chains may be far apart before
    they have converged, or sit in modes that mirror each other.
    """

    def __init__(self, like: Float[Tensor, "c d"]) -> None:
        self.count, self.mean, self.squares = 0, torch.zeros_like(like), torch.zeros_like(like)

    def update(self, position: Float[Tensor, "c d"]) -> None:
        """Take in the positions after one transition."""
        self.count += 1
        before = position - self.mean
        self.mean = self.mean + before / self.count
        self.squares = self.squares + before * (position - self.mean)

    def standard_deviation(self) -> Float[Tensor, " d"]:
        """`[D]`, drawn a little towards 1e-3 as in Stan."""
        n = self.count * len(self.mean)
        variance = self.squares.sum(0) / max(n - len(self.mean), 1)
        return ((n * variance + 5.0 * 1e-3) / (n + 5.0)).sqrt()


def windows(n_warmup: int) -> tuple[int, list[int]]:
    """When scales are learned, as in Stan: from the first number on, and used anew after each of the others.

    15% of the warm-up (at most 75) finds the bulk; windows that double in length learn scales; the last 10% (at most
    50) fits the step size to them.

    >>> windows(1000)
    (75, [100, 150, 250, 450, 950])
    >>> windows(10)
    (10, [])
    """
    if n_warmup < 20:
        return n_warmup, []
    first, last = (75, 50) if n_warmup >= 150 else (int(0.15 * n_warmup), int(0.1 * n_warmup))
    end, size, ends = n_warmup - last, 25 if n_warmup >= 150 else n_warmup - first - last, []
    begin = first
    while begin < end:
        stop = begin + size
        if stop + 2 * size > end:  # no room for another window of twice the size
            stop = end
        ends.append(stop)
        begin, size = stop, 2 * size
    return first, ends


def first_step_size(
    evaluate: Evaluate, state: State, scale: Tensor, generator: torch.Generator, start: Tensor
) -> Float[Tensor, " c"]:
    """Step sizes at which one leapfrog step is accepted about half of the time, by doubling or halving (their Alg. 4).

    A chain for which there is none down to 2^-60 of the start has zero.
    """
    momentum = normal(state.position, generator)
    begin = energy(state, momentum)

    def accepted(step: Tensor) -> Tensor:
        end, after = leapfrog(evaluate, state, momentum, step[:, None] * scale)
        return torch.nan_to_num(begin - energy(end, after), nan=-torch.inf) > math.log(0.5)

    step = start
    grow = accepted(step)
    searching = torch.ones_like(grow)
    for _ in range(60):
        following = torch.where(grow, 2.0 * step, 0.5 * step)
        step = torch.where(searching, following, step)
        searching = searching & (accepted(step) == grow) & (step < 1e7)
        if not bool(searching.any()):
            break
    return torch.where(searching & ~grow, torch.zeros_like(step), step)


class Warmup:
    """Decides the step sizes and scales of every transition.

    Args:
        step_size: `[C]` to begin with.
        scale: `[D]` to begin with.
        n_warmup: how many transitions it may learn from.
        target_accept: the acceptance rate that step sizes are adapted to.
        adapt_step: whether step sizes are adapted.
        adapt_scale: whether scales are.
    """

    def __init__(
        self,
        step_size: Tensor,
        scale: Tensor,
        n_warmup: int,
        target_accept: float,
        adapt_step: bool,
        adapt_scale: bool,
    ) -> None:
        self.steps = DualAveraging(step_size, target_accept)
        self.scale, self.n_warmup = scale, n_warmup
        self.adapt_step, self.adapt_scale = adapt_step, adapt_scale
        self.first, self.ends = windows(n_warmup)
        self.scales = Scales(step_size.new_zeros(len(step_size), len(scale)))

    def step_size(self, number: int) -> Float[Tensor, " c"]:
        """Of transition `number`, counted from 0."""
        return self.steps.step_size if number < self.n_warmup else self.steps.average

    def learn(
        self, number: int, position: Tensor, accept: Tensor, evaluate: Evaluate, generator: torch.Generator
    ) -> None:
        """Take in what a transition of the warm-up gave."""
        if self.adapt_step:
            self.steps.update(accept)
        if not self.adapt_scale or not self.first <= number < (self.ends[-1] if self.ends else 0):
            return
        self.scales.update(position)
        if number + 1 in self.ends:
            self.scale = self.scales.standard_deviation()
            self.scales = Scales(position)
            if self.adapt_step:
                state = State.at(position, evaluate)
                found = first_step_size(evaluate, state, self.scale, generator, self.steps.average)
                self.steps.restart(torch.where(found > 0, found, self.steps.average))

    def state(self) -> dict[str, object]:
        """All that it has learned."""
        sums = {"count": self.scales.count, "mean": self.scales.mean, "squares": self.scales.squares}
        return {"steps": self.steps.state(), "scale": self.scale, "scales": sums}

    def restore(self, state: dict[str, object]) -> None:
        """Put it back."""
        steps, scale, sums = state["steps"], state["scale"], state["scales"]
        assert isinstance(steps, dict) and isinstance(sums, dict) and isinstance(scale, Tensor)  # noqa: PT018
        self.steps.restore(steps)
        self.scale = scale.to(self.scale)
        for name, value in sums.items():
            setattr(self.scales, name, value.to(self.scale) if isinstance(value, Tensor) else value)
