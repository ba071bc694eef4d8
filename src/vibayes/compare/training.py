"""Training the seeds of one family within a time."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vibayes.compare.families import Family, Problem, perturb
from vibayes.conjugate.base import ConjugateModel
from vibayes.errors import NotPositiveDefiniteError, TrainingError
from vibayes.trainable import TrainableModel
from vibayes.training import fit, fit_many
from vibayes.training.history import History, Logged

__all__ = ["Trained", "Watch", "train"]

# The last part of the time is spent at a tenth of the learning rate.
COOL_DOWN = 0.3
MAX_STEPS = 20_000
LOG_EVERY = 25
# Iterations of L-BFGS for one start of an exact GP.
MAX_ITERATIONS = 300

# Called now and then with the share of the work that is done (0 to 1) and the bound in nats per row.
Watch = Callable[[float, float], None]


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
    """

    models: list[TrainableModel]
    histories: list[History]
    seeds: list[int]
    seconds: float
    starts: list[float] = field(default_factory=list)
    interrupted: bool = False


def build(family: Family, problem: Problem, seed: int, dtype: torch.dtype) -> TrainableModel:
    """The untrained model of one seed."""
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_default_dtype(dtype)
        try:
            return family.build(problem)
        finally:
            torch.set_default_dtype(before)


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
) -> Trained:
    """Train the seeds of a family together, until the time is over or the bound no longer rises.

    Interrupted (`KeyboardInterrupt`), it gives what there is, with `interrupted` set, or lets the interrupt through
    when there is nothing yet.

    Args:
        family: which models.
        problem: the data.
        seeds: one model for each.
        seconds: the time there is.
        device: where to train.
        steps: train for so many steps in place of a time, which can be repeated exactly.
        watch: hears how far it is.
    """
    models = [build(family, problem, seed, dtype_for(problem)) for seed in seeds]
    if isinstance(models[0], ConjugateModel):
        return _train_exact(models, problem, seeds, seconds, device, steps, watch)
    return _train_together(family, models, problem, seeds, seconds, device, steps, watch)


class _Listener:
    """The callback of training: keeps what is logged, tells how far it is, and ends it when the time is over."""

    def __init__(self, seconds: float, steps: int | None, watch: Watch | None) -> None:
        self.begin, self.seconds, self.steps, self.watch = time.monotonic(), seconds, steps, watch
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
        return self.steps is None and self.elapsed > self.seconds

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
    family: Family,
    models: list[TrainableModel],
    problem: Problem,
    seeds: Sequence[int],
    seconds: float,
    device: str | None,
    steps: int | None,
    watch: Watch | None,
) -> Trained:
    listener = _Listener(seconds, steps, watch)
    data = (problem.x, problem.y)
    on_gpu = device is not None and torch.device(device).type == "cuda"
    interrupted = False
    try:
        histories = fit_many(
            models,
            [data] * len(models),
            seed=list(seeds),
            steps=steps,
            max_steps=MAX_STEPS,
            log_every=min(LOG_EVERY, steps or LOG_EVERY),
            lr_schedule=listener.schedule,
            callback=listener,
            device=device,
            progress=False,
            chunk=None if on_gpu else len(models),  # all at once, so that all have come equally far at any moment
            **family.training(problem),
        )
    except KeyboardInterrupt:
        if not listener.logged:
            raise
        histories, interrupted = listener.histories(len(models), problem.n), True
    kept = [r for r, history in enumerate(histories) if history.step]
    if not kept:
        raise TrainingError(f"no seed trained: {histories[0].stopped}")
    return Trained(
        [models[r] for r in kept],
        [histories[r] for r in kept],
        [seeds[r] for r in kept],
        listener.elapsed,
        interrupted=interrupted,
    )


def _train_exact(
    models: list[TrainableModel],
    problem: Problem,
    seeds: Sequence[int],
    seconds: float,
    device: str | None,
    steps: int | None,
    watch: Watch | None,
) -> Trained:
    """L-BFGS from one start per seed, as many as there is time for; the best evidence is kept.

    The first start is always the same sensible one, the others are random.
    """
    begin = time.monotonic()
    done: list[tuple[float, int, TrainableModel, History]] = []
    interrupted, failed = False, ""
    for number, (seed, model) in enumerate(zip(seeds, models, strict=True)):
        spent = time.monotonic() - begin
        if number and steps is None and spent * (number + 1) / number > seconds:
            break
        if number:
            perturb(model, seed)

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
