"""Names of classes in saved models, and the classes that a file may name.

A file holds names, never code. A name stands for a class of vibayes, a module of `torch.nn`, or a class that the caller
of `load` hands in; nothing else is looked up.
"""

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from vibayes.errors import ConfigurationError, DataError

__all__ = ["Given", "check_given", "class_name", "find_class", "find_function", "function_name"]

# Where modules of torch are looked for: layers, and what torch puts around the weights of a parametrized one.
_TORCH = ("torch.nn", "torch.nn.utils.parametrize", "torch.nn.utils.parametrizations")

# Classes and functions of the user by name, handed to `load`.
Given = Mapping[str, Callable[..., Any]]


def class_name(cls: type) -> str | None:
    """The name under which a class of vibayes or of `torch.nn` is saved; None for a class of somebody else.

    >>> class_name(nn.ReLU)
    'torch.nn.ReLU'
    """
    import vibayes

    for path in _TORCH:
        if getattr(sys.modules.get(path), cls.__name__, None) is cls:
            return f"{path}.{cls.__name__}"
    if getattr(vibayes, cls.__name__, None) is cls:  # public names outlive a move between modules
        return f"vibayes.{cls.__name__}"
    if cls.__module__.startswith("vibayes.") and "." not in cls.__qualname__:
        # a class exported by its package is saved under it: modules inside a package may move
        package = ".".join(cls.__module__.split(".")[:2])
        exported = getattr(importlib.import_module(package), cls.__name__, None) is cls
        return f"{package if exported else cls.__module__}.{cls.__name__}"
    return None


def check_given(names: Iterable[str], given: Given) -> None:
    """Refuse to load a model while classes of the user, saved under these names, have not been handed in."""
    names = dict.fromkeys(names)  # each once
    found = [given.get(name) for name in names]
    if not all(inspect.isclass(cls) and issubclass(cls, nn.Module) for cls in found):
        classes = ", ".join(f"{name!r}: {name}" for name in names)
        raise ConfigurationError(
            f"The saved model has modules of class {', '.join(map(repr, names))}, which are not part of vibayes or "
            f"torch.nn. Hand them in: vibayes.load(folder, classes={{{classes}}})."
        )


def find_class(name: str, given: Given, *, known: bool) -> type:
    """The class of a saved name: one of the package's (`known`), or one the caller has given (`check_given`)."""
    cls: Any = None
    if not known:
        cls = given[name]
        assert inspect.isclass(cls)
        return cls
    path, _, last = name.rpartition(".")
    if path in _TORCH or ((path == "vibayes" or path.startswith("vibayes.")) and "__" not in path):
        try:
            cls = getattr(importlib.import_module(path), last, None)
        except ImportError:
            cls = None
    if not inspect.isclass(cls) or not is_saveable(cls) or class_name(cls) is None:
        raise DataError(f"The saved model names the class {name!r}, which this version of vibayes does not have.")
    return cls


def is_saveable(cls: type) -> bool:
    """Whether objects of a class are described by their attributes: modules and dataclasses."""
    return issubclass(cls, nn.Module) or dataclasses.is_dataclass(cls)


def function_name(function: Callable[..., Any]) -> str:
    """The name under which a function is saved: of `torch.nn.functional` or `torch`, or a user's own.

    >>> function_name(torch.nn.functional.relu), function_name(torch.tanh)
    ('torch.nn.functional.relu', 'torch.tanh')
    """
    name = getattr(function, "__name__", "")
    if getattr(torch.nn.functional, name, None) is function:
        return f"torch.nn.functional.{name}"
    if name in _TORCH_FUNCTIONS and getattr(torch, name) is function:
        return f"torch.{name}"
    if not name.isidentifier():
        raise ConfigurationError("an unnamed function (a lambda) cannot be saved; define it with a name")
    return name


_TORCH_FUNCTIONS = ("relu", "tanh", "sigmoid", "exp", "sin", "cos", "square", "abs", "erf", "selu", "softmax")


def find_function(name: str, given: Given) -> Callable[..., Any]:
    """The function of a saved name."""
    path, _, last = name.rpartition(".")
    if path == "torch.nn.functional" and not last.startswith("_"):
        function: Any = getattr(torch.nn.functional, last, None)
    elif path == "torch" and last in _TORCH_FUNCTIONS:
        function = getattr(torch, last)
    elif not path and name in given:
        function = given[name]
    else:
        raise ConfigurationError(
            f"The saved model uses a function {name!r}. Hand it in: vibayes.load(folder, classes={{{name!r}: {last}}})."
        )
    if not callable(function):
        raise DataError(f"The saved model names the function {name!r}, which this version of torch does not have.")
    found: Callable[..., Any] = function
    return found
