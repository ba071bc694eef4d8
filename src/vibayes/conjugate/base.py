"""What closed-form models share: the data they condition on, and Gaussian predictions."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import linalg
from vibayes.bound import Bound
from vibayes.data import as_tensor, check_count
from vibayes.describe import describe_closed_form
from vibayes.errors import ConfigurationError, DataError, NotFittedError, NotPositiveDefiniteError, ShapeError
from vibayes.kernels.base import Kernel
from vibayes.likelihoods import Gaussian, Likelihood
from vibayes.modes import evaluating, keeping_averages
from vibayes.posteriors.base import Gaussian as Whitened
from vibayes.prediction import Prediction
from vibayes.trainable import Batch, TrainableModel

__all__ = ["ConjugateModel", "Moments", "Observations", "compared", "counted_rows", "optimal_gaussian", "project"]

# Mean [N, P], variance [N, P], and covariance [P, N, N] where rows are predicted jointly.
Moment3 = tuple[Tensor, Tensor, Tensor | None]
Moments = Callable[[Tensor, bool], Moment3]

# How many rows `predict` takes at once, so that its memory stays bounded.
_ROWS_PER_PASS = 10_000

# Up to how many rows are repeated by their weights for starting values.
_REPEATED_ROWS = 20_000


class Observations(nn.Module):
    """The training rows a model conditions on, as buffers, so that they are saved with it.

    Attributes:
        x: `[N, D]` in the model's units.
        y: `[N, P]` in the model's units.
        weights: `[N]`.
    """

    x: Tensor
    y: Tensor
    weights: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("x", torch.empty(0, 0))
        self.register_buffer("y", torch.empty(0, 0))
        self.register_buffer("weights", torch.empty(0))

    def store(self, batch: Batch) -> None:
        """Replace what is stored."""
        self.x, self.y = batch.x.detach().clone(), batch.y.detach().clone()
        ones = torch.ones(len(batch.x), dtype=batch.x.dtype, device=batch.x.device)
        self.weights = ones if batch.weights is None else batch.weights.detach().clone()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Empty until data was seen; take the stored shapes.
        for name in ("x", "y", "weights"):
            if prefix + name in state_dict:
                current: Tensor = getattr(self, name)
                if current.shape != state_dict[prefix + name].shape:
                    setattr(self, name, current.new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *args)


class ConjugateModel(TrainableModel):
    """A model with Gaussian noise whose bound (or evidence) and predictions are closed-form.

    A row of weight `w` counts as `w` observations with the same input and target: the log likelihood of the
    row is multiplied by `w`. A weight of zero drops the row.
    """

    optimizer = "lbfgs"
    likelihood: Gaussian
    target_axes: Tensor

    def __init__(self, likelihood: Likelihood, standardize: str | None = None) -> None:
        if type(likelihood) is not Gaussian:
            raise ConfigurationError(
                f"{type(self).__name__} is closed-form for the Gaussian likelihood only, got "
                f"{type(likelihood).__name__}. For other likelihoods use "
                "Model(GP(1, kernel=..., posterior=LocalInducing(100)), likelihood)."
            )
        super().__init__(likelihood, standardize)
        self.observations = Observations()

    # -- to be filled in ---------------------------------------------------------------------------------

    @abstractmethod
    def _terms(
        self, x: Tensor, y: Tensor, weights: Tensor | None, scale: float | Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Expected log likelihood, log ratio (`-KL`), and the factorizations that failed."""

    @abstractmethod
    def _posterior(self) -> Moments:
        """A function from rows, and whether they are wanted jointly, to moments of the latent function."""

    def _begin(self, batch: Batch) -> None:
        """Set data-dependent starting values; by default there are none."""
        return

    def _infer(self, batch: Batch) -> None:
        """Put the posterior at its optimum, where it has parameters of its own and is not inferred by predictions."""
        return

    def _check_targets(self, n: int) -> None:
        """Refuse a number of targets that the model is not built for."""
        self.likelihood.n_targets(n)

    # -- the bound ---------------------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
        *,
        scale: float | Tensor = 1.0,
        n_samples: int = 1,
        noise: Mapping[str, Tensor] | None = None,
    ) -> Bound:
        """The terms of the bound on prepared data; one entry, since there is nothing to draw."""
        self._check_targets(y.shape[1])
        log_likelihood, log_ratio, failures = self._terms(x, y, weights, scale)
        extra = self._beside_evidence(x, y, weights)
        return Bound(log_likelihood[None], log_ratio[None], self.log_prior() + extra, failures, {})

    def _beside_evidence(self, x: Tensor, y: Tensor, weights: Tensor | None) -> float | Tensor:
        """What the objective of training contains besides the evidence and the priors; nothing by default."""
        return 0.0

    def _needs_all_rows(self, scale: float | Tensor) -> float | Tensor:
        """Refuse minibatches; a tensor cannot be looked at inside `vmap`, so a wrong one gives NaN."""
        if isinstance(scale, Tensor):
            return torch.where(scale == 1.0, 0.0, torch.nan)
        if scale != 1.0:
            raise ConfigurationError(
                f"{type(self).__name__} needs all data rows at once, got a minibatch (n_data / rows = "
                f"{scale:g}). Use the full batch; for minibatches there is "
                "Model(GP(1, kernel=..., posterior=LocalInducing(100)), likelihood)."
            )
        return 0.0

    def _expected_log_likelihood(self, mean: Tensor, variance: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        rows = self.likelihood.expected_log_prob(mean, variance.expand_as(mean), y)  # [N]
        return rows.sum() if weights is None else (weights * rows).sum()

    @property
    def _noise(self) -> Float[Tensor, " q"]:
        """Noise variance, one that all outputs share or one per output."""
        return self.likelihood.noise.value.reshape(-1)

    # -- data --------------------------------------------------------------------------------------------

    def prepare(self, x: Any, y: Any, weights: Any = None) -> Batch:
        """Training data checked, cast and in the model's units, with a number of targets that the model has."""
        targets, known = as_tensor(y, "y"), self.units.y_scale.numel()
        n = targets.shape[1] if targets.ndim == 2 else 1
        if self.units.of_targets and bool(self.ready) and n != known:
            raise ShapeError(
                f"The model standardises {known} target(s), as it was initialised with; got {n}. Pass the same "
                "targets, or call model.initialize(x, y) to start over."
            )
        batch = super().prepare(x, y, weights)
        self._check_targets(n)
        return batch

    def _start(self, batch: Batch) -> None:
        self._check_targets(batch.y.shape[1])
        with keeping_averages(self):
            self._begin(batch)
        self.observe(batch)  # last, so that data that are refused leave no trace

    def observe(self, batch: Batch) -> None:
        """Keep the data that predictions condition on."""
        self.observations.store(batch)

    def condition(self, x: Any, y: Any, weights: Any = None) -> None:
        """Store the data that predictions condition on; hyperparameters and units stay as they are.

        The first call also initializes the model, as `fit` does.
        """
        if not bool(self.ready):
            self.initialize(x, y, weights)
        batch = self.prepare(x, y, weights)
        if batch.weights is not None and not bool((batch.weights > 0).any()):
            raise DataError("Every weight is zero; at least one row must count.")
        with torch.no_grad(), evaluating(self):
            self._infer(batch)
        self.target_axes.fill_(2 if as_tensor(y, "y").ndim == 2 else 1)
        self.observations.store(batch)

    def describe(self) -> str:
        """The kernel or features with their hyperparameters, the likelihood, and sizes, as text.

        >>> import vibayes as vb
        >>> print(vb.ExactGP(vb.SquaredExponential(2) + vb.LinearKernel(2), vb.Gaussian(0.1)).describe())
        ExactGP, 4 parameters to train, float32
        kernel: Sum of (SquaredExponential, lengthscale 1; variance 1) and (LinearKernel, variance 1)
        likelihood: Gaussian, noise 0.1
        """
        return describe_closed_form(self)

    def _observed(self) -> Batch:
        """The stored data, or an error when there are none."""
        if len(self.observations.x) == 0:
            raise NotFittedError(
                f"{type(self).__name__} has no training data to condition on. "
                "Call fit(model, (x, y)), or model.condition(x, y) to keep the hyperparameters as they are."
            )
        return Batch(self.observations.x, self.observations.y, self.observations.weights)

    def _check_factorization(self, info: Tensor, matrix: str, size: int, remedy: str) -> None:
        if bool((info != 0).any()):
            noise = ", ".join(f"{v:.3g}" for v in self._noise.tolist())
            raise NotPositiveDefiniteError(
                f"The {matrix} of {type(self).__name__} ([{size}, {size}], {self.dtype}, noise variance "
                f"{noise}) is not positive definite to rounding. {remedy}"
            )

    # -- predictions -------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, x: Any, n_samples: int = 1, batch_size: int | None = None, *, joint: bool = False) -> Prediction:
        """The predictive distribution at new inputs, in user units.

        Args:
            x: inputs `[N, D]`.
            n_samples: taken so that every model is called alike; nothing is sampled here.
            batch_size: how many rows are predicted at once; chosen to bound memory when None.
            joint: all rows at once, so that `Prediction.covariance` exists.
        """
        if batch_size is not None:
            check_count(batch_size, "batch_size")
        rows = self.prepare_inputs(x)
        size = len(rows) if joint else batch_size or _ROWS_PER_PASS
        with evaluating(self):
            moments = self._posterior()
            parts = [self._predict_rows(moments, part, joint) for part in torch.split(rows, size)]
        return parts[0] if len(parts) == 1 else Prediction.concatenate(parts)

    def _predict_rows(self, moments: Moments, rows: Tensor, joint: bool) -> Prediction:
        mean, variance, covariance = moments(rows, joint)
        return self._prediction(self.likelihood.predictive(mean[None], variance[None]), covariance)

    @torch.no_grad()
    def sample_functions(self, x: Any, n: int = 1) -> Tensor:
        """Draw `n` functions from the posterior at a set of inputs, jointly over the inputs.

        Returns:
            `[n, N]` or `[n, N, P]` function values (without observation noise) in user units.
        """
        check_count(n, "n")
        with evaluating(self):
            drawn = self.units.outputs(self._draw(self.prepare_inputs(x), n))
        return drawn[..., 0] if self._squeezes(drawn.shape[-1]) else drawn

    def _draw(self, rows: Tensor, n: int) -> Float[Tensor, "n rows p"]:
        mean, _, covariance = self._posterior()(rows, True)
        assert covariance is not None
        # A posterior covariance is singular to rounding where rows are close. Its symmetric root needs no
        # jitter; eigenvalues below zero are rounding.
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp_min(0.0).sqrt()[..., None, :]  # [P, N, N]
        noise = torch.randn(n, *mean.shape, dtype=mean.dtype, device=mean.device)
        return mean + torch.einsum("pij,sjp->sip", root, noise)


def compared(kernel: Kernel, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
    """What a kernel compares of rows, in float64 where `kernel.on_features` takes that with parameters of float32."""
    features = kernel.features(rows)
    return features if kernel.on_features.needs_one_dtype else features.double()


def optimal_gaussian(
    A: Float[Tensor, "m n"],
    residual: Float[Tensor, "n p"],
    noise: Float[Tensor, " q"],
    weights: Float[Tensor, " n"] | None = None,
) -> tuple[Whitened, Tensor]:
    r"""The best Gaussian over `v ~ N(0, I)` given `residual = A^T v + noise`, per output, and what failed.

    `N(B^-1 A y / noise, B^-1)` with `B = I + A A^T / noise`; its factor is lower triangular. Where `B` cannot be
    factorised all of it is NaN, and the second value is not zero.
    """
    # In float64 whatever the dtype: where A A^T is large against the noise, rounding in float32 eats the I.
    root, y = A.double(), residual.double()
    if weights is not None:  # W^1/2 enters each side once
        root, y = root * weights.sqrt(), y * weights.sqrt()[:, None]
    eye = torch.eye(A.shape[0], dtype=root.dtype, device=A.device)
    B = eye + (root @ root.mT) / noise[:, None, None]  # [Q, M, M]
    # B >= I needs no jitter. Cholesky in reversed order gives B = U U^T with U upper triangular, so that
    # B^-1 = R R^T with R = U^-T lower triangular: the form in which LocalInducing holds its factor.
    reversed_factor, info = linalg.cholesky(B.flip(-1, -2))
    R = torch.linalg.solve_triangular(reversed_factor.mT, eye, upper=True).flip(-1, -2)  # [Q, M, M]
    b = ((root @ y) / noise).mT[..., None]  # [P, M, 1]
    mean = (R @ (R.mT @ b))[..., 0].mT  # [M, P]
    log_det = 2.0 * R.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # [Q]
    return Whitened(mean.to(A.dtype), R.to(A.dtype), log_det.to(A.dtype)), info.sum()


def counted_rows(batch: Batch) -> Float[Tensor, "n d"]:
    """The input rows that starting values look at: those that count, as often as they do.

    Where weights are no whole numbers, or repeated rows would be many, each row that counts comes once.
    """
    if batch.weights is None:
        return batch.x
    counts = batch.weights.long()
    if bool((counts == batch.weights).all()) and int(counts.sum()) <= _REPEATED_ROWS:
        return batch.x.repeat_interleave(counts, 0)
    return batch.x[batch.weights > 0]


def project(A: Float[Tensor, "m n"], q: Whitened, prior: Tensor | None, joint: bool) -> Moment3:
    """Moments of `A^T v` under `q(v)`, plus what of the prior (co)variance `A` does not explain.

    `prior` is the variance `[N]` of the rows, or their covariance `[N, N]` when `joint`; None when `A`
    explains all.
    """
    mean = A.mT @ q.mean  # [N, P]
    C = q.factor.mT @ A  # R^T A  [Q, M, N]
    if joint:
        covariance = C.mT @ C  # [Q, N, N]
        if prior is not None:
            covariance = covariance + (prior - A.mT @ A)
        covariance = covariance.expand(mean.shape[1], -1, -1)
        return mean, positive_variance(covariance.diagonal(dim1=-2, dim2=-1).mT), covariance
    variance = C.square().sum(-2).mT  # [N, Q]
    if prior is not None:
        variance = variance + (prior - A.square().sum(0))[:, None]
    return mean, positive_variance(variance).expand_as(mean), None


def positive_variance(variance: Tensor) -> Tensor:
    """A variance that is zero, or negative by rounding, put at the smallest positive number."""
    return variance.clamp_min(torch.finfo(variance.dtype).tiny)
