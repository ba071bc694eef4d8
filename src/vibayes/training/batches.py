"""Where training batches come from: tensors in memory, a `Dataset`, or a `DataLoader`.

The batch of a step is a function of the seed and the step alone, so that a resumed run sees the same batches.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, default_collate

from vibayes.augment import Augment
from vibayes.data import check_count
from vibayes.errors import ConfigurationError, DataError, ShapeError, kind_of
from vibayes.trainable import Batch, TrainableModel

__all__ = ["Batches", "InMemory", "as_batches", "seed_of"]

# How many rows of a streamed data set the data-dependent starts are taken from.
_START_ROWS = 20_000


class Batches(ABC):
    """A source of training batches.

    Attributes:
        n_data: how many rows there are in all.
        batch_size: how many rows a batch has.
        augment: changes the inputs of a batch at random, in every step anew.
    """

    n_data: int
    batch_size: int
    augment: Augment | None = None

    def share(self, batch: Batch) -> float:
        """How much a step with this batch counts: less where it has fewer rows than the others."""
        return len(batch.x) / self.batch_size

    def augmented(self, x: Tensor) -> Tensor:
        """Inputs of a batch after the augmentation, if there is one."""
        if self.augment is None:
            return x
        changed = self.augment(x.clone())  # it may work in place, and a batch of all rows is the data themselves
        if not isinstance(changed, Tensor) or changed.shape != x.shape:
            got = list(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
            raise ShapeError(f"augment must return inputs of the same shape, {list(x.shape)}; it returned {got}.")
        if changed.dtype != x.dtype:
            raise ConfigurationError(
                f"augment must return inputs of the model's dtype, {x.dtype}; it returned {changed.dtype}. End it with "
                "x.to(dtype)."
            )
        return changed

    @abstractmethod
    def start(self) -> tuple[Any, ...]:
        """Rows and targets (and weights, where there are any) in user units, for data-dependent starts."""

    @abstractmethod
    def begin(self, model: TrainableModel) -> None:
        """Get ready once the model knows its units."""

    @abstractmethod
    def at(self, step: int) -> Batch:
        """The batch of a step, counted from 0."""

    @abstractmethod
    def digest(self) -> str:
        """A fingerprint of the data, to recognise a checkpoint's."""


def seed_of(seed: int, number: int) -> int:
    """A seed for one of many things, such as an epoch, that depend on one seed."""
    return (int(seed) * 1_000_003 + number) % 2**63


def permutation(n: int, seed: int, epoch: int) -> Tensor:
    """The order of rows in one epoch."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed_of(seed, epoch)))


class _Order:
    """Row indices of each step: epochs of shuffled rows laid end to end and cut into batches of equal size."""

    def __init__(self, n: int, batch_size: int, seed: int) -> None:
        self.n, self.batch_size, self.seed = n, batch_size, seed
        self._epochs: dict[int, Tensor] = {}

    def at(self, step: int) -> Tensor:
        first, last = step * self.batch_size, (step + 1) * self.batch_size - 1
        epochs = range(first // self.n, last // self.n + 1)
        kept = self._epochs
        self._epochs = {e: kept[e] if e in kept else permutation(self.n, self.seed, e) for e in epochs}
        rows = torch.cat([self._epochs[e] for e in epochs])
        offset = first - epochs[0] * self.n
        return rows[offset : offset + self.batch_size]


class InMemory(Batches):
    """Rows that stay on the model's device; the whole set is one batch unless told otherwise."""

    def __init__(self, x: Any, y: Any, weights: Any, batch_size: int | None, seed: int) -> None:
        self.raw = (x, y, weights)
        self._batch_size, self._seed = batch_size, seed

    def start(self) -> tuple[Any, ...]:
        """All of it."""
        return self.raw

    def begin(self, model: TrainableModel) -> None:
        """Take the data to the model's units, dtype and device."""
        self.data = model.prepare(*self.raw)
        model.observe(self.data)
        self.n_data = len(self.data.x)
        self.batch_size = min(self._batch_size or self.n_data, self.n_data)
        self._order = _Order(self.n_data, self.batch_size, self._seed)

    def at(self, step: int) -> Batch:
        """All rows, or a minibatch."""
        if self.batch_size == self.n_data:
            return self.data
        return self.take(self.rows(step).to(self.data.x.device))

    def rows(self, step: int) -> Tensor:
        """Indices of the rows of a step's batch."""
        return self._order.at(step) if self.batch_size < self.n_data else torch.arange(self.n_data)

    def take(self, rows: Tensor) -> Batch:
        """The rows with these indices."""
        weights = None if self.data.weights is None else self.data.weights[rows]
        return Batch(self.data.x[rows], self.data.y[rows], weights)

    def digest(self) -> str:
        """A hash of every number."""
        found = hashlib.sha256()
        for tensor in self.data:
            if tensor is not None:
                found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:16]


