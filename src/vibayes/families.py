"""The model of each family for a table, with starts and training options that suit its size.

What the estimators of `vibayes.sklearn` and `vibayes compare` know about architectures, sizes, starting values and
learning rates stands here, but for the estimators' rate of deep kernels. Starts and rates were chosen by the bound that
short runs reach on UCI tables.
"""

import copy
import math
import numbers
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vibayes.conjugate import SGPR, ExactGP
from vibayes.errors import ConfigurationError
from vibayes.inducing import choose_inducing
from vibayes.kernels import Kernel, Matern12, Matern32, Matern52, RationalQuadratic, SquaredExponential
from vibayes.layers import GP, Linear
from vibayes.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from vibayes.means import IdentityMean
from vibayes.model import Model
from vibayes.parameters import Positive
from vibayes.posteriors import GeneralizedWishart, GlobalInducing, LocalInducing, MeanField
from vibayes.priors import NealPrior, ScalePrior, StandardPrior
from vibayes.trainable import TrainableModel

__all__ = [
    "COLLAPSED_ROWS",
    "EXACT_ROWS",
    "KERNELS",
    "Plan",
    "Task",
    "bnn",
    "classes",
    "deep_gp",
    "deep_kernel",
    "deep_wishart",
    "gp",
    "noise",
]

KERNELS: dict[str, type[Any]] = {
    "squared_exponential": SquaredExponential,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational_quadratic": RationalQuadratic,
}
_PRIORS = {"neal": NealPrior, "standard": StandardPrior, "scale": ScalePrior}

# A kernel has a lengthscale for every input where there are so many training rows for each, else one for all: evidence
# that is maximised over many lengthscales overfits as that over a network's weights does (docs/decisions/families.md).
ROWS_PER_LENGTHSCALE = 10
# Up to how many training rows a GP is exact, and collapsed sparse; beyond, it sees minibatches.
EXACT_ROWS = 2_000
COLLAPSED_ROWS = 10_000
# Up to how many rows all of them enter every step of a model that can do with fewer.
_FULL_BATCH = 1_000
_BATCH = 500
# Draws per training step of deep models: many steps with a few draws get further than a few steps with many.
_DRAWS = 5
# Log precision from which the last layer's pseudo-outputs start, themselves at targets: sure of them, as of data with
# little noise. Starting at 0 costs several hundred steps.
_SURE = 2.0
# Starting variance of mean-field weights times their fan-in: nearer to the prior than the layers' default, from which
# a short run spends its steps on widening thousands of Gaussians.
_WIDE = 0.1
# The noise variance to start from, as a share of the targets' variance, and how much faster than other parameters its
# logarithm moves (thesis, appendix "Parameter scaling for Adam").
_NOISE = 0.1
_FASTER = 5.0


def noise(outputs: int, *, variance: float = 1.0, least: float = 0.0) -> Gaussian:
    """The likelihood of real targets: Gaussian noise, one variance for each of them.

    Args:
        outputs: how many targets a row has.
        variance: of the targets, as the model sees them.
        least: variance that the noise has at least, such as that of rounding, also as the model sees it.
    """
    start = torch.full((outputs,) if outputs > 1 else (), max(_NOISE * variance, 2.0 * least))
    return Gaussian(Positive(start, scale=_FASTER, least=least), out_features=outputs if outputs > 1 else None)


def classes(count: int) -> tuple[Likelihood, int]:
    """The likelihood of so many classes, and how many functions it takes."""
    return (Bernoulli(), 1) if count == 2 else (Categorical(), count)


@dataclass(frozen=True)
class Task:
    """What a model is to be built for.

    Attributes:
        x: training inputs `[N, D]`.
        outputs: width of the network's output.
        likelihood: of the targets.
        standardize: as models take it.
    """

    x: Tensor
    outputs: int
    likelihood: Likelihood
    standardize: str | None

    @property
    def width(self) -> int:
        """D."""
        return self.x.shape[1]

    @property
    def ard(self) -> bool:
        """Whether there are rows enough for a lengthscale of every input."""
        return len(self.x) >= ROWS_PER_LENGTHSCALE * self.width

    def batch(self, full: int = _FULL_BATCH) -> int | None:
        """How many rows a step takes; None for all."""
        return None if len(self.x) <= full else _BATCH

    def inducing(self, n: int) -> Tensor:
        """Training rows spread over the data: k-means centres, of standardised columns where the model standardises."""
        x = self.x.to(torch.get_default_dtype())
        n, seed = min(n, len(x)), int(torch.randint(2**31, ()))  # torch's generator decides, as on other starts
        if self.standardize is None:
            return choose_inducing(x, n, seed=seed)
        centre, scale = x.mean(0), x.std(0, correction=0)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        return choose_inducing((x - centre) / scale, n, seed=seed) * scale + centre


