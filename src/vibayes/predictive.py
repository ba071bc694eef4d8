"""What a model says at new inputs: its predictive distribution, and draws of its function."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vibayes.data import check_count
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError
from vibayes.passes import joint_draws, rows_at_once
from vibayes.prediction import Prediction

if TYPE_CHECKING:
    from vibayes.model import Model

__all__ = ["predict", "sample_functions"]


def predict(model: "Model", x: Any, n_samples: int, batch_size: int | None, joint: bool) -> Prediction:
    """What `Model.predict` returns; see there."""
    check_count(n_samples, "n_samples")
    if batch_size is not None:
        check_count(batch_size, "batch_size")
    if joint and model.likelihood.kind != "regression":
        raise ConfigurationError(
            f"joint=True gives the covariance of real targets; {type(model.likelihood).__name__} has none. "
            "Use sample_functions for joint draws."
        )
    rows = model.prepare_inputs(x)
    draws, layers = 1 if model.exact else n_samples, model.layers.values()
    if joint:
        size, at_once = len(rows), joint_draws(rows, model.n_inducing, layers)
    else:
        size, at_once = rows_at_once(rows, batch_size, draws, model.n_inducing, layers)
    parts = [_predict_rows(model, part, n_samples, joint, at_once) for part in torch.split(rows, size)]
    return parts[0] if len(parts) == 1 else Prediction.concatenate(parts)


def _predict_rows(model: "Model", rows: Tensor, n_samples: int, joint: bool, at_once: int | None) -> Prediction:
    def moments(draw: Draw) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        mean, variance, covariance = model._pass(rows, draw)
        found = {"mean": mean, "variance": variance, "covariance": covariance}
        return {name: t for name, t in found.items() if t is not None}, draw.failures

    got, failures = model._draws(moments, n_samples, joint=joint, at_once=at_once)
    model._check_factorizations(failures)
    mean, variance = got["mean"], got.get("variance")  # [S, N, F]
    covariance = None
    if joint:
        covariance = _mixture_covariance(mean, got.get("covariance"))
        covariance = covariance[: model.likelihood.n_targets(mean.shape[2])]  # means come before log variances
    return model._prediction(model.likelihood.predictive(mean, variance), covariance)


def _mixture_covariance(means: Tensor, covariances: Tensor | None) -> Tensor:
    """Covariance `[F, N, N]` of a mixture over draws: that of the means plus the mean of those within."""
    centred = means - means.mean(0)  # [S, N, F]
    between = torch.einsum("snf,smf->fnm", centred, centred) / len(means)
    return between if covariances is None else between + covariances.mean(0)


def sample_functions(model: "Model", x: Any, n: int) -> Tensor:
    """What `Model.sample_functions` returns; see there."""
    check_count(n, "n")
    rows = model.prepare_inputs(x)

    def function(draw: Draw) -> tuple[Tensor, dict[str, Tensor]]:
        return model._pass(rows, draw)[0], draw.failures

    drawn: Tensor
    at_once = joint_draws(rows, model.n_inducing, model.layers.values())
    drawn, failures = model._draws(function, n, joint=True, marginal=False, at_once=at_once)
    model._check_factorizations(failures)
    if model.likelihood.kind == "regression":  # the functions of targets; those of their noise come after
        drawn = model.units.outputs(drawn[..., : model.likelihood.n_targets(drawn.shape[-1])])
    return drawn[..., 0] if model._squeezes(drawn.shape[-1]) else drawn
