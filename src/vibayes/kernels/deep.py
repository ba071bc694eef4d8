"""Deep kernels: a kernel of the features that a network makes of its inputs."""

import copy
import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.errors import ConfigurationError, DataError, ShapeError
from vibayes.kernels.base import Kernel
from vibayes.modes import evaluating

__all__ = ["DeepKernel", "check_features", "lipschitz_bound", "spectral_normalize"]


class DeepKernel(Kernel):
    r"""A kernel of a network's features, `k(x, z) = kernel(network(x), network(z))`.

    With it `ExactGP` is deep kernel learning (Wilson et al. 2016; thesis, chapter 3), `SGPR` its collapsed sparse form,
    and `GP(..., posterior=LocalInducing(M))` stochastic variational deep kernel learning. The network's weights are
    hyperparameters: they are trained on the evidence, which overfits them where they are many; see `vibayes.diagnose`.

    Inducing inputs live among the *features* `[M, W]`: they start at k-means centres of the training rows' features, or
    at the features of the inputs that were given. Features are computed once per pass.

    Args:
        network: any torch module from rows `[N, in_features]` to features `[N, W]`.
        kernel: a kernel with `in_features == W`.
        in_features: the width of the inputs; taken from the network's first layer when None.

    >>> from vibayes.kernels import SquaredExponential
    >>> kernel = DeepKernel(nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 2)), SquaredExponential(2))
    >>> kernel.in_features, kernel(torch.zeros(4, 3)).shape
    (3, torch.Size([4, 4]))
    """

    network: nn.Module
    kernel: Kernel

    def __init__(self, network: nn.Module, kernel: Kernel, in_features: int | None = None) -> None:
        if not isinstance(network, nn.Module):
            raise ConfigurationError(f"network must be a torch module, got {type(network).__name__}.")
        if not isinstance(kernel, Kernel):
            raise ConfigurationError(
                f"kernel must be a kernel of the features such as SquaredExponential(2), got {type(kernel).__name__}."
            )
        super().__init__(_first_width(network) if in_features is None else in_features)
        self.network = network
        self.kernel = kernel
        self._dry_pass()

    @torch.no_grad()
    def _dry_pass(self) -> None:
        """Find a wrong width when the kernel is built, not in the middle of training."""
        like = next(iter(self.network.parameters()), torch.zeros(()))
        rows = torch.zeros(2, self.in_features, dtype=like.dtype, device=like.device)
        with evaluating(self.network):
            try:
                self.features(rows)
            except RuntimeError as error:
                raise ShapeError(
                    f"The network of a DeepKernel cannot take rows of width in_features={self.in_features}: {error}"
                ) from error

    def features(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        """The network's features of the rows."""
        self._check(x)
        found: Tensor = self.network(x)
        if found.ndim != 2 or found.shape[1] != self.kernel.in_features:
            raise ShapeError(
                f"The network of a DeepKernel must give features [N, {self.kernel.in_features}], as "
                f"{type(self.kernel).__name__}(in_features={self.kernel.in_features}) takes them; it gave shape "
                f"{list(found.shape)} for rows {list(x.shape)}. Change the network's last layer or the kernel's width."
            )
        return found

    @property
    def on_features(self) -> Kernel:
        """The kernel of the features."""
        return self.kernel

    def _matrix(self, x: Float[Tensor, "n d"], z: Float[Tensor, "m d"] | None) -> Float[Tensor, "n m"]:
        if z is None:
            return self.kernel._matrix(self.features(x), None)
        both = self.features(torch.cat([x, z]))  # one pass through the network
        return self.kernel._matrix(both[: len(x)], both[len(x) :])

    def _diag(self, x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.kernel._diag(self.features(x))


def _first_width(network: nn.Module) -> int:
    """The width of the rows that a network takes, where its first layer says so."""
    for module in network.modules():
        if isinstance(width := getattr(module, "in_features", None), int) and width > 0:
            return width
        if isinstance(module, nn.modules.conv._ConvNd | nn.Unflatten):
            break
    raise ConfigurationError(
        "The width of the inputs cannot be read off the network; give DeepKernel(network, kernel, in_features=...). "
        "Rows of images are flat: begin the network with nn.Unflatten(1, (channels, height, width))."
    )


@torch.no_grad()
def check_features(features: Tensor, where: str, inputs: Tensor | None = None) -> None:
    """Refuse features that a kernel cannot learn from: NaN or infinite ones, or the same ones for all rows.

    Args:
        features: `[N, ...]`, of the training rows.
        where: whose features they are, for the message.
        inputs: the rows they come from; equal features of equal rows are nobody's fault.
    """
    rows = features.flatten(1)
    finite = torch.isfinite(rows).all(1)
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        raise DataError(
            f"The features of {where} are NaN or infinite for {int((~finite).sum())} of {len(rows)} training rows (the "
            f"first is row {first}). Check the network's weights, and standardise inputs of large scale."
        )
    same = bool((rows == rows[:1]).all())
    if same and len(rows) > 1 and (inputs is None or not bool((inputs == inputs[:1]).all())):
        raise ConfigurationError(
            f"The features of {where} are the same for all {len(rows)} training rows, so that no input can be told "
            "from another and nothing can be learned. The network may be dead (a ReLU layer whose inputs are all "
            "negative) or have weights of zero: start it anew, or pretrain it."
        )


# -- Lipschitz-bounded feature extractors ------------------------------------------------------------------------


# Squarings of the Gram matrix in the bound on its largest eigenvalue: its n-th root is at most n^(1/128) too large.
_SQUARINGS = 6


class _BoundedNorm(nn.Module):
    """A parametrization: a weight scaled down where its spectral norm may be above a bound.

    With `G = W W^T` the spectral norm is at most the Schatten norm `tr(G^64)^(1/128)`, and this at most `n^(1/128)`
    times the spectral norm. Unlike a power iteration it is a bound at every step, has a gradient everywhere and no
    state, so that replicas can be stacked.
    """

    def __init__(self, coefficient: float) -> None:
        super().__init__()
        self.coefficient = coefficient

    def forward(self, weight: Tensor) -> Tensor:
        W = weight.flatten(1)
        G = W @ W.mT if W.shape[0] <= W.shape[1] else W.mT @ W
        tiny = torch.finfo(G.dtype).tiny
        trace = G.diagonal().sum().clamp_min(tiny)
        G, log_trace = G / trace, trace.log()  # log tr(G^(2^k)), the matrix itself at trace one
        for _ in range(_SQUARINGS):
            G = G @ G
            trace = G.diagonal().sum().clamp_min(tiny)
            G, log_trace = G / trace, 2.0 * log_trace + trace.log()
        norm = (log_trace / 2 ** (_SQUARINGS + 1)).exp()
        scaled: Tensor = weight * (self.coefficient / norm).clamp_max(1.0)
        return scaled


def spectral_normalize(network: nn.Module, coefficient: float = 1.0, *, in_place: bool = False) -> nn.Module:
    r"""Keep the spectral norm of every linear and convolutional layer's weight at most at `coefficient`.

    As in SNGP (Liu et al. 2020) and DUE (van Amersfoort et al. 2021), so that features cannot pull inputs apart at
    will; weights of smaller norm stay as they are. It is a torch parametrization: weights are scaled in every pass, by
    a bound on their norm that is at most 5% too large (for up to 500 rows or columns).

    In a chain of L such layers with 1-Lipschitz activations (ReLU, tanh, pooling by maximum)
    `|network(x) - network(x')| <= coefficient^L |x - x'|`; a residual block `x + g(x)` has at most `1 + Lip(g)`, and at
    least `1 - Lip(g)`: with coefficients below one it also cannot pull all inputs together. For convolutions it is the
    norm of the weight as a matrix `[out, in * height * width]` that is bounded: the operator's norm is at most
    `sqrt(height * width)` times that. Batch normalisation is not bounded. `lipschitz_bound` gives the number for a
    chain.

    Args:
        network: any module.
        coefficient: the largest spectral norm of each layer.
        in_place: change this network, instead of a copy.

    >>> net = spectral_normalize(nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 2)), 0.1)
    >>> 0.009 < lipschitz_bound(net) < 0.01001
    True
    """
    if not coefficient > 0:
        raise ConfigurationError(f"coefficient must be positive, got {coefficient}.")
    network = network if in_place else copy.deepcopy(network)
    layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]
    if not layers:
        raise ConfigurationError("The network has no linear or convolutional layer to normalise.")
    for layer in layers:
        nn.utils.parametrize.register_parametrization(layer, "weight", _BoundedNorm(coefficient))
    return network


@torch.no_grad()
def lipschitz_bound(network: nn.Module) -> float:
    """An upper bound of the Lipschitz constant of a chain of linear layers and 1-Lipschitz modules.

    The product of the exact spectral norms of the weights; for convolutions of stride 1 times
    `sqrt(height * width)` of their kernels.

    Args:
        network: an `nn.Sequential` (nested ones too) of linear and convolutional layers, ReLU, LeakyReLU, Tanh,
            Sigmoid, Identity, Flatten, Unflatten, Dropout and MaxPool2d whose windows do not overlap.

    >>> layer = nn.Linear(2, 2, bias=False)
    >>> _ = layer.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    >>> lipschitz_bound(nn.Sequential(layer, nn.ReLU()))
    3.0
    """
    if isinstance(network, nn.Sequential):
        product = 1.0
        for module in network:
            product *= lipschitz_bound(module)
        return product
    if isinstance(network, nn.Linear | nn.modules.conv._ConvNd):
        weight = network.weight.detach().flatten(1)
        norm = float(torch.linalg.matrix_norm(weight, 2))
        window = 1 if isinstance(network, nn.Linear) else network.weight[0, 0].numel()
        return norm * math.sqrt(window)
    if isinstance(network, nn.MaxPool2d) and network.kernel_size == network.stride:
        return 1.0
    harmless = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.Flatten, nn.Unflatten)
    if isinstance(network, harmless) or (isinstance(network, nn.Dropout) and not network.training):
        return 1.0
    raise ConfigurationError(
        f"No Lipschitz constant is known for {type(network).__name__}; lipschitz_bound takes a chain (nn.Sequential) "
        "of linear and convolutional layers and 1-Lipschitz modules."
    )
