"""vibayes models in BoTorch: acquisition functions of deep models through joint draws of the function.

Needs BoTorch: `pip install "vibayes[botorch]"`.
"""

import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vibayes import linalg
from vibayes.conjugate.base import ConjugateModel
from vibayes.data import check_count
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, NotPositiveDefiniteError
from vibayes.likelihoods import Gaussian
from vibayes.model import Model
from vibayes.trainable import TrainableModel

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what BoTorch itself imports
        from botorch.models.model import Model as _BoTorchModel
        from botorch.posteriors.ensemble import EnsemblePosterior
        from botorch.posteriors.gpytorch import GPyTorchPosterior
        from botorch.sampling.base import MCSampler
        from botorch.sampling.get_sampler import GetSampler
        from gpytorch.distributions import MultivariateNormal
except ImportError as error:  # pragma: no cover
    raise ConfigurationError('vibayes.botorch needs BoTorch: pip install "vibayes[botorch]".') from error

__all__ = ["BoTorchModel", "DrawSampler", "FunctionDraws"]

# Added to the variances of rows that are drawn jointly, in the model's units: acquisition functions are differentiated,
# and the root of a singular covariance has no gradient.
_FLOOR = 1e-7
_RELATIVE = 1e-5
# A closed-form posterior that needs so many times ten as much is given up.
_TENFOLD = 5
_NOT_DEFINITE = (
    "A joint covariance of the q points could not be factorised. Use fewer points at once, points that are further "
    "apart, or float64: model.double()."
)


class _SmoothDraw(Draw):
    """A draw whose joint rows can be differentiated with respect to the inputs."""

    def joint_root(self, covariance: Tensor) -> Tensor:
        """The Cholesky factor, after adding a little to the diagonal."""
        eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
        scale = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None].clamp_min(0.0)
        return linalg.cholesky(covariance + (_FLOOR + _RELATIVE * scale) * eye)[0]


def _definite(covariance: Tensor, floor: Tensor) -> Tensor:
    """Covariances `[..., q, q]` with as much added to their diagonals as a factorization takes, constant in the inputs.

    A closed-form posterior covariance is a small difference of large ones. Where a GP has found much variance and
    hardly any noise, as of a function that is computed and not measured, rounding alone exceeds the floor.

    Args:
        covariance: the covariances.
        floor: what is added at least, `[...]`; each covariance for which it is too little gets ten times as much, and
            so on.
    """
    eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    extra = floor.expand(covariance.shape[:-2])[..., None, None]
    for _ in range(_TENFOLD + 1):
        failed = torch.linalg.cholesky_ex(covariance.detach() + extra * eye).info > 0
        if not bool(failed.any()):
            return covariance + extra * eye
        extra = torch.where(failed[..., None, None], 10.0 * extra, extra)
    raise NotPositiveDefiniteError(_NOT_DEFINITE)


class FunctionDraws(EnsemblePosterior):
    """Joint draws of the function at q points, `values` `[..., S, q, m]`."""


class DrawSampler(MCSampler):
    """Takes the draws of a `FunctionDraws` in their order (over again where more samples are wanted).

    BoTorch's own sampler for ensembles draws members at random, others for every point of a batch: a candidate's value
    would depend on its place in the batch.
    """

    def forward(self, posterior: Any) -> Tensor:
        """Samples `sample_shape x ... x q x m`."""
        values: Tensor = posterior.values.movedim(-3, 0)  # [S, ..., q, m]
        chosen = torch.arange(self.sample_shape.numel(), device=values.device) % len(values)
        return values[chosen].reshape(*self.sample_shape, *values.shape[1:])

    def _update_base_samples(self, posterior: Any, base_sampler: Any) -> None:
        """There are none."""


@GetSampler.register(FunctionDraws)  # type: ignore[untyped-decorator]
def _draw_sampler(posterior: FunctionDraws, sample_shape: torch.Size, *, seed: int | None = None) -> DrawSampler:
    return DrawSampler(sample_shape=sample_shape, seed=seed)


