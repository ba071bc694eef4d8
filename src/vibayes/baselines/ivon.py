"""Mean-field variational inference by the IVON optimizer (package `ivon-opt`)."""

from typing import Any

import torch
from torch import Tensor

from vibayes.data import check_count
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, TrainingError, kind_of
from vibayes.model import Model
from vibayes.modes import evaluating
from vibayes.prediction import Prediction
from vibayes.stages import network_weights
from vibayes.training.batches import as_batches

__all__ = ["IvonPosterior", "fit_ivon"]


class IvonPosterior:
    """A Gaussian with diagonal covariance over all weights of a network, as `fit_ivon` found it.

    Attributes:
        model: the network, its weights at the means.
        losses: the loss per row, every hundredth step.
    """

    def __init__(self, model: Model, optimizer: Any, losses: list[float]) -> None:
        self.model, self.losses = model, losses
        self._optimizer = optimizer

    @torch.no_grad()
    def predict(self, x: Any, n_samples: int = 100, batch_size: int | None = None) -> Prediction:
        """The mixture over draws of the weights, in user units."""
        check_count(n_samples, "n_samples")
        if batch_size is not None:
            check_count(batch_size, "batch_size")
        model = self.model
        rows = model.prepare_inputs(x)
        draws = []
        for _ in range(n_samples):
            with self._optimizer.sampled_params(), evaluating(model.network):
                parts = [_output(model, part) for part in torch.split(rows, batch_size or len(rows))]
            draws.append(torch.cat(parts))
        return model._prediction(model.likelihood.predictive(torch.stack(draws)))


def _output(model: Model, rows: Tensor) -> Tensor:
    def mean(draw: Draw) -> Tensor:
        return model._pass(rows, draw)[0]

    found: Tensor = model._draws(mean, 1)
    return found[0]


def fit_ivon(
    model: Model,
    data: Any,
    *,
    steps: int,
    batch_size: int | None = None,
    lr: float = 0.1,
    prior_precision: float = 1.0,
    hess_init: float = 1.0,
    beta2: float = 0.9995,
    mc_samples: int = 1,
    lr_noise: float = 1e-2,
    seed: int = 0,
) -> IvonPosterior:
    """Train a network's weights as independent Gaussians by IVON (Shen et al. 2024), an optimizer as cheap as Adam.

    IVON maximises `E_q[log likelihood] - KL(q || N(0, 1 / prior_precision))` over diagonal Gaussians q by natural
    gradients, with the curvature estimated from gradients at sampled weights. Hyperparameters of the likelihood, such
    as the noise, are trained by Adam beside it. Needs `pip install "vibayes[baselines]"`.

    Args:
        model: a plain network: all its layers `Linear(..., posterior=Point(prior=False))` or torch modules.
        data: `(x, y)`, a `Dataset` or a `DataLoader`.
        steps: how many.
        batch_size: rows per step; all when None.
        lr: IVON's learning rate, decayed to zero along a cosine.
        prior_precision: of every weight.
        hess_init: start of the curvature per row; smaller values start with wider posteriors.
        beta2: how slowly the curvature, and with it the variances, follows: over about `1 / (1 - beta2)` steps. (The
            package's default, 0.99999, is for long runs on large data.)
        mc_samples: draws of the weights per step.
        lr_noise: Adam's learning rate for the likelihood's hyperparameters.
        seed: of starts, batches and draws.
    """
    _check_plain(model)
    try:
        import ivon
    except ImportError as error:
        raise ConfigurationError('IVON needs the package ivon-opt: pip install "vibayes[baselines]".') from error
    check_count(steps, "steps")
    check_count(mc_samples, "mc_samples")
    if not (lr > 0 and prior_precision > 0 and hess_init > 0):
        raise ConfigurationError("lr, prior_precision and hess_init must be positive.")
    batches = as_batches(data, batch_size, seed)
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(seed)
        if not bool(model.ready):
            model.initialize(*batches.start())
        batches.begin(model)
        n = batches.n_data
        weights = [weight for weight in network_weights(model).values() if weight.requires_grad]
        if not weights:
            raise ConfigurationError("Every weight of the network is fixed; there is nothing to train.")
        optimizer = ivon.IVON(
            weights,
            lr=lr,
            ess=float(n),
            weight_decay=prior_precision / n,
            hess_init=hess_init,
            beta2=beta2,
            mc_samples=mc_samples,
        )
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        others = [p for p in model.likelihood.parameters() if p.requires_grad]
        adam = torch.optim.Adam(others, lr=lr_noise) if others else None
        losses = []
        for step in range(steps):
            batch = batches.at(step)
            if adam is not None:
                adam.zero_grad()
            for _ in range(mc_samples):
                with optimizer.sampled_params(train=True):
                    optimizer.zero_grad()
                    bound = model(batch.x, batch.y, batch.weights, scale=n / len(batch.x))
                    loss = -(bound.log_likelihood.mean() + bound.log_prior) / n
                    loss.backward()
            optimizer.step()
            cosine.step()
            if adam is not None:
                adam.step()
            if step % 100 == 0 or step == steps - 1:
                losses.append(float(loss.detach()))
                if not torch.isfinite(loss.detach()):
                    raise TrainingError(
                        f"IVON's loss was not finite at step {step}. Use a smaller lr or a larger hess_init."
                    )
    return IvonPosterior(model, optimizer, losses)


def _check_plain(model: Model) -> None:
    """Refuse a model whose weights have a posterior or a prior already."""
    if not isinstance(model, Model):
        raise ConfigurationError(f"fit_ivon takes a Model of a plain network, got {kind_of(model)}.")
    if any(not layer.deterministic or getattr(layer.posterior, "prior", False) for layer in model.layers.values()):
        raise ConfigurationError(
            "IVON puts its own posterior and prior on the weights: build the network of torch modules and "
            "Linear(..., posterior=Point(prior=False))."
        )
