"""The families of models that `compare` tries: which suit a table, and how each is built for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import LogNormal

from vibayes.conjugate import ExactGP
from vibayes.errors import ConfigurationError
from vibayes.experiments.names import check_name
from vibayes.kernels import Kernel, Matern52, SquaredExponential, Sum
from vibayes.layers import GP, Linear
from vibayes.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from vibayes.model import Model
from vibayes.parameters import Positive, hyperparameters
from vibayes.posteriors import GeneralizedWishart, GlobalInducing, LocalInducing, MeanField
from vibayes.posteriors.base import Posterior
from vibayes.trainable import TrainableModel

__all__ = ["FAMILIES", "Family", "Problem", "choose"]

# Up to so many training rows a GP is exact on a CPU: a thousand by a thousand factorises in some 20 ms.
EXACT_ROWS = 2_000
# Up to so many rows every step sees all of them.
FULL_BATCH = 1_500
BATCH = 1_000


@dataclass(frozen=True)
class Problem:
    """What a model has to learn: training rows and the kind of target.

    Attributes:
        x: inputs `[N, D]`, not standardised.
        y: targets `[N]` or `[N, P]`, or class numbers `[N]`.
        kind: `"regression"`, `"binary"` or `"classes"`.
        width: how many functions a model needs: targets, or classes.
        minutes: the budget of the whole comparison; large exact models need time.
    """

    x: Tensor
    y: Tensor
    kind: str
    width: int
    minutes: float = math.inf

    @property
    def n(self) -> int:
        """How many rows."""
        return len(self.x)

    @property
    def d(self) -> int:
        """How many numbers describe a row."""
        return self.x.shape[1]

    @property
    def standardize(self) -> str:
        """What models standardise."""
        return "both" if self.kind == "regression" else "inputs"

    def likelihood(self, noise: float = 0.1) -> Likelihood:
        """The distribution of targets; numbers have Gaussian noise, one variance for each target."""
        if self.kind == "regression":
            return Gaussian(noise, out_features=self.width if self.width > 1 else None)
        return Bernoulli() if self.kind == "binary" else Categorical()

    @property
    def exact(self) -> bool:
        """Whether a GP can be exact."""
        return self.kind == "regression" and self.n <= EXACT_ROWS

    def n_inducing(self, most: int) -> int:
        """How many inducing points: at most one per row, and fewer where there are many classes."""
        if self.kind == "classes":
            most = min(most, max(20, math.isqrt(2_000_000 // self.width)))
        return min(most, self.n)


Builder = Callable[[Problem], TrainableModel]


def _suits_all(problem: Problem) -> str:
    """No reason against any problem."""
    return ""


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        name: short, for the command line.
        title: for people.
        about: one sentence.
        build: makes a model for a problem; torch's generator decides its random parts.
        share: how much of the time it gets, relative to the others.
        lr: learning rate of Adam.
        draws: draws of the function per step.
        refuses: why it does not suit a problem, or nothing.
        ranked: whether its evidence is compared; otherwise `why_not` says why.
        why_not: see `ranked`.
        weight_decay: of plain weights.
    """

    name: str
    title: str
    about: str
    build: Builder
    share: float = 1.0
    lr: float = 0.01
    draws: int | None = None
    refuses: Callable[[Problem], str] = field(default=_suits_all)
    ranked: bool = True
    why_not: str = ""
    weight_decay: float = 0.0

    def training(self, problem: Problem) -> dict[str, Any]:
        """Keyword arguments of `fit` and `fit_many`."""
        batch = None if problem.n <= FULL_BATCH else BATCH
        return {"lr": self.lr, "batch_size": batch, "n_samples": self.draws, "weight_decay": self.weight_decay}


# -- Gaussian processes -----------------------------------------------------------------------------------------


def _se(d: int, *, ard: bool = True) -> Kernel:
    """The squared exponential kernel; rows of D standardised numbers lie about sqrt(2 D) apart."""
    return SquaredExponential(d, ard=ard, lengthscale=math.sqrt(d))


