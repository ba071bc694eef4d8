"""What a model predicts: a mixture over draws of the function, in the user's units."""

import operator
from collections.abc import Sequence
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vibayes.data import as_tensor, check_count
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.likelihoods.discrete_mixtures import PoissonMixture
from vibayes.likelihoods.mixtures import ClassSummary, Mixture
from vibayes.likelihoods.regression_mixtures import ContinuousMixture

__all__ = ["Prediction"]

_INSTEAD = {
    "regression": "mean, std, quantile, interval, cdf, log_prob or sample",
    "counts": "mean, std, quantile, interval, cdf, log_prob or sample",
    "binary": "probs, mean, variance, mode, entropy, mutual_information, log_prob or sample",
    "classes": "probs, mode, entropy, mutual_information, log_prob or sample",
}


class Prediction:
    r"""The predictive distribution of N rows, `p(y | x) = sum_s w_s p(y | f_s)` over draws `f_s`.

    The same object for every model. Regression and counts have `mean`, `std`, `quantile`, `interval` and
    `cdf`; yes-or-no and classes have `probs`, `mode`, `entropy` and `mutual_information`; all have `log_prob`
    and `sample`.
    Shapes are `[N, P]` for P targets, or `[N]` when the targets were given so (`squeeze`).

    Args:
        mixture: what `likelihood.predictive` returned, on the scale the model trains on.
        loc: `y = loc + scale * y_trained`, one number per target; regression only.
        scale: see `loc`; positive.
        squeeze: drop the last axis of a single target.
        class_labels: names of the classes, in the order of their numbers.
        covariance: `[P, N, N]` covariances of the function's rows, on the scale the model trains on;
            regression only.

    >>> from vibayes.likelihoods import Gaussian
    >>> draws = torch.tensor([[[-1.0]], [[1.0]]])  # two draws of one row
    >>> prediction = Prediction(Gaussian(0.25).predictive(draws), squeeze=True)
    >>> prediction.mean.item(), prediction.epistemic.item(), prediction.aleatoric.item()
    (0.0, 1.0, 0.25)
    """

    def __init__(
        self,
        mixture: Mixture,
        *,
        loc: float | Tensor | None = None,
        scale: float | Tensor | None = None,
        squeeze: bool = False,
        class_labels: Sequence[Any] | None = None,
        covariance: Float[Tensor, "p n n"] | None = None,
    ) -> None:
        if not mixture.scalable and not (loc is None and scale is None and covariance is None):
            raise ConfigurationError(
                f"loc, scale and covariance are for regression; this prediction is of {mixture.kind}. Leave them out."
            )
        if squeeze and mixture.kind != "classes" and mixture.n_targets != 1:
            raise ShapeError(f"squeeze=True needs a single target, this prediction has {mixture.n_targets}.")
        self.mixture = mixture
        self._loc = self._per_target(0.0 if loc is None else loc, "loc")
        self._scale = self._per_target(1.0 if scale is None else scale, "scale")
        if not bool((self._scale > 0).all()):
            raise ConfigurationError(f"scale must be positive, got {self._scale.tolist()}.")
        self._squeeze = squeeze
        self._covariance = covariance
        size = (mixture.n_targets, len(self), len(self))
        if covariance is not None and covariance.shape != size:
            raise ShapeError(f"covariance must have shape {list(size)}, got {list(covariance.shape)}.")
        self.class_labels = None if class_labels is None else list(class_labels)
        n_labels = 2 if mixture.kind == "binary" else mixture.n_targets
        if self.class_labels is not None and len(self.class_labels) != n_labels:
            raise ShapeError(f"Expected {n_labels} class labels, got {len(self.class_labels)}.")

    # ---- rows

    def __len__(self) -> int:
        return self.mixture.n_rows

    def __getitem__(self, index: SupportsIndex | slice | Sequence[int] | Tensor) -> "Prediction":
        """The prediction of some rows; a single number keeps its row: `prediction[3]` has length 1."""
        if isinstance(index, SupportsIndex) and getattr(index, "ndim", 0) == 0:
            row = operator.index(index)
            if not -len(self) <= row < len(self):
                raise IndexError(f"Row {row} of a prediction of {len(self)} rows.")
            index = slice(row % len(self), row % len(self) + 1)
        else:  # numpy's rules: torch has no steps backwards, and takes an empty list for one of floats
            at = index.cpu().numpy() if isinstance(index, Tensor) else index
            chosen = np.arange(len(self))[at]
            if chosen.ndim != 1:
                raise IndexError(f"Rows of a prediction lie along one axis; the index has {chosen.ndim}.")
            index = torch.tensor(chosen.tolist(), dtype=torch.long, device=self.mixture.device)
        covariance = self._covariance
        if covariance is not None:
            covariance = covariance[:, index][:, :, index]
        return self._with(self.mixture.rows(index), covariance)

    @classmethod
    def mixture_of(cls, predictions: Sequence["Prediction"]) -> "Prediction":
        """The mixture, with equal shares, of predictions of the same rows: one per draw of parameters, or per model."""
        if not predictions:
            raise ConfigurationError("mixture_of needs at least one prediction, got none.")
        first = predictions[0]
        for other in predictions:
            same = torch.equal(other._loc, first._loc) and torch.equal(other._scale, first._scale)
            alike = type(other.mixture) is type(first.mixture) and other.mixture.n_targets == first.mixture.n_targets
            if not (same and alike) or len(other) != len(first) or other.class_labels != first.class_labels:
                raise ConfigurationError(
                    "Cannot mix predictions of different rows, kinds, units or class labels: give all models the same "
                    "inputs and targets."
                )
        return first._with(Mixture.of_draws([p.mixture for p in predictions]), None)

    @classmethod
    def concatenate(cls, predictions: Sequence["Prediction"]) -> "Prediction":
        """Join predictions of the same model and draws over batches of rows; covariances are not kept."""
        if not predictions:
            raise ConfigurationError("concatenate needs at least one prediction, got none.")
        first = predictions[0]
        for other in predictions:
            same = torch.equal(other._loc, first._loc) and torch.equal(other._scale, first._scale)
            if not same or other._squeeze != first._squeeze or other.class_labels != first.class_labels:
                raise ConfigurationError(
                    "Cannot join predictions with different units, shapes or class labels: "
                    "join predictions of the same model."
                )
        return first._with(Mixture.concatenate([p.mixture for p in predictions]), None)

    def _with(self, mixture: Mixture, covariance: Tensor | None) -> "Prediction":
        units = {"loc": self._loc, "scale": self._scale} if mixture.scalable else {}
        return Prediction(
            mixture, **units, squeeze=self._squeeze, class_labels=self.class_labels, covariance=covariance
        )

    @property
    def kind(self) -> str:
        """`"regression"`, `"binary"`, `"classes"` or `"counts"`."""
        return self.mixture.kind

    @property
    def n_draws(self) -> int:
        """Number of draws of the function in the mixture."""
        return self.mixture.n_draws

    @property
    def n_components(self) -> int:
        """Number of components of the mixture for one target: draws times quadrature nodes."""
        return self.mixture.n_draws * self.mixture.n_nodes

    # ---- moments

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, epistemic and aleatoric variance, `[N, P]`, by the law of total variance."""
        if self.kind == "classes":
            raise self._senseless("mean and variance")
        parts = []
        for _, rows in self.mixture.parts():
            given = rows.moments()  # [S, N, P] each
            mean = rows.over_draws(given.mean)
            epistemic = rows.over_draws(given.latent_variance + (given.mean - mean).square())
            parts.append((mean, epistemic, rows.over_draws(given.noise_variance)))
        mean, epistemic, aleatoric = (torch.cat(piece) for piece in zip(*parts, strict=True))
        square = self._scale.to(mean.dtype).square()
        return self._in_units(mean), square * epistemic, square * aleatoric

    @property
    def mean(self) -> Tensor:
        """Predictive mean (for yes-or-no, the probability of one; NaN for Student's t with df <= 1)."""
        return self._out(self._moments[0])

    @property
    def epistemic(self) -> Tensor:
        """Variance of `E[y | f]` over the posterior of the function: what more data would reduce."""
        return self._out(self._moments[1])

    @property
    def aleatoric(self) -> Tensor:
        """Mean of `Var[y | f]`: the noise (infinite for Student's t with df <= 2)."""
        return self._out(self._moments[2])

    @property
    def variance(self) -> Tensor:
        """Predictive variance, `epistemic + aleatoric`."""
        return self._out(self._moments[1] + self._moments[2])

    @property
    def std(self) -> Tensor:
        """Predictive standard deviation."""
        return self.variance.sqrt()

    @property
    def covariance(self) -> Float[Tensor, "p n n"]:
        """Covariance of the function's rows for each target; its diagonal is `epistemic`."""
        if self._covariance is None:
            raise ConfigurationError(
                "This prediction has no covariances between rows. Call predict(x, joint=True) for them."
            )
        return self._covariance * self._scale.to(self._covariance.dtype).square()[:, None, None]

    # ---- distribution

    def log_prob(self, y: Tensor) -> Float[Tensor, " n"]:
        """Log predictive density (or probability) of each row, jointly over its targets, in user units."""
        n_targets = self.mixture.n_targets
        y = as_tensor(y, "y", device=self.mixture.device)
        if not y.is_floating_point() and self.kind != "classes":
            y = y.double()  # the default dtype may not hold them
        y = self.mixture.check_targets(y, n_targets)
        if len(y) != len(self):
            raise ShapeError(f"Expected targets of {len(self)} rows, got {len(y)}.")
        if self.kind != "classes":
            y = ((y - self._loc) / self._scale).to(self.mixture.dtype)
        parts = [
            torch.logsumexp(rows.log_weights[:, None] + rows.draw_log_prob(y[index]), 0)
            for index, rows in self.mixture.parts()
        ]
        return torch.cat(parts) - (float(self._scale.log().sum()) if self.mixture.scalable else 0.0)

    def cdf(self, y: float | Tensor) -> Tensor:
        """`P(target <= y)` of each target; `y` is a number, `[N]` for a single target, or `[N, P]`."""
        mixture = self._ordered("cdf")
        values = as_tensor(y, "y", device=mixture.device)
        values = values if values.is_floating_point() else values.double()
        z = ((self._per_row(values) - self._loc) / self._scale).to(mixture.dtype)
        return self._out(torch.cat([rows.cdf(z[index]) for index, rows in mixture.parts()]))

    def crps(self, y: Tensor) -> Tensor | None:
        """Continuous ranked probability score of each target where it has a closed form: of Gaussian noise.

        `vibayes.metrics.crps` averages it, and integrates where this is None.
        """
        if not isinstance(self.mixture, ContinuousMixture):
            return None
        z = (self._per_row(as_tensor(y, "y", device=self.mixture.device).double()) - self._loc) / self._scale
        parts = []
        for index, rows in self.mixture.parts():
            score = rows.crps(z[index])
            if score is None:
                return None
            parts.append(score * self._scale)
        return self._out(torch.cat(parts))

    def quantile(self, q: float | Sequence[float] | Tensor) -> Tensor:
        """Quantiles of each target, `[N, P]`, or `[len(q), N, P]` for several levels.

        Of counts, the smallest whose distribution function reaches `q`.
        """
        mixture = self._ordered("quantile")
        given = torch.as_tensor(q, dtype=torch.float64)
        levels: list[float] = given.reshape(-1).tolist()
        if not levels or not all(0.0 < level < 1.0 for level in levels):
            raise ConfigurationError(f"Quantile levels must lie strictly between 0 and 1, got {q}.")
        parts = [torch.stack([rows.quantile(level) for level in levels]) for _, rows in mixture.parts()]
        quantiles = self._out(self._in_units(torch.cat(parts, 1)))
        return quantiles[0] if given.ndim == 0 else quantiles

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval: `(1 - level) / 2` of the mass lies on either side."""
        if not 0.0 < level < 1.0:
            raise ConfigurationError(f"The level of an interval must lie strictly between 0 and 1, got {level}.")
        lower, upper = self.quantile([0.5 - 0.5 * level, 0.5 + 0.5 * level])
        return lower, upper

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """`[n, N, P]` targets (`[n, N]` classes); each of the n sets comes from one draw of the function.

        What a draw leaves open of the function (all of it, in models in closed form) is sampled independently for
        each row, and with the `covariance` between rows where it is known: after `predict(x, joint=True)`.
        """
        weights = self.mixture.log_weights.exp()
        draws = torch.multinomial(weights, check_count(n, "n"), replacement=True, generator=generator)
        mixture = self.mixture
        if self._covariance is not None and isinstance(mixture, ContinuousMixture):
            mixture = mixture.with_functions(self._covariance, draws, generator)
            draws = torch.arange(n, device=mixture.device)
        values = mixture.sample(draws, generator)
        return values if self.kind == "classes" else self._out(self._in_units(values))

    # ---- classes

    @cached_property
    def _classes(self) -> ClassSummary:
        summary = self.mixture.class_summary()
        if summary is None:
            raise self._senseless("probs, mode and entropy")
        return summary

    @property
    def probs(self) -> Tensor:
        """Class probabilities `[N, C]`; for yes-or-no the probability of one, `[N, P]` or `[N]`."""
        return self._out(self._classes.probs)

    @property
    def mode(self) -> Tensor:
        """The most probable class, `[N]`; for yes-or-no 0 or 1, `[N, P]` or `[N]`."""
        probs = self.probs
        return probs.argmax(-1) if self.kind == "classes" else (probs > 0.5).long()

    @property
    def labels(self) -> NDArray[Any]:
        """The most probable class by its name."""
        if self.class_labels is None:
            raise ConfigurationError("This prediction has no class_labels; use .mode for class numbers.")
        names: NDArray[Any] = np.asarray(self.class_labels)[self.mode.cpu().numpy()]
        return names

    @property
    def entropy(self) -> Tensor:
        """Entropy of the class probabilities, in nats."""
        return self._out(self._classes.entropy)

    @property
    def mutual_information(self) -> Tensor:
        """Between class and function, in nats: `entropy` less the mean entropy given the function."""
        return self._out(self._classes.entropy - self._classes.expected_entropy)

    # ---- convenience

    def numpy(self) -> dict[str, NDArray[Any]]:
        """The main summaries as arrays, by name."""
        if self.kind == "classes":
            names = ["probs", "mode", "entropy", "mutual_information"]
        elif self.kind == "binary":
            names = ["probs", "mode", "entropy", "mutual_information", "epistemic", "aleatoric"]
        else:
            names = ["mean", "std", "epistemic", "aleatoric"]
        return {name: getattr(self, name).cpu().numpy() for name in names}

    def __repr__(self) -> str:
        width = "classes" if self.kind == "classes" else "targets"
        size = "" if self._squeeze and self.kind != "classes" else f", {self.mixture.n_targets} {width}"
        draws = "1 draw" if self.n_draws == 1 else f"{self.n_draws} draws"
        names = _INSTEAD[self.kind].replace(" or", ",").replace(", ", " .")
        return f"Prediction({self.kind}, {len(self)} rows{size}, {draws}; .{names})"

    # ---- helpers

    def _in_units(self, values: Tensor) -> Tensor:
        """`[..., N, P]` in user units."""
        return self._loc.to(values.dtype) + self._scale.to(values.dtype) * values

    def _out(self, values: Tensor) -> Tensor:
        """`[..., N, P]` as the user sees it."""
        return values.squeeze(-1) if self._squeeze and self.kind != "classes" else values

    def _per_row(self, values: Tensor) -> Tensor:
        """A number, `[N]` for a single target, or `[N, P]`, as `[N, P]`."""
        size = (len(self), self.mixture.n_targets)
        if values.ndim == 1 and size[1] == 1:
            values = values[:, None]
        if values.ndim != 0 and values.shape != size:
            raise ShapeError(f"Expected a number or values of shape {list(size)}, got {list(values.shape)}.")
        return values.expand(size)

    def _ordered(self, name: str) -> ContinuousMixture | PoissonMixture:
        if not isinstance(self.mixture, ContinuousMixture | PoissonMixture):
            raise self._senseless(name)
        return self.mixture

    def _senseless(self, name: str) -> ConfigurationError:
        return ConfigurationError(f"A prediction of {self.kind} has no {name}. Use {_INSTEAD[self.kind]}.")

    def _per_target(self, value: float | Tensor, name: str) -> Tensor:
        """A number or `[P]` as `[P]`, in float64."""
        mixture = self.mixture
        tensor = torch.as_tensor(value, dtype=torch.float64, device=mixture.device).detach()
        if tensor.ndim > 1 or tensor.numel() not in (1, mixture.n_targets):
            raise ShapeError(f"{name} must be a number or {mixture.n_targets} numbers, got shape {list(tensor.shape)}.")
        if not bool(torch.isfinite(tensor).all()):
            raise ConfigurationError(f"{name} must be finite, got {tensor.tolist()}.")
        return tensor.expand(mixture.n_targets)
