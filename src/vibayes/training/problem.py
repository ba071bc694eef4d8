"""What an optimizer works on: parameters and a bound, of one model or of many stacked ones.

Everything per replica is a vector of length R; for one model R is 1. The tensors that a step reads and writes stay
the same objects from step to step, so that a step can be captured in a CUDA graph.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from vibayes.bound import Bound
from vibayes.errors import ConfigurationError
from vibayes.modes import averages
from vibayes.parameters import Hyperparameter, name_of
from vibayes.posteriors.natural import NaturalSites
from vibayes.stages import network_weights
from vibayes.trainable import Batch, TrainableModel
from vibayes.training.batches import Batches, InMemory

__all__ = ["Noise", "Problem", "Single"]

# Noise prepared for a step, by the name under which a draw asks for it: `[S, ...]`, or `[R, S, ...]` for replicas.
Noise = Callable[[int], Mapping[str, Tensor]]


class Problem(ABC):
    """A bound to be maximised over parameters.

    Attributes:
        replicas: R.
        n_data: how many rows each replica has.
        parameters: the tensors to optimize; with replicas, the first axis is theirs.
        names: what people call them in a model.
        decayed: for each of them, whether it is a weight of a network, which weight decay shrinks.
        sites: buffers that natural gradients move, by name; with replicas, the first axis is theirs.
        averages: buffers that batch normalisation moves, likewise.
        jitter: `[R]`, changed in place.
        share: how much the loaded batch counts in training, against others.
        device: where it all is.
    """

    replicas: int
    n_data: list[int]
    parameters: list[Tensor]
    names: list[str]
    decayed: list[bool]
    sites: dict[str, Tensor]
    averages: dict[str, Tensor]
    jitter: Tensor
    share: float = 1.0
    device: torch.device

    @property
    def moved(self) -> list[Tensor]:
        """All tensors that a step's gradients change."""
        return [*self.parameters, *self.sites.values()]

    @abstractmethod
    def load(self, step: int) -> None:
        """Put the batch of a step, counted from 0, in place; runs outside the graph."""

    @abstractmethod
    def bound(self) -> Bound:
        """The terms of the bound on the loaded batch: `[R, S]`, `[R, S]`, `[R]`, failures `[R]`; targets as `sites`."""

    @abstractmethod
    def spread(self, vector: Tensor, parameter: Tensor) -> Tensor:
        """A vector of length R in a form that broadcasts to a parameter."""

    @abstractmethod
    def noise(self) -> Tensor | None:
        """The likelihoods' noise variances `[R]`, where there are any."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Copies of all parameters and buffers."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Put them back, in place."""

    @property
    def can_be_captured(self) -> bool:
        """Whether every step has the same shapes and reads the same tensors."""
        return False

    def finite(self) -> Tensor:
        """Per replica, whether all that steps change is finite: `[R]`."""
        found = torch.ones(self.replicas, dtype=torch.bool, device=self.device)
        for parameter in (*self.moved, *self.averages.values()):
            found &= torch.isfinite(parameter.detach().reshape(self.replicas, -1).sum(1))
        return found


def natural_sites(model: TrainableModel) -> dict[str, Tensor]:
    """The buffers that natural gradients move, by name."""
    found = {path: m for path, m in model.named_modules() if isinstance(m, NaturalSites) and m.learn}
    return {f"{path}.{name}": buffer for path, sites in found.items() for name, buffer in sites.named_buffers()}


def mean_noise(likelihood: Any, raw: Tensor | None) -> Tensor | None:
    """The noise variance from its raw parameter `[R, ...]`, averaged over outputs."""
    noise = getattr(likelihood, "noise", None)
    if raw is None or not isinstance(noise, Hyperparameter):
        return None
    return noise.from_raw(raw.detach()).reshape(len(raw), -1).mean(1)


