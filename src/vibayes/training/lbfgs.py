"""Training by L-BFGS: full batches and a bound that does not change between evaluations."""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from vibayes.bound import Bound
from vibayes.parameters import Positive, hyperparameters
from vibayes.trainable import TrainableModel
from vibayes.training.batches import seed_of
from vibayes.training.history import History
from vibayes.training.memory import keep_freed_memory
from vibayes.training.problem import Single
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
    not_positive_definite,
    scheduled,
    set_generators,
    value_at,
)

__all__ = ["LbfgsRun", "perturb"]

# How many iterations one call of torch's optimizer makes between two looks at the run.
_CHUNK = 20
# It has converged when so many iterations gain less than this many nats in all.
_ENOUGH = 1e-5


@torch.no_grad()
def perturb(model: TrainableModel, seed: int) -> None:
    """Move learned hyperparameters by standard normal noise: positive ones on the logarithmic scale."""
    generator = torch.Generator().manual_seed(seed)
    for _, hyperparameter in hyperparameters(model):
        if hyperparameter.raw.requires_grad:
            noise = torch.randn(hyperparameter.raw.shape, generator=generator, dtype=model.dtype)
            speed = hyperparameter.scale if isinstance(hyperparameter, Positive) else 1.0
            hyperparameter.raw.add_(noise.to(hyperparameter.raw.device) / speed)