@dataclass(frozen=True)
class Plan:
    """A model, and how to train it where the user has not said.

    Attributes:
        model: the model, not yet trained.
        optimizer: `"adam"` or `"lbfgs"`.
        steps: of Adam, where there is time for so many.
        lr: learning rate of Adam.
        batch_size: rows per step of Adam; None for all.
        n_samples: draws per step; None for the default of `fit`.
        restarts: starts of L-BFGS.
    """

    model: TrainableModel
    optimizer: str = "adam"
    steps: int = 2_000
    lr: float = 0.03
    batch_size: int | None = None
    n_samples: int | None = None
    restarts: int = 1


def _kernel(kernel: str | Kernel, width: int, *, ard: bool) -> Kernel:
    if isinstance(kernel, Kernel):
        if kernel.in_features != width:
            raise ConfigurationError(f"The kernel has in_features={kernel.in_features}, but rows have width {width}.")
        return copy.deepcopy(kernel).to(torch.get_default_dtype())
    if kernel not in KERNELS:
        raise ConfigurationError(f"kernel must be one of {', '.join(KERNELS)}, or a vibayes kernel; got {kernel!r}.")
    # two standardised rows are about sqrt(2 D) apart
    built: Kernel = KERNELS[kernel](width, ard=ard, lengthscale=math.sqrt(width))
    return built


