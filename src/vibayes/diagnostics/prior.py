"""What a model's prior says of inputs: the features its last layer sees, and how strongly it correlates them."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.conjugate.base import ConjugateModel
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError
from vibayes.kernels.base import Kernel
from vibayes.model import Model
from vibayes.modes import evaluating
from vibayes.starts import catching_rows
from vibayes.trainable import TrainableModel

__all__ = ["correlation", "effective_rank", "features", "seen_by_kernel"]


@torch.no_grad()
def seen_by_kernel(model: TrainableModel, rows: Tensor) -> tuple[Float[Tensor, "n w"], Kernel | None]:
    """What of prepared rows reaches the last layer (features, where its kernel is deep), and the kernel there.

    In evaluation mode; in a network with random layers below, it is that of one draw. The kernel is None for layers of
    weights.
    """
    with evaluating(model):
        return _seen_by_kernel(model, rows)


def _seen_by_kernel(model: TrainableModel, rows: Tensor) -> tuple[Tensor, Kernel | None]:
    if isinstance(model, ConjugateModel):
        kernel = getattr(model, "kernel", None)
        if not isinstance(kernel, Kernel):
            raise ConfigurationError(f"{type(model).__name__} has no kernel; use an ExactGP, SGPR or Model.")
        return kernel.features(rows), kernel.on_features
    if not isinstance(model, Model):
        raise ConfigurationError(f"Expected an ExactGP, SGPR or Model, got {type(model).__name__}.")
    last = list(model.layers.values())[-1]

    def inputs_of_last(draw: Draw) -> Tensor:
        with catching_rows(last) as caught:
            model._pass(rows, draw)
        return caught[0][len(caught[0]) - len(rows) :]  # without inducing rows, which come first

    found: Tensor = model._draws(inputs_of_last, 1, marginal=False)[0]
    kernel = getattr(last, "kernel", None)
    if isinstance(kernel, Kernel):
        return kernel.features(found), kernel.on_features
    return found.flatten(1), None


def features(model: TrainableModel, x: Any) -> Float[Tensor, "n w"]:
    """The features of inputs: the rows that the model's last layer (or its deep kernel) sees.

    Args:
        model: an `ExactGP`, `SGPR` or `Model`.
        x: inputs in user units.

    >>> import vibayes as vb
    >>> kernel = vb.DeepKernel(torch.nn.Linear(3, 2), vb.SquaredExponential(2))
    >>> features(vb.ExactGP(kernel, vb.Gaussian()), torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """
    return seen_by_kernel(model, model.prepare_inputs(x))[0]


@torch.no_grad()
def correlation(model: TrainableModel, x: Any, reference: Any) -> Float[Tensor, "r n"]:
    r"""Prior correlations `rho_x'(x) = k(x, x') / sqrt(k(x, x) k(x', x'))` of inputs `x` with reference inputs `x'`.

    For a stationary kernel this is `k(x, x') / sigma_f^2` (thesis, Fig. "toy_problem_corr"). Overfitted deep kernels
    have correlations near one everywhere: their prior then knows hardly any function but those through the data.

    Args:
        model: an `ExactGP`, `SGPR` or a `Model` whose last layer is a `GP`.
        x: inputs `[N, ...]`.
        reference: inputs `[R, ...]`.

    >>> import vibayes as vb
    >>> gp = vb.ExactGP(vb.SquaredExponential(1, variance=4.0), vb.Gaussian())
    >>> correlation(gp, torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0]])).round(decimals=3).tolist()
    [[1.0, 0.6069999933242798]]
    """
    first, second = model.prepare_inputs(reference), model.prepare_inputs(x)
    seen, kernel = seen_by_kernel(model, torch.cat([first, second]))  # together: one draw of random layers below
    if kernel is None:
        raise ConfigurationError("The model's last layer has no kernel, so it has no prior correlations of this kind.")
    a, b = seen[: len(first)], seen[len(first) :]
    K: Tensor = kernel(a, b)
    return K / (kernel.diag(a)[:, None] * kernel.diag(b)).sqrt()


def effective_rank(K: Float[Tensor, "n n"]) -> float:
    r"""How many directions a positive semidefinite matrix has: `tr(K)^2 / |K|_F^2`, the participation ratio.

    Of a correlation matrix it is N for independent rows and 1 where all are perfectly correlated; of a covariance
    matrix of features it is 1 where they lie on a line. Near one means that the features have collapsed.

    >>> round(effective_rank(torch.eye(5)), 6), round(effective_rank(torch.ones(5, 5)), 6)
    (5.0, 1.0)
    """
    square = float(K.square().sum())
    return float(K.diagonal().sum()) ** 2 / square if square > 0 else 0.0