class BoTorchModel(_BoTorchModel):
    """A trained vibayes regression model as a BoTorch `Model`.

    `ExactGP` and `SGPR` have a Gaussian posterior in closed form, with which every acquisition function works. Any
    other `Model` (deep GP, deep Wishart process, Bayesian neural network, ...) has a `FunctionDraws` posterior of
    `n_draws` joint draws of the function, for Monte Carlo acquisition functions (`qLogExpectedImprovement`) and for
    Thompson sampling. The draws' noise is fixed by `seed`: the same functions are seen wherever and however often they
    are evaluated, except for what the inducing points leave open, so that acquisition functions are deterministic and
    can be optimized with gradients.

    Inputs and outputs are in user units, and all maximised as BoTorch does: negate what is to be minimised. To add
    observations, train a model on them anew.

    Args:
        model: a trained model with real targets.
        n_draws: how many draws of the function a posterior holds.
        seed: of the draws.

    >>> import torch, vibayes as vb
    >>> from botorch.acquisition import qLogExpectedImprovement
    >>> x = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None]
    >>> gp = vb.ExactGP(vb.Matern52(1, lengthscale=0.2), vb.Gaussian(0.01)).double()
    >>> gp.condition(x, torch.sin(6 * x[:, 0]))
    >>> acquisition = qLogExpectedImprovement(BoTorchModel(gp), best_f=0.9)
    >>> acquisition(x[:2, None, :]).shape
    torch.Size([2])
    """

    def __init__(self, model: TrainableModel, *, n_draws: int = 128, seed: int = 0) -> None:
        super().__init__()
        if not isinstance(model, TrainableModel) or model.likelihood.kind != "regression":
            what = getattr(getattr(model, "likelihood", model), "__class__", type(model)).__name__
            raise ConfigurationError(
                f"BoTorchModel takes a trained vibayes model with real targets (Gaussian, StudentT); got {what}."
            )
        model._check_units()
        self.model = model.eval()
        self.n_draws = check_count(n_draws, "n_draws")
        self.seed = seed
        self._chosen: list[int] | None = None

    @property
    def num_outputs(self) -> int:
        """How many targets the posterior has."""
        return self._n_targets if self._chosen is None else len(self._chosen)

    @property
    def _n_targets(self) -> int:
        """How many targets the model has."""
        if isinstance(self.model, ConjugateModel):
            return self.model._observed().y.shape[1]
        return self.model.n_targets or 1

    def subset_output(self, idcs: list[int]) -> "BoTorchModel":
        """The same model, with these of its targets only.

        Args:
            idcs: their numbers, negative ones from the end.
        """
        subset = BoTorchModel(self.model, n_draws=self.n_draws, seed=self.seed)
        subset._chosen = self._targets(idcs)
        return subset

    def _targets(self, indices: Sequence[int] | None) -> list[int]:
        """The model's targets that are meant by numbers among those of the posterior; all when None."""
        n, own = self.num_outputs, self._chosen or list(range(self._n_targets))
        if indices is None:
            return own
        if len(indices) == 0 or not all(-n <= i < n for i in indices):
            raise ConfigurationError(f"Targets are numbered 0 to {n - 1}; got {list(indices)}.")
        return [own[i] for i in indices]

    @property
    def batch_shape(self) -> torch.Size:
        """One model: no batch."""
        return torch.Size()

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """The joint posterior of q points: `X` is `[..., q, D]`.

        Args:
            X: inputs in user units.
            output_indices: which targets; all when None.
            observation_noise: whether to add the likelihood's noise.
            posterior_transform: applied to the posterior, as BoTorch does.
            **kwargs: what other models take; nothing here.
        """
        if not isinstance(observation_noise, bool):
            raise ConfigurationError("observation_noise must be True or False: the model has learned its own noise.")
        if kwargs:
            raise ConfigurationError(f"BoTorchModel.posterior does not take {', '.join(kwargs)}.")
        X = X.to(self.model.device, self.model.dtype)
        if self.model.row_shape is not None and tuple(X.shape[-1:]) != self.model.row_shape:
            raise ConfigurationError(
                f"X must have {self.model.row_shape[0]} columns, as in training; got shape {list(X.shape)}."
            )
        chosen = self._targets(output_indices)
        posterior: Any
        if isinstance(self.model, ConjugateModel) and len(chosen) == 1:
            posterior = self._gaussian(X, chosen[0], observation_noise)
        else:
            values = self._functions(X)[..., chosen]  # [..., S, q, m]
            if observation_noise:
                noise = self._noise_variance().expand(self._n_targets)[chosen]
                values = values + noise.sqrt() * self._noise("observation", values.shape[-3:])
            posterior = FunctionDraws(values)
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def _noise_variance(self) -> Tensor:
        """Of the targets in user units, `[P]` or `[1]`."""
        likelihood, units = self.model.likelihood, self.model.units
        if type(likelihood) is not Gaussian:
            raise ConfigurationError(f"observation_noise=True needs Gaussian noise, got {type(likelihood).__name__}.")
        variance = likelihood.noise.value.detach().reshape(-1)
        return variance * units.y_scale.to(variance.dtype).square().reshape(-1) if units.of_targets else variance

    def _gaussian(self, X: Tensor, output: int, noisy: bool) -> Any:
        """The exact posterior of one target."""
        assert isinstance(self.model, ConjugateModel)
        units, batch, q = self.model.units, X.shape[:-2], X.shape[-2]
        moments = self.model._posterior()
        scale = units.y_scale.reshape(-1)[output] if units.of_targets else X.new_ones(())
        means, covariances = [], []
        for rows in X.reshape(-1, q, X.shape[-1]):  # factorizations are the data's, and done once
            mean, _, covariance = moments(units.inputs(rows), True)
            assert covariance is not None
            means.append(units.outputs(mean)[:, output])
            covariances.append(covariance[output])
        mean = torch.stack(means).reshape(*batch, q)
        covariance = torch.stack(covariances).reshape(*batch, q, q)
        covariance = _definite(covariance, covariance.new_tensor(_FLOOR)) * scale.square()
        if noisy:
            noise = self._noise_variance().expand(self._n_targets)[output]
            covariance = covariance + noise * torch.eye(q, dtype=X.dtype, device=X.device)
        return GPyTorchPosterior(MultivariateNormal(mean, covariance))

    def _noise(self, site: str, shape: tuple[int, ...]) -> Tensor:
        """Noise of a site, the same in every call: by the site's name and the seed."""
        generator = torch.Generator().manual_seed(zlib.crc32(site.encode()) + 1_000_003 * self.seed)
        model = self.model
        return torch.randn(shape, generator=generator, dtype=model.dtype).to(model.device)

    def _functions(self, X: Tensor) -> Tensor:
        """Joint draws of the function `[..., S, q, P]` in user units, differentiable with respect to `X`."""
        model, S = self.model, self.n_draws
        sets = model.units.inputs(X.reshape(-1, *X.shape[-2:]))  # [B, q, D]
        if isinstance(model, ConjugateModel):
            drawn = torch.stack([self._conjugate_draws(model, rows) for rows in sets])
        else:
            assert isinstance(model, Model)
            drawn = self._network_draws(model, sets)
        if not bool(torch.isfinite(drawn.detach()).all()):
            raise NotPositiveDefiniteError(_NOT_DEFINITE)
        values = model.units.outputs(drawn[..., : self._n_targets])
        return values.reshape(*X.shape[:-2], S, X.shape[-2], -1)

    def _conjugate_draws(self, model: ConjugateModel, rows: Tensor) -> Tensor:
        mean, _, covariance = model._posterior()(rows, True)
        assert covariance is not None
        scale = covariance.detach().diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(0.0)
        root = torch.linalg.cholesky(_definite(covariance, _FLOOR + _RELATIVE * scale))  # [P, q, q]
        noise = self._noise("rows", (self.n_draws, *mean.shape))
        return mean + torch.einsum("pij,sjp->sip", root, noise)

    def _network_draws(self, model: Model, sets: Tensor) -> Tensor:
        M = model.n_inducing
        dry = _SmoothDraw(n_inducing=M, jitter=model.jitter, joint=True, marginal=False, dry=True)
        with torch.no_grad():
            model._pass(sets[0], dry)
        noise = {site: self._noise(site, (self.n_draws, *shape)) for site, shape in dry.requests.items()}
        zeros = model.jitter.new_zeros(self.n_draws)

        def one(zero: Tensor, prepared: dict[str, Tensor], rows: Tensor) -> Tensor:
            draw = _SmoothDraw(n_inducing=M, jitter=model.jitter, zero=zero, joint=True, marginal=False, noise=prepared)
            return model._pass(rows, draw)[0]

        draws = torch.func.vmap(one, in_dims=(0, 0, None))
        drawn: Tensor = torch.func.vmap(lambda rows: draws(zeros, noise, rows))(sets)
        return drawn
