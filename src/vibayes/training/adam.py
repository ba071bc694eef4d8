"""Training by Adam: stochastic draws and minibatches, one model or many, with roll-back when a step goes wrong."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from vibayes.compiler import quiet_compiler
from vibayes.errors import ConfigurationError
from vibayes.patterns import check_patterns, pattern_of
from vibayes.training.graph import Compiled, Step
from vibayes.training.history import History
from vibayes.training.memory import keep_freed_memory
from vibayes.training.optim import Adam
from vibayes.training.problem import Problem
from vibayes.training.progress import Progress
from vibayes.training.run import (
    ASKED_TO_STOP,
    MAX_TRIES,
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
        R, device, like = problem.replicas, problem.device, problem.jitter
        self.histories = [History(n_data=n) for n in problem.n_data]
        self.clock = Clock()
        self.step = 0
        self.base_lr, self.lr_factor = list(lr), [1.0] * R
        self.factor = 1.0  # of all rates, by the schedule
        check_patterns("lr_factors", options.lr_factors, problem.names)
        self.own_factors = [_factor(name, options.lr_factors) for name in problem.names]  # of parameters' rates
        self.drops = [0] * R
        self.windows: list[list[float]] = [[] for _ in range(R)]
        # the weight that the KL will have in the end, if it is known: before, no bound is the one to be maximised
        self.last_kl_weight = value_at(options.kl_weight, options.max_steps - 1) if options.steps is None else None
        self.looked_with = [math.nan, math.nan]  # factor of the rate and weight of the KL at the last look
        self.tries, self.good_looks = [0] * R, [0] * R
        self.sound: list[float] = like.tolist()  # jitter of each replica when it was last well
        self.optimizer = Adam(problem.parameters)
        # objectives are sums over rows, so the decay of a loss per row counts once for each
        self.decay = options.weight_decay * torch.tensor(problem.n_data, dtype=like.dtype, device=device)
        # what a step reads
        self.rates = torch.zeros(R, dtype=like.dtype, device=device)
        self.natural_rates = torch.zeros(R, dtype=torch.float64, device=device)
        self.kl_weight = torch.ones((), dtype=like.dtype, device=device)
        self._set: dict[str, Any] = {}
        # what a step writes
        self.terms = torch.zeros(3, R, dtype=like.dtype, device=device)  # log likelihood, log ratio, sum of objectives
        self.bad = torch.zeros(R, dtype=torch.bool, device=device)
        self.failed: Tensor | None = None  # [sites, R], by the first bad step
        self.sites: list[str] = []
        self.in_window = 0
        self.good: dict[str, Any] = {}
        if device.type == "cpu":
            keep_freed_memory()
        self._bound = Compiled(problem.bound, device, self._keep) if options.compile else problem.bound
        self._update = Compiled(self.optimizer.step, device) if options.compile else self.optimizer.step
        self._shares: set[float] = set()  # of the batches there were: one for each of their sizes
        self._one_step = Step(problem, options)

    @property
    def last_step(self) -> int:
        """Where training ends at the latest."""
        return self.options.steps if self.options.steps is not None else self.options.max_steps

    def train(self) -> list[History]:
        """Run to the end, from wherever the run stands."""
        if self.options.steps is not None and self.step < self.options.steps:
            for history in self.histories:  # a finished run goes on when more steps are asked for
                if not history.stopped.startswith("gave up"):
                    history.stopped = ""
        self.good = self.state()
        try:
            while self.step < self.last_step and not all(h.stopped for h in self.histories):
                self._advance()
                if self.step % self.options.log_every == 0 or self.step >= self.last_step:
                    self._look()
        except BaseException:
            self.restore(self.good)
            self.save(self.good, force=True)
            raise
        for r, history in enumerate(self.histories):
            if not history.step and not history.stopped and self.tries[r]:
                self._give_up(r, "the bound was not finite")
        asked = self.options.steps is not None
        end = f"ran the {self.last_step} steps asked for" if asked else f"reached max_steps={self.last_step}"
        for history in self.histories:
            history.stopped = history.stopped or end
        self.save(self.state(), force=True)
        return self.histories

    # -- one step -----------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        self.problem.load(self.step)
        self.factor = scheduled("lr_schedule", self.options.lr_schedule, self.step)
        self._put("rates", [self.factor * self._lr(r) for r in range(self.problem.replicas)])
        if self.problem.sites:
            self._put("natural_rates", [self._natural_rate(r) for r in range(self.problem.replicas)])
        self._put("kl_weight", scheduled("kl_weight", self.options.kl_weight, self.step))
        compiling = isinstance(self._bound, Compiled) and self.problem.share not in self._shares
        self._shares.add(self.problem.share)
        with quiet_compiler() if compiling else nullcontext():
            self._one_step(self._compute)
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

    def _put(self, name: str, value: Any) -> None:
        """Write a number the step reads, where it changed."""
        if self._set.get(name) != value:
            tensor: Tensor = getattr(self, name)
            tensor.copy_(torch.tensor(value, dtype=tensor.dtype), non_blocking=True)
            self._set[name] = value

    def _compute(self) -> None:
        """The tensor operations of one step."""
        problem = self.problem
        bound = self._bound()
        log_likelihood, log_ratio = bound.log_likelihood.mean(1), bound.log_ratio.mean(1)
        objective = log_likelihood + self.kl_weight * log_ratio + bound.log_prior  # [R]
        if not objective.requires_grad:
            raise ConfigurationError(
                "No parameter that is to be trained has a part in the bound"
                + ("." if torch.is_grad_enabled() else ": gradients are switched off by no_grad or inference_mode.")
            )
        try:
            gradients = torch.autograd.grad(-objective.sum(), problem.parameters, allow_unused=True)
        except Exception as error:  # what the compiler made may fail in its backward pass only
            if not (isinstance(self._bound, Compiled) and self._bound.failed(error)):
                raise
            return self._compute()
        gradients = tuple(
            torch.zeros_like(p) if g is None else g for p, g in zip(problem.parameters, gradients, strict=True)
        )
        if self.options.weight_decay:
            gradients = tuple(
                g + problem.spread(self.decay, p) * p.detach() if decayed else g
                for g, p, decayed in zip(gradients, problem.parameters, problem.decayed, strict=True)
            )
        if problem.share != 1.0:
            gradients = tuple(problem.share * g for g in gradients)
        if self.options.world_size > 1:
            for gradient in gradients:
                distributed.all_reduce(gradient)
                gradient.div_(self.options.world_size)
        rates = [problem.spread(self.rates, p) for p in problem.parameters]
        self._update(gradients, [r if f == 1.0 else f * r for r, f in zip(rates, self.own_factors, strict=True)])
        with torch.no_grad():
            for name, site in problem.sites.items():
                target = bound.targets[name]
                if self.options.world_size > 1:
                    distributed.all_reduce(target)
                    target = target / self.options.world_size
                site.lerp_(target.view_as(site), problem.spread(problem.share * self.natural_rates, site))
            self.terms[0].copy_(log_likelihood)
            self.terms[1].copy_(log_ratio)
            self.terms[2].add_(objective)
            if bound.failures:
                fails = torch.stack(list(bound.failures.values()))  # [sites, R]
                if self.failed is None:
                    self.sites, self.failed = list(bound.failures), torch.zeros_like(fails)
                self.failed |= fails & ~self.bad
            self.bad |= ~torch.isfinite(objective)

    def _keep(self) -> Callable[[], None]:
        """What evaluating the bound changes, as it is now: a function that puts it back."""
        device, averages = self.problem.device, list(self.problem.averages.values())
        states, values = generators(device), [average.clone() for average in averages]

        def put_back() -> None:
            set_generators(states, device)
            with torch.no_grad():
                for average, value in zip(averages, values, strict=True):
                    average.copy_(value)

        return put_back

    # -- looking at the run -------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Log the replicas that are well and keep their state; send the others back."""
        if self.options.world_size > 1:  # every process must see the same numbers, to decide alike
            distributed.all_reduce(self.terms)
            self.terms /= self.options.world_size
            bad = self.bad.to(self.terms.dtype)
            distributed.all_reduce(bad, op=distributed.ReduceOp.MAX)
            self.bad.copy_(bad > 0)
        stopped = [bool(h.stopped) for h in self.histories]
        if self.problem.averages and any(stopped):  # which move without a gradient
            self._restore(self.problem.averages.values(), self.good["averages"], stopped)
        well = (self.problem.finite() & ~self.bad).tolist()  # waits for the device
        log_likelihood, log_ratio, total = self.terms.tolist()
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
        self._forget()
        self.good = self.state()
        self.save(self.good)
        shown = [h.per_datapoint[-1] for h in self.histories if h.step]
        if shown:
            self.progress.update(self.step, f"elbo/N {sum(shown) / len(shown):.4f}")
        if self.options.callback is not None:
            for r in live:
                if well[r] and asks_to_stop(self.options.callback, self.histories[r].last(r)):
                    self.histories[r].stopped = self.histories[r].stopped or ASKED_TO_STOP

    def _forget(self) -> None:
        """Begin a new window."""
        self.terms[2].zero_()
        self.bad.zero_()
        if self.failed is not None:
            self.failed.zero_()
        self.in_window = 0

    def _goal_moved(self) -> bool:
        """Whether the weight of the KL changed since the last look, or the rate rose: bounds then do not compare."""
        before, self.looked_with = self.looked_with, [self.factor, self._set["kl_weight"]]
        return self.looked_with[0] > before[0] or self.looked_with[1] != before[1]

    def _look_for_plateau(self, r: int, mean: float) -> None:
        """Without a number of steps: lower the rate, then stop, once the smoothed bound no longer rises."""
        if self.options.steps is not None or self.last_kl_weight not in (None, self._set["kl_weight"]):
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
        reasons = {r: self._reason(r) for r in live}
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

    def _reason(self, r: int) -> str:
        """In words, which factorization failed first, or that none did."""
        if self.failed is not None:
            for site, failed in zip(self.sites, self.failed[:, r].tolist(), strict=True):
                if failed:
                    return f"the kernel matrix of layer {site!r} was not positive definite"
        return "the bound was not finite"

    def _event(self, r: int, text: str) -> None:
        self.histories[r].events.append(text)
        logger.warning(text if self.problem.replicas == 1 else f"Replica {r}: {text}")

    def _restore_replicas(self, bad: list[bool]) -> None:
        """Put the marked replicas' parameters and moments back to the last good state."""
        kept = self.good["optimizer"]
        self._restore(self.problem.moved, self.good["moved"], bad)
        self._restore(self.problem.averages.values(), self.good["averages"], bad)
        self._restore(self.optimizer.first, kept["first"], bad)
        self._restore(self.optimizer.second, kept["second"], bad)

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
            "optimizer": self.optimizer.state(),
            "histories": copy.deepcopy([h.to_dict() for h in self.histories]),
            "step": self.step,
            "seconds": self.clock.seconds,
            "generators": generators(self.problem.device),
            "vectors": copy.deepcopy({name: getattr(self, name) for name in self._VECTORS}),
        }

    _VECTORS = ("base_lr", "lr_factor", "drops", "windows", "looked_with", "tries", "good_looks", "sound")

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a state that `state` gave."""
        self.problem.restore(state["problem"])
        self.optimizer.restore(state["optimizer"])
        self.histories = [History.from_dict(copy.deepcopy(h)) for h in state["histories"]]
        self.step = state["step"]
        self.clock = Clock(state["seconds"])
        for name, value in copy.deepcopy(state["vectors"]).items():
            setattr(self, name, value)
        set_generators(state["generators"], self.problem.device)
        self._forget()


def _factor(name: str, factors: Mapping[str, float]) -> float:
    """That of a parameter's learning rate."""
    pattern = pattern_of(name, factors)
    return 1.0 if pattern is None else float(factors[pattern])
