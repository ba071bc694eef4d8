"""Training by Adam: stochastic draws and minibatches, with roll-back when a step goes wrong."""

import copy
from typing import Any

import torch
from torch import Tensor

from vibayes.bound import Bound
from vibayes.training.run import MAX_TRIES, Run

__all__ = ["AdamRun"]

# Without a number of steps: the mean bound of a window must rise by `tolerance` nats per row over the best one
# before within this many windows; the first time it does not, the learning rate falls tenfold, then training ends.
_PATIENCE = 10


class AdamRun(Run):
    """A run of Adam.

    Nothing in a step waits for the device. Every `log_every` steps the loss and the parameters are looked at: when
    they are finite this becomes the last good state, otherwise the run goes back to it with ten times the jitter and
    half the learning rate, and looks at every step until it is past the one that failed.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.options.lr, fused=True)
        self.lr_factor = 1.0
        self.careful_until = 0
        self.window: list[float] = []  # mean objective per row of each window, since the last drop of the rate
        self.drops = 0
        self._sum: Tensor | None = None
        self._in_window = 0
        self.good: dict[str, Any] = {}  # where to go back to, with the jitter and rate to try next
        self.settled: dict[str, Any] = {}  # where all was well, as it was then

    @property
    def last_step(self) -> int:
        """Where training ends at the latest."""
        return self.options.steps if self.options.steps is not None else self.options.max_steps

    def train(self) -> None:
        """Run to the end, from wherever the run stands."""
        if self.options.steps is not None and self.step < self.options.steps:
            self.history.stopped = ""  # a finished run goes on when more steps are asked for
        self.good = self.settled = self.state()
        try:
            while self.step < self.last_step and not self.history.stopped:
                bound, loss = self.advance()
                at_end = self.step >= self.last_step
                if self.step % self.options.log_every == 0 or at_end or self.step <= self.careful_until:
                    self.check(bound, loss)
        except BaseException:
            self.restore(self.good)
            self.save(self.good, force=True)
            raise
        if not self.history.stopped:
            self.history.stopped = (
                f"ran the {self.last_step} steps asked for"
                if self.options.steps is not None
                else f"reached max_steps={self.last_step} before the bound stopped rising"
            )
        self.save(self.state(), force=True)

    def advance(self) -> tuple[Bound, Tensor]:
        """One step of the optimizer."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        bound = self.bound(self.step)
        loss = -bound.objective(self.options.kl_weight(self.step))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        value = loss.detach()
        self._sum = value if self._sum is None else self._sum + value
        self._in_window += 1
        return bound, value

    @property
    def lr(self) -> float:
        """The learning rate of the step to come."""
        return self.options.lr * self.options.lr_schedule(self.step) * self.lr_factor * 0.1**self.drops

    def check(self, bound: Bound, loss: Tensor) -> None:
        """Look at the run: log it and keep it, or go back."""
        if not self.finite(loss):
            self.go_back(self.failure(bound))
            return
        if self.step > self.careful_until + 10 * self.options.log_every:
            self.tries = 0
        if self.step % self.options.log_every == 0 or self.step >= self.last_step:
            self.log(bound, self.optimizer.param_groups[0]["lr"])  # the rate this step was made with
            self.look_for_plateau()
            self.good = self.settled = self.state()
            self.save(self.good)

    def go_back(self, reason: str) -> None:
        """Return to the last good state with more jitter and a smaller step, or give up."""
        failed_at, tries = self.step, self.tries + 1
        self.restore(self.good)
        if tries > MAX_TRIES:
            error = self.give_up(reason, failed_at)
            self.good = self.settled
            raise error
        self.tries = tries
        self.lr_factor *= 0.5
        self.model.jitter.mul_(10.0)
        self.careful_until = max(self.careful_until, failed_at)
        self.event(
            f"Step {failed_at}: {reason}; back to step {self.step} with jitter {float(self.model.jitter):.1e} and "
            f"learning rate {self.lr:.1e}."
        )
        self.good = self.state()

    def look_for_plateau(self) -> None:
        """Without a number of steps: lower the rate, then stop, once the smoothed bound no longer rises."""
        assert self._sum is not None
        mean = -float(self._sum) / self._in_window / self.batches.n_data
        self._sum, self._in_window = None, 0
        if self.options.steps is not None:
            return
        self.window.append(mean)
        if len(self.window) <= _PATIENCE:
            return
        if max(self.window[-_PATIENCE:]) - max(self.window[:-_PATIENCE]) < self.options.tolerance:
            if self.drops == 0:
                self.drops, self.window = 1, []
            else:
                self.history.stopped = "the smoothed bound no longer rose"

    def state(self) -> dict[str, Any]:
        """Everything needed to go on from here; tensors are copies."""
        mine = {
            "optimizer": self.optimizer.state_dict(),
            "lr_factor": self.lr_factor,
            "careful_until": self.careful_until,
            "window": list(self.window),
            "drops": self.drops,
        }
        return copy.deepcopy({**super().state(), **mine})

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a state that `state` gave."""
        super().restore(copy.deepcopy(state))
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.lr_factor, self.careful_until = state["lr_factor"], state["careful_until"]
        self.window, self.drops = list(state["window"]), state["drops"]
        self._sum, self._in_window = None, 0
