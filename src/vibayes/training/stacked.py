"""Many models of one architecture as one problem: their parameters stacked, their data padded."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from vibayes.bound import Bound
from vibayes.modes import averages
from vibayes.parameters import name_of
from vibayes.stages import network_weights
from vibayes.trainable import Batch, TrainableModel
from vibayes.training.batches import InMemory
from vibayes.training.problem import Noise, Problem, mean_noise, natural_sites

__all__ = ["Stacked", "stackable"]


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
            name: torch.stack(tensors) for name, tensors in _by_name([stackable(m) for m in models]).items()
        }
        learned = [name for name, p in self._parameters.items() if p.requires_grad]
        self.names = [name_of(name, self.base) for name in learned]
        self.parameters = [self._parameters[name] for name in learned]
        self.sites = {name: self._buffers[name] for name in natural_sites(self.base)}
        self.averages = {name: self._buffers[name] for name in averages(self.base)}
        weights = network_weights(self.base)
        self.decayed = [name in weights for name in learned]
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
        x = self.sources[0].augmented(x.flatten(0, 1)).reshape(x.shape)

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
        """Leave each model with its own replica's parameters, what else steps moved, and jitter."""
        for r, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                parameter.copy_(self._parameters[name][r])
            for name, buffer in {**natural_sites(model), **averages(model)}.items():
                buffer.copy_(self._buffers[name][r])
            model.jitter.copy_(self.jitter[r])

    @property
    def can_be_captured(self) -> bool:
        """Every step is alike unless noise is handed in."""
        return self._prepared is None


def _by_name(dictionaries: Sequence[Mapping[str, Tensor]]) -> dict[str, list[Tensor]]:
    return {name: [d[name].detach() for d in dictionaries] for name in dictionaries[0]}


def stackable(model: TrainableModel) -> dict[str, Tensor]:
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
