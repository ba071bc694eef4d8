"""What of a model is sampled: its parameters that are not fixed, with their places in a vector and their priors."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.layers.weights import WeightLayer
from vibayes.parameters import Hyperparameter, hyperparameters, unchecked
from vibayes.patterns import check_patterns, pattern_of
from vibayes.posteriors.base import Posterior
from vibayes.posteriors.point import Point
from vibayes.priors import Root
from vibayes.trainable import TrainableModel

__all__ = ["Part", "Priors", "parts_of"]

Priors = Mapping[str, Distribution | None]

# How often draws of a prior that lie outside of a hyperparameter's range are made anew.
_REDRAWS = 100


class Part(NamedTuple):
    """One parameter's place in the vector, and its prior.

    Attributes:
        name: the hyperparameter's name (`"kernel.lengthscale"`), or the parameter's.
        key: the parameter's name in the model.
        shape: its shape.
        start: where it begins in the vector.
        hyperparameter: the module it belongs to, if it is one.
        prior: over the value of a hyperparameter, over the number itself otherwise. None: flat.
        root: of weights of a layer with a `Point` posterior, the root of their prior covariance.
    """

    name: str
    key: str
    shape: tuple[int, ...]
    start: int
    hyperparameter: Hyperparameter | None
    prior: Distribution | None
    root: Root | None

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + math.prod(self.shape)

    @property
    def flat(self) -> bool:
        """Whether there is no proper prior."""
        return self.root is None and self.prior is None

    def value(self, raw: Tensor) -> Tensor:
        """The parameter as it is used: itself, or a hyperparameter's value."""
        return raw if self.hyperparameter is None else self.hyperparameter.from_raw(raw)

    def log_prior(self, raw: Tensor) -> Tensor:
        """Log density over the stored number: that of the value, times the derivative of the value."""
        if self.root is not None:
            return self.root.log_prob(raw)
        if self.prior is None:
            return raw.new_zeros(())
        log_density = torch.as_tensor(self.prior.log_prob(self.value(raw))).sum()
        return log_density if self.hyperparameter is None else log_density + self.hyperparameter.log_jacobian(raw)

    def sample(self, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """`[n, ...]` stored numbers from the prior."""
        if self.root is not None:
            return torch.func.vmap(self.root.apply)(torch.randn(n, *self.shape, dtype=dtype, device=device)).flatten(1)
        drawn = self._draw(n, dtype, device)
        for _ in range(_REDRAWS):  # of a prior that reaches beyond the range only the part inside counts
            outside = self._outside(drawn)
            if not bool(outside.any()):
                break
            drawn = torch.where(outside, self._draw(n, dtype, device), drawn)
        return (drawn if self.hyperparameter is None else self.hyperparameter.to_raw(drawn)).reshape(n, -1)

    def _draw(self, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        assert self.prior is not None
        batch = self.shape[: len(self.shape) - len(self.prior.event_shape)]
        drawn: Tensor = self.prior.expand(batch).sample((n,)).to(device, dtype)
        return drawn

    def _outside(self, value: Tensor) -> Tensor:
        """Where a value is not one that the hyperparameter can have."""
        least = getattr(self.hyperparameter, "least", None)
        return torch.zeros_like(value, dtype=torch.bool) if least is None else value <= least

    @property
    def truncated(self) -> bool:
        """Whether the prior has mass that the hyperparameter cannot have, so that its density is not normalised."""
        if self.prior is None:
            return False
        return bool(self._outside(self._draw(_REDRAWS, torch.float64, torch.device("cpu"))).any())


def parts_of(model: TrainableModel, priors: Priors) -> list[Part]:
    """All parameters that are not fixed, with their priors; those without one are refused."""
    of_hyperparameter = {f"{name}.raw": (name, module) for name, module in hyperparameters(model)}
    roots = _roots(model)
    parts: list[Part] = []
    without: list[str] = []
    start = 0
    for key, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        name, module = of_hyperparameter.get(key, (key, None))
        root = roots.get(key)
        pattern = pattern_of(name, priors)
        prior = None if module is None else module.prior
        if pattern is not None:
            if root is not None:
                raise ConfigurationError(
                    f"priors[{pattern!r}] would replace the prior that layer weights {name!r} have already. Give the "
                    "layer another prior=, or Point(prior=False)."
                )
            prior = _checked(priors[pattern], pattern, tuple(parameter.shape))
        elif prior is None and root is None:
            without.append(name)
        parts.append(Part(name, key, tuple(parameter.shape), start, module, prior, root))
        start = parts[-1].stop
    if not parts:
        raise ConfigurationError("Every parameter of the model is fixed; there is nothing to sample.")
    if without:
        _refuse_approximate(model, without)
        shown = ", ".join(without[:6]) + (f" and {len(without) - 6} more" if len(without) > 6 else "")
        raise ConfigurationError(
            f"Sampling needs a prior for every parameter; {shown} have none. Build hyperparameters with one, as in "
            "Positive(1.0, prior=torch.distributions.LogNormal(0.0, 1.0)), or pass priors={'kernel.*': ...}; keep a "
            "parameter as it is with .fix() or requires_grad_(False). Weights of layers have the layer's prior where "
            "the posterior is Point()."
        )
    check_patterns("priors", priors, [part.name for part in parts])
    return parts


def _refuse_approximate(model: TrainableModel, without: list[str]) -> None:
    """Say what to do where parameters without a prior are those of approximate posteriors, which should have none."""
    posteriors = [(n, m) for n, m in model.named_modules() if isinstance(m, Posterior) and not isinstance(m, Point)]
    kinds = {type(m).__name__ for n, m in posteriors if any(name.startswith(f"{n}.") for name in without)}
    if kinds:
        raise ConfigurationError(
            f"Sampling takes the place of approximate posteriors, and layers have {', '.join(sorted(kinds))}. Build a "
            "network of weights with Point(), for example by bayesianize(network, posterior=Point()); of Gaussian "
            "processes ExactGP and SGPR can be sampled."
        )


def _roots(model: TrainableModel) -> dict[str, Root]:
    """Of all layers with weights and a `Point` posterior that counts the prior: its root, by the weights' name."""
    found: dict[str, Root] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, WeightLayer) and isinstance(layer.posterior, Point) and layer.posterior.prior:
            if layer.prior.random:
                raise ConfigurationError(
                    f"Layer {layer.name!r} has a {type(layer.prior).__name__}, whose hyperparameters are drawn anew in "
                    "every pass; its weights cannot be sampled. Use NealPrior() or StandardPrior()."
                )
            found[f"{name}.posterior.weight"] = layer.prior.root(layer, Draw())
    return found


def _checked(prior: Any, name: str, shape: tuple[int, ...]) -> Distribution | None:
    if prior is None:
        return None
    if not isinstance(prior, Distribution):
        raise ConfigurationError(
            f"priors[{name!r}] must be a torch distribution, or None for a flat one; got {type(prior).__name__}."
        )
    own = tuple(prior.batch_shape + prior.event_shape)
    fits = len(own) <= len(shape) and all(a in (1, b) for a, b in zip(reversed(own), reversed(shape), strict=False))
    if not fits or own[len(own) - len(prior.event_shape) :] != shape[len(shape) - len(prior.event_shape) :]:
        raise ShapeError(f"priors[{name!r}] is one of shape {list(own)}, of a parameter of shape {list(shape)}.")
    return unchecked(prior)
