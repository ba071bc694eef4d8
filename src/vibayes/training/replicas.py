"""`fit_many`: train many models of one architecture as one computation."""

import dataclasses
import logging
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from vibayes.augment import Augment
from vibayes.errors import ConfigurationError, TrainingError
from vibayes.trainable import TrainableModel
from vibayes.training.adam import AdamRun
from vibayes.training.alike import check_alike, check_sizes
from vibayes.training.batches import InMemory, as_batches
from vibayes.training.checkpoint import Keeper, chunk_path
from vibayes.training.history import Callback, History, Logged
from vibayes.training.plan import as_problem, keep_plan, make_plan
from vibayes.training.problem import Noise, Single
from vibayes.training.progress import Progress
from vibayes.training.run import Options, check_options, check_priors, find_device
from vibayes.training.schedules import Schedule, as_schedule
from vibayes.training.stacked import Stacked
from vibayes.training.structure import fingerprint
from vibayes.training.workers import make_jobs, train_in_workers

__all__ = ["fit_many"]

logger = logging.getLogger("vibayes")
T = TypeVar("T")

# The options that worker processes are given as they are.
_PASSED = (
    "steps",
    "lr_schedule",
    "kl_weight",
    "n_samples",
    "log_every",
    "max_steps",
    "tolerance",
    "weight_decay",
    "natural_rate",
    "lr_factors",
    "compile",
)
_WHY_NOT = "a callback, prepared noise, a lambda or a class of the running script cannot be sent to another process"


def fit_many(
    models: Sequence[TrainableModel],
    datasets: Sequence[Any],
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    lr: float | Sequence[float] = 1e-2,
    lr_schedule: float | Schedule = 1.0,
    lr_factors: Mapping[str, float] | None = None,
    kl_weight: float | Schedule = 1.0,
    n_samples: int | None = None,
    seed: int | Sequence[int] = 0,
    device: str | torch.device | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 15.0,
    log_every: int = 50,
    max_steps: int = 20_000,
    tolerance: float = 1e-3,
    chunk: int | None = None,
    workers: int | None = None,
    graph: bool | None = None,
    compile: bool = False,
    noise: Noise | None = None,
    callback: Callback | None = None,
    weight_decay: float = 0.0,
    natural_rate: float = 0.1,
    augment: Augment | None = None,
) -> list[History]:
    """Train models of one architecture (splits, seeds, starts, learning rates) together, by Adam.

    Parameters are stacked and the step is mapped over them, so that R small models cost little more than one on a GPU.
    Each model is trained as `fit` trains it alone with its own seed: its own minibatches, roll-backs and stopping, and
    draws of its own (from one generator for all, so only their distribution is that of separate training). One that
    diverges is sent back, or left at its last good state and reported in its history.

    Args:
        models: R models built alike; they may differ in values and data, not in structure.
        datasets: for each, `(x, y)` or `(x, y, weights)`; sizes may differ.
        steps: see `fit`.
        batch_size: see `fit`.
        lr: learning rate, or one per model.
        lr_schedule: see `fit`.
        lr_factors: see `fit`.
        kl_weight: see `fit`.
        n_samples: see `fit`.
        seed: seed of the order of minibatches and of starts, or one per model; model r gets `seed + r` from a number.
        device: see `fit`.
        progress: see `fit`.
        checkpoint: see `fit`; with several chunks each has its own file beside it.
        checkpoint_seconds: see `fit`.
        log_every: see `fit`.
        max_steps: see `fit`.
        tolerance: see `fit`.
        chunk: how many models train at once; when None, on a GPU as many as fit into memory, on a CPU what a short
            measurement finds fastest, and 1 where they cannot train together, as with torch's recurrent modules. A run
            with a checkpoint keeps its choice when it resumes.
        workers: how many processes train chunks side by side, on a CPU: 1 for this process alone. When None (and
            `chunk` too), as many as there are cores where a measurement says that they are faster and training takes
            longer than a minute. Models and schedules must be such that `pickle` can send them.
        graph: capture the step in a CUDA graph; where possible when None.
        compile: compile the bound and Adam by `torch.compile`, which takes a minute or less; see docs/decisions.
        noise: prepared noise of the draws at a step, `[R, S, ...]` by name; for comparisons.
        callback: see `fit`; called for each model, whose number is `Logged.replica`. An answer that is true ends the
            training of that one.
        weight_decay: see `fit`.
        natural_rate: see `fit`.
        augment: see `fit`.

    >>> import torch, vibayes as vb
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> def model():
    ...     return vb.Model(vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(5)), vb.Gaussian(0.1))
    >>> histories = fit_many([model(), model()], [(x, x[:, 0]), (x[:15], -x[:15, 0])], steps=5, progress=False)
    >>> [len(history) for history in histories]
    [1, 1]
    """
    models, datasets = list(models), list(datasets)
    R = len(models)
    if R == 0 or len(datasets) != R:
        raise ConfigurationError(
            f"fit_many needs one data set per model; got {R} models and {len(datasets)} data sets."
        )
    rates, seeds = _each(lr, R, "lr"), _seeds(seed, R)
    check_alike(models)
    place = models[0].device if device is None else find_device(device)
    options = Options(
        steps=steps,
        max_steps=max_steps,
        lr_schedule=as_schedule(lr_schedule),
        kl_weight=as_schedule(kl_weight),
        n_samples=n_samples or 1,
        log_every=log_every,
        tolerance=tolerance,
        graph=graph,
        compile=compile,
        callback=callback,
        weight_decay=weight_decay,
        natural_rate=natural_rate,
        lr_factors=lr_factors or {},
    )
    check_options(options, n_samples, rates, seeds)
    sources = [_source(data, batch_size, s, augment) for data, s in zip(datasets, seeds, strict=True)]
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        for model, source, s in zip(models, sources, seeds, strict=True):
            torch.manual_seed(s)
            model.to(place)
            if not bool(model.ready):
                model.initialize(*source.start())
            check_priors(model)
            source.begin(model)
        check_sizes(sources)
        if n_samples is None:  # models have met rows by now
            options = dataclasses.replace(options, n_samples=10 if models[0].draws_differ else 1)
        size, n_workers = make_plan(models, sources, options, place, chunk, workers, checkpoint)
        if n_workers > 1:
            passed = {name: getattr(options, name) for name in _PASSED}
            passed |= {"batch_size": batch_size, "augment": augment, "checkpoint_seconds": checkpoint_seconds}
            jobs = make_jobs(models, datasets, rates, seeds, size, passed, checkpoint)
            if jobs is not None and callback is None and noise is None:
                return train_in_workers(models, jobs, size, n_workers, progress)
            logger.warning("These models train in this process: %s.", _WHY_NOT)

        def train_chunk(first: int, size: int) -> list[History]:
            part = slice(first, first + size)
            torch.manual_seed(seeds[first])
            path = None if checkpoint is None else chunk_path(checkpoint, first, R, size)
            run = (models[part], sources[part], options, "adam", seeds[part], rates[part])
            keeper = Keeper(path, checkpoint_seconds, {} if path is None else fingerprint(*run))
            problem = as_problem(models[part], sources[part], options.n_samples, _noise_of(noise, part))
            return _train(problem, _counted_from(first, options), keeper, shown, rates[part])

        with Progress(steps or max_steps, show=progress, label=f"fit {R} models") as shown:
            return _in_chunks(train_chunk, R, size, checkpoint)


