"""What kind of value an option takes, for those that a person types."""

import math
from collections.abc import Sequence
from typing import Any

from vibayes.errors import ConfigurationError
from vibayes.experiments.names import check_name

__all__ = ["SPLITS", "check_value"]

# How the rows of a data set are divided: as published, at random, or not at all because they are generated.
SPLITS = ("published", "random", "generated")

_CHOICES: dict[str, Sequence[str]] = {"dtype": ("float32", "float64"), "split": SPLITS, "units": ("original",)}
# `starts` is not among them: it is checked where it is used.
_WHOLE = (
    "batch_size", "channels", "depth", "draws", "epochs", "hidden_layers", "kl_epochs", "kl_warmup", "log_every",
    "lr_warmup", "n_inducing", "n_samples", "n_test", "n_train", "rows", "seed", "steps", "width",
)  # fmt: skip
_NUMBERS = (
    "dof", "hidden_std", "hidden_variance", "jitter", "kl_rise", "kl_weight", "last_log_precision", "layer_noise",
    "log_noise", "log_precision", "lr", "lr_end", "lr_factor", "lr_hold", "natural_rate", "noise", "noise_scale",
    "spectral_norm", "variance", "weight_decay",
)  # fmt: skip
# Where null means something: all rows, the default of a model, or nothing of the kind.
_NULL = (
    "batch_choices", "batch_size", "epochs", "hidden_std", "kl_rise", "lr_choices", "n_samples", "n_test", "n_train",
    "spectral_norm", "steps", "units",
)  # fmt: skip


def check_value(name: str, value: Any, now: Any = None) -> Any:
    """The value of an option, or an error that says what it takes; whole numbers may be written as `1e4`.

    Args:
        name: of the option.
        value: the new one.
        now: the one it has; null may stay null.

    >>> check_value("steps", 1e4), check_value("split", "Random")
    (10000, 'random')
    >>> check_value("lr", "abc")
    Traceback (most recent call last):
    ...
    vibayes.errors.ConfigurationError: The option lr must be a number; got 'abc'. Write it like --set lr=0.01.
    """
    if value is None and (now is None or name in _NULL):
        return None
    if name in _CHOICES:
        return check_name(value, _CHOICES[name], f"{name} option")
    expected, example, right = "", "", True
    if name in _WHOLE:
        expected, example, right = "a whole number", "10", _is_whole(value)
    elif name in _NUMBERS:
        expected, example, right = "a number", "0.01", _is_number(value)
    elif name == "lengthscale":
        expected, example, right = "a number or sqrt(D)", "1.0", _is_number(value) or value == "sqrt(D)"
    elif name in ("lr_choices", "lr_drops"):
        expected, example, right = "a list of numbers", "[0.5,0.75]", _is_list(value) and all(map(_is_number, value))
    elif name in ("batch_choices", "widths"):
        expected, example, right = "a list of whole numbers", "[50,50]", _is_list(value) and all(map(_is_whole, value))
    elif name == "learn_inducing" or isinstance(now, bool):
        expected, example, right = "true or false", "true", isinstance(value, bool)
    if not right:
        raise ConfigurationError(
            f"The option {name} must be {expected}; got {value!r}. Write it like --set {name}={example}."
        )
    return int(value) if name in _WHOLE else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value == int(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
