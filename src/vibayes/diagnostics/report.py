"""`diagnose`: what a trained model learned, how far train and test are apart, and what to beware of."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vibayes import metrics
from vibayes._figures import COLOURS, label_axes, new_figure, style
from vibayes.conjugate.exact_gp import ExactGP
from vibayes.diagnostics.monitor import (
    Monitor,
    correlation_matrix,
    error_of,
    mean_correlation,
    split_of_evidence,
)
from vibayes.diagnostics.prior import effective_rank, features
from vibayes.errors import ConfigurationError
from vibayes.parameters import hyperparameters
from vibayes.stages import network_weights
from vibayes.trainable import TrainableModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Diagnosis", "diagnose"]

# More parameters trained on the evidence than this share of the targets is "many".
_MANY = 0.2
# A fall of the held-out log likelihood from its peak, in nats per row, that is worth a warning.
_FALL = 0.05
# The gap between training and held-out log likelihood, in nats per row, that is worth a warning.
_GAP = 0.5
# A mean prior correlation beyond which all inputs look alike.
_ALIKE = 0.9
# Rows on which features are looked at, and the share of rows that the conditional evidence is conditioned on.
_ROWS, _SHARE = 1000, 0.8


@dataclass
class Diagnosis:
    """What `diagnose` found; `print` it, or `plot` it.

    Attributes:
        model: name of the model's class.
        n_data: training rows.
        numbers: everything measured, by name; see `EXPLAINED`. The evidence and its parts are on the scale the model
            trains on, log likelihoods and errors in user units.
        warnings: sentences about what looks wrong.
        monitor: what was measured along training, where a `Monitor` was given.
        rho: prior correlations of training rows `[n, n]`, sorted by their first feature; None without a kernel.
        seen: features of training rows `[n, W]`.
    """

    model: str
    n_data: int
    numbers: dict[str, float]
    warnings: list[str] = field(default_factory=list)
    monitor: Monitor | None = None
    rho: Tensor | None = None
    seen: Tensor | None = None

    def __str__(self) -> str:
        width = max(len(EXPLAINED[name]) for name in self.numbers)
        lines = [f"{self.model} on {self.n_data} rows"]
        lines += [f"  {EXPLAINED[name]:<{width}}  {value:>10.4g}" for name, value in self.numbers.items()]
        lines += [f"  warning: {text}" for text in self.warnings] or ["  nothing looks wrong"]
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self) -> "Figure":
        """Evidence and its parts, held-out log likelihood, and correlations (needs matplotlib).

        Nats per row are those of targets in user units. Panels of what was not measured are left out.
        """
        panels = (["bound", "split"] if self.monitor is not None and len(self.monitor) else []) + (
            ["rho"] if self.rho is not None else []
        )
        if not panels:
            raise ConfigurationError("There is nothing to draw: no Monitor was given and the model has no kernel.")
        with style():
            figure = new_figure(3.4 * len(panels) + 0.4, 2.9)
            axes = dict(zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True))
            if self.monitor is not None and "bound" in axes:
                _plot_nats_per_row(axes["bound"], self.monitor)
                _plot_parts(axes["split"], self.monitor)
            if self.rho is not None:
                ax = axes["rho"]
                image = ax.imshow(self.rho.cpu().numpy(), vmin=0.0, vmax=1.0, cmap="viridis", aspect="equal")
                ax.grid(visible=False)
                ax.set_xticks([])
                ax.set_yticks([])
                figure.colorbar(image, ax=ax, shrink=0.8)
                label_axes(ax, "Prior correlations of training rows", "", "")
        return figure


def _plot_nats_per_row(ax: "Axes", m: Monitor) -> None:
    loss = float(m.model.units.log_jacobian())  # of log densities on the way to user units
    bound = [value - loss for value in m.bound]
    ax.plot(m.step, bound, color=COLOURS["black"], label="evidence or bound")
    ax.plot(m.step, m.train_ll, color=COLOURS["blue"], label="training LL")
    if m.test is not None:
        ax.plot(m.step, m.test_ll, color=COLOURS["vermilion"], label="held-out LL")
    _limit(ax, [v for curve in (bound, m.train_ll, m.test_ll) for v in curve[len(curve) // 10 :]])
    ax.legend(loc="best")
    label_axes(ax, "Nats per row", "step", "")


def _plot_parts(ax: "Axes", m: Monitor) -> None:
    ax.plot(m.step, m.data_fit, color=COLOURS["green"], label="data fit")
    ax.plot(m.step, m.complexity, color=COLOURS["purple"], label="complexity")
    _limit(ax, m.data_fit[len(m) // 10 :] + m.complexity[len(m) // 10 :])
    ax.legend(loc="best")
    label_axes(ax, "Parts of the evidence", "step", "nats")


EXPLAINED = {
    "bound_per_row": "evidence or bound per row, in the model's units",
    "data_fit": "data fit (total)",
    "complexity": "complexity (total)",
    "data_fit_share": "data fit relative to -N/2",
    "conditional_per_row": "conditional evidence per row, given 80%",
    "n_trained_on_evidence": "parameters trained on the evidence",
    "parameters_per_target": "... per target",
    "mean_correlation": "mean prior correlation of rows",
    "effective_rank": "effective rank of the correlations",
    "feature_dimension": "effective dimension of the features",
    "train_ll": "log likelihood per row, training",
    "test_ll": "log likelihood per row, held out",
    "ll_gap": "gap in log likelihood",
    "train_error": "error, training",
    "test_error": "error, held out",
}


@torch.no_grad()
def diagnose(
    model: TrainableModel,
    data: tuple[Any, Any],
    test: tuple[Any, Any] | None = None,
    history: Monitor | None = None,
    *,
    n_samples: int = 100,
) -> Diagnosis:
    """Look at a trained model for the ways in which its evidence may have misled it (thesis, chapter 3).

    It measures the evidence (or bound) and its parts, how many parameters were trained on it, how strongly the prior
    correlates the training rows, the effective dimension of the features, and the fit on training and held-out rows.
    It warns when

    - many parameters were trained on the evidence, for the number of targets: it then overfits like a likelihood;
    - all inputs look alike to the prior (collapsed features);
    - training and held-out log likelihood are far apart;
    - the evidence rose while the held-out log likelihood fell (needs a `Monitor` with `test`).

    Args:
        model: an `ExactGP`, `SGPR` or `Model`, trained.
        data: `(x, y)`, its training data, in user units.
        test: `(x, y)`, held-out data, or None.
        history: a `Monitor` that `fit` called back, or None.
        n_samples: draws for the bound and for predictions.

    >>> import vibayes as vb
    >>> x = torch.linspace(-2, 2, 40)[:, None]
    >>> gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    >>> _ = vb.fit(gp, (x, torch.sin(3 * x[:, 0]) + 0.1 * torch.cos(50 * x[:, 0])), progress=False)
    >>> found = diagnose(gp, (x, torch.sin(3 * x[:, 0])))
    >>> found.warnings, int(found.numbers["n_trained_on_evidence"])
    ([], 3)
    """
    if history is not None and not isinstance(history, Monitor):
        raise ConfigurationError(
            "history must be a vibayes.diagnostics.Monitor, which fit(..., callback=monitor) fills; got "
            f"{type(history).__name__}."
        )
    for name, pair in (("data", data), ("test", test)):
        if pair is not None and (not isinstance(pair, tuple | list) or len(pair) != 2):
            raise ConfigurationError(f"{name} must be (x, y).")
    x, y = data
    batch = model.prepare(x, y)
    n = len(batch.x)
    targets = n if batch.y.ndim == 1 else batch.y.numel()
    bound = model.elbo(x, y, n_samples=n_samples)
    numbers: dict[str, float] = {"bound_per_row": float(bound.per_datapoint)}
    split = split_of_evidence(model, x, y)
    fit, complexity = split or (float(bound.log_likelihood), -float(bound.kl))
    numbers |= {"data_fit": fit, "complexity": complexity}
    if isinstance(model, ExactGP):
        numbers["data_fit_share"] = fit / (-0.5 * targets)
        m = round(_SHARE * n)
        if 0 < m < n:
            conditional = model.conditional_log_marginal_likelihood(x, y, m, orderings=5)
            numbers["conditional_per_row"] = float(conditional) / (n - m)
    count = _trained_on_evidence(model)
    numbers |= {"n_trained_on_evidence": count, "parameters_per_target": count / targets}
    seen, rho = features(model, x[:_ROWS]), correlation_matrix(model, x)
    if rho is not None:
        numbers |= {"mean_correlation": mean_correlation(model, x), "effective_rank": effective_rank(rho)}
    numbers["feature_dimension"] = effective_rank(torch.cov(seen.mT, correction=0).reshape(seen.shape[1], -1))
    errors: dict[str, float] = {}
    for part, rows in (("train", data), ("test", test)):
        if rows is not None:
            prediction = model.predict(rows[0], n_samples=n_samples)
            numbers[f"{part}_ll"] = metrics.log_likelihood(prediction, rows[1])
            densities = prediction.log_prob(rows[1])
            errors[part] = float(densities.std() / len(densities) ** 0.5) if len(densities) > 1 else math.inf
            numbers[f"{part}_error"] = error_of(prediction, rows[1])
    if test is not None:
        numbers["ll_gap"] = numbers["train_ll"] - numbers["test_ll"]
    numbers = {name: numbers[name] for name in EXPLAINED if name in numbers}
    if rho is not None:
        order = seen[:, 0].argsort()
        rho = rho[order][:, order]
    warnings = _warnings(numbers, errors, targets, history)
    return Diagnosis(type(model).__name__, n, numbers, warnings, history, rho, seen)


def _trained_on_evidence(model: TrainableModel) -> int:
    """Numbers that training moves without a posterior over them: hyperparameters and network weights."""
    found = {id(p): p for _, h in hyperparameters(model) for p in [h.raw]}
    variational = {id(p) for p in _variational(model)}
    found |= {id(p): p for p in network_weights(model).values()}
    return sum(p.numel() for key, p in found.items() if p.requires_grad and key not in variational)


def _variational(model: TrainableModel) -> list[Tensor]:
    """Parameters of posteriors: of layers' values or weights, and of hyperparameters of priors that are inferred."""
    layers: dict[str, Any] = getattr(model, "layers", {})
    found = [layer.posterior for layer in layers.values() if not layer.posterior.deterministic]
    priors = (getattr(layer, "prior", None) for layer in layers.values())
    found += [prior for prior in priors if prior is not None and prior.random]
    return [p for part in found for p in part.parameters()]


