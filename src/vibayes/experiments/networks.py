"""The image networks of the thesis, built from whatever layers they are given.

A network is a function of `Layers`, which makes its convolutions, linear layers and normalisations: `Plain` ones, or
`Bayesian` ones with a prior and posteriors.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from vibayes.layers import BatchNorm, Conv2d, Linear
from vibayes.posteriors import LocalInducing
from vibayes.posteriors.base import Posterior
from vibayes.priors import Prior

__all__ = ["NETWORKS", "Bayesian", "Layers", "Plain", "Residual", "lenet", "resnet18", "small_resnet"]


class Layers(Protocol):
    """Makes the layers of a network."""

    def conv(self, in_channels: int, out_channels: int, kernel_size: int = 3, stride: int = 1) -> nn.Module:
        """A convolution that keeps the size of images, up to its stride."""

    def linear(self, in_features: int, out_features: int) -> nn.Module:
        """The last layer."""

    def norm(self, channels: int) -> nn.Module:
        """A normalisation behind a convolution."""


class Plain:
    """Ordinary torch layers.

    Args:
        normalize: whether there is batch normalisation.
    """

    def __init__(self, *, normalize: bool = False) -> None:
        self.normalize = normalize

    def conv(self, in_channels: int, out_channels: int, kernel_size: int = 3, stride: int = 1) -> nn.Module:
        """`nn.Conv2d`, without a bias where a normalisation follows."""
        padding = kernel_size // 2
        return nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, bias=not self.normalize)

    def linear(self, in_features: int, out_features: int) -> nn.Module:
        """`nn.Linear`."""
        return nn.Linear(in_features, out_features)

    def norm(self, channels: int) -> nn.Module:
        """`nn.BatchNorm2d`, or nothing."""
        return nn.BatchNorm2d(channels) if self.normalize else nn.Identity()


class Bayesian:
    """Layers with weights to infer.

    Args:
        prior: of the weights.
        posterior: of hidden layers; `"local"` for local inducing points, as many as a layer has weights per output.
        last: the posterior of the last layer; like the others when None.
        normalize: whether there is batch normalisation, by the statistics of inducing rows.
        most_local: the most local inducing points that a layer has; None for no limit.
    """

    def __init__(
        self,
        prior: Prior,
        posterior: Posterior | str,
        last: Posterior | None = None,
        *,
        normalize: bool = False,
        most_local: int | None = None,
    ) -> None:
        self.prior, self.posterior, self.last, self.normalize = prior, posterior, last, normalize
        self.most_local = most_local

    def _posterior(self, features: int) -> Posterior:
        if isinstance(self.posterior, Posterior):
            return self.posterior
        return LocalInducing(min(features + 1, self.most_local or features + 1))

    def conv(self, in_channels: int, out_channels: int, kernel_size: int = 3, stride: int = 1) -> nn.Module:
        """`Conv2d`."""
        posterior = self._posterior(in_channels * kernel_size**2)
        padding, bias = kernel_size // 2, not self.normalize
        return Conv2d(
            in_channels, out_channels, kernel_size, stride, padding, bias, prior=self.prior, posterior=posterior
        )

    def linear(self, in_features: int, out_features: int) -> nn.Module:
        """`Linear`."""
        posterior = self._posterior(in_features) if self.last is None else self.last
        return Linear(in_features, out_features, prior=self.prior, posterior=posterior)

    def norm(self, channels: int) -> nn.Module:
        """`BatchNorm`, or nothing."""
        return BatchNorm(channels) if self.normalize else nn.Identity()


class Residual(nn.Module):
    """`after(body(x) + shortcut(x))`."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = nn.Identity() if shortcut is None else shortcut
        self.after = nn.Identity() if after is None else after

    def forward(self, x: Tensor) -> Tensor:
        """Add the two ways."""
        found: Tensor = self.after(self.body(x) + self.shortcut(x))
        return found


def small_resnet(
    layers: Layers, in_channels: int = 3, channels: int = 32, classes: int = 10, size: int = 32
) -> nn.Sequential:
    """The CIFAR-10 network of chapter 4: seven convolutions in three residual blocks, then a linear layer.

    conv-relu-block-avgpool2-block-avgpool2-block-avgpool-linear, a block being an identity shortcut around
    conv-relu-conv-relu; all kernels are 3 x 3.

    >>> import torch
    >>> small_resnet(Plain())(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def block() -> Residual:
        body = [layers.conv(channels, channels), nn.ReLU(), layers.conv(channels, channels), nn.ReLU()]
        return Residual(nn.Sequential(*body))

    return nn.Sequential(
        layers.conv(in_channels, channels),
        nn.ReLU(),
        block(),
        nn.AvgPool2d(2),
        block(),
        nn.AvgPool2d(2),
        block(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        layers.linear(channels, classes),
    )


def lenet(layers: Layers, in_channels: int = 1, channels: int = 64, classes: int = 10, size: int = 28) -> nn.Sequential:
    """The MNIST network of chapter 4: two times conv-relu-maxpool, then conv-relu-linear, kernels of 3 x 3.

    >>> import torch
    >>> lenet(Plain())(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(
        layers.conv(in_channels, channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        layers.conv(channels, channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        layers.conv(channels, channels),
        nn.ReLU(),
        nn.Flatten(),
        layers.linear(channels * (size // 4) ** 2, classes),
    )


def resnet18(layers: Layers, in_channels: int = 3, width: int = 64, classes: int = 10, size: int = 32) -> nn.Sequential:
    """ResNet-18 (He et al. 2016) for images of 32 x 32: a 3 x 3 convolution first, and no pooling behind it.

    >>> import torch
    >>> resnet18(Plain(normalize=True), width=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def block(inside: int, outside: int, stride: int) -> Residual:
        body = nn.Sequential(
            layers.conv(inside, outside, 3, stride),
            layers.norm(outside),
            nn.ReLU(),
            layers.conv(outside, outside),
            layers.norm(outside),
        )
        if stride == 1 and inside == outside:
            return Residual(body, after=nn.ReLU())
        return Residual(body, nn.Sequential(layers.conv(inside, outside, 1, stride), layers.norm(outside)), nn.ReLU())

    blocks, inside = [], width
    for stage in range(4):
        outside = width * 2**stage
        blocks += [block(inside, outside, 1 if stage == 0 else 2), block(outside, outside, 1)]
        inside = outside
    return nn.Sequential(
        layers.conv(in_channels, width),
        layers.norm(width),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        layers.linear(inside, classes),
    )


# From layers, channels that come in, channels inside, classes, and the size of images.
NETWORKS: dict[str, Callable[[Layers, int, int, int, int], nn.Sequential]] = {
    "small_resnet": small_resnet,
    "lenet": lenet,
    "resnet18": resnet18,
}