class _FromDataset(Batches):
    """A map-style `Dataset` of `(x, y)` or `(x, y, weight)` items, read batch by batch."""

    def __init__(self, dataset: Dataset[Any], batch_size: int | None, seed: int) -> None:
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized) or len(dataset) == 0:
            raise DataError(
                "The Dataset must have a length, at least one item, and items by number; put an IterableDataset with a "
                "length into a DataLoader."
            )
        self.dataset, self.n_data = dataset, len(dataset)
        self.batch_size = min(batch_size or 1000, self.n_data)
        self._order, self._seed = _Order(self.n_data, self.batch_size, seed), seed

    def _rows(self, indices: Tensor) -> tuple[Any, ...]:
        return _parts(default_collate([self.dataset[int(i)] for i in indices]), "Dataset")

    def start(self) -> tuple[Any, ...]:
        return self._rows(permutation(self.n_data, self._seed, 0)[:_START_ROWS].sort().values)  # as tensors have them

    def begin(self, model: TrainableModel) -> None:
        self._model = model
        if self.batch_size == self.n_data:
            model.observe(self.at(0))

    def at(self, step: int) -> Batch:
        return self._model.prepare(*self._rows(self._order.at(step)))

    def digest(self) -> str:
        return f"dataset of {self.n_data}"


class _FromLoader(Batches):
    """A `DataLoader`, epoch after epoch, with its own batch size and sampler; the seed decides what is random in both.

    The last batch of an epoch may have fewer rows than the others.
    """

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        dataset = loader.dataset
        if not isinstance(dataset, Sized):
            raise DataError(
                "The DataLoader's dataset must have a length: the bound needs the number of rows. "
                "Wrap a stream in a Dataset with __len__."
            )
        if len(loader) == 0:
            raise DataError(
                f"The DataLoader gives no batch: {len(dataset)} rows, batch_size={loader.batch_size}, "
                f"drop_last={loader.drop_last}. Use a smaller batch_size, or drop_last=False."
            )
        if loader.batch_size is None:
            raise ConfigurationError("The DataLoader must have a batch_size.")
        rows = loader.sampler if isinstance(loader.sampler, SubsetRandomSampler) else dataset
        self.loader, self.n_data, self._seed = loader, len(rows), seed
        self.batch_size = min(loader.batch_size, self.n_data)
        self._epoch, self._position = -1, 0
        self._iterator: Iterator[Any] = iter(())

    def start(self) -> tuple[Any, ...]:
        parts: list[tuple[Any, ...]] = []
        for part in self._seeded(0):
            parts.append(_parts(part, "DataLoader"))
            if sum(len(p[0]) for p in parts) >= _START_ROWS:
                break
        return tuple(torch.cat([torch.as_tensor(p) for p in column]) for column in zip(*parts, strict=True))

    def begin(self, model: TrainableModel) -> None:
        self._model = model
        if len(self.loader) == 1:
            model.observe(self.at(0))

    def _seeded(self, epoch: int) -> Iterator[Any]:
        """The batches of an epoch, whose random numbers come from a stream of their own."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self._seed, epoch))
            for generator in (self.loader.generator, getattr(self.loader.sampler, "generator", None)):
                if generator is not None:
                    generator.manual_seed(seed_of(self._seed, epoch))
            iterator = iter(self.loader)
            state = torch.get_rng_state()
        while True:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                state = torch.get_rng_state()
            yield batch

    def at(self, step: int) -> Batch:
        epoch, position = divmod(step, len(self.loader))
        if epoch != self._epoch or position < self._position:
            self._epoch, self._position, self._iterator = epoch, 0, self._seeded(epoch)
        batch = None
        for number in range(self._position, position + 1):
            batch = next(self._iterator, None)
            if batch is None:
                raise DataError(
                    f"The DataLoader gave {number} of {len(self.loader)} batches: the length of its Dataset is wrong."
                )
        self._position = position + 1
        return self._model.prepare(*_parts(batch, "DataLoader"))

    def digest(self) -> str:
        return f"loader over {self.n_data}"


def _parts(batch: Any, source: str) -> tuple[Any, ...]:
    """What a batch is made of: `(x, y)` or `(x, y, weights)`."""
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        got = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
        raise DataError(f"The {source} must give (x, y) or (x, y, weight) items; got {got}. Wrap it in one that does.")
    return tuple(batch)


def as_batches(data: Any, batch_size: int | None, seed: int, augment: Augment | None = None) -> Batches:
    """A source of batches from `(x, y)`, `(x, y, weights)`, a `Dataset` or a `DataLoader`."""
    source = _as_batches(data, batch_size, seed)
    if augment is not None and (not callable(augment) or isinstance(augment, type)):
        got = kind_of(augment) if isinstance(augment, type) else repr(augment)
        raise ConfigurationError(
            f"augment must be a function from images to images such as augment.RandomFlip(), got {got}."
        )
    source.augment = augment
    return source


def _as_batches(data: Any, batch_size: int | None, seed: int) -> Batches:
    if batch_size is not None:
        check_count(batch_size, "batch_size")
    if isinstance(data, DataLoader):
        if batch_size is not None and batch_size != data.batch_size:
            raise ConfigurationError(
                f"The DataLoader has its own batch size ({data.batch_size}); leave batch_size out of fit."
            )
        return _FromLoader(data, seed)
    if isinstance(data, Dataset):
        return _FromDataset(data, batch_size, seed)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        x, y = data[0], data[1]
        return InMemory(x, y, data[2] if len(data) == 3 else None, batch_size, seed)
    raise DataError(f"data must be (x, y), (x, y, weights), a Dataset or a DataLoader; got {type(data).__name__}.")
