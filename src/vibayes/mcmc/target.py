"""What is sampled: the log joint density of data and parameters, over flat vectors of parameters."""

import fnmatch
import math
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution
from torch.fx.experimental.proxy_tensor import make_fx

from vibayes.data import check_count
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError
from vibayes.layers.weights import WeightLayer
from vibayes.parameters import Hyperparameter, hyperparameters, unchecked
from vibayes.posteriors.point import Point
from vibayes.priors import Root
from vibayes.trainable import TrainableModel

__all__ = ["Evaluation", "ModelTarget", "Part", "Priors", "Target", "as_target", "can_compile"]

LogDensity = Callable[[Tensor], Tensor]
Priors = Mapping[str, Distribution | None]

# Draws of the prior from which the scales of parameters are taken before there are any of the posterior.
_SCALE_DRAWS = 1000


def can_compile() -> bool:
    """Whether there is a C++ compiler, without which `torch.compile` does nothing for tensors on a CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++", "cl") if name)


class Evaluation(NamedTuple):
    """The density at C points: `log p(theta) + beta log p(y | theta)`, its gradient, and `log p(y | theta)`."""

    log_density: Float[Tensor, " c"]
    gradient: Float[Tensor, "c d"]
    log_likelihood: Float[Tensor, " c"]


class Target:
    """A log joint density `log p(theta) + log p(y | theta)` over vectors `theta` of D numbers.

    The functions take *one* vector `[D]` and return one number; `vmap` adds the axis of chains. They must not look at
    the values of tensors. A prior on its own, and draws from it, are needed for annealing and as starts only.

    Args:
        log_likelihood: `log p(y | theta)`; where no prior is given, the whole log density.
        size: D.
        log_prior: `log p(theta)`, normalised.
        sample_prior: a function of n and a generator that draws `[n, D]` from the prior.
        dtype: of the vectors; torch's default when None.
        device: of the vectors.

    >>> import torch
    >>> target = Target(lambda theta: -0.5 * theta.square().sum(), size=2)
    >>> target.evaluate(torch.ones(3, 2)).gradient[0]
    tensor([-1., -1.])
    """

    def __init__(
        self,
        log_likelihood: LogDensity,
        size: int,
        *,
        log_prior: LogDensity | None = None,
        sample_prior: Callable[[int, torch.Generator], Tensor] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if not callable(log_likelihood):
            raise ConfigurationError(f"A Target needs a function of a vector, got {type(log_likelihood).__name__}.")
        self.size = check_count(size, "size")
        self.dtype, self.device = dtype or torch.get_default_dtype(), torch.device(device)
        self._likelihood, self._prior, self._draw = log_likelihood, log_prior, sample_prior
        self._compiles = False
        self._compiled: dict[torch.Size, Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]] = {}

    def log_likelihood(self, theta: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """`log p(y | theta)` at one vector."""
        return self._likelihood(theta)

    def log_prior(self, theta: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """`log p(theta)` at one vector; zero where the likelihood is the whole density."""
        return theta.new_zeros(()) if self._prior is None else self._prior(theta)

    @property
    def has_prior(self) -> bool:
        """Whether the prior is known apart from the likelihood and can be drawn from."""
        return self._prior is not None and self._draw is not None

    def sample_prior(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        """Draw from the prior."""
        if self._draw is None:
            raise ConfigurationError(
                "This target has no prior to draw from. Pass start= (vectors [n_chains, D]), or give the target "
                "log_prior= and sample_prior=."
            )
        return self._draw(n, generator).to(device=self.device, dtype=self.dtype)

    def prior_scale(self, generator: torch.Generator) -> Float[Tensor, " d"]:
        """Standard deviations of the prior, roughly; ones where there is none."""
        if not self.has_prior:
            return torch.ones(self.size, dtype=self.dtype, device=self.device)
        return self.sample_prior(_SCALE_DRAWS, generator).std(0)

    def fingerprint(self) -> dict[str, Any]:
        """What tells this target from another, for checkpoints."""
        return {"size": self.size, "dtype": str(self.dtype)}

    # -- many vectors at once --------------------------------------------------------------------------------------

    def _tempered(self, theta: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        log_likelihood = self.log_likelihood(theta)
        return self.log_prior(theta) + beta * log_likelihood, log_likelihood

    def compile(self) -> None:
        """Evaluate through `torch.compile` from now on: some ten seconds first, then several times faster."""
        if self.device.type == "cpu" and not can_compile():
            raise ConfigurationError(
                "compile=True needs a C++ compiler (g++, or another named by CXX); none was found."
            )
        self._compiles = True

    def _compile(self, theta: Tensor, power: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """Code for as many vectors as these.

        The operations are written down by `make_fx` first: what the compiler would find by itself it would guard by
        checks of the whole model, which take as long as the evaluation of a small one.
        """
        # compiled code may not ask for the gradient of something outside of it, hence grad inside vmap here
        inner = torch.func.vmap(torch.func.grad_and_value(self._tempered, has_aux=True), in_dims=(0, None))

        def evaluate(theta: Tensor, power: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            gradient, (value, likelihood) = inner(theta, power)
            return _where_finite(value, gradient, likelihood)

        compiled: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = torch.compile(
            make_fx(evaluate)(theta, power), dynamic=False
        )
        return compiled

    def evaluate(self, theta: Float[Tensor, "c d"], beta: float | Tensor = 1.0) -> Evaluation:
        """The density and its gradient at several vectors; what is not finite becomes minus infinity.

        Args:
            theta: one vector per chain.
            beta: the power to which the likelihood is raised.
        """
        power = torch.as_tensor(beta, dtype=theta.dtype, device=theta.device)
        if self._compiles:
            theta = theta.detach()
            if theta.shape not in self._compiled:
                self._compiled[theta.shape] = self._compile(theta, power)
            with torch.no_grad():
                return Evaluation(*self._compiled[theta.shape](theta, power))
        theta = theta.detach().requires_grad_()
        value, likelihood = torch.func.vmap(self._tempered, in_dims=(0, None))(theta, power)
        (gradient,) = torch.autograd.grad(value.sum(), theta)
        return Evaluation(*_where_finite(value.detach(), gradient, likelihood.detach()))


def _where_finite(value: Tensor, gradient: Tensor, likelihood: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Densities that are not finite become minus infinity, without a gradient."""
    finite = torch.isfinite(value) & torch.isfinite(gradient.sum(1))
    return (
        torch.where(finite, value, -torch.inf),
        torch.where(finite[:, None], gradient, 0.0),
        torch.where(finite, likelihood, -torch.inf),
    )


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
        assert self.prior is not None
        drawn = self.prior.expand(self.shape).sample((n,)).to(device, dtype)
        return (drawn if self.hyperparameter is None else self.hyperparameter.to_raw(drawn)).reshape(n, -1)


