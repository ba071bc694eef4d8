"""What is sampled: the log joint density of data and parameters, over flat vectors of parameters."""

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from vibayes.compiler import can_compile, compiler_options, quiet_compiler
from vibayes.data import check_count
from vibayes.errors import ConfigurationError, DataError, kind_of
from vibayes.mcmc.parts import Priors, parts_of
from vibayes.trainable import TrainableModel
from vibayes.training.run import check_seed
from vibayes.training.structure import structure

__all__ = ["Evaluation", "ModelTarget", "Target", "as_target", "digest"]

LogDensity = Callable[[Tensor], Tensor]

# Draws of the prior from which the scales of parameters are taken before there are any of the posterior.
_SCALE_DRAWS = 1000


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

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": {}}  # code is made again

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
            make_fx(evaluate)(theta, power), dynamic=False, options=compiler_options(theta.device)
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
            new = theta.shape not in self._compiled
            if new:
                self._compiled[theta.shape] = self._compile(theta, power)
            with torch.no_grad(), quiet_compiler() if new else nullcontext():
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


def _of_the_model(theta: Tensor) -> Tensor:
    """In place of a log likelihood where `ModelTarget` has its own; a function that can be pickled."""
    raise AssertionError


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
        seed: of starting values that depend on the data, of a model that has none yet.

    >>> import torch, vibayes as vb
    >>> prior = torch.distributions.LogNormal(0.0, 1.0)
    >>> gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    >>> target = ModelTarget(gp, (torch.zeros(1, 1), torch.zeros(1)), {"*": prior})
    >>> [part.name for part in target.parts]
    ['likelihood.noise', 'kernel.lengthscale', 'kernel.variance']
    """

    def __init__(self, model: TrainableModel, data: Any, priors: Priors | None = None, *, seed: int = 0) -> None:
        if not isinstance(model, TrainableModel):
            raise ConfigurationError(f"Only vibayes models and Targets can be sampled; got {type(model).__name__}.")
        if not isinstance(data, tuple | list) or len(data) not in (2, 3):
            raise ConfigurationError("data must be (x, y) or (x, y, weights) when a model is sampled.")
        if priors is not None and not isinstance(priors, Mapping):
            raise ConfigurationError(
                f"priors must be distributions by name, such as {{'*': LogNormal(0.0, 1.0)}}; got {kind_of(priors)}."
            )
        if not bool(model.ready):
            with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
                torch.manual_seed(seed)
                model.initialize(*data)
        self.model, self.batch = model, model.prepare(*data)
        if self.batch.weights is not None and not bool((self.batch.weights > 0).any()):
            raise DataError("Every weight is zero; at least one row must count.")
        model.observe(self.batch)
        self.parts = parts_of(model, dict(priors or {}))
        super().__init__(_of_the_model, self.parts[-1].stop)
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

    @property
    def n_data(self) -> float:
        """How many rows there are, a row of weight `w` counted `w` times."""
        weights = self.batch.weights
        return len(self.batch.x) if weights is None else float(weights.sum())

    def fingerprint(self) -> dict[str, Any]:
        """The model with all that is fixed, the priors, and the data."""
        sampled = {part.key for part in self.parts}
        fixed = [t for name, t in self.model.state_dict().items() if name not in sampled]
        return {
            **super().fingerprint(),
            **{f"model {name}": repr(value) for name, value in structure(self.model, own=False).items()},
            "fixed": digest(fixed),
            "priors": [f"{part.name}: {part.prior}" for part in self.parts],
            "data": digest([t for t in self.batch if t is not None]),
        }


def digest(tensors: list[Tensor]) -> str:
    """A hash of every number."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def as_target(model: TrainableModel | Target, data: Any, priors: Priors | None, seed: int) -> Target:
    """A target from a model and its data, or a target as it is."""
    check_seed(seed)
    if not isinstance(model, Target):
        return ModelTarget(model, data, priors, seed=seed)
    if data is not None or priors:
        raise ConfigurationError("A Target holds its data and priors; leave data and priors out.")
    return model