def _matern(d: int) -> Kernel:
    return Matern52(d, ard=True, lengthscale=math.sqrt(d))


def _two_scales(d: int) -> Kernel:
    """Twice as many lengthscales as columns want a hold: log-normal priors around twice the distance of rows.

    They are part of what is maximised, not of the evidence that is compared.
    """

    def lengthscales(scale: float) -> Positive:
        prior = LogNormal(torch.tensor(math.log(2.0 * math.sqrt(d))), torch.tensor(1.0))
        return Positive(torch.full((d,), scale * math.sqrt(d)), prior=prior)

    return Sum(
        SquaredExponential(d, ard=True, lengthscale=lengthscales(1.0)),
        SquaredExponential(d, ard=True, lengthscale=lengthscales(0.4), variance=0.3),
    )


def _gp(kernel: Callable[[int], Kernel]) -> Builder:
    """An exact GP where it is closed-form and not too large, a sparse one otherwise."""

    def build(problem: Problem) -> TrainableModel:
        if problem.exact:
            return ExactGP(kernel(problem.d), problem.likelihood(), standardize=problem.standardize)
        posterior = LocalInducing(problem.n_inducing(300 if problem.kind == "regression" else 150))
        layer = GP(problem.width, kernel=kernel(problem.d), posterior=posterior)
        return Model(layer, problem.likelihood(), standardize=problem.standardize)

    return build


def perturb(model: TrainableModel, seed: int) -> None:
    """Move hyperparameters by standard normal noise on their log scale: another start for an exact GP."""
    generator = torch.Generator().manual_seed(1_000_003 * seed)
    with torch.no_grad():
        for _, parameter in hyperparameters(model):
            if parameter.raw.requires_grad:
                noise = torch.randn(parameter.raw.shape, generator=generator, dtype=parameter.raw.dtype)
                parameter.raw.add_(noise.to(parameter.raw.device))


# -- deep models ------------------------------------------------------------------------------------------------


def _some_rows(problem: Problem, most: int) -> Tensor:
    """Inducing inputs: training rows chosen at random."""
    return problem.x[torch.randperm(problem.n)[: problem.n_inducing(most)]]


def _deep(posterior: Callable[[], Posterior]) -> Builder:
    """Two GP layers; the hidden one is as wide as the inputs, ten at most."""

    def build(problem: Problem) -> TrainableModel:
        width = min(problem.d, 10)
        top = GlobalInducing("full" if problem.width <= 10 else "diagonal", log_precision=0.0)
        network = nn.Sequential(
            GP(width, kernel=_se(problem.d), posterior=posterior()),
            GP(problem.width, kernel=_se(width, ard=False), posterior=top),
        )
        return Model(
            network, problem.likelihood(0.05), inducing=_some_rows(problem, 100), standardize=problem.standardize
        )

    return build


def _bnn(posterior: Callable[[], Posterior]) -> Builder:
    """Two hidden layers of 50 rectified units."""

    def build(problem: Problem) -> TrainableModel:
        layers: list[nn.Module] = []
        for width_in, width_out in ((problem.d, 50), (50, 50)):
            layers += [Linear(width_in, width_out, posterior=posterior()), nn.ReLU()]
        layers.append(Linear(50, problem.width, posterior=posterior()))
        takes = posterior().takes_inducing
        return Model(
            nn.Sequential(*layers),
            problem.likelihood(),
            inducing=_some_rows(problem, 100) if takes else None,
            standardize=problem.standardize,
        )

    return build


def _dkl(problem: Problem) -> TrainableModel:
    """A plain network with two hidden layers into four features, and a sparse GP on these."""
    features = min(problem.d, 4)
    network = nn.Sequential(
        nn.Linear(problem.d, 50),
        nn.ReLU(),
        nn.Linear(50, 50),
        nn.ReLU(),
        nn.Linear(50, features),
        GP(problem.width, kernel=_se(features), posterior=LocalInducing(problem.n_inducing(100))),
    )
    return Model(network, problem.likelihood(), standardize=problem.standardize)