class LbfgsRun:
    """A run of L-BFGS with a strong-Wolfe line search, from one or several starts.

    The noise of draws is the same in every evaluation, so that the bound is a function. An evaluation that is not
    finite counts as a bad value, from which the line search retreats.
    """

    def __init__(self, problem: Single, options: Options, save: Saver, progress: Progress, seed: int) -> None:
        if problem.device.type == "cpu":
            keep_freed_memory()
        self.seed = seed
        self.problem, self.options, self.save, self.progress = problem, options, save, progress
        self.model, self.parameters, self.n_data = problem.model, problem.parameters, problem.n_data[0]
        self.history = History(n_data=self.n_data)
        self.step, self.tries = 0, 0
        self.clock = Clock()
        self.noise_state = generators(problem.device)
        self.first = copy.deepcopy(self.model.state_dict())
        # the weight that the KL will have in the end, if it is known: bounds with another are not the one to maximise
        self.last_kl_weight = value_at(options.kl_weight, options.last_step - 1)
        self.kl_weight = math.nan
        self.best: dict[str, Any] | None = None
        self.good: dict[str, Any] = {}
        self.restart, self.asked_to_stop = 0, False
        self.asked = options.last_step  # when what there is was trained
        self._last: Bound | None = None
        self._worst = math.inf
        self._new_optimizer()

    def _new_optimizer(self) -> None:
        self.optimizer = torch.optim.LBFGS(
            self.parameters,
            lr=1.0,
            max_iter=_CHUNK,
            max_eval=100 * _CHUNK,  # the line search ends on its own; only converging may cut a call short
            history_size=20,
            tolerance_grad=1e-8,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )

    def train(self) -> list[History]:
        """Run every start to convergence and keep the best."""
        self._go_on()
        self.good = self.state()
        try:
            while self.restart < self.options.restarts:
                self.converge()
                self.keep_best()
                self.restart = self.options.restarts if self.asked_to_stop else self.restart + 1
                if self.restart < self.options.restarts:
                    self.new_start()
                self.good = self.state()
                self.save(self.good, force=self.restart == self.options.restarts)
        except BaseException:  # leave the best finished start, or the last good state of the first one
            self.restore(self.good)
            self.save(self.good, force=True)
            if self.best is not None:
                self.model.load_state_dict(self.best["model"])
            raise
        finally:
            self.optimizer.zero_grad()
        assert self.best is not None
        self.model.load_state_dict(self.best["model"])
        self.history = History.from_dict(self.best["history"])
        if not self.history.stopped:
            self.history.stopped = f"used up {max(self.history.step, default=self.asked)} iterations"
        if self.options.restarts > 1 and not self.asked_to_stop:
            self.history.stopped += f" (best of {self.options.restarts} starts)"
        return [self.history]

    def converge(self) -> None:
        """Iterate until the bound no longer changes or the iterations are used up."""
        last_step = self.options.last_step
        while not self.history.stopped and self.step < last_step:
            self._weigh(scheduled("kl_weight", self.options.kl_weight, self.step))
            before = self._value()
            if not math.isfinite(before):
                self.more_jitter()
                continue
            group = self.optimizer.param_groups[0]
            group["max_iter"] = min(_CHUNK, last_step - self.step)
            state = self.optimizer.state[self.parameters[0]]
            done = state.get("n_iter", 0)
            self._worst = before + 1e3 * (1.0 + abs(before))
            self.optimizer.step(self._closure)  # type: ignore[no-untyped-call]
            made = state.get("n_iter", 0) - done
            self.step += max(made, 1)
            after = self._value()
            assert self._last is not None
            if not math.isfinite(after):
                self.more_jitter()
                continue
            self._log(self._last)
            gained = (before - after) * self.n_data
            final = self.last_kl_weight in (None, self.kl_weight)
            if final and (gained < _ENOUGH or made < group["max_iter"]):
                self.history.stopped = "L-BFGS converged"
            self.good = self.state()
            self.save(self.good)
            if self.options.callback is not None and asks_to_stop(self.options.callback, self.history.last()):
                self.asked_to_stop, self.history.stopped = True, ASKED_TO_STOP

    def _go_on(self) -> None:
        """Where a finished run used up its iterations and may have more now: one start goes on, several begin anew."""
        before, self.asked = self.asked, max(self.asked, self.options.last_step)
        if self.best is None or self.best["history"]["stopped"] or self.asked == before:
            return
        if self.restart == self.options.restarts:
            self.restart, self.best = 0, None
            if self.options.restarts > 1:
                self.new_start()

    def _weigh(self, kl_weight: float) -> None:
        """Take a weight of the KL; what the optimizer knows of the curvature was that of another bound."""
        if kl_weight != self.kl_weight and self.optimizer.state:
            self._new_optimizer()
        self.kl_weight = kl_weight

    def _bound(self) -> Bound:
        self.problem.load(0)
        return self.problem.bound()

    def _log(self, bound: Bound) -> None:
        noise = self.problem.noise()
        self.history.log(
            step=self.step,
            log_likelihood=float(bound.log_likelihood.mean()),
            kl=-float(bound.log_ratio.mean()),
            noise=math.nan if noise is None else float(noise[0]),
            lr=1.0,
            seconds=self.clock.seconds,
        )
        self.progress.update(self.step, f"elbo/N {self.history.last().per_datapoint:.4f}")

    def _value(self) -> float:
        """The loss per row at the current parameters."""
        set_generators(self.noise_state, self.problem.device)
        with torch.no_grad():
            self._last = self._bound()
            return -float(self._last.objective(self.kl_weight)) / self.n_data

    def _closure(self) -> Tensor:
        set_generators(self.noise_state, self.problem.device)
        self.optimizer.zero_grad(set_to_none=False)
        loss = -self._bound().objective(self.kl_weight) / self.n_data
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        values = [loss.detach(), *gradients, *(p.detach() for p in self.parameters)]
        if not all(bool(torch.isfinite(v).all()) for v in values):
            for gradient in gradients:
                gradient.zero_()
            return loss.new_tensor(self._worst)
        return loss.detach()

    def more_jitter(self) -> None:
        """Go back to the start of this restart with more jitter, or give up."""
        assert self._last is not None
        failed = [site for site, bad in self._last.failures.items() if bool(bad)]
        reason = not_positive_definite(failed[0]) if failed else NOT_FINITE
        tried = float(self.model.jitter)
        self._begin()
        self.tries += 1
        if self.tries > MAX_TRIES:
            raise give_up(reason, self.step, tried, self.model.dtype)
        self.model.jitter.mul_(10.0**self.tries)
        text = f"Iteration {self.step}: {reason}; starting again with jitter {float(self.model.jitter):.1e}."
        self.history.events.append(text)
        logger.warning(text)

    def keep_best(self) -> None:
        """Remember this start's end if it is the best so far, by the bound that all starts share."""
        self._weigh(self.kl_weight if self.last_kl_weight is None else self.last_kl_weight)
        value = self._value()
        if self.best is None or value < self.best["value"]:
            self.best = {
                "value": value,
                "model": copy.deepcopy(self.model.state_dict()),
                "history": self.history.to_dict(),
            }

    def new_start(self) -> None:
        """Start over from the first state with hyperparameters moved by standard normal noise."""
        self._begin()
        self.step, self.tries = 0, 0
        self.history = History(n_data=self.n_data, events=self.history.events)

    def _begin(self) -> None:
        """Put the model where this start begins."""
        self.model.load_state_dict(self.first)
        if self.restart > 0:
            perturb(self.model, seed_of(self.seed, self.restart))
        self._new_optimizer()

    def state(self) -> dict[str, Any]:
        """Everything needed to go on from here."""
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "history": self.history.to_dict(),
                "step": self.step,
                "asked": self.asked,
                "tries": self.tries,
                "seconds": self.clock.seconds,
                "optimizer": self.optimizer.state_dict(),
                "noise_state": self.noise_state,
                "first": self.first,
                "best": self.best,
                "restart": self.restart,
                "kl_weight": self.kl_weight,
            }
        )

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a state that `state` gave."""
        self.model.load_state_dict(state["model"])
        self.history = History.from_dict(state["history"])
        self.step, self.tries = state["step"], state["tries"]
        self.asked = state.get("asked", self.asked)  # files of earlier versions have none
        self.clock = Clock(state["seconds"])
        self._new_optimizer()
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.noise_state, self.first = state["noise_state"], state["first"]
        self.best, self.restart = state["best"], state["restart"]
        self.kl_weight = state.get("kl_weight", 1.0)  # files of earlier versions have none
