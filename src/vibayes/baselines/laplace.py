"""A Laplace approximation of the last layer of a trained network."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.data import check_count
from vibayes.diagnostics.prior import seen_by_kernel
from vibayes.errors import ConfigurationError
from vibayes.layers.linear import Linear
from vibayes.layers.weights import with_ones
from vibayes.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from vibayes.model import Model
from vibayes.posteriors.point import Point
from vibayes.prediction import Prediction

__all__ = ["LastLayerLaplace"]

_ROWS = 2000  # rows whose curvature is summed at once


class LastLayerLaplace:
    r"""A Gaussian around the trained weights of the last layer, `N(W, (H + tau I)^-1)`.

    MacKay 1992; Daxberger et al. 2021, whose package laplace-torch gives the same numbers where it can be installed.
    `H = sum_n (-d^2 log p(y_n | f_n) / df^2) (x) h_n h_n^T` is the curvature of the log likelihood in the last layer's
    weights, exact for these likelihoods, since the layer is linear in them; `h_n` are the features with the bias's one.
    The prior precision `tau` maximises the Laplace evidence (MacKay's fixed point) unless it is given. Predictions
    propagate the Gaussian to the outputs; the features stay as they are, so uncertainty grows only along directions
    that they see.

    Args:
        model: trained; its network ends in `Linear(..., posterior=Point())` and has no other random layer. Likelihood
            `Gaussian`, `Bernoulli`, `Categorical` or `Poisson`.
        data: `(x, y)` or `(x, y, weights)`, its training data, in user units.
        prior_precision: `tau`; chosen by the evidence when None.

    >>> import vibayes as vb
    >>> x = torch.linspace(-1, 1, 20)[:, None]
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), vb.Linear(8, 1, posterior=vb.Point()))
    >>> model = vb.Model(net, vb.Gaussian(0.1))
    >>> _ = vb.fit(model, (x, x[:, 0]), steps=10, progress=False)
    >>> LastLayerLaplace(model, (x, x[:, 0])).predict(x).epistemic.shape
    torch.Size([20])
    """

    @torch.no_grad()
    def __init__(self, model: Model, data: tuple[Any, Any], prior_precision: float | None = None) -> None:
        if not isinstance(model, Model):
            raise ConfigurationError(f"LastLayerLaplace takes a trained Model, got {type(model).__name__}.")
        if not isinstance(data, tuple | list) or len(data) not in (2, 3):
            raise ConfigurationError(f"data must be (x, y) or (x, y, weights), got {type(data).__name__}.")
        layers = list(model.layers.values())
        last = layers[-1] if layers else None
        if not isinstance(last, Linear) or not isinstance(last.posterior, Point) or model.output_layer is not last:
            raise ConfigurationError(
                "A last-layer Laplace approximation needs a network that ends in Linear(..., posterior=Point())."
            )
        if any(not layer.deterministic for layer in layers):
            raise ConfigurationError("The network has other random layers; Laplace needs one value of every weight.")
        if type(model.likelihood) not in (Gaussian, Bernoulli, Categorical, Poisson):
            raise ConfigurationError(
                f"LastLayerLaplace is for Gaussian, Bernoulli, Categorical and Poisson likelihoods, not "
                f"{type(model.likelihood).__name__}."
            )
        if prior_precision is not None and not 0 < prior_precision < math.inf:
            raise ConfigurationError(f"prior_precision must be positive and finite, got {prior_precision}.")
        self.model, self.layer = model, last
        self.weight: Tensor = last.posterior.weight.detach().clone()  # [K, P]
        batch = model.prepare(*data)
        h = self._features(batch.x)
        H = self._curvature(h, batch.y, batch.weights)
        values, vectors = torch.linalg.eigh(H)
        values = values.clamp_min(0.0)  # of a sum of positive semidefinite matrices; below zero by rounding only
        square = float(self.weight.square().sum())
        self.prior_precision = prior_precision if prior_precision is not None else _fixed_point(values, square)
        root = vectors * (values + self.prior_precision).rsqrt()
        self.factor: Tensor = root  # covariance = factor factor^T  [P K, P K]
        f = h @ self.weight
        self.log_evidence = (
            float((model.likelihood.log_prob(f, batch.y) * (1.0 if batch.weights is None else batch.weights)).sum())
            - 0.5 * self.prior_precision * square
            + 0.5 * len(values) * math.log(self.prior_precision)
            - 0.5 * float((values + self.prior_precision).log().sum())
        )

    def _features(self, rows: Tensor) -> Float[Tensor, "n k"]:
        return with_ones(seen_by_kernel(self.model, rows)[0], self.layer.bias)

    def _curvature(self, h: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """`H` `[P K, P K]`, outputs first."""
        K, P = self.weight.shape
        total = h.new_zeros(P, K, P, K)
        likelihood = self.model.likelihood
        count = h.new_ones(len(h)) if weights is None else weights

        def loss(f: Tensor, target: Tensor) -> Tensor:
            return -likelihood._log_prob(f[None], target[None]).sum()

        second = torch.func.vmap(torch.func.jacrev(torch.func.jacrev(loss)))
        for hs, ys, ws in zip(*(torch.split(t, _ROWS) for t in (h, y, count)), strict=True):
            B = second(hs @ self.weight, ys)  # [n, P, P]
            total += torch.einsum("n,npq,nk,nl->pkql", ws, B, hs, hs)
        return total.reshape(P * K, P * K)

    @torch.no_grad()
    def predict(self, x: Any, n_samples: int = 100, batch_size: int | None = None) -> Prediction:
        """The predictive distribution at new inputs, in user units.

        Args:
            x: inputs.
            n_samples: draws of the logits, for classes; other likelihoods integrate the Gaussian.
            batch_size: rows at once.
        """
        check_count(n_samples, "n_samples")
        if batch_size is not None:
            check_count(batch_size, "batch_size")
        rows = self.model.prepare_inputs(x)
        noise = torch.randn(n_samples, self.weight.numel(), dtype=rows.dtype, device=rows.device)
        parts = [self._predict_rows(part, noise) for part in torch.split(rows, batch_size or _ROWS)]
        return parts[0] if len(parts) == 1 else Prediction.concatenate(parts)

    def _predict_rows(self, rows: Tensor, noise: Tensor) -> Prediction:
        h = self._features(rows)
        K, P = self.weight.shape
        if isinstance(self.model.likelihood, Categorical):
            shift = (noise @ self.factor.mT).reshape(-1, P, K)  # draws of the weights, around the trained ones
            draws = h @ self.weight + torch.einsum("nk,spk->snp", h, shift)
            return self.model._prediction(self.model.likelihood.predictive(draws))
        root = self.factor.reshape(P, K, -1)
        variance = torch.einsum("nk,pkj->npj", h, root).square().sum(-1)  # [N, P]
        mean = h @ self.weight
        return self.model._prediction(self.model.likelihood.predictive(mean[None], variance[None]))


def _fixed_point(values: Tensor, square: float) -> float:
    """MacKay's iteration for the prior precision: effective number of weights over their squared norm."""
    tau = 1.0
    for _ in range(200):
        effective = float((values / (values + tau)).sum())
        new = effective / max(square, 1e-12)
        if not math.isfinite(new) or new <= 0:
            break
        if abs(math.log(new / tau)) < 1e-10:
            return new
        tau = new
    return tau
