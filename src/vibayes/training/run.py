"""The state of one training run: what both optimizers share."""

import logging
import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from vibayes.bound import Bound
from vibayes.errors import NotPositiveDefiniteError, TrainingError
from vibayes.training.batches import Batches
from vibayes.training.history import History
from vibayes.training.progress import Progress
from vibayes.training.schedules import Schedule
from vibayes.trainable import TrainableModel

__all__ = ["MAX_TRIES", "Options", "Run", "Saver"]

logger = logging.getLogger("vibayes")

MAX_TRIES = 5


@dataclass(frozen=True)
class Options:
    """What `fit` was asked to do; see `fit` for the meaning of each."""

    steps: int | None
    max_steps: int
    lr: float
    lr_schedule: Schedule
    kl_weight: Schedule
    n_samples: int
    log_every: int
    tolerance: float
    restarts: int


class Saver(Protocol):
    """Keeps a state when it is time to, or at once when forced."""

    def __call__(self, state: dict[str, Any], *, force: bool = False) -> None: ...


class Run(ABC):
    """One training run in progress.

    Args:
        model: the model, initialised and on its device.
        batches: where the data come from.
        options: what to do.
        save: called with the state whenever it is worth keeping.
        progress: where to show how far it is.
    """

    def __init__(
        self,
        model: TrainableModel,
        batches: Batches,
        options: Options,
        save: Saver,
        progress: Progress,
    ) -> None:
        self.model, self.batches, self.options = model, batches, options
        self.save, self.progress = save, progress
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.history = History(n_data=batches.n_data)
        self.step = 0
        self.tries = 0
        self._before = 0.0  # seconds of training before this process
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return self._before + time.monotonic() - self._begin

    @abstractmethod
    def train(self) -> None:
        """Run to the end, from wherever the run stands."""

    def bound(self, step: int) -> Bound:
        """The bound on the batch of a step, differentiable."""
        batch = self.batches.at(step)
        bound: Bound = self.model(
            batch.x,
            batch.y,
            batch.weights,
            scale=self.batches.n_data / len(batch.x),
            n_samples=self.options.n_samples,
        )
        return bound

    def log(self, bound: Bound, lr: float) -> None:
        """Note the bound at the current step."""
        noise = getattr(self.model.likelihood, "noise", None)
        self.history.log(
            step=self.step,
            log_likelihood=float(bound.log_likelihood.detach().mean()),
            kl=-float(bound.log_ratio.detach().mean()),
            noise=math.nan if noise is None else float(noise.value.detach().mean()),
            lr=lr,
            seconds=self.seconds,
        )
        self.progress.update(self.step, f"elbo/N {self.history.per_datapoint[-1]:.4f}")

    def finite(self, value: Tensor) -> bool:
        """Whether a loss and all parameters are finite; waits for the device."""
        norms = torch.stack(torch._foreach_norm([p.detach() for p in self.parameters]))
        return bool(torch.isfinite(value) & torch.isfinite(norms).all())

    def failure(self, bound: Bound) -> str:
        """In words, which factorization failed, or that none did."""
        failed = [site for site, info in bound.failures.items() if bool((info != 0).any())]
        if failed:
            return f"the kernel matrix of layer {failed[0]!r} was not positive definite"
        return "the bound was not finite"

    def give_up(self, reason: str, step: int) -> TrainingError | NotPositiveDefiniteError:
        """The error after the last try; the caller leaves the model at its last good state."""
        message = (
            f"Training stopped at step {step}: {reason}, also after going back {MAX_TRIES} times with more "
            f"jitter (now {float(self.model.jitter):.1e}, {self.model.dtype}) and smaller steps. The model is at its "
            "last good state. Try a smaller lr, float64, standardize='both', fewer or other inducing points, "
            "or a larger starting noise."
        )
        kind = NotPositiveDefiniteError if "positive definite" in reason else TrainingError
        return kind(message)

    def event(self, text: str) -> None:
        """Note and say something that the user should know."""
        self.history.events.append(text)
        logger.warning(text)

    def state(self) -> dict[str, Any]:
        """Everything needed to go on from here, apart from the optimizer."""
        cuda = [torch.cuda.get_rng_state(self.model.device)] if self.model.device.type == "cuda" else []
        return {
            "model": self.model.state_dict(),
            "history": self.history.to_dict(),
            "step": self.step,
            "tries": self.tries,
            "seconds": self.seconds,
            "rng": [torch.get_rng_state(), *cuda],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a state that `state` gave."""
        self.model.load_state_dict(state["model"])
        self.history = History.from_dict(state["history"])
        self.step, self.tries = state["step"], state["tries"]
        self._before, self._begin = state["seconds"], time.monotonic()
        torch.set_rng_state(state["rng"][0])
        if len(state["rng"]) > 1:
            torch.cuda.set_rng_state(state["rng"][1], self.model.device)
