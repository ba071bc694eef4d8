"""A layer of Gaussian processes."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes import linalg
from vibayes.conditionals import conditional_moments, conditional_rows
from vibayes.draw import fits
from vibayes.errors import ConfigurationError, kind_of
from vibayes.kernels.base import Kernel
from vibayes.kernels.deep import check_features
from vibayes.kernels.white import White
from vibayes.layers.base import Layer
from vibayes.means import IdentityMean, LinearMean, Mean, ZeroMean
from vibayes.parameters import Positive, positive
from vibayes.posteriors.base import Gaussian, Posterior, Site
from vibayes.posteriors.global_inducing import GlobalInducing

__all__ = ["GP"]


class GP(Layer):
    r"""Independent Gaussian processes with one kernel, one per output: `f_p ~ GP(mean, kernel)`.

    With inducing values `u = L v` at the inducing inputs, `K_ii = L L^T` and `A = L^-1 K_it`, the data rows are

    `f_t | v ~ N(A^T v + mean(x_t), k(x_t, x_t) - A^T A)`,

    and with `q(v) = N(m, R R^T)` integrated out, `N(A^T m + mean(x_t), k(x_t, x_t) - A^T A + A^T R R^T A)`
    (thesis, Sec. "Variational inference for Gaussian processes").

    Args:
        out_features: the number of outputs P.
        kernel: the covariance function; a module, so one kernel given to two layers is shared.
        mean: the mean function, zero by default.
        noise: variance of white noise on the layer's values (hidden layers of a deep GP); none by default.
        posterior: the approximating family; `GlobalInducing()` by default.

    With a `DeepKernel` local inducing inputs live in its feature space. `nn.Sequential(network, GP(...))` with the
    kernel of the features is the same model, and the shorter way to write it.

    >>> import vibayes as vb
    >>> layer = GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(10))
    >>> model = vb.Model(layer, vb.Gaussian(0.1))
    >>> model.predict(torch.linspace(-1, 1, 5)[:, None]).mean.shape
    torch.Size([5])
    """

    def __init__(
        self,
        out_features: int,
        *,
        kernel: Kernel,
        mean: Mean | None = None,
        noise: float | Positive | None = None,
        posterior: Posterior | None = None,
    ) -> None:
        if not isinstance(kernel, Kernel):
            raise ConfigurationError(
                f"kernel must be a kernel such as SquaredExponential(in_features), got {kind_of(kernel)}."
            )
        super().__init__(kernel.in_features, out_features, GlobalInducing() if posterior is None else posterior)
        self.kernel = kernel
        self.inducing_features = kernel.on_features.in_features
        self.mean = ZeroMean() if mean is None else mean
        if not isinstance(self.mean, Mean):
            raise ConfigurationError(f"mean must be a mean function such as ConstantMean(), got {kind_of(mean)}.")
        self.mean.check(self.in_features, out_features)
        if self.posterior.rotates and not isinstance(self.mean, ZeroMean):
            raise ConfigurationError(
                f"A layer with a {type(self.posterior).__name__} posterior must have a zero mean: its Gram matrix is "
                "Wishart only then. Leave out mean=, or use GlobalInducing()."
            )
        if isinstance(noise, int | float) and not noise > 0:
            raise ConfigurationError(f"noise must be a positive variance, got {noise}. For none, leave it out.")
        self.white = None if noise is None else White(self.inducing_features, variance=positive(noise))

    def covariance(self, x: Float[Tensor, "n w"]) -> Float[Tensor, "n n"]:
        """Prior covariance of the layer's values at (features of) rows: the kernel plus the layer's noise."""
        K: Tensor = self.kernel.on_features(x)
        return K if self.white is None else linalg.add_to_diagonal(K, self.white.variance.value[None])

    def variance(self, x: Float[Tensor, "n w"]) -> Float[Tensor, " n"]:
        """The diagonal of `covariance`."""
        diagonal = self.kernel.on_features.diag(x)
        return diagonal if self.white is None else diagonal + self.white.diag(x)

    def offset(self, rows: Float[Tensor, "n d"]) -> Tensor:
        """The mean function, from which the posterior's values are counted."""
        return self.mean.at(rows, self.out_features)

    def inducing_rows(self, inputs: Float[Tensor, "m d"]) -> Float[Tensor, "m w"]:
        """What the kernel compares of the inputs: themselves, or a deep kernel's features of them."""
        return self.kernel.features(inputs)

    def send_through_own_modules(self, rows: Tensor) -> None:
        """Run the kernel, which may be one of a network's features, and the mean, which may be a network."""
        self.kernel(rows)
        self.mean(rows)

    def forward(self, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        """Draw the layer's values at the rows, inducing rows first."""
        draw, name = self.draw()
        if draw.placeholder is not None:
            return draw.placeholder(self, rows)
        if not fits(rows, self.in_features):
            raise self.wrong_width(rows, draw)
        posterior = self.posterior
        if rows.shape[1] != self.in_features:
            self._check_imagined(name)
        self.refuse_pieces(rows, draw)
        if draw.initializing:
            self.initialize(rows)
        features = self.kernel.features(rows)  # the rows themselves, unless the kernel is deep
        z = posterior.inputs if posterior.local else features[: draw.n_inducing]
        x = features if posterior.local else features[draw.n_inducing :]
        prior_mean = self.offset(rows)  # that of inducing rows first, where they came in

        # In float64 whatever the dtype: docs/decisions/jitter.md
        Kii = linalg.add_jitter(self.covariance(z.double()), draw.jitter)  # [M, M]
        exact = draw.factor(name, Kii, jitter=False)
        factor = exact.to(z.dtype)
        site = Site(name, factor.lower, self.out_features, Kii, factor=exact)
        q = posterior.marginal(site) if draw.marginal else None
        assert q is None or isinstance(q, Gaussian)
        v = posterior.sample(site, draw) if q is None else q.mean  # [M, P]
        if q is not None:
            draw.add(name, -linalg.gaussian_kl(q.mean, q.factor, q.log_det))
        if posterior.local and draw.n_inducing > 0 and not draw.joint and name != draw.output_layer:
            v = v if q is None else q.draw(draw.randn(f"{name}.inducing", *q.mean.shape, like=q.mean))
            return self._rows_of_one_function(v, z, x, prior_mean)

        Kit = self.kernel.on_features(z, x)  # [M, N]
        covariance = None
        if draw.joint:
            mean, covariance = self._joint_moments(exact.solve(Kit.to(Kii.dtype)).to(z.dtype), v, q, x)
            variance = covariance.diagonal(dim1=-2, dim2=-1).mT
        elif q is not None:
            mean, change = conditional_moments(Kii, exact, Kit, q.mean, q.factor)  # [N, P]
            variance = self.variance(x)[:, None] + change
        else:
            mean, loss = conditional_rows(exact, Kit, v)  # [N, P], [N]
            variance = (self.variance(x) - loss)[:, None]  # [N, 1]
        offset = prior_mean if posterior.local else prior_mean[draw.n_inducing :]
        mean = mean + offset
        # Exactly zero or slightly negative only through rounding; the floor keeps the square root differentiable.
        variance = variance.clamp_min(torch.finfo(variance.dtype).tiny)
        inducing = None if posterior.local else factor.multiply(v) + prior_mean[: draw.n_inducing]
        out = draw.gaussian_rows(name, mean, variance, covariance, inducing)
        if posterior.rotates:
            draw.rotated.append(out)
        if posterior.sites is not None and draw.output is not None and torch.is_grad_enabled():
            with torch.no_grad():
                projection = exact.solve_transposed(exact.solve(Kit.to(Kii.dtype)))  # K^-1 Kit  [M, N]
            first = draw.n_inducing if posterior.local else 0  # inducing rows that went through like data
            draw.output = replace(draw.output, projection=projection[:, first:], offset=offset[first:])
        return out

    def _joint_moments(
        self, A: Float[Tensor, "m n"], v: Float[Tensor, "m p"], q: Gaussian | None, x: Float[Tensor, "n w"]
    ) -> tuple[Float[Tensor, "n p"], Float[Tensor, "q n n"]]:
        """Mean and covariance of data rows, counted from the mean function, given `v` or under `q(v)`."""
        covariance = (self.covariance(x) - A.mT @ A)[None]  # [1, N, N]
        if q is not None:
            C = q.factor.mT @ A  # R^T A  [P, M, N]
            covariance = covariance + C.mT @ C  # [P, N, N]
        return A.mT @ v, covariance

    def _check_imagined(self, name: str) -> None:
        """Refuse what takes more of imagined features, however many they are, than their inner products."""
        what = ""
        if self.posterior.local:
            what, instead = "inducing inputs of its own", "GlobalInducing()"
        elif isinstance(self.mean, IdentityMean | LinearMean):
            what, instead = f"the mean {type(self.mean).__name__}", "a zero or constant mean"
        if what:
            raise ConfigurationError(
                f"Layer {name!r} has {what}, but its rows are imagined features of an InverseWishartProcess, of which "
                f"only inner products have a meaning. Use {instead} there."
            )

    def _rows_of_one_function(self, v: Tensor, z: Tensor, x: Tensor, prior_mean: Tensor) -> Tensor:
        """Values of a layer with inducing inputs of its own at global inducing rows, jointly, and at data rows.

        Layers behind look at the inducing rows and a data row together, so these must be values of one function.
        `u = L v` at the layer's own inputs `z` goes on to the inducing rows as the prior has it: with `L` the factor of
        the covariance of both, all of it is `L [v, w]`, `w ~ N(0, I)`. Data rows are then independent given it.
        """
        draw, name = self.draw()
        M = draw.n_inducing
        both = torch.cat([z, x[:M]])
        K = linalg.add_jitter(self.covariance(both.double()), draw.jitter)
        factor = draw.factor(name, K, jitter=False)
        w = draw.randn(f"{name}.between", M, self.out_features, like=v)
        v = torch.cat([v, w])
        mean, loss = conditional_rows(factor, self.kernel.on_features(both, x[M:]), v)  # [N, P], [N]
        variance = (self.variance(x[M:]) - loss)[:, None].clamp_min(torch.finfo(loss.dtype).tiny)
        inducing = factor.to(v.dtype).multiply(v)[len(z) :] + prior_mean[:M]
        return draw.gaussian_rows(name, mean + prior_mean[M:], variance, None, inducing)

    def initialize(self, rows: Tensor) -> None:
        """Set data-dependent starts of the posterior and the mean function from the rows that come in."""
        features = self.kernel.features(rows)
        if self.kernel.on_features is not self.kernel:
            check_features(features, f"the deep kernel of layer {self.name!r}", rows)
        super().initialize(features)
        self.mean.initialize(rows)

    def extra_repr(self) -> str:
        """Widths, for `print(layer)`."""
        return f"in_features={self.in_features}, out_features={self.out_features}"