class ModelTarget(Target):
    r"""The log joint density of a model's data and of everything in it that training would change.

    `log p(y, theta) = log p(y | theta) + log p(theta)`. The first term is the model's bound: for `ExactGP` the log
    marginal likelihood, for `SGPR` the collapsed bound in its place, for a `Model` whose layers have `Point`
    posteriors the log likelihood. The prior is the layers' own for their weights; for the rest it must be given.

    **The space of the prior.** A prior is a density over the *value* of a hyperparameter (a lengthscale, a noise
    variance). Chains move in the stored numbers `raw`, where the density is `p(value) |d value / d raw|`; for
    `Positive` the last factor is `scale * value`. (`fit` maximises the density of the value, without that factor.)

    Args:
        model: a model; its fixed parameters stay as they are.
        data: `(x, y)` or `(x, y, weights)`.
        priors: by name, with `*` for any letters: a distribution for what has none, or in place of what it has. None
            in place of a distribution is a flat, improper prior over the stored number.

    >>> import torch, vibayes as vb
    >>> prior = torch.distributions.LogNormal(0.0, 1.0)
    >>> gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    >>> target = ModelTarget(gp, (torch.zeros(1, 1), torch.zeros(1)), {"*": prior})
    >>> [part.name for part in target.parts]
    ['likelihood.noise', 'kernel.lengthscale', 'kernel.variance']
    """

    def __init__(self, model: TrainableModel, data: Any, priors: Priors | None = None) -> None:
        if not isinstance(model, TrainableModel):
            raise ConfigurationError(f"Only vibayes models and Targets can be sampled; got {type(model).__name__}.")
        if not isinstance(data, tuple | list) or len(data) not in (2, 3):
            raise ConfigurationError("data must be (x, y) or (x, y, weights) when a model is sampled.")
        if not bool(model.ready):
            model.initialize(data[0], data[1])
        self.model, self.batch = model, model.prepare(*data)
        model.observe(self.batch)
        self.parts = _parts(model, dict(priors or {}))
        super().__init__(lambda theta: self.log_likelihood(theta), self.parts[-1].stop)
        self.dtype, self.device = model.dtype, model.device

    @property
    def has_prior(self) -> bool:
        """Whether every parameter has a proper prior."""
        return not any(part.flat for part in self.parts)

    def pieces(self, theta: Float[Tensor, "*batch d"]) -> list[Tensor]:
        """The stored numbers of every part, `[..., *shape]`, out of vectors.

        In one operation, whose gradient is one, too: compiled slices would each pad theirs to the whole vector.
        """
        found = torch.split(theta, [math.prod(part.shape) for part in self.parts], -1)
        return [raw.reshape((*theta.shape[:-1], *part.shape)) for raw, part in zip(found, self.parts, strict=True)]

    def parameters(self, theta: Float[Tensor, "*batch d"]) -> dict[str, Tensor]:
        """The model's parameters by name, out of vectors."""
        return {part.key: raw for raw, part in zip(self.pieces(theta), self.parts, strict=True)}

    def current(self) -> Float[Tensor, " d"]:
        """The model's parameters as they are, as a vector."""
        found = dict(self.model.named_parameters())
        return torch.cat([found[part.key].detach().reshape(-1) for part in self.parts])

    @torch.no_grad()
    def put(self, theta: Float[Tensor, " d"]) -> None:
        """Write a vector into the model."""
        found = dict(self.model.named_parameters())
        for name, value in self.parameters(theta).items():
            found[name].copy_(value)

    def log_prior(self, theta: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """`log p(theta)` over stored numbers."""
        pieces = self.pieces(theta)
        return self._prior_of(pieces, layers=True) + self._prior_of(pieces, layers=False)

    def log_extra_prior(self, theta: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """The part of `log_prior` that is not among the log ratios of the model's bound."""
        return self._prior_of(self.pieces(theta), layers=False)

    def _prior_of(self, pieces: list[Tensor], *, layers: bool) -> Tensor:
        """That of layers' weights, or of everything else."""
        both = zip(pieces, self.parts, strict=True)
        found = [part.log_prior(raw) for raw, part in both if (part.root is not None) == layers]
        return torch.stack(found).sum() if found else pieces[0].new_zeros(())

    def _bound(self, pieces: list[Tensor]) -> Tensor:
        parameters = {part.key: raw for raw, part in zip(pieces, self.parts, strict=True)}
        bound = torch.func.functional_call(self.model, parameters, tuple(self.batch), {"n_samples": 1})
        total: Tensor = (bound.log_likelihood + bound.log_ratio).sum()
        return total

    def log_likelihood(self, theta: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """The model's bound without the prior of what is sampled."""
        pieces = self.pieces(theta)
        return self._bound(pieces) - self._prior_of(pieces, layers=True)  # the bound counts it among its log ratios

    def _tempered(self, theta: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        pieces = self.pieces(theta)
        layers = self._prior_of(pieces, layers=True)
        log_likelihood = self._bound(pieces) - layers
        return layers + self._prior_of(pieces, layers=False) + beta * log_likelihood, log_likelihood

    def sample_prior(self, n: int, generator: torch.Generator) -> Float[Tensor, "n d"]:
        """Draw every parameter from its prior."""
        flat = [part.name for part in self.parts if part.flat]
        if flat:
            raise ConfigurationError(f"The prior of {', '.join(flat)} is flat and cannot be drawn from. Pass start=.")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
            drawn = [part.sample(n, self.dtype, self.device) for part in self.parts]
        return torch.cat(drawn, 1)

    def fingerprint(self) -> dict[str, Any]:
        """Names, shapes and the data's sums."""
        rows = [float(t.double().sum()) for t in self.batch if t is not None]
        names = [f"{part.name} {list(part.shape)}" for part in self.parts]
        return {**super().fingerprint(), "parameters": names, "n_data": len(self.batch.x), "data": rows}


def _parts(model: TrainableModel, priors: dict[str, Distribution | None]) -> list[Part]:
    """All parameters that are not fixed, with their priors; those without one are refused."""
    of_hyperparameter = {f"{name}.raw": (name, module) for name, module in hyperparameters(model)}
    roots = _roots(model)
    parts: list[Part] = []
    used: set[str] = set()
    without: list[str] = []
    start = 0
    for key, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        name, module = of_hyperparameter.get(key, (key, None))
        root = roots.get(key)
        pattern = next((p for p in priors if fnmatch.fnmatchcase(name, p)), None)
        prior = None if module is None else module.prior
        if pattern is not None:
            used.add(pattern)
            if root is not None:
                raise ConfigurationError(
                    f"priors[{pattern!r}] would replace the prior that layer weights {name!r} have already. Give the "
                    "layer another prior=, or Point(prior=False)."
                )
            prior = _checked(priors[pattern], pattern)
        elif prior is None and root is None:
            without.append(name)
        parts.append(Part(name, key, tuple(parameter.shape), start, module, prior, root))
        start = parts[-1].stop
    if not parts:
        raise ConfigurationError("Every parameter of the model is fixed; there is nothing to sample.")
    if without:
        shown = ", ".join(without[:6]) + (f" and {len(without) - 6} more" if len(without) > 6 else "")
        raise ConfigurationError(
            f"Sampling needs a prior for every parameter; {shown} have none. Build hyperparameters with one, as in "
            "Positive(1.0, prior=torch.distributions.LogNormal(0.0, 1.0)), or pass priors={'kernel.*': ...}; keep a "
            "parameter as it is with .fix() or requires_grad_(False). Weights of layers have the layer's prior where "
            "the posterior is Point()."
        )
    unused = [p for p in priors if p not in used]
    if unused:
        raise ConfigurationError(
            f"No parameter is called {unused[0]!r}. There are: {', '.join(p.name for p in parts)}."
        )
    return parts


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


def _checked(prior: Any, name: str) -> Distribution | None:
    if prior is not None and not isinstance(prior, Distribution):
        raise ConfigurationError(
            f"priors[{name!r}] must be a torch distribution, or None for a flat one; got {type(prior).__name__}."
        )
    return None if prior is None else unchecked(prior)


def as_target(model: TrainableModel | Target, data: Any, priors: Priors | None) -> Target:
    """A target from a model and its data, or a target as it is."""
    if not isinstance(model, Target):
        return ModelTarget(model, data, priors)
    if data is not None or priors:
        raise ConfigurationError("A Target holds its data and priors; leave data and priors out.")
    return model