# -- which ------------------------------------------------------------------------------------------------------


def _at_least(rows: int) -> Callable[[Problem], str]:
    def refuses(problem: Problem) -> str:
        return "" if problem.n >= rows else f"needs at least {rows} training rows"

    return refuses


def _not_too_many_classes(problem: Problem) -> str:
    few = _at_least(20)(problem)
    return few or ("too slow with more than 20 classes" if problem.width > 20 else "")


_OVERFITS = (
    "the weights of its network are hyperparameters, and evidence that is maximised over so many of them overfits "
    "(thesis, chapter 3); it competes by the log likelihood of validation rows instead"
)

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            "gp",
            "Gaussian process",
            "The plain one: smooth functions, one lengthscale for every column.",
            _gp(_se),
            share=2.0,
            lr=0.03,
        ),
        Family(
            "gp-matern",
            "Gaussian process, Matérn",
            "Functions that are less smooth.",
            _gp(_matern),
            share=1.5,
            lr=0.03,
        ),
        Family(
            "gp-two-scales",
            "Gaussian process, two scales",
            "The sum of a smooth function and a rougher one, each with a lengthscale for every column.",
            _gp(_two_scales),
            share=2.0,
            lr=0.03,
        ),
        Family(
            "bnn-mean-field",
            "Bayesian network, mean field",
            "Two hidden layers of 50 units, every weight with a Gaussian of its own.",
            _bnn(MeanField),
            lr=0.03,
            draws=5,
            refuses=_at_least(20),
        ),
        Family(
            "bnn-global",
            "Bayesian network, global inducing",
            "The same network with a posterior that correlates its layers (thesis, chapter 4).",
            _bnn(GlobalInducing),
            share=1.5,
            lr=0.03,
            draws=5,
            refuses=_at_least(20),
        ),
        Family(
            "deep-gp",
            "Deep Gaussian process",
            "A Gaussian process on the outputs of others, with global inducing points (thesis, chapter 4).",
            _deep(lambda: GlobalInducing("full", log_precision=-2.0)),
            share=2.0,
            lr=0.02,
            draws=5,
            refuses=_not_too_many_classes,
        ),
        Family(
            "deep-wishart",
            "Deep Wishart process",
            "The deep Gaussian process's prior with a posterior over Gram matrices (thesis, chapter 5).",
            _deep(lambda: GeneralizedWishart("AB")),
            share=2.0,
            lr=0.02,
            draws=5,
            refuses=_not_too_many_classes,
        ),
        Family(
            "dkl",
            "Deep kernel learning",
            "A Gaussian process on features of a plain neural network.",
            _dkl,
            share=1.0,
            refuses=_at_least(100),
            ranked=False,
            why_not=_OVERFITS,
            weight_decay=1e-4,
        ),
    )
}


def choose(problem: Problem, names: Sequence[str] | None = None) -> tuple[list[Family], dict[str, str]]:
    """The families for a problem, and for the others why not.

    >>> problem = Problem(torch.zeros(30, 2), torch.zeros(30), "regression", 1)
    >>> chosen, refused = choose(problem)
    >>> refused
    {'dkl': 'needs at least 100 training rows'}
    """
    if names is not None:
        for name in names:
            check_name(name, FAMILIES, "model family")
        if not names:
            raise ConfigurationError("Name at least one model family.")
    wanted = [FAMILIES[name] for name in (names or FAMILIES)]
    refused = {family.name: reason for family in wanted if (reason := family.refuses(problem))}
    if names is not None and refused:
        raise ConfigurationError("; ".join(f"{name} {reason}" for name, reason in refused.items()) + ".")
    return [family for family in wanted if family.name not in refused], refused
