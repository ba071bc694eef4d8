"""The errors of the package. Every one derives from `VibayesError`.

A message says what was expected, what came, and what to do about it.
"""

__all__ = [
    "ConfigurationError",
    "DataError",
    "NotFittedError",
    "NotPositiveDefiniteError",
    "ShapeError",
    "TrainingError",
    "VibayesError",
    "kind_of",
]


class VibayesError(Exception):
    """The root of all errors raised on purpose by vibayes."""


class ConfigurationError(VibayesError, ValueError):
    """A model, layer, kernel or option that cannot work as it was put together."""


class ShapeError(VibayesError, ValueError):
    """A tensor whose shape does not fit."""


class DataError(VibayesError, ValueError):
    """Data that cannot be used: NaN, infinite, empty, mismatched lengths, missing or corrupt files."""


class NotFittedError(VibayesError, RuntimeError):
    """A result was asked of a model that has not seen data yet."""


class NotPositiveDefiniteError(VibayesError, ArithmeticError):
    """A matrix that should be positive definite could not be factorised."""


class TrainingError(VibayesError, RuntimeError):
    """Training could not go on, and said why."""


def kind_of(value: object) -> str:
    """How a wrong argument is named in an error: a class given in place of an object is a frequent slip.

    >>> kind_of(3), kind_of(ValueError)
    ('int', 'the class ValueError; call it')
    """
    return f"the class {value.__name__}; call it" if isinstance(value, type) else type(value).__name__