def _positive(value: Any, name: str, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ConfigurationError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    return int(value)


def gp(task: Task, *, kernel: str | Kernel, method: str, n_inducing: int, restarts: int) -> Plan:
    """A Gaussian process: exact, collapsed sparse, or stochastic variational, by the number of rows.

    >>> task = Task(torch.zeros(30, 2), 1, noise(1), "both")
    >>> type(gp(task, kernel="matern52", method="auto", n_inducing=200, restarts=3).model).__name__
    'ExactGP'
    """
    if method not in ("auto", "exact", "sgpr", "svgp"):
        raise ConfigurationError(f"method must be 'auto', 'exact', 'sgpr' or 'svgp', got {method!r}.")
    restarts = _positive(restarts, "restarts")
    M = min(_positive(n_inducing, "n_inducing"), len(task.x))
    conjugate = type(task.likelihood) is Gaussian
    if method in ("exact", "sgpr") and not conjugate:
        raise ConfigurationError(f"method={method!r} is for regression; classes take method='svgp' or 'auto'.")
    if method == "auto":
        n = len(task.x)
        method = "svgp" if not conjugate or n > COLLAPSED_ROWS else "exact" if n <= EXACT_ROWS else "sgpr"
    chosen = _kernel(kernel, task.width, ard=task.ard)
    if method in ("exact", "sgpr") and isinstance(task.likelihood, Gaussian):
        # the faster noise is for Adam; L-BFGS takes up to twice as many iterations with it
        learned = task.likelihood.noise
        task.likelihood.noise = Positive(learned.value.detach(), least=learned.least)
    if method == "exact":
        model: TrainableModel = ExactGP(chosen, task.likelihood, standardize=task.standardize)
        return Plan(model, "lbfgs", restarts=restarts)
    if method == "sgpr":
        model = SGPR(chosen, task.likelihood, M, standardize=task.standardize)
        return Plan(model, "lbfgs")
    layer = GP(task.outputs, kernel=chosen, posterior=LocalInducing(M))
    model = Model(layer, task.likelihood, standardize=task.standardize)
    return Plan(model, steps=2_000, batch_size=task.batch())


def _hidden_width(width: int | None, task: Task) -> int:
    return min(task.width, 30) if width is None else _positive(width, "width")


def _sure(task: Task, precision: str = "full") -> GlobalInducing:
    """The posterior of a last layer of GPs; full precisions of many outputs would take too long."""
    return GlobalInducing(precision if task.outputs <= 10 else "diagonal", log_precision=_SURE)


def deep_gp(task: Task, *, kernel: str, depth: int, width: int | None, n_inducing: int) -> Plan:
    """A deep GP with global inducing points; identity means where a layer is as wide as its inputs."""
    widths = [task.width] + [_hidden_width(width, task)] * (_positive(depth, "depth") - 1)
    top = _sure(task, "natural" if isinstance(task.likelihood, Gaussian) else "full")
    layers = []
    for number, (d, p) in enumerate(zip(widths, [*widths[1:], task.outputs], strict=True)):
        last = number == len(widths) - 1
        layers.append(
            GP(
                p,
                kernel=_kernel(kernel, d, ard=task.ard),
                mean=IdentityMean() if d == p and not last else None,
                posterior=top if last else GlobalInducing("full"),
            )
        )
    inducing = task.inducing(_positive(n_inducing, "n_inducing"))
    model = Model(nn.Sequential(*layers), task.likelihood, inducing, standardize=task.standardize)
    return Plan(model, steps=1_500, batch_size=task.batch(), n_samples=_DRAWS)


def deep_wishart(task: Task, *, kernel: str, depth: int, width: int | None, n_inducing: int, mixing: str) -> Plan:
    """A deep Wishart process: Gram matrices drawn in all layers but the last."""
    widths = [task.width] + [_hidden_width(width, task)] * (_positive(depth, "depth") - 1)
    layers = []
    for number, (d, p) in enumerate(zip(widths, [*widths[1:], task.outputs], strict=True)):
        last = number == len(widths) - 1
        posterior = _sure(task) if last else GeneralizedWishart(mixing)
        layers.append(GP(p, kernel=_kernel(kernel, d, ard=task.ard and number == 0), posterior=posterior))
    inducing = task.inducing(_positive(n_inducing, "n_inducing"))
    model = Model(nn.Sequential(*layers), task.likelihood, inducing, standardize=task.standardize)
    return Plan(model, steps=1_500, batch_size=task.batch(), n_samples=_DRAWS)


def bnn(task: Task, *, depth: int, width: int, n_inducing: int, posterior: str, prior: str) -> Plan:
    """A Bayesian neural network of `depth` hidden layers with ReLU."""
    if posterior not in ("global_inducing", "mean_field"):
        raise ConfigurationError(f"posterior must be 'global_inducing' or 'mean_field', got {posterior!r}.")
    if prior not in _PRIORS:
        raise ConfigurationError(f"prior must be one of {', '.join(_PRIORS)}, got {prior!r}.")
    widths = [task.width] + [_positive(width, "width")] * _positive(depth, "depth")
    together = posterior == "global_inducing"
    layers: list[nn.Module] = []
    for number, (d, p) in enumerate(zip(widths, [*widths[1:], task.outputs], strict=True)):
        sure = _SURE if number == len(widths) - 1 else None
        chosen = GlobalInducing(log_precision=sure) if together else MeanField(_WIDE)
        layers += [Linear(d, p, prior=_PRIORS[prior](), posterior=chosen), nn.ReLU()]
    inducing = task.inducing(_positive(n_inducing, "n_inducing")) if together else None
    model = Model(nn.Sequential(*layers[:-1]), task.likelihood, inducing, standardize=task.standardize)
    lr = 0.03 if together else 0.05
    return Plan(model, steps=3_000, lr=lr, batch_size=task.batch(), n_samples=_DRAWS)


def deep_kernel(task: Task, *, kernel: str, depth: int, width: int, n_features: int, n_inducing: int) -> Plan:
    """Deep kernel learning: an ordinary network of `depth` hidden layers, then a sparse GP on its features.

    Trained on all rows at once, the bound overfits badly; the noise of small minibatches and small steps hold it back
    (thesis, chapter on deep kernel learning). The rate is for the short runs of `vibayes compare`, where validation
    rows decide; the estimators take a tenth of it. On boston (split 0, 2,000 steps): test log likelihood -8.8 and -2.4.
    """
    widths = [task.width] + [_positive(width, "width")] * _positive(depth, "depth")
    features = _positive(n_features, "n_features")
    layers: list[nn.Module] = []
    for d, p in zip(widths, [*widths[1:], features], strict=True):
        layers += [nn.Linear(d, p), nn.ReLU()]
    M = min(_positive(n_inducing, "n_inducing"), len(task.x))
    last = GP(task.outputs, kernel=_kernel(kernel, features, ard=True), posterior=LocalInducing(M))
    model = Model(nn.Sequential(*layers[:-1], last), task.likelihood, standardize=task.standardize)
    return Plan(model, steps=2_000, lr=0.01, batch_size=50 if len(task.x) <= 5_000 else _BATCH)
