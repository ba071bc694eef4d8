"""What the metrics share: what they ask of a prediction, and checks of what comes in."""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vibayes.data import as_tensor
from vibayes.errors import ConfigurationError, DataError, ShapeError, VibayesError

__all__ = [
    "Predictive",
    "as_floating",
    "finite",
    "has_probs",
    "interval_of",
    "log_mass",
    "mean_of",
    "pointwise_log_likelihood",
    "probabilities",
    "probabilities_and_labels",
    "targets_like",
    "tensor_or_prediction",
]


@runtime_checkable
class Predictive(Protocol):
    """What a metric may ask of a prediction; `vibayes.Prediction` is one.

    Regression metrics also read `.mean`, `[N]` or `[N, P]`, and classification metrics `.probs`, `[N, C]`.
    """

    def log_prob(self, y: Tensor, /) -> Tensor:
        """Log predictive density or mass of each target, `[N]`."""
        ...

    def interval(self, level: float, /) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of the central interval that holds `level` of the probability."""
        ...

    def quantile(self, probability: float, /) -> Tensor:
        """The value below which `probability` of the predictive mass lies."""
        ...

    def cdf(self, y: Tensor, /) -> Tensor:
        """The predictive probability of values up to `y`, output by output."""
        ...


def tensor_or_prediction(given: Any) -> Any:
    """Arrays and lists of numbers as tensors, predictions as they are."""
    return as_tensor(given, "values") if hasattr(given, "__array__") or isinstance(given, list) else given


def as_floating(values: Tensor) -> Tensor:
    """A floating tensor, detached."""
    tensor = as_tensor(values, "values")
    return tensor if tensor.is_floating_point() else tensor.double()


def finite(tensor: Tensor, what: str) -> Tensor:
    """The tensor, which must have elements, none of them NaN or infinite."""
    if tensor.numel() == 0:
        raise DataError(f"{what} is empty (shape {list(tensor.shape)}); a metric needs at least one point.")
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        raise DataError(
            f"{what} holds {int(bad.sum())} NaN or infinite value(s), so a metric of it would mean nothing. "
            "Look at where these values come from."
        )
    return tensor


def targets_like(y: Tensor, like: Tensor) -> Tensor:
    """Targets in float64, checked, in the shape of the prediction (`[N]` and `[N, 1]` are the same)."""
    y = finite(as_tensor(y, "y", device=like.device).double(), "y")
    if y.shape == like.shape:
        return y
    if y.shape[:1] == like.shape[:1] and {y.ndim, like.ndim} == {1, 2} and y.numel() == like.numel():
        return y.reshape(like.shape)
    raise ShapeError(f"y of shape {list(y.shape)} does not fit predictions of shape {list(like.shape)}.")


def mean_of(prediction: Predictive | Tensor) -> Tensor:
    """The predictive mean in float64, checked."""
    given = tensor_or_prediction(prediction)
    values = given if isinstance(given, Tensor) else getattr(given, "mean", None)
    if not isinstance(values, Tensor):
        raise DataError(f"Expected a prediction with a mean or a tensor, got {type(prediction).__name__}.")
    return finite(as_floating(values), "The predictive mean").double()


def interval_of(prediction: Predictive, level: float) -> tuple[Tensor, Tensor]:
    """The ends of the central interval in float64, checked."""
    if not 0.0 < level < 1.0:
        raise ConfigurationError(f"level must lie strictly between 0 and 1, got {level!r}.")
    lower, upper = (end.detach().double() for end in prediction.interval(level))
    return finite(lower, "The lower ends of intervals"), finite(upper, "The upper ends of intervals")


def has_probs(prediction: object) -> bool:
    """Whether a prediction is about classes."""
    try:
        return isinstance(getattr(prediction, "probs", None), Tensor)
    except VibayesError:  # a prediction may refuse instead of not having the attribute
        return False


def probabilities(prediction: Predictive | Tensor) -> Tensor:
    """Class probabilities `[N, C]` in the dtype they came in, checked; those below zero by rounding are zero.

    Probabilities of one, `[N]` or `[N, 1]`, become two classes. So do the P targets of a prediction of yes
    or no, each as a point of its own: `[N * P, 2]`. A prediction of classes of which there is one stays `[N, 1]`.
    """
    values = tensor_or_prediction(prediction)
    if not isinstance(values, Tensor):
        if not has_probs(prediction):
            name = type(prediction).__name__
            raise DataError(f"Expected class probabilities or a prediction with .probs, got {name}.")
        values = getattr(prediction, "probs")  # noqa: B009 - not part of the protocol
    probs = finite(as_floating(values), "The class probabilities")
    kind = getattr(prediction, "kind", "")
    if kind == "binary" or probs.ndim == 1 or (probs.shape[1:] == (1,) and kind != "classes"):
        probs = torch.stack([1 - probs.flatten(), probs.flatten()], -1)
    if probs.ndim != 2:
        raise ShapeError(f"Class probabilities must be [N, C] or [N], got shape {list(probs.shape)}.")
    tolerance = 1e-6 if probs.dtype == torch.float64 else 1e-3
    if bool((probs < -tolerance).any()) or bool(((probs.sum(-1) - 1).abs() > tolerance).any()):
        raise DataError(
            "Class probabilities must be non-negative and add up to 1 in each row. "
            "If these are logits, use logits.softmax(-1)."
        )
    return probs.clamp_min(0.0)


def probabilities_and_labels(prediction: Predictive | Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Class probabilities `[N, C]` and labels `[N]`, checked."""
    probs = probabilities(prediction)
    n, n_classes = probs.shape
    given = finite(as_tensor(y, "y", device=probs.device), "y")
    labels = given.long()
    if not bool((labels == given).all()):
        raise DataError("Class labels must be whole numbers; y has others.")
    shapes = [(n,), (n, 1)]
    if getattr(prediction, "kind", "") == "binary":
        shapes.append(tuple(getattr(prediction, "probs").shape))  # noqa: B009 - not part of the protocol
    if tuple(labels.shape) not in shapes:
        raise ShapeError(f"Expected one class label per point, [{n}], got shape {list(labels.shape)}.")
    labels = labels.flatten()
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= n_classes:
        raise DataError(f"Class labels must lie in 0 .. {n_classes - 1}, got {low} .. {high}.")
    return probs, labels


def log_mass(probs: Tensor, labels: Tensor) -> Tensor:
    """Log probability of each label, `[N]` in float64."""
    return probs.double().gather(-1, labels[:, None])[:, 0].log()


def pointwise_log_likelihood(prediction: Predictive | Tensor, y: Tensor) -> Tensor:
    """Log predictive density or mass of each point, `[N]` in float64; `-inf` is allowed, NaN is not."""
    prediction = tensor_or_prediction(prediction)
    if isinstance(prediction, Tensor):
        probs, labels = probabilities_and_labels(prediction, y)
        values = log_mass(probs, labels)
    elif has_probs(prediction):
        probabilities_and_labels(prediction, y)  # checks
        values = prediction.log_prob(as_tensor(y, "y").long()).detach().double()
    else:
        targets = finite(as_tensor(y, "y").double(), "y")
        values = prediction.log_prob(targets).detach().double()
    if bool(values.isnan().any()):
        raise DataError(f"{int(values.isnan().sum())} log likelihood(s) are NaN. Look at the model behind them.")
    return values
