"""Training by Adam: stochastic draws and minibatches, one model or many, with roll-back when a step goes wrong."""

import copy
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from vibayes.training.adam_step import AdamStep
from vibayes.training.history import History
from vibayes.training.memory import keep_freed_memory
from vibayes.training.problem import Problem
from vibayes.training.progress import Progress
from vibayes.training.run import (
    ASKED_TO_STOP,
    MAX_TRIES,
    NOT_FINITE,
    Clock,
    Options,
    Saver,
    asks_to_stop,
    generators,
    give_up,
    logger,
    scheduled,
    set_generators,
    value_at,
)

__all__ = ["AdamRun"]

# Without a number of steps: the mean bound of a window must rise by `tolerance` nats per row over the best one
# before within this many windows; the first time it does not, the learning rate falls tenfold, then training ends.
_PATIENCE = 10
# After so many good looks in a row, earlier failures are forgotten.
_FORGIVE = 10


class AdamRun:
    """A run of Adam on R replicas (one, for a single model).

    Nothing in a step waits for the device. Every `log_every` steps the run is looked at: replicas whose loss and
    parameters are finite take this as their last good state; the others go back to theirs with ten times the jitter
    and half the learning rate, and after a few tries are left there. A replica never disturbs another.

    Args:
        problem: what to optimize.
        options: how.
        save: called with the state whenever it is worth keeping.
        progress: where to show how far it is.
        lr: learning rate of each replica.
        raises: whether a failure that does not go away is an error, where there is one replica; else it is noted.
    """

    def __init__(
        self,
        problem: Problem,
        options: Options,
        save: Saver,
        progress: Progress,
        lr: list[float],
        *,
        raises: bool = True,
    ) -> None:
        self.problem, self.options, self.save, self.progress = problem, options, save, progress
        self.raises = raises and problem.replicas == 1
        self.one_step = AdamStep(problem, options)
        R = problem.replicas
        self.histories = [History(n_data=n) for n in problem.n_data]
        self.clock = Clock()
        self.step = 0
        self.asked = options.steps  # when what there is was trained: None for until it no longer rises
        self.base_lr, self.lr_factor = list(lr), [1.0] * R
        self.factor = 1.0  # of all rates, by the schedule
        self.drops = [0] * R
        self.windows: list[list[float]] = [[] for _ in range(R)]
        # the weight that the KL will have in the end, if it is known: before, no bound is the one to be maximised
        self.last_kl_weight = value_at(options.kl_weight, options.max_steps - 1) if options.steps is None else None
        self.looked_with = [math.nan, math.nan]  # factor of the rate and weight of the KL at the last look
        self.tries, self.good_looks = [0] * R, [0] * R
        self.sound: list[float] = problem.jitter.tolist()  # jitter of each replica when it was last well
        self.in_window = 0
        self.good: dict[str, Any] = {}
        if problem.device.type == "cpu":
            keep_freed_memory()

    def train(self) -> list[History]:
        """Run to the end, from wherever the run stands."""
        last_step, steps = self.options.last_step, self.options.steps
        if steps is not None and (self.asked is None or self.asked < steps) and self.step < last_step:
            for history in self.histories:  # a run that stopped by itself goes on when more steps are asked for
                if not history.stopped.startswith("gave up"):
                    history.stopped = ""
        self.asked = steps
        self.good = self.state()
        try:
            while self.step < last_step and not all(h.stopped for h in self.histories):
                self._advance()
                if self.step % self.options.log_every == 0 or self.step >= last_step:
                    self._look()
        except BaseException:
            self.restore(self.good)
            self.save(self.good, force=True)
            raise
        for r, history in enumerate(self.histories):
            if not history.step and not history.stopped and self.tries[r]:
                self._give_up(r, NOT_FINITE)
        self.save(self.state(), force=True)  # not with why it ends below: a run that had no more steps may get some
        reached = max(self.step, last_step)
        end = f"reached max_steps={reached}" if steps is None else f"ran the {reached} steps asked for"
        for history in self.histories:
            history.stopped = history.stopped or end
        return self.histories

    # -- one step -----------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        self.problem.load(self.step)
        self.factor = scheduled("lr_schedule", self.options.lr_schedule, self.step)
        step, replicas = self.one_step, range(self.problem.replicas)
        step.put("rates", [self.factor * self._lr(r) for r in replicas])
        if self.problem.sites:
            step.put("natural_rates", [self._natural_rate(r) for r in replicas])
        step.put("kl_weight", scheduled("kl_weight", self.options.kl_weight, self.step))
        step()
        self.step += 1
        self.in_window += 1

    def _lr(self, r: int) -> float:
        """The learning rate of a replica before the schedule; a stopped one stays where it is."""
        return 0.0 if self.histories[r].stopped else self.base_lr[r] * self.lr_factor[r] * 0.1 ** self.drops[r]

    def _natural_rate(self, r: int) -> float:
        """That of a replica; the smaller Adam's steps become, the more of them are averaged over."""
        if self.histories[r].stopped:
            return 0.0
        slower = min(1.0, self.factor * self.lr_factor[r] * 0.1 ** self.drops[r])
        return self.options.natural_rate * math.sqrt(slower)

    # -- looking at the run -------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Log the replicas that are well and keep their state; send the others back."""
        self.one_step.agree()
        stopped = [bool(h.stopped) for h in self.histories]
        if self.problem.averages and any(stopped):  # which move without a gradient
            self._restore(self.problem.averages.values(), self.good["averages"], stopped)
        well = (self.problem.finite() & ~self.one_step.bad).tolist()  # waits for the device
        log_likelihood, log_ratio, total = self.one_step.terms.tolist()
        noise = self.problem.noise()
        noises = [math.nan] * self.problem.replicas if noise is None else noise.tolist()
        live = [r for r, h in enumerate(self.histories) if not h.stopped]
        jitter = self.problem.jitter.tolist()
        if self._goal_moved():
            self.windows = [[] for _ in self.windows]
        for r in live:
            if not well[r]:
                continue
            self.good_looks[r], self.sound[r] = self.good_looks[r] + 1, jitter[r]
            if self.good_looks[r] > _FORGIVE:
                self.tries[r] = 0
            self.histories[r].log(
                step=self.step,
                log_likelihood=log_likelihood[r],
                kl=-log_ratio[r],
                noise=noises[r],
                lr=self.factor * self._lr(r),
                seconds=self.clock.seconds,
            )
            self._look_for_plateau(r, total[r] / self.in_window / self.problem.n_data[r])
        if not all(well):
            self._go_back([not w for w in well], [r for r in live if not well[r]])
        self._begin_window()
        self.good = self.state()
        self.save(self.good)
        shown = [h.last().per_datapoint for h in self.histories if h.step]
        if shown:
            self.progress.update(self.step, f"elbo/N {sum(shown) / len(shown):.4f}")
        if self.options.callback is not None:
            for r in live:
                if well[r] and asks_to_stop(self.options.callback, self.histories[r].last(r)):
                    self.histories[r].stopped = self.histories[r].stopped or ASKED_TO_STOP

    def _begin_window(self) -> None:
        self.one_step.forget()
        self.in_window = 0

    def _goal_moved(self) -> bool:
        """Whether the weight of the KL changed since the last look, or the rate rose: bounds then do not compare."""
        before, self.looked_with = self.looked_with, [self.factor, self.one_step.given["kl_weight"]]
        return self.looked_with[0] > before[0] or self.looked_with[1] != before[1]

    def _look_for_plateau(self, r: int, mean: float) -> None:
        """Without a number of steps: lower the rate, then stop, once the smoothed bound no longer rises."""
        if self.options.steps is not None or self.last_kl_weight not in (None, self.one_step.given["kl_weight"]):
            return
        window = self.windows[r]
        window.append(mean)
        if len(window) <= _PATIENCE:
            return
        if max(window[-_PATIENCE:]) - max(window[:-_PATIENCE]) < self.options.tolerance:
            if self.drops[r] == 0:
                self.drops[r], self.windows[r] = 1, []
            else:
                self.histories[r].stopped = "the smoothed bound no longer rose"

    def _go_back(self, bad: list[bool], live: list[int]) -> None:
        """Return bad replicas to their last good state; the live ones try again, or are given up."""
        reasons = {r: self.one_step.reason(r) for r in live}
        self._restore_replicas(bad)
        for r in live:
            self.tries[r], self.good_looks[r] = self.tries[r] + 1, 0
            if self.tries[r] > MAX_TRIES:
                self._give_up(r, reasons[r])
                continue
            self.lr_factor[r] *= 0.5
            self.problem.jitter[r] *= 10.0
            self._event(
                r,
                f"Step {self.step}: {reasons[r]}; back to the last good state with jitter "
                f"{float(self.problem.jitter[r]):.1e} and half the learning rate.",
            )

    def _give_up(self, r: int, reason: str) -> None:
        """End the training of a replica at its last good state: by an error, or with a note where there are others."""
        tried = float(self.problem.jitter[r])
        self.problem.jitter[r] = self.sound[r]
        times = min(self.tries[r], MAX_TRIES)
        if self.raises:
            self.good = self.state()
            raise give_up(reason, self.step, tried, self.problem.jitter.dtype, times)
        self.histories[r].stopped = f"gave up: {reason}, also after going back {times} times"
        self._event(r, f"Step {self.step}: {self.histories[r].stopped}. It stays at its last good state.")

    def _event(self, r: int, text: str) -> None:
        self.histories[r].events.append(text)
        logger.warning(text if self.problem.replicas == 1 else f"Replica {r}: {text}")

    def _restore_replicas(self, bad: list[bool]) -> None:
        """Put the marked replicas' parameters and moments back to the last good state."""
        kept = self.good["optimizer"]
        self._restore(self.problem.moved, self.good["moved"], bad)
        self._restore(self.problem.averages.values(), self.good["averages"], bad)
        self._restore(self.one_step.optimizer.first, kept["first"], bad)
        self._restore(self.one_step.optimizer.second, kept["second"], bad)

    @torch.no_grad()
    def _restore(self, now: Iterable[Tensor], good: Iterable[Tensor], which: list[bool]) -> None:
        chosen = torch.tensor(which, device=self.problem.device)
        for mine, theirs in zip(now, good, strict=True):
            mine.copy_(torch.where(self.problem.spread(chosen, mine), theirs, mine))

    # -- state --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything needed to go on from here; tensors are copies."""
        return {
            "problem": self.problem.state(),
            "moved": [p.detach().clone() for p in self.problem.moved],
            "averages": [a.clone() for a in self.problem.averages.values()],
            "optimizer": self.one_step.optimizer.state(),
            "histories": [h.to_dict() for h in self.histories],
            "step": self.step,
            "asked": self.asked,
            "seconds": self.clock.seconds,
            "generators": generators(self.problem.device),
            "vectors": copy.deepcopy({name: getattr(self, name) for name in self._VECTORS}),
        }

    _VECTORS = ("base_lr", "lr_factor", "drops", "windows", "looked_with", "tries", "good_looks", "sound")

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a state that `state` gave."""
        self.problem.restore(state["problem"])
        self.one_step.optimizer.restore(state["optimizer"])
        self.histories = [History.from_dict(h) for h in state["histories"]]
        self.step, self.asked = state["step"], state.get("asked")  # files of earlier versions have none
        self.clock = Clock(state["seconds"])
        for name, value in copy.deepcopy(state["vectors"]).items():
            setattr(self, name, value)
        set_generators(state["generators"], self.problem.device)
        self._begin_window()