def _warnings(numbers: dict[str, float], errors: dict[str, float], targets: int, monitor: Monitor | None) -> list[str]:
    found = []
    count = int(numbers["n_trained_on_evidence"])
    if count > _MANY * targets:
        found.append(
            f"{count:,} parameters were trained on the evidence of {targets:,} targets. With so many, the evidence can "
            "overfit as a likelihood does; compare held-out log likelihoods, use minibatches, weight decay, a smaller "
            "or pretrained network, or put a posterior on its weights."
        )
    if numbers.get("mean_correlation", 0.0) > _ALIKE:
        found.append(
            f"The prior correlates training rows by {numbers['mean_correlation']:.2f} on average: the features have "
            "collapsed, and predictions away from the data will be too certain."
        )
    chance = 2.0 * math.hypot(errors["train"], errors.get("test", 0.0))  # two standard errors of the gap
    if numbers.get("ll_gap", 0.0) > max(_GAP, chance):
        found.append(
            f"The log likelihood per row is {numbers['ll_gap']:.2f} nats better on training than on held-out rows: the "
            "model overfits."
        )
    fall = _fall(monitor)
    if fall is not None:
        found.append(fall)
    return found


def _fall(monitor: Monitor | None) -> str | None:
    """Whether the bound rose while the held-out log likelihood fell from its peak."""
    if monitor is None or len(monitor) < 3 or monitor.test is None:
        return None
    ll, bound = np.asarray(monitor.test_ll), np.asarray(monitor.bound)
    if not np.isfinite(ll).any():
        return None
    last = max(1, len(ll) // 20)  # single steps are noisy
    end_ll, end_bound = float(np.median(ll[-last:])), float(np.median(bound[-last:]))
    peak = int(np.nanargmax(ll))
    if ll[peak] - end_ll > _FALL and end_bound > bound[peak] and math.isfinite(end_ll):
        return (
            f"From step {monitor.step[peak]} on the evidence rose from {bound[peak]:.3g} to {end_bound:.3g} nats per "
            f"row while the held-out log likelihood fell from {ll[peak]:.3g} to {end_ll:.3g}: the evidence is "
            "overfitting. Stop there, or train on the conditional evidence: ExactGP(..., conditional=0.8)."
        )
    return None


def _limit(ax: Any, values: list[float]) -> None:
    """Leave out the first steep climb, which would flatten all the rest."""
    finite = [v for v in values if math.isfinite(v)]
    if finite and max(finite) > min(finite):
        pad = 0.05 * (max(finite) - min(finite))
        ax.set_ylim(min(finite) - pad, max(finite) + pad)
