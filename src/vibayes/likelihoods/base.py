"""What a likelihood is: a module that says how probable targets are given the network's output."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.data import check_count
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.likelihoods.mixtures import Mixture
from vibayes.parameters import Positive, as_value

__all__ = ["Likelihood", "positive_per_target"]


class Likelihood(nn.Module, ABC):
    """`p(y | f)` of targets given latent rows `f` of width F.

    Subclasses implement `_log_prob`, `_expected_log_prob` and `_predictive`; the public methods check shapes
    once. Targets are those that `check_targets` returned.

    Attributes:
        kind: `"regression"`, `"binary"`, `"classes"` or `"counts"`.
        scalable: whether targets may be standardised.
        latent_per_target: how many latent columns one target (one class) needs.
        per_target: names of hyperparameters that are one for all targets, or one for each.
    """

    kind: ClassVar[str]
    scalable: ClassVar[bool] = False
    latent_per_target: ClassVar[int] = 1
    per_target: ClassVar[tuple[str, ...]] = ()

    def latent_features(self, n_targets: int) -> int:
        """Width of the network's output for this many targets (classes, for a `Categorical`)."""
        return self.latent_per_target * n_targets

    def n_targets(self, latent_features: int) -> int:
        """Number of targets (classes, for a `Categorical`) that a network's output of this width serves."""
        count, rest = divmod(latent_features, self.latent_per_target)
        if rest or count < 1:
            raise ConfigurationError(
                f"{type(self).__name__} needs {self.latent_per_target} outputs for each target, "
                f"got {latent_features} outputs. Change the width of the network's last layer."
            )
        for name in self.per_target:
            size = getattr(self, name).raw.numel()
            if size not in (1, count):
                raise ShapeError(
                    f"{type(self).__name__} has {size} values of {name} for {count} target(s). Use "
                    f"out_features={count}, or one value for all."
                )
        return count

    @property
    def n_latent_noise(self) -> int:
        """K, how many standard normal values per latent `expected_log_prob` wants as `eps`; 0 for none."""
        return 0

    @abstractmethod
    def check_targets(self, y: Tensor, n_targets: int | None = None) -> Tensor:
        """Validate targets and return the form that the other methods take.

        Args:
            y: targets as the user has them.
            n_targets: the expected number of targets (classes, for a `Categorical`), when it is known.
        """

    @abstractmethod
    def _log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """What `log_prob` returns, `[N]`, of arguments whose shapes are right."""

    @abstractmethod
    def _expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, eps: Tensor | None) -> Tensor:
        """What `expected_log_prob` returns, `[N]`: a closed form, quadrature, or a mean over `eps`."""

    @abstractmethod
    def _predictive(self, mean: Tensor, variance: Tensor | None, eps: Tensor | None, log_weights: Tensor) -> Mixture:
        """What `predictive` returns; the `log_weights` of the draws, `[S]`, are normalised."""

    def log_prob(self, f: Float[Tensor, "n f"], y: Tensor) -> Float[Tensor, " n"]:
        """`log p(y_n | f_n)` of each row, summed over targets.

        Args:
            f: latent rows `[N, F]`.
            y: checked targets, `[N, P]` or `[N]` classes.
        """
        self._check(f, y)
        return self._log_prob(f, y)

    def expected_log_prob(
        self,
        mean: Float[Tensor, "n f"],
        variance: Float[Tensor, "n f"],
        y: Tensor,
        eps: Float[Tensor, "k n f"] | None = None,
    ) -> Float[Tensor, " n"]:
        """`E[log p(y_n | f_n)]` of each row under `f ~ N(mean, variance)`, summed over targets.

        Args:
            mean: latent means `[N, F]`.
            variance: latent variances `[N, F]`, independent over rows and latents.
            y: checked targets, `[N, P]` or `[N]` classes.
            eps: standard normal noise `[K, N, F]` for likelihoods whose `n_latent_noise` is not 0; drawn from
                torch's generator when it is missing.
        """
        self._check(mean, y)
        if variance.shape != mean.shape:
            raise ShapeError(f"variance must have the shape of mean, {list(mean.shape)}; got {list(variance.shape)}.")
        return self._expected_log_prob(mean, variance, y, eps)

    def predictive(
        self,
        mean: Float[Tensor, "s n f"],
        variance: Float[Tensor, "s n f"] | None = None,
        eps: Tensor | None = None,
        log_weights: Float[Tensor, " s"] | None = None,
    ) -> Mixture:
        """The distribution of new targets: a mixture over S draws, without gradients.

        Args:
            mean: latent means of each draw `[S, N, F]`.
            variance: latent variances given each draw `[S, N, F]`; None when the draws are exact.
            eps: standard normal noise `[K, N, F]`, or `[S, K, N, F]` to differ between draws, for likelihoods
                that average over latent samples; drawn from torch's generator when it is missing.
            log_weights: unnormalised log weights of the draws; equal when None.
        """
        if mean.ndim != 3:
            raise ShapeError(f"Expected latent means [S, N, F] of S draws, got shape {list(mean.shape)}.")
        if variance is not None and variance.shape != mean.shape:
            raise ShapeError(f"variance must have the shape of mean, {list(mean.shape)}; got {list(variance.shape)}.")
        self.n_targets(mean.shape[2])
        if log_weights is None:
            log_weights = mean.new_zeros(mean.shape[0])
        if log_weights.shape != mean.shape[:1]:
            raise ShapeError(
                f"Expected {mean.shape[0]} log weights, one per draw; got shape {list(log_weights.shape)}."
            )
        with torch.no_grad():
            normalised = torch.log_softmax(log_weights.detach().to(mean.dtype), 0)
            spread = None if variance is None else variance.detach()
            return self._predictive(mean.detach(), spread, eps, normalised)

    def _check(self, f: Tensor, y: Tensor) -> None:
        count = self.n_targets(f.shape[-1])
        if f.ndim != 2 or y.shape != (f.shape[0], count):
            raise ShapeError(
                f"{type(self).__name__} expected latents [N, {self.latent_features(count)}] and targets "
                f"[N, {count}], got {list(f.shape)} and {list(y.shape)}. "
                "Pass targets through check_targets first."
            )


def positive_per_target(
    value: "float | Tensor | Positive", learn: bool, out_features: int | None, name: str
) -> Positive:
    """A `Positive` with one shared value, or one for each of `out_features` targets."""
    out_features = None if out_features is None else check_count(out_features, "out_features")
    if isinstance(value, Positive):
        shape = tuple(value.raw.shape)
    else:
        value = as_value(value)
        if out_features is not None and value.ndim == 0:
            value = value.expand(out_features)
        shape = tuple(value.shape)
    if shape not in ((), (out_features,)):
        raise ShapeError(
            f"{name} must be one number, or {out_features or 'out_features'} numbers (one per target); "
            f"got shape {list(shape)}. Set out_features to the number of targets for separate values."
        )
    return value if isinstance(value, Positive) else Positive(value, learn=learn)