class _Share:
    """This process's part of every batch, where several processes train one model (`torch.distributed`).

    Gradients are averaged over processes, so a part counts as many times as there are processes.
    """

    def __init__(self, batch_size: int) -> None:
        alone = not (distributed.is_available() and distributed.is_initialized())
        self.of = 1 if alone else distributed.get_world_size()
        self.mine = 0 if alone else distributed.get_rank()
        self.size, rest = divmod(batch_size, self.of)
        if rest:
            raise ConfigurationError(
                f"A batch of {batch_size} rows cannot be shared evenly by {self.of} processes. "
                f"Set batch_size to a multiple of {self.of}, such as {self.size * self.of}."
            )

    def part(self, rows: Tensor) -> Tensor:
        """The rows of a batch that are this process's."""
        return rows[self.mine :: self.of]


class Single(Problem):
    """One model."""

    replicas = 1

    def __init__(self, model: TrainableModel, batches: Batches, n_samples: int, prepared: Noise | None = None) -> None:
        self.model, self.batches, self.n_samples = model, batches, n_samples
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        weights = network_weights(model)
        self.names, self.parameters = [name_of(key, model) for key in trained], list(trained.values())
        self.decayed = [name in weights for name in trained]
        self.sites, self.averages = natural_sites(model), averages(model)
        self.jitter = model.jitter.view(1)
        self.device = model.device
        self.n_data = [batches.n_data]
        self._prepared = prepared
        self._noise: Mapping[str, Tensor] | None = None
        self._share = _Share(batches.batch_size)
        self._scale = batches.n_data / batches.batch_size * self._share.of
        self._rows = None
        if isinstance(batches, InMemory) and (batches.batch_size < batches.n_data or self._share.of > 1):
            self._rows = torch.zeros(self._share.size, dtype=torch.long, device=self.device)
        elif self._share.of > 1:
            raise ConfigurationError("Training on several processes takes data in memory, (x, y) or (x, y, weights).")
        self._batch: Batch | None = None

    def load(self, step: int) -> None:
        """Put the batch, or the indices of its rows, in place."""
        if self._rows is not None:
            assert isinstance(self.batches, InMemory)
            self._rows.copy_(self._share.part(self.batches.rows(step)), non_blocking=True)
        else:
            self._batch = self.batches.at(step)
            self.share = self.batches.share(self._batch)
        if self._prepared is not None:
            self._noise = self._prepared(step)

    def _current(self) -> Batch:
        if self._rows is not None:
            assert isinstance(self.batches, InMemory)
            return self.batches.take(self._rows)
        assert self._batch is not None
        return self._batch

    def bound(self) -> Bound:
        """The bound of the one model, with an axis of one replica in front."""
        batch = self._current()
        batch = batch._replace(x=self.batches.augmented(batch.x))
        # a loader's last batch may be shorter than the others: its bound is as large as theirs, and counts less
        scale = self._scale if self._rows is not None else self.batches.n_data / len(batch.x)
        found: Bound = self.model(
            batch.x, batch.y, batch.weights, scale=scale, n_samples=self.n_samples, noise=self._noise
        )
        failures = {site: (info != 0).any()[None] for site, info in found.failures.items()}
        return Bound(found.log_likelihood[None], found.log_ratio[None], found.log_prior[None], failures, found.targets)

    def spread(self, vector: Tensor, parameter: Tensor) -> Tensor:
        """The one entry."""
        return vector[0]

    def noise(self) -> Tensor | None:
        """The likelihood's noise variance."""
        raw = getattr(getattr(self.model.likelihood, "noise", None), "raw", None)
        return mean_noise(self.model.likelihood, None if raw is None else raw[None])

    def state(self) -> dict[str, Any]:
        """The model's state."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Load the model's state."""
        self.model.load_state_dict(state)

    @property
    def can_be_captured(self) -> bool:
        """Data in memory."""
        return isinstance(self.batches, InMemory) and self._prepared is None
