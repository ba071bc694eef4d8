"""Random changes of training images, made on the device in every step.

An augmentation is a function from images `[N, C, H, W]` to images of the same shape and dtype, given to `fit(...,
augment=...)`. It gets a copy of the batch, so it may work in place. It must be made of tensor operations that do not
look at values, and draw from torch's generator, so that a step can be captured in a CUDA graph and a resumed run goes
on with the same numbers.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.data import check_count
from vibayes.errors import ConfigurationError, ShapeError, kind_of

__all__ = ["Augment", "Compose", "RandomCrop", "RandomFlip"]

Augment = Callable[[Tensor], Tensor]
"""A function from images `[N, C, H, W]` to images of the same shape and dtype, as `fit(augment=...)` takes it."""


class RandomFlip:
    """Mirrors each image left to right with a probability.

    Args:
        probability: of being mirrored.

    >>> RandomFlip(1.0)(torch.arange(3.0).reshape(1, 1, 1, 3)).flatten().tolist()
    [2.0, 1.0, 0.0]
    """

    def __init__(self, probability: float = 0.5) -> None:
        if not 0.0 <= probability <= 1.0:
            raise ConfigurationError(f"probability must be between 0 and 1, got {probability!r}.")
        self.probability = probability

    def __call__(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """Mirror some of the images."""
        _check_images(x)
        chosen = torch.rand(len(x), 1, 1, 1, device=x.device) < self.probability
        return torch.where(chosen, x.flip(-1), x)

    def __repr__(self) -> str:
        return f"RandomFlip({self.probability})"


class RandomCrop:
    """Puts zeros around each image and cuts out a window of the image's size, at a random place.

    Zeros are those of the units that training works in: the mean colour, where images are standardised.

    Args:
        padding: how many pixels on each side.

    >>> RandomCrop(1)(torch.ones(4, 3, 5, 5)).shape
    torch.Size([4, 3, 5, 5])
    """

    def __init__(self, padding: int = 4) -> None:
        self.padding = check_count(padding, "padding")

    def __call__(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """Move every image by its own random offset."""
        _check_images(x)
        (N, _, H, W), p = x.shape, self.padding
        around = torch.nn.functional.pad(x, (p, p, p, p))
        offset = torch.randint(0, 2 * p + 1, (2, N, 1), device=x.device)
        rows = offset[0] + torch.arange(H, device=x.device)  # [N, H]
        columns = offset[1] + torch.arange(W, device=x.device)  # [N, W]
        image = torch.arange(N, device=x.device)[:, None, None]
        # indices around a slice put the channels last
        return around[image, :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)

    def __repr__(self) -> str:
        return f"RandomCrop({self.padding})"


class Compose:
    """One augmentation after another.

    >>> Compose(RandomCrop(4), RandomFlip())
    Compose(RandomCrop(4), RandomFlip(0.5))
    """

    def __init__(self, *parts: Augment) -> None:
        for part in parts:
            if not callable(part) or isinstance(part, type):
                got = kind_of(part) if isinstance(part, type) else repr(part)
                raise ConfigurationError(f"Compose takes augmentations such as RandomFlip(), got {got}.")
        self.parts = parts

    def __call__(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """Apply all of them in order."""
        for part in self.parts:
            x = part(x)
        return x

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.parts))})"


def _check_images(x: Tensor) -> None:
    if x.ndim != 4:
        raise ShapeError(f"This augmentation takes images [N, C, H, W]; got rows of shape {list(x.shape[1:])}.")
