"""Settings of training that are chosen by the bound they reach."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vibayes.datasets import Split
from vibayes.training.history import History
from vibayes.training.replicas import fit_many

__all__ = ["train_best"]

# How many of the last entries of a history are averaged: single ones are noisy.
_LAST = 10


def train_best(
    make: Callable[[int], list[Any]],
    splits: Sequence[Split],
    choices: Mapping[str, Sequence[Any]],
    *,
    checkpoint: os.PathLike[str],
    seed: Sequence[int],
    chunk: int | None,
    **options: Any,
) -> tuple[list[Any], list[History]]:
    """Train every split with every setting, and keep the one with the best bound, split by split.

    Learning rates and starts train side by side, batch sizes one after another. The bound is that of the training data,
    so no test data are looked at; what was chosen is noted among the history's events.

    Args:
        make: builds one model per split, with what is added to the seeds; alike in every call.
        splits: the data.
        choices: `lr`, `batch_size` and `start` (what is added to the seeds), each a list of values to try.
        checkpoint: file from which a killed run goes on; each batch size has its own beside it.
        seed: of each split.
        chunk: how many splits go through a step at once.
        options: keyword arguments of `fit_many`.
    """
    rates = choices.get("lr") or [options["lr"]]
    starts = choices.get("start") or [0]
    sizes = choices.get("batch_size") or [options.get("batch_size")]
    sides = [(rate, start) for rate in rates for start in starts]
    best: list[tuple[float, Any, History] | None] = [None] * len(splits)
    for size in sizes:
        models = [model for _, start in sides for model in make(start)]
        histories = fit_many(
            models,
            [(split.x_train, split.y_train) for _ in sides for split in splits],
            **{
                **options,
                "lr": [rate for rate, _ in sides for _ in splits],
                "batch_size": size,
                "seed": [s + start for _, start in sides for s in seed],
                "chunk": None if chunk is None else chunk * len(sides),
                "checkpoint": f"{os.fspath(checkpoint)}-{size}" if len(sizes) > 1 else checkpoint,
            },
        )
        for number, (model, history) in enumerate(zip(models, histories, strict=True)):
            which, (rate, start) = number % len(splits), sides[number // len(splits)]
            last = torch.tensor(history.per_datapoint[-_LAST:], dtype=torch.float64)
            score = float(last.mean()) if len(last) and bool(torch.isfinite(last).all()) else -float("inf")
            kept = best[which]
            if kept is None or score > kept[0]:
                one = f", start {start}" if len(starts) > 1 else ""
                history.events.append(f"chosen by its bound: lr {rate:g}, batch size {size or 'all'}{one}")
                best[which] = (score, model, history)
    found = [entry for entry in best if entry is not None]
    return [model for _, model, _ in found], [history for _, _, history in found]
