"""One draw through a network.

A layer is written for one draw of one model. What it needs beyond its rows (how many rows are inducing, noise,
how much jitter) and what it reports (its log ratio, failed factorizations) goes through the current `Draw`.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from vibayes import linalg
from vibayes.errors import ConfigurationError, NotPositiveDefiniteError, ShapeError
from vibayes.operators.gamma import NOISE_PER_GAMMA, gamma_from_normals
from vibayes.operators.precision_draw import precision_draw

__all__ = ["Draw", "Output", "current_draw", "each_draw", "fits", "not_positive_definite"]

# A threading.local compiles with torch.compile and is safe with threads; a ContextVar or a global is not.
_local = threading.local()


@dataclass(frozen=True)
class Output:
    """The rows that a network's last layer returned, where they are Gaussian given the draw, and their moments.

    Attributes:
        rows: what the layer returned, inducing rows first.
        mean: `[N, P]` of the data rows.
        variance: `[N, P]` of the data rows.
        covariance: `[P, N, N]` of the data rows, in joint draws only.
        projection: `K^-1 K_it` `[M, N]`, where natural gradients move the layer's posterior.
        offset: `[N, P]`, the part of `mean` that is not `projection^T E[u]`.
    """

    rows: Tensor
    mean: Tensor
    variance: Tensor
    covariance: Tensor | None = None
    projection: Tensor | None = None
    offset: Tensor | float = 0.0


class Draw:
    """The context of one pass of one draw.

    Args:
        n_inducing: how many of the rows are inducing rows; they come first.
        jitter: relative jitter for factorizations.
        zero: a zero that belongs to this draw under `vmap`; added to a value, it ties the value to the draw.
        joint: draw data rows jointly (function draws) instead of independently given the inducing rows.
        marginal: let layers integrate in closed form what they can, and report the moments of the output.
        output: name of the layer whose rows are the network's output, with nothing done to them.
        noise: prepared noise by name; fresh noise is drawn where None.
        coarse: noise may have the resolution of float32, which is drawn several times faster on a CPU.
        initializing: layers set themselves up from the rows they see.
        dry: a pass for the sake of shapes: noise is zero, and the generator is left alone.
        placeholder: what layers are to return in place of their values, by layer and rows; see `survey`.
    """

    def __init__(
        self,
        *,
        n_inducing: int = 0,
        jitter: float | Tensor = 0.0,
        zero: float | Tensor = 0.0,
        joint: bool = False,
        marginal: bool = True,
        output: str | None = None,
        noise: Mapping[str, Tensor] | None = None,
        coarse: bool = False,
        initializing: bool = False,
        dry: bool = False,
        placeholder: Callable[[Any, Tensor], Tensor] | None = None,
    ) -> None:
        self.n_inducing = n_inducing
        self.n_rows: int | None = None  # of the pass, inducing rows included
        self.jitter = jitter
        self.zero = zero
        self.joint = joint
        self.marginal = marginal
        self.output_layer = output
        self.coarse = coarse
        self.initializing = initializing
        self.dry = dry
        self.placeholder = placeholder
        self.requests: dict[str, tuple[int, ...]] = {}
        self.log_ratios: dict[str, Tensor] = {}
        self.failures: dict[str, Tensor] = {}
        self.imagined: dict[int, int] = {}
        self.rotated: list[Tensor] = []  # rows of which only distances and inner products have a meaning
        self.output: Output | None = None
        self._noise = noise

    def randn(self, site: str, *shape: int, like: Tensor) -> Tensor:
        """Standard normal noise for a named site: all noise of a pass comes from here."""
        if site in self.requests:
            raise _used_twice(site.rpartition(".")[0] or site)
        self.requests[site] = shape
        if self._noise is not None:
            if site not in self._noise:
                raise ConfigurationError(
                    f"noise must hold {site!r}, of shape {list(shape)} behind the axes of draws; it holds "
                    f"{', '.join(map(repr, self._noise)) or 'nothing'}."
                )
            given = self._noise[site]
            if given.shape != shape or given.dtype != like.dtype:
                raise ShapeError(
                    f"noise of {site!r} must be of shape {list(shape)} behind the axes of draws, and {like.dtype}; got "
                    f"{list(given.shape)} and {given.dtype}."
                )
            return given
        if self.dry:
            return torch.zeros(shape, dtype=like.dtype, device=like.device)
        if self.coarse and like.dtype == torch.float64 and like.device.type == "cpu":
            return torch.randn(shape, dtype=torch.float32).double()
        return torch.randn(shape, dtype=like.dtype, device=like.device)

    def gamma(self, site: str, alpha: Tensor) -> Tensor:
        """A draw of `Gamma(alpha, 1)` for a named site, differentiable with respect to `alpha`."""
        return gamma_from_normals(alpha, self.randn(site, NOISE_PER_GAMMA, *alpha.shape, like=alpha))

    def add(self, site: str, log_ratio: Tensor) -> None:
        """Report `log p - log q` of a layer (or `-KL` in its place)."""
        if site in self.log_ratios:
            raise _used_twice(site)
        self.log_ratios[site] = log_ratio

    def imagine(self, declared: int, width: int) -> None:
        """Let rows of this width pass for rows of the declared one: imagined features, whose Gram matrix alone counts.

        How many a row of an inverse Wishart layer has depends on the number of rows, which no kernel can know before.
        """
        self.imagined[declared] = width

    def cholesky(self, site: str, K: Tensor, *, jitter: bool = True) -> Tensor:
        """Cholesky factor with the draw's jitter; a failure is noted under the layer's name."""
        L, info = linalg.cholesky(K, self.jitter if jitter else 0.0)
        self._note(site, K, info)
        return L

    def factor(self, site: str, K: Tensor, *, jitter: bool = True) -> linalg.Factor:
        """Like `cholesky`, for a matrix with which many systems are solved."""
        factor, info = linalg.factor(K, self.jitter if jitter else 0.0)
        self._note(site, K, info)
        return factor

    def by_precision(self, site: str, B: Tensor, b: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draws of `N(B^-1 b, B^-1)`, one for each column, and `log |B|`; failures are noted as by `cholesky`."""
        v, log_det, info = precision_draw(B, b, noise)
        self._note(site, B, info)
        return v, log_det

    def _note(self, site: str, K: Tensor, info: Tensor) -> None:
        if self.initializing and bool((info != 0).any()):  # what comes of it would be NaN everywhere
            raise not_positive_definite(site, K, K.dtype, self.jitter)
        self.failures[site] = self.failures[site] + info if site in self.failures else info

    def gaussian_rows(
        self,
        site: str,
        mean: Tensor,
        variance: Tensor,
        covariance: Tensor | None,
        inducing: Tensor | None = None,
    ) -> Tensor:
        """Draw data rows `N(mean, variance)` and put the inducing rows, if any, in front.

        `variance` is `[N, P]`, or `[N, 1]` where the outputs share it; in a joint draw `covariance` `[P, N, N]` is used
        instead. The rows of the network's output are left at their mean when their moments will be integrated by the
        likelihood.
        """
        integrated = self.marginal and site == self.output_layer
        if integrated:
            drawn = mean
        elif covariance is not None:
            root = self.joint_root(covariance)  # [P, N, N]
            noise = self.randn(f"{site}.rows", *mean.shape, like=mean)
            drawn = mean + torch.einsum("pnm,mp->np", root.expand(mean.shape[1], -1, -1), noise)
        else:
            drawn = torch.addcmul(mean, variance.sqrt(), self.randn(f"{site}.rows", *mean.shape, like=mean))
        rows = drawn if inducing is None else torch.cat([inducing, drawn])
        if integrated:
            variance = variance.expand_as(mean)
            if inducing is None and self.n_inducing:  # they went through like data, and are no part of the output
                n = self.n_inducing
                mean, variance = mean[n:], variance[n:]
                covariance = None if covariance is None else covariance[:, n:, n:]
            self.output = Output(rows, mean, variance, covariance)
        return rows

    def joint_root(self, covariance: Tensor) -> Tensor:
        """A lower triangular root of the covariance of rows that are drawn jointly, which may be singular."""
        return linalg.semidefinite_factor(covariance)

    def log_ratio(self) -> Tensor | float:
        """Sum of all layers' log ratios."""
        return sum(self.log_ratios.values(), start=0.0)

    def __enter__(self) -> Self:
        if getattr(_local, "draw", None) is not None:
            raise ConfigurationError("A Model was called inside another Model's pass. Nest networks, not Models.")
        _local.draw = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _local.draw = None


