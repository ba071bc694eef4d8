"""What training runs share: their options, their clock, the state of generators, and how they give up."""

import logging
import math
import numbers
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from vibayes.errors import ConfigurationError, NotPositiveDefiniteError, TrainingError
from vibayes.parameters import hyperparameters
from vibayes.trainable import TrainableModel
from vibayes.training.history import Callback, Logged
from vibayes.training.schedules import Schedule

__all__ = [
    "ASKED_TO_STOP",
    "MAX_TRIES",
    "NOT_FINITE",
    "Clock",
    "Options",
    "Saver",
    "as_number",
    "asks_to_stop",
    "check_options",
    "check_priors",
    "check_seed",
    "find_device",
    "generators",
    "give_up",
    "logger",
    "not_positive_definite",
    "scheduled",
    "set_generators",
    "value_at",
]

logger = logging.getLogger("vibayes")

MAX_TRIES = 5
ASKED_TO_STOP = "the callback asked to stop"
NOT_FINITE = "the bound was not finite"


@dataclass(frozen=True)
class Options:
    """What `fit` or `fit_many` was asked to do; see there for the meaning of each."""

    steps: int | None
    max_steps: int
    lr_schedule: Schedule
    kl_weight: Schedule
    n_samples: int
    log_every: int
    tolerance: float
    restarts: int = 1
    graph: bool | None = None
    compile: bool = False
    world_size: int = 1
    callback: Callback | None = None
    weight_decay: float = 0.0
    natural_rate: float = 0.1
    lr_factors: Mapping[str, float] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        """Where training ends at the latest."""
        return self.max_steps if self.steps is None else self.steps


class Saver(Protocol):
    """Keeps a state when it is time to, or at once when forced."""

    def __call__(self, state: dict[str, Any], *, force: bool = False) -> None:
        """Keep it."""


class Clock:
    """Seconds of training, those before a resume included."""

    def __init__(self, before: float = 0.0) -> None:
        self._before, self._begin = before, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._before + time.monotonic() - self._begin


def generators(device: torch.device) -> list[Tensor]:
    """The state of torch's generators that a run on this device draws from."""
    cuda = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *cuda]


def set_generators(states: list[Tensor], device: torch.device) -> None:
    """Put generators back to what `generators` gave."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


def asks_to_stop(callback: Callback, entry: Logged) -> bool:
    """Whether a callback says that training is to end; random numbers that it draws are not taken from the run's."""
    with torch.random.fork_rng(devices=[]):
        return bool(callback(entry))


def not_positive_definite(site: str) -> str:
    """Why a run goes back, where a factorization failed."""
    return f"the kernel matrix of layer {site!r} was not positive definite"


def give_up(
    reason: str, step: int, jitter: float, dtype: torch.dtype, times: int = MAX_TRIES
) -> TrainingError | NotPositiveDefiniteError:
    """The error after the last try; the caller leaves the model at its last good state."""
    message = (
        f"Training stopped at step {step}: {reason}, also after going back {times} times with more jitter (now "
        f"{jitter:.1e}, {dtype}) and smaller steps. The model is at its last good state. Try a smaller lr, float64, "
        "standardize='both', fewer or other inducing points, or a larger starting noise."
    )
    kind = NotPositiveDefiniteError if "positive definite" in reason else TrainingError
    return kind(message)


def scheduled(name: str, schedule: Schedule, step: int) -> float:
    """A schedule's value at a step, checked."""
    value = schedule(step)
    found = as_number(value)
    if not 0.0 <= found < math.inf:
        raise ConfigurationError(f"{name} must not be negative, infinite or NaN; at step {step} it is {value!r}.")
    return found


def value_at(schedule: Schedule, step: int) -> float | None:
    """A schedule's value at a step that may never be reached; None where it has none, as it may end before."""
    try:
        value = as_number(schedule(step))
    except Exception:
        return None
    return value if math.isfinite(value) else None


def as_number(value: Any) -> float:
    """A number as a float; what is none becomes NaN, which lies within no bounds.

    >>> as_number(3), as_number("3")
    (3.0, nan)
    """
    single = isinstance(value, Tensor) and value.numel() == 1
    return float(value) if single or isinstance(value, numbers.Real) else math.nan


def check_priors(model: TrainableModel) -> None:
    """Refuse hyperparameters that start where their prior has no density, to which no step comes back."""
    for name, hyperparameter in hyperparameters(model):
        if not bool(torch.isfinite(hyperparameter.log_prior())):
            raise ConfigurationError(
                f"{name} is {hyperparameter.value.tolist()}, where its prior has no density "
                f"({hyperparameter.prior}). Start it at a value that the prior allows, or give it another prior."
            )


def find_device(device: str | torch.device) -> torch.device:
    """A torch device, or an error that says why there is none."""
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(f"Unknown device {device!r}: {str(error).partition(chr(10))[0]}") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(
            f"device={str(device)!r} was asked for, but no CUDA GPU is available. Use device='cpu'."
        )
    return place


def check_options(options: Options, n_samples: int | None, rates: list[float], seeds: list[int]) -> None:
    """Refuse numbers that make no sense."""
    whole: dict[str, Any] = {
        "steps": options.steps,
        "n_samples": n_samples,
        "log_every": options.log_every,
        "max_steps": options.max_steps,
        "restarts": options.restarts,
    }
    for key, value in whole.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1):
            raise ConfigurationError(f"{key} must be a positive whole number, got {value!r}.")
    if options.callback is not None and not callable(options.callback):
        raise ConfigurationError(f"callback must be a function of a log entry, got {type(options.callback).__name__}.")
    if not 0 <= as_number(options.weight_decay) < math.inf:
        raise ConfigurationError(
            f"weight_decay must be a number that is not negative or infinite, got {options.weight_decay!r}."
        )
    if not 0 < as_number(options.natural_rate) <= 1:
        raise ConfigurationError(f"natural_rate must be above 0 and at most 1, got {options.natural_rate!r}.")
    if not 0 <= as_number(options.tolerance) < math.inf:
        raise ConfigurationError(
            f"tolerance must be nats per row, not negative or infinite, got {options.tolerance!r}. To train for a "
            "number of steps, use steps."
        )
    factors: Any = options.lr_factors
    if not isinstance(factors, Mapping):
        raise ConfigurationError(
            f'lr_factors must be factors by name, such as {{"*.kernel.*": 3.0}}, got {type(factors).__name__}.'
        )
    for name, factor in factors.items():
        if isinstance(factor, bool) or not 0 < as_number(factor) < math.inf:
            raise ConfigurationError(
                f"lr_factors[{name!r}] must be a positive number, got {factor!r}. To keep parameters as they are, use "
                ".fix() or requires_grad_(False)."
            )
    for rate in rates:
        if not 0 < as_number(rate) < math.inf:
            raise ConfigurationError(f"lr must be positive and finite, a number, got {rate!r}.")
    for seed in seeds:
        check_seed(seed)


def check_seed(seed: Any) -> int:
    """Refuse what is not a whole number.

    >>> check_seed(-3)
    -3
    """
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise ConfigurationError(f"seed must be a whole number, got {seed!r}.")
    return int(seed)
