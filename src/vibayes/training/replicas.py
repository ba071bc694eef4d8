"""`fit_many`: train many models of one architecture as one computation."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from vibayes.bound import Bound
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.trainable import Batch, TrainableModel
from vibayes.training.adam import AdamRun
from vibayes.training.batches import InMemory, as_batches
from vibayes.training.checkpoint import Keeper
from vibayes.training.history import History
from vibayes.training.problem import Noise, Problem, Single, mean_noise
from vibayes.training.progress import Progress
from vibayes.training.run import Options, check_options, find_device, fingerprint, generators, set_generators
from vibayes.training.schedules import Schedule, as_schedule

__all__ = ["Stacked", "fit_many"]

logger = logging.getLogger("vibayes")
T = TypeVar("T")


class Stacked(Problem):
    """R models of one architecture, their parameters stacked along a first axis.

    Data sets that differ in size are padded to the longest with rows of weight zero, which leaves each bound exactly
    what it is without them.

    Args:
        models: the models, initialised, all of one architecture.
        sources: their data.
        n_samples: draws per step.
        prepared: prepared noise `[R, S, ...]`, instead of fresh one.
    """

    def __init__(
        self,
        models: Sequence[TrainableModel],
        sources: Sequence[InMemory],
        n_samples: int,
        prepared: Noise | None = None,
    ) -> None:
        self.models, self.sources, self.n_samples = list(models), list(sources), n_samples
        self.replicas = len(models)
        self.base = models[0]
        self.device = self.base.device
        self.n_data = [source.n_data for source in sources]
        trained = {name for name, p in self.base.named_parameters() if p.requires_grad}
        self._parameters = {
            name: torch.stack(tensors).requires_grad_(name in trained)
            for name, tensors in _by_name([dict(m.named_parameters()) for m in models]).items()
        }
        self._buffers = {
            name: torch.stack(tensors) for name, tensors in _by_name([_stackable(m) for m in models]).items()
        }
        self.parameters = [p for p in self._parameters.values() if p.requires_grad]
        self.jitter = self._buffers["jitter"]
        self._data = _padded([source.data for source in sources])
        self._full = all(source.batch_size == source.n_data for source in sources)
        size = sources[0].batch_size
        self._rows = torch.zeros(self.replicas, size, dtype=torch.long, device=self.device)
        self._index = torch.arange(self.replicas, device=self.device)[:, None]
        scales = [1.0 if self._full else n / size for n in self.n_data]
        self._scale = torch.tensor(scales, dtype=self.base.dtype, device=self.device)
        self._prepared = prepared
        self._noise: Mapping[str, Tensor] | None = None

    def load(self, step: int) -> None:
        """Put the row indices of a minibatch in place."""
        if not self._full:
            rows = torch.stack([source.rows(step) for source in self.sources])
            self._rows.copy_(rows, non_blocking=True)
        if self._prepared is not None:
            self._noise = self._prepared(step)

    def bound(self) -> Bound:
        """The bounds of all replicas, each its own draws."""
        x, y, weights = self._data
        if not self._full:
            x, y = x[self._index, self._rows], y[self._index, self._rows]
            weights = None if weights is None else weights[self._index, self._rows]

        def one(
            parameters: dict[str, Tensor],
            buffers: dict[str, Tensor],
            x: Tensor,
            y: Tensor,
            weights: Tensor | None,
            scale: Tensor,
            noise: Mapping[str, Tensor] | None,
        ) -> Bound:
            options = {"scale": scale, "n_samples": self.n_samples, "noise": noise}
            found: Bound = functional_call(self.base, (parameters, buffers), (x, y, weights), options)
            return found._replace(failures={site: (info != 0).any() for site, info in found.failures.items()})

        axes = (0, 0, 0, 0, None if weights is None else 0, 0, None if self._noise is None else 0)
        over_replicas = vmap(one, in_dims=axes, randomness="different")
        found: Bound = over_replicas(self._parameters, self._buffers, x, y, weights, self._scale, self._noise)
        return found

    def spread(self, vector: Tensor, parameter: Tensor) -> Tensor:
        """One entry per replica, along the first axis."""
        return vector.view(-1, *[1] * (parameter.ndim - 1))

    def noise(self) -> Tensor | None:
        """The likelihoods' noise variances."""
        return mean_noise(self.base.likelihood, self._parameters.get("likelihood.noise.raw"))

    def state(self) -> dict[str, Any]:
        """Copies of all stacked parameters and buffers."""
        both = {**self._parameters, **self._buffers}
        return {name: value.detach().clone() for name, value in both.items()}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Put them back, in place."""
        for name, value in {**self._parameters, **self._buffers}.items():
            value.copy_(state[name])

    @torch.no_grad()
    def hand_back(self) -> None:
        """Leave each model with its own replica's parameters and jitter."""
        for r, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                parameter.copy_(self._parameters[name][r])
            model.jitter.copy_(self.jitter[r])

    @property
    def can_be_captured(self) -> bool:
        """Every step is alike unless noise is handed in."""
        return self._prepared is None


