"""A model: a network with Bayesian layers, a likelihood, and inducing inputs."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes.bound import Bound
from vibayes.data import check_count
from vibayes.describe import describe_model
from vibayes.draw import Draw, each_draw, not_positive_definite
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.inspection import LayerFunction, layer_functions
from vibayes.layers.base import Layer
from vibayes.likelihoods import Likelihood
from vibayes.modes import evaluating, uses_batch_statistics
from vibayes.passes import joint_draws, rows_at_once
from vibayes.posteriors.natural import NaturalSites, natural_targets
from vibayes.prediction import Prediction
from vibayes.predictive import predict, sample_functions
from vibayes.rotations import check_rotations
from vibayes.starts import inducing_rows, start
from vibayes.survey import Survey, ends, guess, survey, surveying
from vibayes.trainable import Batch, TrainableModel

__all__ = ["Model"]


class Model(TrainableModel):
    """A network with Bayesian layers inside, a likelihood, and global inducing inputs where layers need them.

    Args:
        network: any module whose Bayesian layers are vibayes layers.
        likelihood: the distribution of targets given the network's output.
        inducing: global inducing inputs `[M, ...]`, such as `x[:100]` or `choose_inducing(x, 100)`, in user units.
            They go through the network together with the data, and are learned. Needed where a layer has the posterior
            `GlobalInducing`, the default of layers, or `GeneralizedWishart`.
        standardize: `None`, `"inputs"`, `"targets"` or `"both"`: standardise by training statistics inside the model.
            What goes in and comes out stays in user units.

    >>> import torch, vibayes as vb
    >>> x = torch.linspace(-3, 3, 50)[:, None]
    >>> y = torch.sin(x[:, 0])
    >>> gp = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(10))
    >>> model = vb.Model(gp, vb.Gaussian(0.1), standardize="both")
    >>> history = vb.fit(model, (x, y), steps=20, progress=False)
    >>> model.predict(x).interval(0.95)[0].shape
    torch.Size([50])
    """

    _survey: Survey | None = None  # of models saved before there were surveys

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        inducing: Any = None,
        *,
        standardize: str | None = None,
    ) -> None:
        super().__init__(likelihood, standardize)
        if not isinstance(network, nn.Module):
            raise ConfigurationError(f"network must be a torch module, got {type(network).__name__}.")
        self.network = network
        layers = [(name or "network", m) for name, m in network.named_modules() if isinstance(m, Layer)]
        if not layers:
            raise ConfigurationError(
                "The network has no Bayesian layer, so there is nothing to infer. Use vibayes layers such as Linear or "
                "GP inside it, or turn it into a Bayesian one with vibayes.bayesianize(network)."
            )
        first, last = ends(self.network)
        if isinstance(first, Layer):
            self.row_shape = first.row_shape
        given: nn.Parameter | None = None
        if inducing is not None:
            self._given_inducing = inducing_rows(inducing, network, first)
            given = nn.Parameter(self._given_inducing.to(torch.get_default_dtype(), copy=True))
            self.row_shape = tuple(given.shape[1:])
        self.inducing = given
        # until rows have shown what the network does, its last module is taken for the last layer
        around = Survey(next((name for name, layer in layers if layer is last), None))
        if given is not None:
            around = survey(network, dict(layers), given) or around
        elif around.output is None:
            around = guess(network, dict(layers)) or around
        self._survey = around
        self._width = dict(layers)[around.output].out_features if around.output else None
        bound: list[Layer] = []
        try:
            for name, layer in layers:
                layer.bind(name, 0 if given is None else len(given), name == around.output)
                bound.append(layer)
            self._finish()
            if given is not None:
                self._dry_pass(given)
                self._finish()
            check_rotations(network, given, noisy=bool(around.noisy))
        except Exception:
            for layer in bound:  # a model that could not be built keeps no layers
                layer.unbind()
            raise
        # where the last layer's posterior is moved by natural gradients, the path of what it moves
        self._sites = next((path for path, m in self.named_modules() if isinstance(m, NaturalSites)), None)

    @torch.no_grad()
    def _dry_pass(self, inducing: Tensor) -> None:
        """Send the inducing inputs through once, so that layers which wait for shapes get all their parameters.

        What would fail in the first step of training, such as widths that do not fit, fails here.
        """
        places = {p.device for p in self.parameters() if p.device.type != "cpu"}
        if places:  # a network that came on a GPU takes what was made for it along
            self.to(places.pop())
        with evaluating(self.network):  # averages of BatchNorm are not for rows in user units
            self._pass(inducing[:1], Draw(n_inducing=len(inducing), jitter=self.jitter, dry=True))
        waiting = [name for name, layer in self.layers.items() if layer.waits is not None]
        if waiting:
            raise ConfigurationError(
                f"Layer {waiting[0]!r} is part of the network, but its forward does not use it. Take it out."
            )

    @property
    def layers(self) -> dict[str, Layer]:
        """The Bayesian layers by name, in the order they stand in the network."""
        return {m.name: m for m in self.network.modules() if isinstance(m, Layer) and m.name is not None}

    @property
    def n_inducing(self) -> int:
        """How many inducing inputs enter with the data."""
        return 0 if self.inducing is None else len(self.inducing)

    @property
    def output_layer(self) -> Layer | None:
        """The layer whose rows are the network's output, with nothing done to them, where there is one."""
        return self.layers.get(self._around.output or "")

    @property
    def n_targets(self) -> int | None:
        """How many targets (classes) the network has outputs for, once its width is known."""
        return None if self._width is None else self.likelihood.n_targets(self._width)

    @property
    def draws_differ(self) -> bool:
        """Whether one draw of the layers differs from the next, or all is integrated in closed form."""
        last = self.output_layer
        closed = all(m.deterministic or (m is last and m.closed_form) for m in self.layers.values())
        return not closed or self.likelihood.n_latent_noise > 0

    @property
    def exact(self) -> bool:
        """Whether nothing is left to chance: neither layers' draws nor plain modules such as Dropout, in their mode."""
        return not self.draws_differ and self.network.training not in self._around.noisy

    def _meet(self, rows: Tensor) -> None:
        """See by the first rows what the network does around its layers, where no inducing inputs have shown it."""
        if self._around.seen:
            return
        with surveying:  # once, of threads that come together: it runs modules in training mode
            if not self._around.seen:
                self._survey = survey(self.network, self.layers, rows) or self._around

    @property
    def _around(self) -> Survey:
        """What the network does around its layers, as far as it is known."""
        if self._survey is not None:
            return self._survey
        last = ends(self.network)[1]
        return Survey(last.name if isinstance(last, Layer) else None)

    # -- one draw -----------------------------------------------------------------------------------------------

    def _pass(self, x: Tensor, draw: Draw) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Send data rows through the network in one draw: mean, variance and covariance of the output rows."""
        around = self._around
        around.check_modes(self.network)
        rows = x if self.inducing is None else torch.cat([self.inducing, x])
        if around.in_place and self.inducing is None:
            rows = x.clone()
        if self.network.training in around.tied:
            rows = rows + draw.zero
        draw.n_rows = len(rows)
        with draw:
            out = self.network(rows)
        if not isinstance(out, Tensor):
            raise ShapeError(
                f"The network must return one tensor, rows [N, F]; it returned a {type(out).__name__}. Wrap it in a "
                "module that returns what the likelihood is to see."
            )
        if out.ndim != 2:
            raise ShapeError(
                f"The network must return rows [N, F]; it returned shape {list(out.shape)}. Flatten its output."
            )
        output = draw.output
        if output is not None:
            if out is not output.rows:
                raise ConfigurationError(
                    f"The network gave the rows of layer {around.output!r} as its output before, and now gives "
                    "others. Let its forward do the same in every pass, without hooks that change what it returns."
                )
            return output.mean, output.variance, output.covariance
        return out[draw.n_inducing :], None, None

    def _draws(
        self,
        function: Callable[[Draw], Any],
        n_samples: int,
        noise: Mapping[str, Tensor] | None = None,
        *,
        joint: bool = False,
        marginal: bool = True,
        coarse: bool = False,
        at_once: int | None = None,
    ) -> Any:
        """Evaluate a function of one draw for `n_samples` draws, `at_once` of them; results gain an axis of draws."""

        def one(zero: Tensor, prepared: Mapping[str, Tensor] | None) -> Any:
            draw = Draw(
                n_inducing=self.n_inducing,
                jitter=self.jitter,
                zero=zero,
                joint=joint,
                marginal=marginal,
                output=self._around.output,
                noise=prepared,
                coarse=coarse,
            )
            return function(draw)

        if n_samples > 1 and marginal and self.exact:  # draws are all the same
            n_samples = 1
        # where each draw changes averages, or draws cannot go together
        around, training = self._around, self.network.training
        apart = training in around.apart or (training and around.noisy_averages)
        return each_draw(one, self.jitter.new_zeros(n_samples), noise, apart=apart, at_once=at_once)

    # -- the bound ----------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
        *,
        scale: float | Tensor = 1.0,
        n_samples: int = 1,
        noise: Mapping[str, Tensor] | None = None,
        at_once: int | None = None,
    ) -> Bound:
        """The terms of the bound on prepared data (see `elbo` for data in user units)."""

        def terms(draw: Draw) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
            mean, variance, _ = self._pass(x, draw)
            eps = None if variance is None else self._latent_noise(mean, draw)

            def expected(mean: Tensor, variance: Tensor | None) -> Tensor:
                if variance is None:
                    each = self.likelihood.log_prob(mean, y)
                else:
                    each = self.likelihood.expected_log_prob(mean, variance, y, eps)
                return scale * (each.sum() if weights is None else (weights * each).sum())

            total = expected(mean, variance)
            targets = natural_targets(draw.output, expected)
            return total, total.new_zeros(()) + draw.log_ratio(), draw.failures, targets

        log_likelihood, log_ratio, failures, targets = self._draws(
            terms, n_samples, noise, coarse=True, at_once=at_once
        )
        named = {f"{self._sites}.{name}": target.mean(0) for name, target in targets.items()}
        return Bound(log_likelihood, log_ratio, self.log_prior(), failures, named)

    def _whole_bound(self, batch: Batch, scale: float, n_samples: int) -> Bound:
        """The terms of `elbo`; a few rows at a time, each with draws of their own, where no gradients need them all."""
        if torch.is_grad_enabled() or uses_batch_statistics(self.network):
            return super()._whole_bound(batch, scale, n_samples)
        draws = 1 if self.exact else n_samples
        size, at_once = rows_at_once(batch.x, None, draws, self.n_inducing, self.layers.values())
        parts: list[Bound] = [
            self(x, y, scale=scale, n_samples=n_samples, at_once=at_once)
            for x, y in zip(torch.split(batch.x, size), torch.split(batch.y, size), strict=True)
        ]
        log_likelihood = torch.stack([part.log_likelihood for part in parts]).sum(0)
        log_ratio = torch.stack([part.log_ratio for part in parts]).mean(0)  # each is one of the whole model
        return parts[0]._replace(log_likelihood=log_likelihood, log_ratio=log_ratio)

    def _latent_noise(self, mean: Tensor, draw: Draw) -> Tensor | None:
        K = self.likelihood.n_latent_noise
        return draw.randn("likelihood", K, *mean.shape, like=mean) if K else None

    def log_weights(self, x: Any, y: Any, n_samples: int = 100) -> Float[Tensor, " s"]:
        """Log importance weights `log p(y | f) + sum_l (log p - log q)` of joint function draws.

        The log of the mean of their exponentials estimates the log evidence from below, and tends to it with more
        draws; their mean is the bound without closed forms.
        """
        check_count(n_samples, "n_samples")
        batch = self.prepare(x, y)

        def weight(draw: Draw) -> tuple[Tensor, dict[str, Tensor]]:
            f, _, _ = self._pass(batch.x, draw)
            return self.likelihood.log_prob(f, batch.y).sum() + draw.log_ratio(), draw.failures

        weights: Tensor
        with evaluating(self.network):
            at_once = joint_draws(batch.x, self.n_inducing, self.layers.values())
            weights, failures = self._draws(weight, n_samples, joint=True, marginal=False, at_once=at_once)
        self._check_factorizations(failures)
        return weights

    # -- starting values ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def _start(self, batch: Batch) -> None:
        start(self, batch)

    # -- predictions --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(
        self, x: Any, n_samples: int = 100, batch_size: int | None = None, *, joint: bool = False
    ) -> Prediction:
        """The predictive distribution at new inputs: a mixture over draws, in user units.

        Args:
            x: inputs `[N, ...]`.
            n_samples: how many draws (one where everything is closed-form).
            batch_size: how many rows go through the network at once; chosen to bound memory when None.
            joint: draw rows jointly, so that `Prediction.covariance` exists. All rows then go through at once.
        """
        with evaluating(self.network):
            return predict(self, x, n_samples, batch_size, joint)

    def _check_factorizations(self, failures: Mapping[str, Tensor]) -> None:
        for site, info in failures.items():
            if bool((info != 0).any()):
                layer = self.layers.get(site)
                inputs = self.inducing if layer is None or not layer.posterior.local else layer.posterior.inputs
                raise not_positive_definite(site, inputs, self.dtype, self.jitter)

    def describe(self) -> str:
        """The layers with their kernels and hyperparameters, the likelihood, and sizes, as text.

        >>> import vibayes as vb
        >>> gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(5))
        >>> print(vb.Model(gp, vb.Gaussian(0.1)).describe())
        Model with 1 Bayesian layer, 43 parameters to train, float32
        network: GP 2 -> 1, posterior LocalInducing(5, form='whitened'), 42 parameters to train
          kernel: SquaredExponential, lengthscale 1; variance 1
        likelihood: Gaussian, noise 0.1
        """
        return describe_model(self)

    @torch.no_grad()
    def sample_functions(self, x: Any, n: int = 1) -> Tensor:
        """Draw `n` functions from the posterior at a set of inputs, jointly over the inputs.

        Returns:
            `[n, N]` or `[n, N, F]` function values (without observation noise), in user units for regression,
            on the latent scale (logits, log rates) otherwise.
        """
        with evaluating(self.network):
            return sample_functions(self, x, n)

    def layer_functions(
        self, x: Any, n: int = 100, *, grids: Mapping[str, Any] | None = None
    ) -> dict[str, LayerFunction]:
        """Posterior draws of what each Bayesian layer does: the uncertainty inside a composition.

        A deep model may be unsure of its output and yet sure of every layer, or the other way round; its layers'
        variances say which (thesis, App. "Understanding compositional uncertainty").

        Args:
            x: inputs `[N, ...]`, in user units.
            n: how many draws.
            grids: for chosen layers, rows `[G, D]` (images `[G, C, H, W]` for `Conv2d`) at which to take their
                functions instead of at what the layers below make of `x`: the first layer's own function, the second
                one's, and so on. They are as the layer receives its rows, in the units the model works in.

        Returns:
            For every layer by name a `LayerFunction` with `inputs`, `draws` `[n, N, P]`, `mean`, `variance`. Rows are
            drawn jointly, and all layers' values of one draw belong together. Values are in the units the model works
            in. Of layers known up to a rotation (Wishart), draws are imagined features.

        >>> import vibayes as vb
        >>> x = torch.linspace(-1, 1, 5)[:, None]
        >>> layers = [vb.GP(1, kernel=vb.SquaredExponential(1)) for _ in range(2)]
        >>> model = vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1), inducing=x)
        >>> inside = model.layer_functions(x, 20, grids={"1": torch.linspace(-2, 2, 7)[:, None]})
        >>> inside["0"].draws.shape, inside["1"].variance.shape
        (torch.Size([20, 5, 1]), torch.Size([7, 1]))
        """
        with evaluating(self.network):
            return layer_functions(self, x, n, grids)
