"""The families of models that `compare` tries: which suit a table, and how much of the time each gets.

How their models are built and trained stands in `vibayes.families`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import LogNormal

from vibayes import families
from vibayes.errors import ConfigurationError
from vibayes.experiments.names import check_name
from vibayes.families import Plan, Task
from vibayes.kernels import Kernel, SquaredExponential, Sum
from vibayes.likelihoods import Likelihood
from vibayes.parameters import Positive

__all__ = ["FAMILIES", "Family", "Problem", "choose", "rounding"]

# The budget in which exact GPs of the largest size come to an end on two cores; it grows with the cube of the rows.
EXACT_MINUTES = 4.0
# How much more of the time families get that end by themselves, and leave the rest.
CLOSED_FORM = 3.0


def rounding(y: Tensor) -> float:
    """The step in which a column of numbers was recorded: 1 for whole numbers, 0.01 for cents; 0 without one.

    >>> rounding(torch.tensor([3.0, 4.5, 9.0]))
    1.5
    >>> rounding(torch.tensor([1.0, 3.0, 6.0]))
    1.0
    >>> rounding(torch.tensor([0.1, 0.234, 0.7]).sqrt())
    0.0
    """
    values: Tensor = torch.unique(y.double())
    if len(values) < 3:  # a grid of two values says nothing
        return 0.0
    gap = float(values.diff().min())
    for parts in range(1, 11):  # few values may leave out every neighbour: 1, 3 and 6 are whole numbers
        places = (values - values[0]) * (parts / gap)
        if float((places - places.round()).abs().max()) < 1e-3:
            return gap / parts
    return 0.0


@dataclass(frozen=True)
class Problem:
    """What a model has to learn: training rows and the kind of target.

    Attributes:
        x: inputs `[N, D]`, not standardised.
        y: targets `[N]` or `[N, P]`, or class numbers `[N]`.
        kind: `"regression"`, `"binary"` or `"classes"`.
        width: how many functions a model needs: targets, or classes.
        minutes: the budget of the whole comparison.
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
    def standardize(self) -> str:
        """What models standardise."""
        return "both" if self.kind == "regression" else "inputs"

    @property
    def least_noise(self) -> float:
        """The variance of rounding, `step^2 / 12`, as a share of the targets' variance; the smallest of all targets.

        Numbers that are recorded in coarse steps are often met exactly, by copies of a row above all. The density of
        a noise that may be as small as it likes is then unbounded, and so is the evidence.
        """
        columns = self.y.double().reshape(self.n, -1).unbind(1)
        shares = [rounding(y) ** 2 / (12.0 * float(y.var(correction=0)) or math.inf) for y in columns]
        return min(shares)

    def likelihood(self) -> Likelihood:
        """The distribution of targets; numbers have Gaussian noise, one variance for each target."""
        if self.kind == "regression":
            return families.noise(self.width, least=self.least_noise)
        return families.classes(2 if self.kind == "binary" else self.width)[0]

    @property
    def gp_method(self) -> str:
        """How a GP is computed: where the budget is small, large tables are not left to the exact one."""
        if self.kind != "regression" or self.n > families.COLLAPSED_ROWS:
            return "svgp"
        most = families.EXACT_ROWS * min(1.0, self.minutes / EXACT_MINUTES) ** (1 / 3)
        return "exact" if self.n <= most else "sgpr"

    @property
    def task(self) -> Task:
        """The same for those who build models."""
        return Task(self.x, self.width, self.likelihood(), self.standardize)

    def n_inducing(self, most: int) -> int:
        """How many inducing points: at most one per row, and fewer where there are many classes."""
        if self.kind == "classes":
            most = min(most, max(20, math.isqrt(2_000_000 // self.width)))
        return min(most, self.n)


Planner = Callable[[Problem], Plan]


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
        plan: makes a model for a problem and says how to train it; torch's generator decides its random parts.
        share: how much of the time it gets, relative to the others; see `time_share`.
        gp: whether it is one GP, whose evidence or bound may have a closed form.
        refuses: why it does not suit a problem, or nothing.
        ranked: whether its evidence is compared; otherwise `why_not` says why.
        why_not: see `ranked`.
    """

    name: str
    title: str
    about: str
    plan: Planner
    share: float = 1.0
    gp: bool = False
    refuses: Callable[[Problem], str] = field(default=_suits_all)
    ranked: bool = True
    why_not: str = ""

    def time_share(self, problem: Problem) -> float:
        """How much of the time it gets for a problem, relative to others; what it leaves goes to those after it."""
        return self.share * (CLOSED_FORM if self.gp and problem.gp_method != "svgp" else 1.0)


# -- how ----------------------------------------------------------------------------------------------------------


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


def _gp(kernel: str | Callable[[int], Kernel]) -> Planner:
    def plan(problem: Problem) -> Plan:
        chosen = kernel if isinstance(kernel, str) else kernel(problem.x.shape[1])
        points = problem.n_inducing(300 if problem.kind == "regression" else 150)
        return families.gp(problem.task, kernel=chosen, method=problem.gp_method, n_inducing=points, restarts=1)

    return plan


def _bnn(posterior: str) -> Planner:
    def plan(problem: Problem) -> Plan:
        points = problem.n_inducing(100)
        return families.bnn(problem.task, depth=2, width=50, n_inducing=points, posterior=posterior, prior="neal")

    return plan


def _deep_gp(problem: Problem) -> Plan:
    points = problem.n_inducing(100)
    return families.deep_gp(problem.task, kernel="squared_exponential", depth=2, width=None, n_inducing=points)


def _deep_wishart(problem: Problem) -> Plan:
    points = problem.n_inducing(100)
    return families.deep_wishart(
        problem.task, kernel="squared_exponential", depth=2, width=None, n_inducing=points, mixing="AB"
    )


def _dkl(problem: Problem) -> Plan:
    return families.deep_kernel(
        problem.task,
        kernel="squared_exponential",
        depth=2,
        width=50,
        n_features=5,
        n_inducing=problem.n_inducing(100),
    )


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
            "The plain one: smooth functions, one lengthscale for every column where rows allow it.",
            _gp("squared_exponential"),
            share=2.0,
            gp=True,
        ),
        Family(
            "gp-matern",
            "Gaussian process, Matérn",
            "Functions that are less smooth.",
            _gp("matern52"),
            share=1.5,
            gp=True,
        ),
        Family(
            "gp-two-scales",
            "Gaussian process, two scales",
            "The sum of a smooth function and a rougher one, each with a lengthscale for every column.",
            _gp(_two_scales),
            share=2.0,
            gp=True,
        ),
        Family(
            "bnn-mean-field",
            "Bayesian network, mean field",
            "Two hidden layers of 50 units, every weight with a Gaussian of its own.",
            _bnn("mean_field"),
            share=0.7,
            refuses=_at_least(20),
        ),
        Family(
            "bnn-global",
            "Bayesian network, global inducing",
            "The same network with a posterior that correlates its layers (thesis, chapter 4).",
            _bnn("global_inducing"),
            refuses=_at_least(20),
        ),
        Family(
            "deep-gp",
            "Deep Gaussian process",
            "A Gaussian process on the outputs of others, with global inducing points (thesis, chapter 4).",
            _deep_gp,
            share=2.0,
            refuses=_not_too_many_classes,
        ),
        Family(
            "deep-wishart",
            "Deep Wishart process",
            "Layers of random Gram matrices in place of features, with a posterior over these (thesis, chapter 5).",
            _deep_wishart,
            share=2.0,
            refuses=_not_too_many_classes,
        ),
        Family(
            "dkl",
            "Deep kernel learning",
            "A Gaussian process on features of a plain neural network.",
            _dkl,
            refuses=_at_least(100),
            ranked=False,
            why_not=_OVERFITS,
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
    wanted = [FAMILIES[name] for name in dict.fromkeys(names or FAMILIES)]  # each once
    refused = {family.name: reason for family in wanted if (reason := family.refuses(problem))}
    if names is not None and refused:
        raise ConfigurationError("; ".join(f"{name} {reason}" for name, reason in refused.items()) + ".")
    return [family for family in wanted if family.name not in refused], refused
