"""How many models of `fit_many` train at once, and in how many processes."""

import logging
import numbers
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vibayes.errors import ConfigurationError
from vibayes.modes import keeping_averages, uses_batch_statistics
from vibayes.trainable import TrainableModel
from vibayes.training.batches import InMemory
from vibayes.training.problem import Noise, Single
from vibayes.training.run import Options, generators, set_generators
from vibayes.training.stacked import Stacked, stackable
from vibayes.training.workers import cores
from vibayes.writing import written_whole

__all__ = ["as_problem", "keep_plan", "make_plan"]

logger = logging.getLogger("vibayes")

# Training shorter than this many seconds is over before worker processes have imported torch a few times.
_WORTH_WORKERS = 60.0


def make_plan(
    models: Sequence[TrainableModel],
    sources: Sequence[InMemory],
    options: Options,
    device: torch.device,
    chunk: int | None,
    workers: int | None,
    checkpoint: str | os.PathLike[str] | None,
) -> tuple[int, int]:
    """How many models train at once, and in how many processes; an interrupted run keeps to what it began with."""
    given: Any = workers
    if given is not None and (isinstance(given, bool) or not isinstance(given, numbers.Integral) or given < 1):
        raise ConfigurationError(f"workers must be a positive whole number, got {workers!r}.")
    if device.type == "cuda" and workers not in (None, 1):
        raise ConfigurationError(
            "workers are for CPUs; on a GPU one process trains as many models at once as fit into its memory."
        )
    chunk = _possible_chunk(models, sources, chunk)
    kept = _kept_plan(checkpoint)
    if kept is not None:
        plan = (chunk or kept[0], workers or kept[1])
    elif chunk is None and workers != 1 and device.type == "cpu" and len(models) > 1:
        plan = _fastest_plan(models, sources, options, workers)
    else:
        plan = (chunk or _chunk(models, sources, options, device), workers or 1)
    if checkpoint is not None:
        keep_plan(checkpoint, plan)
    return plan


def _possible_chunk(models: Sequence[TrainableModel], sources: Sequence[InMemory], chunk: int | None) -> int | None:
    """The chunk asked for, or 1 where models cannot train together."""
    why = _why_apart(models, sources)
    if why is None:
        return chunk
    if chunk not in (None, 1):
        raise ConfigurationError(
            f"These models cannot train together: {why}. Leave out chunk=, and they train one after another."
        )
    return 1


def _why_apart(models: Sequence[TrainableModel], sources: Sequence[InMemory]) -> str | None:
    modules = list(models[0].modules())
    recurrent = next((m for m in modules if isinstance(m, nn.RNNBase | nn.RNNCellBase)), None)
    if recurrent is not None:
        return f"torch cannot stack recurrent modules, such as {type(recurrent).__name__}"
    sizes = sorted({source.batch_size for source in sources})
    if len(sizes) > 1 and uses_batch_statistics(models[0]):
        return (
            f"data sets of {sizes} rows are filled up to one size, and batch normalisation would count what fills them"
        )
    shapes = [{name: tuple(b.shape) for name, b in stackable(model).items()} for model in models]
    differ = next((name for name, shape in shapes[0].items() if any(other[name] != shape for other in shapes)), None)
    return None if differ is None else f"they hold {differ!r} in different shapes, as their data differ in size"


def _kept_plan(checkpoint: str | os.PathLike[str] | None) -> tuple[int, int] | None:
    """Chunk and workers that an interrupted run with this checkpoint had chosen."""
    path = None if checkpoint is None else Path(f"{checkpoint}.chunk")
    words = path.read_text().split() if path is not None and path.exists() else []
    if not words or not all(word.isdigit() and int(word) > 0 for word in words):
        return None
    return int(words[0]), int(words[1]) if len(words) > 1 else 1