def _in_chunks(
    train: Callable[[int, int], list[History]], R: int, size: int, checkpoint: str | os.PathLike[str] | None
) -> list[History]:
    """Train chunks of R models one after the other; where memory runs out, once, with chunks of half the size.

    Args:
        train: trains the chunk of a first number and a size.
        R: how many models there are.
        size: of a chunk.
        checkpoint: where a smaller size is noted.
    """
    histories: list[History] = []
    smaller = False
    while len(histories) < R:
        try:
            histories += train(len(histories), size)
        except torch.OutOfMemoryError as error:
            if smaller or size == 1:
                raise TrainingError(
                    f"The device ran out of memory with {size} model(s) at a time. Use a smaller chunk, "
                    "batch_size, n_samples or number of inducing points, or another device."
                ) from error
            size, smaller = -(-size // 2), True
            if checkpoint is not None:
                keep_plan(checkpoint, (size, 1))
            torch.cuda.empty_cache()
            logger.warning("Out of memory; going on with %d models at a time.", size)
    return histories


def _noise_of(noise: Noise | None, part: slice) -> Noise | None:
    """The prepared noise of some of the models."""
    if noise is None:
        return None
    return lambda step: {site: values[part] for site, values in noise(step).items()}


def _train(
    problem: Single | Stacked, options: Options, keeper: Keeper, shown: Progress, rates: list[float]
) -> list[History]:
    """Train one chunk and hand the results to its models, also when interrupted."""
    run = AdamRun(problem, options, keeper.save, shown, rates, raises=False)
    found = keeper.load()
    if found is not None:
        run.restore(found)
    try:
        return run.train()
    finally:
        if isinstance(problem, Stacked):
            problem.hand_back()


def _each(value: "T | Sequence[T]", R: int, what: str) -> list[T]:
    if isinstance(value, np.ndarray | torch.Tensor):
        value = value.tolist()
    values = list(value) if isinstance(value, Sequence) else [value] * R
    if len(values) != R:
        raise ConfigurationError(f"{what} must be one value or one for each of {R} models; got {len(values)}.")
    return values


def _counted_from(first: int, options: Options) -> Options:
    """Options whose callback hears of replicas by their number among all models, not in their chunk."""
    callback = options.callback
    if callback is None or first == 0:
        return options

    def counted(logged: Logged) -> object:
        return callback(dataclasses.replace(logged, replica=first + logged.replica))

    return dataclasses.replace(options, callback=counted)


def _seeds(seed: int | Sequence[int], R: int) -> list[int]:
    if isinstance(seed, numbers.Integral):
        return [int(seed) + r for r in range(R)]
    return _each(seed, R, "seed")


def _source(data: Any, batch_size: int | None, seed: int, augment: Augment | None) -> InMemory:
    source = as_batches(data, batch_size, seed, augment)
    if not isinstance(source, InMemory):
        raise ConfigurationError("fit_many takes data in memory, (x, y) or (x, y, weights); use fit for a DataLoader.")
    return source
