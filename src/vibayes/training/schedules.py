"""Schedules: numbers that change with the step, for learning rates and KL weights."""

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vibayes.errors import ConfigurationError

__all__ = ["Schedule", "as_schedule", "constant", "exponential", "linear", "piecewise", "staircase", "warmup"]

Schedule = Callable[[int], float]

# Classes and not closures, so that schedules can be sent to worker processes.


@dataclass(frozen=True)
class _Linear:
    start: float
    end: float
    steps: int

    def __call__(self, step: int) -> float:
        return self.end if step >= self.steps else self.start + (self.end - self.start) * step / self.steps


@dataclass(frozen=True)
class _Exponential:
    start: float
    end: float
    steps: int
    hold: int

    def __call__(self, step: int) -> float:
        part = min(1.0, max(0.0, (step - self.hold) / (self.steps - self.hold)))
        return float(self.start * (self.end / self.start) ** part)


@dataclass(frozen=True)
class _Piecewise:
    milestones: tuple[int, ...]
    values: tuple[float, ...]

    def __call__(self, step: int) -> float:
        return self.values[sum(step >= m for m in self.milestones)]


@dataclass(frozen=True)
class _Staircase:
    start: float
    rise: float
    every: int
    end: float

    def __call__(self, step: int) -> float:
        bound = min if self.rise > 0 else max
        return bound(self.end, self.start + self.rise * (step // self.every))


@dataclass(frozen=True)
class _Warmup:
    then: Schedule
    steps: int

    def __call__(self, step: int) -> float:
        return self.then(step) * min(1.0, (step + 1) / self.steps)


def constant(value: float) -> Schedule:
    """The same value at every step.

    >>> constant(0.5)(100)
    0.5
    """
    return _Piecewise((), (value,))


def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` over `steps` steps, then `end`.

    >>> [linear(0.0, 1.0, 4)(step) for step in (0, 2, 4, 9)]
    [0.0, 0.5, 1.0, 1.0]
    """
    if steps < 1:
        raise ConfigurationError(f"A linear schedule needs at least one step, got {steps}.")
    return _Linear(start, end, steps)


def exponential(start: float, end: float, steps: int, *, hold: int = 0) -> Schedule:
    """`start` for `hold` steps, then by the same factor in every step to `end` at step `steps`, then `end`.

    >>> [round(exponential(1.0, 0.01, 30, hold=10)(step), 4) for step in (0, 10, 20, 30, 99)]
    [1.0, 1.0, 0.1, 0.01, 0.01]
    """
    if start <= 0 or end <= 0 or not 0 <= hold < steps:
        raise ConfigurationError(
            f"exponential needs positive values and hold below steps; got start={start}, end={end}, steps={steps}, "
            f"hold={hold}."
        )
    return _Exponential(start, end, steps, hold)


def piecewise(milestones: Sequence[int], values: Sequence[float]) -> Schedule:
    """`values[k]` from milestone `k-1` up to milestone `k` (exclusive).

    >>> [piecewise([10, 20], [1.0, 0.1, 0.01])(step) for step in (0, 10, 25)]
    [1.0, 0.1, 0.01]
    """
    if len(values) != len(milestones) + 1 or list(milestones) != sorted(milestones):
        raise ConfigurationError(
            f"piecewise needs rising milestones and one value more than milestones; "
            f"got milestones {list(milestones)} and {len(values)} values."
        )
    return _Piecewise(tuple(milestones), tuple(values))


def staircase(start: float, rise: float, every: int, end: float) -> Schedule:
    """From `start`, `rise` more after every `every` steps, until `end`.

    >>> [round(staircase(0.0, 0.1, 10, 1.0)(step), 1) for step in (0, 10, 25, 500)]
    [0.0, 0.1, 0.2, 1.0]
    """
    if every < 1 or rise == 0:
        raise ConfigurationError(f"staircase needs every >= 1 and a rise, got every={every}, rise={rise}.")
    if (end - start) * rise < 0:
        raise ConfigurationError(
            f"A staircase from {start} never comes to {end} by steps of {rise}; give the rise the other sign."
        )
    return _Staircase(start, rise, every, end)


def warmup(steps: int, then: float | Schedule = 1.0) -> Schedule:
    """Another schedule, or a number, times a factor that rises evenly to 1 over the first `steps` steps.

    >>> [warmup(4, piecewise([10], [1.0, 0.1]))(step) for step in (0, 1, 3, 9, 10)]
    [0.25, 0.5, 1.0, 1.0, 0.1]
    """
    if steps < 1:
        raise ConfigurationError(f"A warm-up needs at least one step, got {steps}.")
    return _Warmup(as_schedule(then), steps)


def as_schedule(value: Any) -> Schedule:
    """A schedule from a number or a schedule."""
    if callable(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigurationError(
            f"A schedule is a number, or a function from the step to a number such as schedules.linear(0, 1, 1000); "
            f"got {value!r}."
        )
    return constant(float(value))