def keep_plan(checkpoint: str | os.PathLike[str], plan: tuple[int, int]) -> None:
    """Note the plan beside the checkpoint, for whoever resumes."""
    try:
        with written_whole(Path(f"{checkpoint}.chunk")) as aside:
            aside.write_text(" ".join(map(str, plan)) if plan[1] > 1 else str(plan[0]))
    except OSError as error:
        raise ConfigurationError(
            f"The checkpoint {checkpoint} cannot be written ({error.strerror}). Choose a writable folder."
        ) from error


def as_problem(
    models: Sequence[TrainableModel], sources: Sequence[InMemory], n_samples: int, noise: Noise | None
) -> Single | Stacked:
    """One model needs no axis of replicas, unless noise comes with one."""
    if len(models) == 1 and noise is None:
        return Single(models[0], sources[0], n_samples)
    return Stacked(models, sources, n_samples, noise)


def _chunk(
    models: Sequence[TrainableModel], sources: Sequence[InMemory], options: Options, device: torch.device
) -> int:
    """How many replicas train at once: on a GPU what memory allows, on a CPU what measures fastest."""
    R = len(models)
    if R == 1:
        return 1
    state = generators(device)
    if device.type == "cuda":
        chosen = _fits(models, sources, options, device)
    else:
        chosen = _least(_times(models, sources, options, {1, 5, 20}))
    set_generators(state, device)
    return chosen


def _least(times: dict[int, float]) -> int:
    """The size that takes the least time."""
    return min(times, key=times.__getitem__)


def _evaluate(models: Sequence[TrainableModel], sources: Sequence[InMemory], n_samples: int) -> None:
    """The costly part of one joint step."""
    problem = as_problem(models, sources, n_samples, None)
    problem.load(0)
    with keeping_averages(*models):
        torch.autograd.grad(problem.bound().log_likelihood.sum(), problem.parameters, allow_unused=True)


def _fits(models: Sequence[TrainableModel], sources: Sequence[InMemory], options: Options, device: torch.device) -> int:
    R = len(models)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    _evaluate(models[:2], sources[:2], options.n_samples)
    each = (torch.cuda.max_memory_allocated(device) - before) / 2
    free, _ = torch.cuda.mem_get_info(device)
    fits = max(1, int(0.4 * free / max(each, 1.0)))  # a captured graph keeps a pool of its own beside the eager one
    if fits < R:
        logger.info("Training %d of %d models at a time: each needs about %.2g GB.", fits, R, each / 1e9)
    return min(R, fits)


def _times(
    models: Sequence[TrainableModel], sources: Sequence[InMemory], options: Options, sizes: set[int]
) -> dict[int, float]:
    """Seconds per model and step, by the number of models in a joint step."""
    found: dict[int, float] = {}
    sizes = {min(size, len(models)) for size in sizes}
    for size in sorted(sizes):
        times = []
        steps = -(-max(sizes) // size)  # the same work for every size: on a busy machine a short one may have luck
        for _ in range(2):
            begin = time.perf_counter()
            for _ in range(steps):
                _evaluate(models[:size], sources[:size], options.n_samples)
            times.append(time.perf_counter() - begin)
        found[size] = min(times) / (size * steps)
    return found


def _fastest_plan(
    models: Sequence[TrainableModel], sources: Sequence[InMemory], options: Options, workers: int | None
) -> tuple[int, int]:
    """Chunk and workers on a CPU: all threads on one chunk after the other, or a thread for each chunk side by side."""
    state = generators(torch.device("cpu"))
    threads, R = torch.get_num_threads(), len(models)
    try:
        here = _times(models, sources, options, {1, 5, 20})
        size = _least(here)
        n_workers = workers or min(cores(), R)
        if n_workers == 1 or (workers is None and here[size] * R * (options.steps or 1000) < _WORTH_WORKERS):
            return size, 1
        torch.set_num_threads(1)
        apart = _times(models, sources, options, {1, min(5, -(-R // n_workers))})
    finally:
        torch.set_num_threads(threads)
        set_generators(state, torch.device("cpu"))
    best = _least(apart)
    if workers is None and apart[best] / n_workers > 0.9 * here[size]:
        return size, 1
    return best, n_workers
