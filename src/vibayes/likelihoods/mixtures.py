r"""What a likelihood predicts: a mixture over draws of the function.

A model has drawn S functions. Given draw s the targets of a row are independent, and each may still carry
the Gaussian of a GP layer whose rows were marginalised. Where that Gaussian has no closed form it becomes Q
nodes, so

    p(y | x) = sum_s w_s prod_p sum_q v_q p(y_p | f_{s,q,p}).

The nodes stand inside the product: given a draw, two targets do not share a node. Components are laid out
`[S, Q, N, P]` and made for few rows at a time; a mixture keeps only the `[S, N, P]` tensors they come from.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.errors import ConfigurationError, ShapeError
from vibayes.quadrature import normal_grid, standard_deviation

__all__ = [
    "ClassSummary",
    "Mixture",
    "Moments",
    "node_count",
    "on_nodes",
    "row_slices",
    "standard_normal",
    "weighted_mean",
]

_BUDGET = 4_000_000  # elements of one temporary; an evaluation holds about five

# Fields that say how Gaussians are integrated: how far nodes are apart at most, whether there are none. Of several
# mixtures the least serves all.
_OF_QUADRATURE = ("spacing", "exact")


def row_slices(n_rows: int, elements_per_row: int) -> Iterator[slice]:
    """Slices over the rows that keep a temporary of `elements_per_row` each below the memory budget; at least one.

    >>> list(row_slices(3, 2_000_000))
    [slice(0, 2, None), slice(2, 3, None)]
    """
    step = max(1, _BUDGET // max(1, elements_per_row))
    for start in range(0, max(1, n_rows), step):
        yield slice(start, min(start + step, n_rows))


class Moments(NamedTuple):
    """Given each draw, `[S, N, P]`: `E[y]`, `Var_f(E[y | f])` and `E_f[Var(y | f)]`."""

    mean: Tensor
    latent_variance: Tensor
    noise_variance: Tensor


class ClassSummary(NamedTuple):
    """Of classes `[N, C]` and `[N]`, of yes or no `[N, P]`: probabilities, their entropy, `E_f` of that given `f`."""

    probs: Tensor
    entropy: Tensor
    expected_entropy: Tensor


@dataclass(frozen=True, eq=False)
class Mixture(ABC):
    """A weighted mixture over draws; rows lie on the second axis of the tensors named in `ROWS`.

    Attributes:
        log_weights: log weight of each draw, `[S]`, normalised.
    """

    log_weights: Float[Tensor, " s"]

    kind: ClassVar[str]
    scalable: ClassVar[bool] = False
    ROWS: ClassVar[tuple[str, ...]]

    @property
    def _first(self) -> Tensor:
        tensor: Tensor = getattr(self, self.ROWS[0])
        return tensor

    @property
    def n_draws(self) -> int:
        """S, the number of draws."""
        return self._first.shape[0]

    @property
    def n_rows(self) -> int:
        """N, the number of rows."""
        return self._first.shape[1]

    @property
    def n_targets(self) -> int:
        """P, the number of targets of a row (of classes, for a mixture of classes)."""
        return self._first.shape[2]

    @property
    def n_nodes(self) -> int:
        """Q, the number of components that stand for one draw and target."""
        return 1

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the components."""
        return self._first.dtype

    @property
    def device(self) -> torch.device:
        """The device of the components."""
        return self._first.device

    def rows(self, index: slice | Tensor) -> Self:
        """The mixture of some of the rows."""
        return dataclasses.replace(self, **{name: getattr(self, name)[:, index] for name in self.ROWS})

    def parts(self) -> Iterator[tuple[slice, Self]]:
        """The rows in slices small enough to hold all components of each, and the mixtures of these."""
        for index in row_slices(self.n_rows, self.n_draws * self.n_nodes * self.n_targets):
            yield index, self.rows(index)

    @classmethod
    def concatenate(cls, mixtures: Sequence["Mixture"]) -> "Mixture":
        """Join mixtures of the same draws over different rows."""
        first = mixtures[0]
        for other in mixtures[1:]:
            if type(other) is not type(first):
                raise ConfigurationError(
                    f"Cannot join a {type(first).__name__} and a {type(other).__name__}: "
                    "join predictions of the same model."
                )
            if other.n_draws != first.n_draws or other.n_targets != first.n_targets:
                raise ShapeError(
                    f"Cannot join predictions of {first.n_draws} draws x {first.n_targets} targets and "
                    f"{other.n_draws} x {other.n_targets}: predict all batches with the same n_samples."
                )
            for field in dataclasses.fields(first):
                if field.name in (*first.ROWS, *_OF_QUADRATURE):
                    continue
                a, b = getattr(first, field.name), getattr(other, field.name)
                if not (torch.equal(a, b) if isinstance(a, Tensor) else a == b):
                    raise ConfigurationError(
                        f"Cannot join predictions whose {field.name} differs: "
                        "predict all batches with the same model before training it further."
                    )
        joined: dict[str, Any] = {name: torch.cat([getattr(m, name) for m in mixtures], 1) for name in first.ROWS}
        for name in _OF_QUADRATURE:
            if hasattr(first, name):
                joined[name] = min(getattr(m, name) for m in mixtures)
        return dataclasses.replace(first, **joined)

    @classmethod
    def of_draws(cls, mixtures: Sequence["Mixture"]) -> "Mixture":
        """One mixture over the draws of several with equal shares, each of the same rows.

        What all draws of one mixture share, such as the noise, may differ between them.
        """
        first = mixtures[0]
        joined: dict[str, Any] = {}
        for field in dataclasses.fields(first):
            values = [getattr(m, field.name) for m in mixtures]
            if isinstance(values[0], Tensor):  # `[S, ...]`, or `[1, ...]` where all draws share it
                axes = values[0].ndim - 1
                wide = [v.expand(m.n_draws, *[-1] * axes) for v, m in zip(values, mixtures, strict=True)]
                joined[field.name] = torch.cat(wide)
            elif field.name in _OF_QUADRATURE:
                joined[field.name] = min(values)
            elif any(v != values[0] for v in values):
                raise ConfigurationError(f"Cannot mix predictions whose {field.name} differs.")
        joined["log_weights"] = torch.cat([m.log_weights for m in mixtures]) - math.log(len(mixtures))
        return dataclasses.replace(first, **joined)

    def over_draws(self, values: Tensor) -> Tensor:
        """The weighted mean over draws, the first axis."""
        return weighted_mean(self.log_weights, values)

    @staticmethod
    @abstractmethod
    def check_targets(y: Tensor, n_targets: int | None = None) -> Tensor:
        """Validate targets, as the likelihood does."""

    @abstractmethod
    def draw_log_prob(self, y: Tensor) -> Float[Tensor, "s n"]:
        """`log p(y | draw)`, summed over targets."""

    def crps(self, y: Tensor) -> Float[Tensor, "n p"] | None:
        """Continuous ranked probability score of each target in closed form; None where there is none."""
        return None

    def class_summary(self) -> ClassSummary | None:
        """Probabilities and entropies over draws; None where there are no classes."""
        return None

    @abstractmethod
    def moments(self) -> Moments:
        """First two moments given each draw."""

    @abstractmethod
    def sample(self, draws: Tensor, generator: torch.Generator | None) -> Tensor:
        """Targets of all rows, one set from each of the named draws."""


def weighted_mean(log_weights: Tensor, values: Tensor) -> Tensor:
    """Mean over the leading axes, those of the weights."""
    mean: Tensor = torch.tensordot(log_weights.exp(), values, dims=log_weights.ndim)
    return mean


def standard_normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal noise of the shape, dtype and device of another tensor."""
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def node_count(spacing: float) -> int:
    """Number of nodes; an infinite spacing says that there is nothing to integrate."""
    return 1 if math.isinf(spacing) else len(normal_grid(spacing, torch.float64)[0])


def on_nodes(mean: Tensor, variance: Tensor, spacing: float) -> tuple[Tensor, Tensor]:
    """A Gaussian's values at the nodes, `[S, N, P] -> [S, Q, N, P]`, and their log weights."""
    if math.isinf(spacing):
        return mean[:, None], mean.new_zeros(1)
    nodes, log_weights = normal_grid(spacing, mean.dtype, mean.device)
    return mean[:, None] + standard_deviation(variance)[:, None] * nodes[:, None, None], log_weights