def each_draw(
    one: Callable[[Tensor, Mapping[str, Tensor] | None], Any],
    zeros: Tensor,
    noise: Mapping[str, Tensor] | None = None,
    *,
    apart: bool = False,
    at_once: int | None = None,
) -> Any:
    """What a function of one draw gives for several, stacked along an axis in front.

    Args:
        one: takes a draw's zero and its prepared noise.
        zeros: one for each draw.
        noise: prepared noise by name, with an axis of draws in front.
        apart: one draw after the other, as where each of them changes something.
        at_once: how many draws go together at most, to bound memory.
    """
    for site, given in (noise or {}).items():
        if given.ndim == 0 or len(given) < len(zeros) or len(given) > len(zeros) > 1:
            raise ShapeError(
                f"noise of {site!r} must have an axis of {len(zeros)} draws in front; got shape {list(given.shape)}."
            )
    if len(zeros) == 1 or apart:
        own = [None if noise is None else {k: t[s] for k, t in noise.items()} for s in range(len(zeros))]
        found = [one(zero, prepared) for zero, prepared in zip(zeros, own, strict=True)]
        return torch.utils._pytree.tree_map(lambda *t: t[0][None] if len(t) == 1 else torch.stack(t), *found)
    in_dims = (0, None if noise is None else 0)
    return torch.func.vmap(one, in_dims, randomness="different", chunk_size=at_once)(zeros, noise)