def _by_name(dictionaries: Sequence[Mapping[str, Tensor]]) -> dict[str, list[Tensor]]:
    return {name: [d[name].detach() for d in dictionaries] for name in dictionaries[0]}


def _stackable(model: TrainableModel) -> dict[str, Tensor]:
    """Buffers that a bound can read; data a closed-form model keeps for its predictions are not among them."""
    return {name: b for name, b in model.named_buffers() if not name.startswith("observations.")}


def _padded(data: Sequence[Batch]) -> Batch:
    """Data sets stacked along a first axis, shorter ones with rows of weight zero at the end."""
    longest = max(len(d.x) for d in data)
    same = all(len(d.x) == longest and d.weights is None for d in data)

    def pad(rows: Tensor) -> Tensor:
        # repeat the first row, which is always a valid input and target
        return torch.cat([rows, rows[:1].expand(longest - len(rows), *rows.shape[1:])])

    def weigh(d: Batch) -> Tensor:
        weights = torch.ones_like(d.x.flatten(1)[:, 0]) if d.weights is None else d.weights
        return torch.cat([weights, weights.new_zeros(longest - len(weights))])

    x, y = torch.stack([pad(d.x) for d in data]), torch.stack([pad(d.y) for d in data])
    return Batch(x, y, None if same else torch.stack([weigh(d) for d in data]))


def fit_many(
    models: Sequence[TrainableModel],
    datasets: Sequence[Any],
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    lr: float | Sequence[float] = 1e-2,
    lr_schedule: float | Schedule = 1.0,
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
    graph: bool | None = None,
    compile: bool = False,
    noise: Noise | None = None,
) -> list[History]:
    """Train models of one architecture (splits, seeds, starts, learning rates) together, by Adam.

    Parameters are stacked and the step is mapped over them, so that R small models cost little more than one on a GPU.
    Each model ends as if it had been trained alone by `fit` with its own seed: its own minibatches, draws, roll-backs
    and stopping. One that diverges is sent back, or left at its last good state and reported in its history.

    Args:
        models: R models built alike; they may differ in values and data, not in structure.
        datasets: for each, `(x, y)` or `(x, y, weights)`; sizes may differ.
        steps: see `fit`.
        batch_size: see `fit`.
        lr: learning rate, or one per model.
        lr_schedule: see `fit`.
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
            measurement finds fastest. A run with a checkpoint keeps its choice when it resumes.
        graph: capture the step in a CUDA graph; where possible when None.
        compile: compile the bound with `torch.compile`.
        noise: prepared noise of the draws at a step, `[R, S, ...]` by name; for comparisons.

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
    _check_alike(models)
    place = models[0].device if device is None else find_device(device)
    options = Options(
        steps=steps,
        max_steps=max_steps,
        lr_schedule=as_schedule(lr_schedule),
        kl_weight=as_schedule(kl_weight),
        n_samples=n_samples or (10 if models[0].draws_differ else 1),
        log_every=log_every,
        tolerance=tolerance,
        graph=graph,
        compile=compile,
    )
    check_options(options, n_samples, rates)
    sources = [_source(data, batch_size, s) for data, s in zip(datasets, seeds, strict=True)]
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        for model, source, s in zip(models, sources, seeds, strict=True):
            torch.manual_seed(s)
            model.to(place)
            if not bool(model.ready):
                model.initialize(*source.start()[:2])
            source.begin(model)
        _check_sizes(sources)
        size = chunk or _kept_chunk(checkpoint) or _chunk(models, sources, options, place)
        if checkpoint is not None:
            _keep_chunk(checkpoint, size)
        histories: list[History] = []
        with Progress(steps or max_steps, show=progress, label=f"fit {R} models") as shown:
            for first in range(0, R, size):
                part = slice(first, first + size)
                torch.manual_seed(seeds[first])
                problem = _problem(models[part], sources[part], options.n_samples, noise)
                mark = fingerprint(models[first], sources[part], options, "adam", seeds[part], rates[part])
                path = None if checkpoint is None else _chunk_path(checkpoint, first, R, size)
                keeper = Keeper(path, checkpoint_seconds, mark)
                run = AdamRun(problem, options, keeper.save, shown, rates[part])
                found = keeper.load()
                if found is not None:
                    run.restore(found)
                try:
                    histories += run.train()
                finally:
                    if isinstance(problem, Stacked):
                        problem.hand_back()
    return histories


def _problem(
    models: Sequence[TrainableModel], sources: Sequence[InMemory], n_samples: int, noise: Noise | None
) -> Single | Stacked:
    """One model needs no axis of replicas, unless noise comes with one."""
    if len(models) == 1 and noise is None:
        return Single(models[0], sources[0], n_samples)
    return Stacked(models, sources, n_samples, noise)


def _kept_chunk(checkpoint: str | os.PathLike[str] | None) -> int | None:
    """The chunk that an interrupted run with this checkpoint had chosen."""
    path = None if checkpoint is None else Path(f"{checkpoint}.chunk")
    return int(path.read_text()) if path is not None and path.exists() else None


def _keep_chunk(checkpoint: str | os.PathLike[str], size: int) -> None:
    path = Path(f"{checkpoint}.chunk")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(size))
    except OSError as error:
        raise ConfigurationError(
            f"The checkpoint {checkpoint} cannot be written ({error.strerror}). Choose a writable folder."
        ) from error


def _chunk_path(checkpoint: str | os.PathLike[str], first: int, R: int, size: int) -> Path:
    path = Path(checkpoint)
    return path if size >= R else path.with_name(f"{path.name}-{first}")


def _each(value: "T | Sequence[T]", R: int, what: str) -> list[T]:
    values = list(value) if isinstance(value, Sequence) else [value] * R
    if len(values) != R:
        raise ConfigurationError(f"{what} must be one value or one for each of {R} models; got {len(values)}.")
    return values


def _seeds(seed: int | Sequence[int], R: int) -> list[int]:
    return [seed + r for r in range(R)] if isinstance(seed, int) else _each(seed, R, "seed")


def _source(data: Any, batch_size: int | None, seed: int) -> InMemory:
    source = as_batches(data, batch_size, seed)
    if not isinstance(source, InMemory):
        raise ConfigurationError("fit_many takes data in memory, (x, y) or (x, y, weights); use fit for a DataLoader.")
    return source


def _check_sizes(sources: Sequence[InMemory]) -> None:
    sizes = {s.batch_size for s in sources}
    full = all(s.batch_size == s.n_data for s in sources)
    if not full and len(sizes) > 1:
        raise ConfigurationError(
            f"With minibatches every data set must have at least batch_size rows; they have "
            f"{sorted(s.n_data for s in sources)} rows. Choose a smaller batch_size, or leave it out."
        )
    shapes = {(tuple(s.data.x.shape[1:]), tuple(s.data.y.shape[1:])) for s in sources}
    if len(shapes) > 1:
        raise ShapeError(f"All data sets must have the same input and target widths; got {sorted(map(str, shapes))}.")


def _check_alike(models: Sequence[TrainableModel]) -> None:
    """Refuse models that one computation cannot serve: the stacked step runs the first one's Python code."""
    first = models[0]
    expected = _structure(first)
    for r, model in enumerate(models):
        if not isinstance(model, TrainableModel):
            raise ConfigurationError(f"Model {r} is a {type(model).__name__}; fit_many trains vibayes models.")
        if any(model is other for other in models[:r]):
            raise ConfigurationError(f"Model {r} is the same object as an earlier one; build one per data set.")
        for (name, mine), (_, theirs) in zip(_structure(model).items(), expected.items(), strict=False):
            if mine != theirs or name not in expected:
                raise ConfigurationError(f"Model {r} differs from model 0 in {name!r}: {mine} instead of {theirs}.")
        if len(_structure(model)) != len(expected):
            raise ConfigurationError(f"Model {r} and model 0 are built differently; fit_many needs one architecture.")


