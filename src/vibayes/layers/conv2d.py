"""A convolutional layer with weights to infer."""

import math
import numbers
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.convolution import Geometry, normal_equations, patches
from vibayes.data import Units, check_count
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.layers.weights import WeightLayer, with_ones
from vibayes.posteriors.base import Diagonal, Gaussian, Posterior, Site
from vibayes.priors import Prior, Root

__all__ = ["Conv2d"]


@dataclass(frozen=True)
class _Images(Site):
    """The site of a convolution with inducing images, whose design is all their patches.

    It is written down only where there are clearly fewer of them than weights.

    Attributes:
        images: `[M, C, H, W]`.
        geometry: of the convolution.
        bias: whether there is a constant feature.
    """

    images: Tensor | None = None
    geometry: Geometry | None = None
    bias: bool = False

    def observations(self, y: Tensor, precision: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """From pseudo-outputs `[M, P, H', W']` with one precision per image to one for each patch."""
        places = math.prod(y.shape[2:])
        each = None if precision is None else precision.repeat_interleave(places, -1)
        return y.permute(0, 2, 3, 1).flatten(0, 2), each

    def moments(self, precision: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """`D^T Lambda D` and `D^T Lambda y` for pseudo-outputs `[M, P, H', W']`, with one precision per image."""
        x, geometry, root = self.images, self.geometry, self.root
        assert x is not None
        assert geometry is not None
        assert root is not None

        def of(precision: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            G, h = normal_equations(x, y, precision, geometry, bias=self.bias)
            return root.transposed(root.transposed(G).mT), root.transposed(h)  # R^T G R, R^T h

        if precision.ndim == 1:
            return of(precision, y)
        A, b = torch.func.vmap(of, in_dims=(0, 1))(precision, y[:, :, None])  # [P, K, K], [P, K, 1]
        return A, b[..., 0].mT


class Conv2d(WeightLayer):
    r"""A Bayesian convolution of images, with a prior and a posterior over its kernels.

    Every patch of an image, flattened, with a constant feature for the bias, is a row of features of width K (the
    fan-in), and the weights of one output channel have covariance `Sigma / K` (thesis, Sec. "Efficient convolutional
    Bayesian linear regression"; `Sigma` from the prior).

    With `GlobalInducing` there are pseudo-outputs `[M, out_channels, H', W']` and one precision per inducing image.
    Where stride is 1 and padding keeps the size of images (`padding = kernel_size // 2`, odd kernels), the posterior is
    computed from autocorrelations with circular boundaries, much faster and leaner than from patches; the network
    itself has zeros at the boundaries. Where there are clearly fewer patches than weights, as in the last layers of
    wide networks, matrices of patches by patches take the place of those of weights by weights. With `LocalInducing`
    the inducing inputs are patches `[M, in_channels * k * k]`.

    Args:
        in_channels: channels of the images that come in, `[N, C, H, W]`.
        out_channels: channels that go out.
        kernel_size: height and width of the kernel, or one number for both.
        stride: steps between output locations.
        padding: zeros put on each side.
        bias: whether there is a bias.
        prior: of the weights; `NealPrior()` by default.
        posterior: the approximating family; `GlobalInducing()` by default, which needs `Model(..., inducing=images)`.

    >>> import vibayes as vb
    >>> network = torch.nn.Sequential(
    ...     vb.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), vb.Linear(4 * 8 * 8, 10))
    >>> model = vb.Model(network, vb.Categorical(), inducing=torch.randn(20, 1, 8, 8))
    >>> network[0].posterior.pseudo_outputs.shape
    torch.Size([20, 4, 8, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        bias: bool = True,
        *,
        prior: Prior | None = None,
        posterior: Posterior | None = None,
    ) -> None:
        in_channels = check_count(in_channels, "in_channels")
        geometry = Geometry(
            _pair(kernel_size, "kernel_size", 1), _pair(stride, "stride", 1), _pair(padding, "padding", 0)
        )
        if bias not in (True, False):
            raise ConfigurationError(
                f"bias must be True or False, got {bias!r}. Bayesian convolutions have neither dilation nor groups, "
                "which torch takes in this place."
            )
        width = in_channels * geometry.taps
        super().__init__(width, out_channels, width + bool(bias), prior, posterior)
        self.in_channels, self.geometry, self.bias = in_channels, geometry, bool(bias)
        self.row_shape, self.out_shape = None, None

    def covariance_size(self, n_inducing: int) -> int:
        """As of other layers; an inducing image is many rows of the design."""
        return super().covariance_size(n_inducing * math.prod((self.out_shape or ())[1:]))

    @property
    def out_channels(self) -> int:
        """Channels that go out."""
        return self.out_features

    @property
    def kernel_size(self) -> tuple[int, int]:
        """Height and width of the kernel."""
        return self.geometry.kernel

    @property
    def stride(self) -> tuple[int, int]:
        """Steps between output locations."""
        return self.geometry.stride

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros put on each side."""
        return self.geometry.padding

    @property
    def places(self) -> int:
        """How many places a kernel has."""
        return self.geometry.taps

    def check(self, rows: Tensor) -> None:
        """Rows must be images `[N, in_channels, H, W]` that the kernel fits into."""
        if rows.ndim != 4 or rows.shape[1] != self.in_channels:
            raise ShapeError(
                f"Conv2d layer {self.name!r} expects images of shape [N, {self.in_channels}, height, width], got "
                f"{list(rows.shape)}. Put channels first, or change in_channels."
            )
        out = self.geometry.output_size(*rows.shape[2:])
        if self.out_shape is not None and not self.waits and self.out_shape[1:] != out and self._remembers_size:
            raise ShapeError(
                f"Conv2d layer {self.name!r} was built with inducing images that give {list(self.out_shape[1:])} "
                f"output locations; these rows, {list(rows.shape)}, give {list(out)}. All images of a model must have "
                "the size of its inducing images."
            )

    @property
    def _remembers_size(self) -> bool:
        """Whether the variational parameters are images."""
        return self.posterior.takes_inducing and not self.posterior.is_prior

    def in_units(self, inputs: Tensor, units: Units) -> Tensor:
        """Patches by the statistics of their channels."""
        if not units.of_inputs:
            return inputs
        statistics = (t[:, 0, 0].to(inputs.dtype) for t in (units.x_mean, units.x_scale))
        mean, scale = (t.repeat_interleave(self.geometry.taps) for t in statistics)
        return (inputs - mean) / scale

    def value_shape(self, rows: Tensor) -> tuple[int, ...]:
        """Channels, height and width that go out."""
        return (self.out_features, *self.geometry.output_size(*rows.shape[2:]))

    def values(self, rows: Float[Tensor, "n c h w"], w: Float[Tensor, "k p"]) -> Float[Tensor, "n p h2 w2"]:
        """The convolution, with zeros at the boundaries."""
        kernel = (w[:-1] if self.bias else w).mT.reshape(self.out_features, self.in_channels, *self.geometry.kernel)
        bias = w[-1] if self.bias else None
        found: Tensor = torch.nn.functional.conv2d(
            rows, kernel, bias, stride=self.geometry.stride, padding=self.geometry.padding
        )
        return found

    def site(self, name: str, root: Root, rows: Tensor, inducing: Tensor | None) -> Site:
        """Inducing images (global), or patches, whose features are the design (local)."""
        if inducing is not None and inducing.ndim == 4:
            places = math.prod(self.geometry.output_size(*inducing.shape[2:]))
            few = 4 * len(inducing) * places < 3 * self.fan_in  # where it is faster: benchmarks/conv_wide.py
            return _Images(
                name,
                self._design(patches(inducing, self.geometry, circular=self.geometry.circular), root) if few else None,
                self.out_features,
                root=root,
                rows=rows,
                images=inducing,
                geometry=self.geometry,
                bias=self.bias,
            )
        design = None if inducing is None else self._design(inducing, root)
        return Site(name, design, self.out_features, root=root, rows=rows)

    def _design(self, patches: Tensor, root: Root) -> Tensor:
        """Patches `[..., taps of all channels]` as whitened features `[M, K]`."""
        return root.transposed(with_ones(patches.flatten(0, -2), self.bias).mT).mT

    def moments(
        self, rows: Tensor, site: Site, q: Gaussian | Diagonal, joint: bool
    ) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """None: the places of an image share their weights, so that moments of single places do not make a draw."""
        return None

    def values_apart(self, rows: Float[Tensor, "n c h w"], q: Diagonal, draw: Draw) -> Float[Tensor, "n p h2 w2"]:
        r"""Values whose weights have noise of their own in every row.

        With signs `s` and `r` for the channels of each image, `x * mean + r ((s x) * (std eps)))` is, for each image
        alone, a draw with independent Gaussian weights (Flipout; Wen et al. 2018).
        """
        assert q.std is not None
        noise = draw.randn(f"{self.name}.inducing", *q.mean.shape, like=q.mean)
        N, C, P = rows.shape[0], self.in_channels, self.out_features
        signs = draw.randn(f"{self.name}.signs", N, C + P, 1, 1, like=rows).sign()
        change = self.values(signs[:, :C] * rows, q.std * noise)
        return self.values(rows, q.mean) + signs[:, C:] * change

    def extra_repr(self) -> str:
        """Sizes, for `print(layer)`."""
        g = self.geometry
        return (
            f"{self.in_channels}, {self.out_features}, kernel_size={g.kernel}, stride={g.stride}, "
            f"padding={g.padding}, bias={self.bias}"
        )


def _pair(value: Any, name: str, least: int) -> tuple[int, int]:
    """Two whole numbers from one or two."""
    pair: tuple[Any, ...] = tuple(value) if isinstance(value, tuple | list) else (value, value)
    whole = [not isinstance(v, bool) and isinstance(v, numbers.Integral) and int(v) >= least for v in pair]
    if len(pair) != 2 or not all(whole):
        words = "Write padding in numbers." if name == "padding" and isinstance(value, str) else ""
        raise ConfigurationError(
            f"{name} must be a whole number of at least {least}, or two of them; got {value!r}. {words}".strip()
        )
    return int(pair[0]), int(pair[1])
