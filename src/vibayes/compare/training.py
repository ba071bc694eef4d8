"""Training the seeds of one family within a time."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vibayes.compare.families import Family, Problem
from vibayes.errors import NotPositiveDefiniteError, TrainingError
from vibayes.families import Plan
from vibayes.modes import default_dtype
from vibayes.tables.cells import count
from vibayes.trainable import TrainableModel
from vibayes.training import fit, fit_many
from vibayes.training.history import History, Logged
from vibayes.training.lbfgs import perturb
from vibayes.training.run import find_device

__all__ = ["NoTimeError", "Trained", "Watch", "train"]

# The last part of the time is spent at a tenth of the learning rate.
COOL_DOWN = 0.3
MAX_STEPS = 20_000
LOG_EVERY = 25
# How often in its time a run is looked at, or more often.
LOOKS = 40
# Iterations of L-BFGS for one start of an exact GP. Two starts that agree to so many nats in all need no third.
MAX_ITERATIONS = 300
AGREE = 1.0
# While starts disagree and there is time, so many times as many as there are seeds.
MORE_STARTS = 3
# Steps that time a model (fewer if they take a tenth of its time), and steps that are worth more than another seed.
PILOT = 8
PILOT_SHARE = 0.1
ENOUGH = 400
# Fewer steps than these tell nothing about a family.
LEAST_STEPS = 50
# A bound that would not reach the best one, rising on as in the second half of its training so far and by so many nats
# per row more (the end of the noise with the learning rate), is not trained on. Nobody looks before this share of time.
SLACK = 0.1
LOOK = 0.4
OUT_OF_REACH = "out of reach of the best evidence"
# How the reason begins why a family has not been trained for lack of time.
NO_TIME = "no time"

# Called now and then with the share of the work that is done (0 to 1) and the bound in nats per row.
Watch = Callable[[float, float], None]


class NoTimeError(TrainingError):
    """A family cannot be trained in the time it was given."""


@dataclass
class Trained:
    """The models of a family, one per seed that came to an end.

    Attributes:
        models: the models; of an exact family the best start alone.
        histories: how each was trained.
        seeds: their seeds.
        seconds: how long it took in all.
        starts: of an exact family, the evidence in nats per row that each start reached.
        interrupted: whether someone ended it early.
        out_of_reach: whether it was ended early because its bound would not have reached the best one.
    """

    models: list[TrainableModel]
    histories: list[History]
    seeds: list[int]
    seconds: float
    starts: list[float] = field(default_factory=list)
    interrupted: bool = False
    out_of_reach: bool = False


def build(family: Family, problem: Problem, seed: int, dtype: torch.dtype) -> Plan:
    """The untrained model of one seed, and how to train it."""
    with torch.random.fork_rng(devices=[]), default_dtype(dtype):
        torch.manual_seed(seed)
        return family.plan(problem)


def dtype_for(problem: Problem) -> torch.dtype:
    """Double precision, but for tables so large that memory and time matter more."""
    return torch.float64 if problem.n <= 200_000 else torch.float32


def train(
    family: Family,
    problem: Problem,
    seeds: Sequence[int],
    seconds: float,
    *,
    device: str | None = None,
    steps: int | None = None,
    watch: Watch | None = None,
    best: float = -math.inf,
) -> Trained:
    """Train the seeds of a family together, until the time is over or the bound no longer rises.

    Where the time is short, fewer seeds are trained, each for more steps. Interrupted (`KeyboardInterrupt`), it gives
    what there is, with `interrupted` set, or lets the interrupt through when there is nothing yet.

    Args:
        family: which models.
        problem: the data.
        seeds: one model for each.
        seconds: the time there is.
        device: where to train.
        steps: train for so many steps in place of a time, which can be repeated exactly.
        watch: hears how far it is.
        best: the best evidence so far, in nats per row; what cannot reach it is ended before its time, and what has
            no time for more than a few steps is refused.
    """
    begin = time.monotonic()
    first = build(family, problem, seeds[0], dtype_for(problem))
    if first.optimizer == "lbfgs":
        return _train_exact(family, problem, seeds, seconds, device, steps, watch)
    log_every = min(LOG_EVERY, steps or LOG_EVERY)
    if steps is None and not math.isinf(seconds):
        step_seconds = _time_steps(first, problem, seeds[0], device, PILOT_SHARE * seconds)
        possible = int(seconds / step_seconds)
        if possible < LEAST_STEPS and best > -math.inf:
            raise NoTimeError(f"{NO_TIME}: {count(possible, 'step')} would have fitted; give it a larger budget")
        seeds = seeds[: max(1, min(len(seeds), possible // ENOUGH))]
        log_every = max(1, min(LOG_EVERY, possible // (LOOKS * len(seeds))))
    # the first goes on from where its timing left it: starting anew may take longer than those steps
    plans = [first, *(build(family, problem, seed, dtype_for(problem)) for seed in seeds[1:])]
    listener = _Listener(seconds - (time.monotonic() - begin), steps, watch, best)
    return _train_together(plans, problem, seeds, device, steps, log_every, listener)


def _time_steps(plan: Plan, problem: Problem, seed: int, device: str | None, most: float) -> float:
    """Seconds that a step of one model takes, but for the first one; the model learns from these steps."""
    history = fit(
        plan.model, (problem.x, problem.y), steps=PILOT, log_every=1, seed=seed, device=device, progress=False,
        lr=plan.lr, batch_size=plan.batch_size, n_samples=plan.n_samples,
        callback=lambda logged: logged.step > 1 and logged.seconds > most,
    )  # fmt: skip
    return max((history.seconds[-1] - history.seconds[0]) / (history.step[-1] - history.step[0]), 1e-6)


def prospect(run: Sequence[Logged], left: float) -> float:
    """The bound that a run may reach: it rises on as in the second half of its steps so far, and a little more.

    Args:
        run: what was logged.
        left: the time that is left, as a multiple of the time so far.
    """
    if len(run) < 8:
        return math.inf
    bounds = [entry.per_datapoint for entry in run]
    quarter = len(bounds) // 4
    now, before = max(bounds[-quarter:]), sum(bounds[quarter : 2 * quarter]) / quarter
    # middles of the second quarter and (about) of the end: half of the time so far or more lies between
    return now + max(now - before, 0.0) * left / 0.5 + SLACK


class _Listener:
    """The callback of training: keeps what is logged, tells how far it is, and ends it when the time is over."""

    def __init__(self, seconds: float, steps: int | None, watch: Watch | None, best: float) -> None:
        self.begin, self.seconds, self.steps, self.watch = time.monotonic(), max(seconds, 1e-3), steps, watch
        self.best, self.out_of_reach = best, False
        self.logged: dict[int, list[Logged]] = {}

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def fraction(self, step: int) -> float:
        """The share of the work that is done."""
        by_time = 0.0 if math.isinf(self.seconds) else self.elapsed / self.seconds
        return min(1.0, by_time if self.steps is None else step / self.steps)

    def schedule(self, step: int) -> float:
        """The factor of the learning rate."""
        return 1.0 if self.fraction(step) < 1.0 - COOL_DOWN else 0.1

    def __call__(self, logged: Logged) -> bool:
        self.logged.setdefault(logged.replica, []).append(logged)
        if self.watch is not None:
            self.watch(self.fraction(logged.step), logged.per_datapoint)
        if self.steps is not None:
            return False
        self.out_of_reach = self.out_of_reach or self.hopeless()
        return self.out_of_reach or self.elapsed > self.seconds

    def hopeless(self) -> bool:
        """Whether no seed would reach the best bound in the time that is left."""
        if not LOOK < self.fraction(0) < 1.0 - COOL_DOWN:
            return False
        left = self.seconds / self.elapsed - 1.0  # in units of the time so far
        return all(self.best > prospect(run, left) for run in self.logged.values())

    def histories(self, n: int, n_data: int) -> list[History]:
        """What was logged, for when training did not come back to tell."""
        made = []
        for replica in range(n):
            history = History(n_data=n_data, stopped="interrupted")
            for entry in self.logged.get(replica, ()):
                history.log(
                    step=entry.step, log_likelihood=entry.log_likelihood, kl=entry.kl, noise=entry.noise,
                    lr=entry.lr, seconds=entry.seconds,
                )  # fmt: skip
            made.append(history)
        return made


def _train_together(
    plans: list[Plan],
    problem: Problem,
    seeds: Sequence[int],
    device: str | None,
    steps: int | None,
    log_every: int,
    listener: "_Listener",
) -> Trained:
    models = [plan.model for plan in plans]
    on_gpu = device is not None and find_device(device).type == "cuda"
    interrupted = False
    try:
        histories = fit_many(
            models,
            [(problem.x, problem.y)] * len(models),
            seed=list(seeds),
            # what is looked at too often for that does not notice its end by itself
            steps=steps or (MAX_STEPS if log_every < LOG_EVERY else None),
            max_steps=MAX_STEPS,
            lr=plans[0].lr,
            batch_size=plans[0].batch_size,
            n_samples=plans[0].n_samples,
            log_every=log_every,
            lr_schedule=listener.schedule,
            callback=listener,
            device=device,
            progress=False,
            chunk=None if on_gpu else len(models),  # all at once, so that all have come equally far at any moment
        )
    except KeyboardInterrupt:
        if not listener.logged:
            raise
        histories, interrupted = listener.histories(len(models), problem.n), True
    kept = [r for r, history in enumerate(histories) if history.step]
    if not kept:
        raise TrainingError(f"no seed trained: {histories[0].stopped}")
    if listener.out_of_reach:
        for history in histories:
            history.stopped = OUT_OF_REACH
    return Trained(
        [models[r] for r in kept],
        [histories[r] for r in kept],
        [seeds[r] for r in kept],
        listener.elapsed,
        interrupted=interrupted,
        out_of_reach=listener.out_of_reach,
    )


def _train_exact(
    family: Family,
    problem: Problem,
    seeds: Sequence[int],
    seconds: float,
    device: str | None,
    steps: int | None,
    watch: Watch | None,
) -> Trained:
    """L-BFGS from one start per seed, as many as there is time for; the best evidence is kept.

    The first start is always the same sensible one, the others are random. There are no more of them once the best two
    agree, and up to three times as many while they do not.
    """
    if steps is None:
        seeds = [*seeds, *range(max(seeds) + 1, max(seeds) + 1 + (MORE_STARTS - 1) * len(seeds))]
    begin = time.monotonic()
    done: list[tuple[float, int, TrainableModel, History]] = []
    interrupted, failed = False, ""
    for number, seed in enumerate(seeds):
        spent = time.monotonic() - begin
        if number and steps is None and (spent * (number + 1) / number > seconds or _agree(done, problem.n)):
            break
        model = build(family, problem, seed, dtype_for(problem)).model
        if number:
            perturb(model, 1_000_003 * seed)

        def heard(logged: Logged, number: int = number) -> bool:
            elapsed = time.monotonic() - begin
            if watch is not None:
                share = logged.step / (steps or MAX_ITERATIONS)
                watch(min(1.0, max((number + share) / len(seeds), elapsed / seconds)), logged.per_datapoint)
            return steps is None and elapsed > seconds

        data: Any = (problem.x, problem.y)
        try:
            history = fit(
                model, data, steps=steps or MAX_ITERATIONS, seed=seed, device=device, progress=False, callback=heard
            )
        except KeyboardInterrupt:
            if not done:
                raise
            interrupted = True
            break
        except (NotPositiveDefiniteError, TrainingError) as error:  # a random start may lie where nothing works
            failed = str(error)
            continue
        done.append((history.per_datapoint[-1], seed, model, history))
    if not done:
        raise TrainingError(failed)
    best = max(done, key=lambda entry: entry[0])
    return Trained([best[2]], [best[3]], [best[1]], time.monotonic() - begin, [entry[0] for entry in done], interrupted)


def _agree(done: Sequence[tuple[float, int, TrainableModel, History]], n: int) -> bool:
    """Whether the two best starts came to the same end."""
    ends = sorted((entry[0] for entry in done), reverse=True)
    return len(ends) > 1 and n * (ends[0] - ends[1]) < AGREE