def _structure(model: nn.Module) -> dict[str, Any]:
    """What must agree between replicas: classes, shapes, what is fixed, and plain settings."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        settings = {
            key: value
            for key, value in vars(module).items()
            if not key.startswith("_") and isinstance(value, bool | int | float | str | tuple)
        }
        settings.pop("row_shape", None)  # known only once data were seen
        found[name or "the model"] = (type(module).__name__, settings)
    for name, parameter in model.named_parameters():
        found[f"parameter {name}"] = (tuple(parameter.shape), parameter.dtype, parameter.requires_grad)
    return found


# -- how many at once -------------------------------------------------------------------------------------------


def _chunk(
    models: Sequence[TrainableModel], sources: Sequence[InMemory], options: Options, device: torch.device
) -> int:
    """How many replicas train at once: on a GPU what memory allows, on a CPU what measures fastest."""
    R = len(models)
    if R == 1:
        return 1
    state = generators(device)
    chosen = _fits(models, sources, options, device) if device.type == "cuda" else _fastest(models, sources, options)
    set_generators(state, device)
    return chosen


def _evaluate(models: Sequence[TrainableModel], sources: Sequence[InMemory], n_samples: int) -> None:
    """The costly part of one joint step."""
    problem = _problem(models, sources, n_samples, None)
    problem.load(0)
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


def _fastest(models: Sequence[TrainableModel], sources: Sequence[InMemory], options: Options) -> int:
    R = len(models)
    found: dict[int, float] = {}
    for size in sorted({1, min(5, R), min(20, R)}):
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            _evaluate(models[:size], sources[:size], options.n_samples)
            times.append(time.perf_counter() - begin)
        found[size] = min(times) / size
    return min(found, key=lambda size: found[size])