def current_draw(layer: str) -> Draw:
    """The draw in progress; `layer` names the caller in the error when there is none."""
    draw: Draw | None = getattr(_local, "draw", None)
    if draw is None:
        raise ConfigurationError(
            f"{layer} is a Bayesian layer and was called outside a Model, where there is no draw. "
            "Put the network into vibayes.Model(network, likelihood) and call the model's elbo, predict or "
            "sample_functions. Activation checkpointing, which calls layers again after the pass, cannot be used."
        )
    return draw


def _used_twice(layer: str) -> ConfigurationError:
    return ConfigurationError(
        f"Layer {layer!r} was used twice in one pass. Give each place its own layer; to share the hyperparameters of "
        "GP layers, share the kernel."
    )


def not_positive_definite(
    site: str, rows: Tensor | None, dtype: torch.dtype, jitter: float | Tensor
) -> NotPositiveDefiniteError:
    """The error of a kernel matrix, of as many inducing points as there are rows, that could not be factorized."""
    size = "" if rows is None else f"[{len(rows)}, {len(rows)}], "
    more = " or a larger model.jitter" if dtype == torch.float64 else ", a larger model.jitter, or model.double()"
    return NotPositiveDefiniteError(
        f"The kernel matrix of the inducing points of layer {site!r} ({size}{dtype}, relative jitter "
        f"{float(jitter):.1g}) is not positive definite to rounding. Use fewer inducing points{more}."
    )


def fits(rows: Tensor, in_features: int) -> bool:
    """Whether rows `[N, D]` have the width that a kernel or layer expects, or are imagined features in its place."""
    if rows.ndim != 2 or rows.shape[1] == in_features:
        return rows.ndim == 2
    draw: Draw | None = getattr(_local, "draw", None)
    return draw is not None and draw.imagined.get(in_features) == rows.shape[1]
