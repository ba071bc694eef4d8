"""From objects to a description: modules as numbered entries, tensors by name, everything else as JSON."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent
from torch.nn.utils import parametrize

from vibayes.errors import ConfigurationError
from vibayes.saving.names import class_name, function_name, is_saveable

__all__ = ["Encoder"]

# What every module has of torch: not settings, but the places where its parts are kept.
INTERNAL = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Encoder:
    """Describes an object and all that it is made of.

    Modules are numbered so that every part has a smaller number than what it is part of: a description is read from
    front to back and cannot contain itself. A module or parameter that occurs twice is described once, and so stays
    shared.

    Attributes:
        modules: the modules' entries, in order.
        tensors: the tensors, under the path where they were first met.
    """

    def __init__(self) -> None:
        self.modules: list[dict[str, Any]] = []
        self.tensors: dict[str, Tensor] = {}
        self._numbers: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._open: set[int] = set()  # what is being described, to find an object that contains itself
        self._alive: list[Any] = []  # an id may be given to another object once its owner is gone

    def value(self, value: Any, path: str) -> Any:
        """A JSON value that stands for any value a module may hold; `path` names it in errors."""
        if value is None or isinstance(value, bool | str):
            return value
        if type(value) is int:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        for kinds, encode in self._table():
            if isinstance(value, kinds):
                found = encode(value, path)
                if found is not None:
                    return found
        cls = type(value)
        if is_saveable(cls) and class_name(cls) is not None:
            return self._object(value, path)
        raise ConfigurationError(
            f"{path} is a {cls.__name__}, which cannot be saved. Modules may hold numbers, text, tensors, arrays, "
            "other modules, named functions, and lists or dicts of these. Make it one of them, or remove it first."
        )

    def _table(self) -> list[tuple[Any, Callable[[Any, str], Any]]]:
        return [
            (nn.Module, lambda v, p: {"module": self.module(v, p)}),
            (Tensor, self._tensor),
            (torch.Size, lambda v, p: {"size": list(v)}),
            (torch.dtype, lambda v, p: {"dtype": str(v).removeprefix("torch.")}),
            (torch.device, lambda v, p: {"device": str(v)}),
            (Distribution, self._distribution),
            ((np.ndarray, np.generic), self._array),
            (tuple, lambda v, p: self._items("tuple", v, p) if type(v) is tuple else None),
            (list, lambda v, p: self._items("list", v, p)),
            ((set, frozenset), lambda v, p: self._items("set", sorted(v, key=repr), p)),
            (Mapping, self._mapping),
            (Callable, self._function),  # last: a module can be called, too
        ]

    # -- modules ------------------------------------------------------------------------------------------------

    def module(self, module: nn.Module, path: str) -> int:
        """Describe a module, unless that was done before, and return its number."""
        if id(module) in self._numbers:
            return self._numbers[id(module)]
        self._enter(module, path)
        if any(vars(module).get(hooks) for hooks in _HOOKS):
            raise ConfigurationError(
                f"{path} ({type(module).__name__}) has hooks, which are code and cannot be saved. Remove them first."
            )
        parametrized: Any = module.parametrizations if parametrize.is_parametrized(module) else ()
        changed = list(parametrized)
        cls = type(module).__bases__[0] if changed else type(module)  # torch derives a class for each of these
        name = class_name(cls)
        entry = {
            "class": cls.__name__ if name is None else name,
            "known": name is not None,
            "parametrized": changed,
            "training": module.training,
            "attributes": self._attributes(
                {key: value for key, value in vars(module).items() if key not in INTERNAL}, path
            ),
            "parameters": {
                key: None if p is None else self.value(p, _join(path, key)) for key, p in module._parameters.items()
            },
            "buffers": {
                key: None if b is None else self.value(b, _join(path, key)) for key, b in module._buffers.items()
            },
            "volatile": sorted(module._non_persistent_buffers_set),
            "modules": {
                key: None if child is None else self.module(child, _join(path, key))
                for key, child in module._modules.items()
            },
        }
        self._open.remove(id(module))
        self.modules.append(entry)
        self._numbers[id(module)] = len(self.modules) - 1
        return len(self.modules) - 1

    def _attributes(self, values: Mapping[str, Any], path: str) -> dict[str, Any]:
        return {key: self.value(value, _join(path, key)) for key, value in values.items()}

    def _object(self, value: Any, path: str) -> Any:
        self._enter(value, path)
        state = vars(value) if hasattr(value, "__dict__") else {k: getattr(value, k) for k in value.__slots__}
        found = {"class": class_name(type(value)), "attributes": self._attributes(state, path)}
        self._open.remove(id(value))
        return {"object": found}

    def _enter(self, value: Any, path: str) -> None:
        if id(value) in self._open:
            raise ConfigurationError(f"{path} refers back to something it is part of, which cannot be saved.")
        self._open.add(id(value))
        self._alive.append(value)

    # -- values -------------------------------------------------------------------------------------------------

    def _tensor(self, tensor: Tensor, path: str) -> Any:
        if id(tensor) not in self._names:
            name = path
            while name in self.tensors:
                name += "_"
            if torch._C._functorch.is_batchedtensor(tensor):
                raise ConfigurationError(
                    f"{path} holds a tensor of a pass with several draws, kept by a forward, and cannot be saved. Set "
                    "it to None first."
                )
            self.tensors[name] = tensor.detach().cpu().contiguous().clone()  # safetensors refuses shared memory
            self._names[id(tensor)] = name
            self._alive.append(tensor)
        kind = "parameter" if isinstance(tensor, nn.Parameter) else "tensor"
        found: dict[str, Any] = {kind: self._names[id(tensor)]}
        if kind == "parameter" and not tensor.requires_grad:
            found["learn"] = False
        return found

    def _array(self, array: Any, path: str) -> Any:
        if isinstance(array, np.str_ | np.bytes_):
            return str(array)
        values = np.asarray(array)
        if values.dtype.kind in "biuf" and values.dtype.itemsize <= 8:
            tensor = torch.from_numpy(np.array(values, dtype=values.dtype.newbyteorder("="), order="C"))
            return {"array": self._tensor(tensor, path)["tensor"], "scalar": isinstance(array, np.generic)}
        if values.dtype.kind in "UO":
            items = [self.value(item, path) for item in values.ravel().tolist()]
            return {"labels": items, "shape": list(values.shape), "text": values.dtype.kind == "U"}
        raise ConfigurationError(f"{path} is an array of {values.dtype}, which cannot be saved.")

    def _items(self, kind: str, values: Any, path: str) -> Any:
        return {kind: [self.value(item, f"{path}.{index}") for index, item in enumerate(values)]}

    def _mapping(self, values: Mapping[Any, Any], path: str) -> Any:
        return {"dict": [[self.value(k, path), self.value(v, _join(path, str(k)))] for k, v in values.items()]}

    def _function(self, function: Callable[..., Any], path: str) -> Any:
        if is_saveable(type(function)) and class_name(type(function)) is not None:
            return None  # an object that can be called
        try:
            return {"function": function_name(function)}
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}.") from None

    def _distribution(self, distribution: Distribution, path: str) -> Any:
        if type(distribution) is Independent:
            inner = {"base_distribution": distribution.base_dist}
            arguments = {**inner, "reinterpreted_batch_ndims": distribution.reinterpreted_batch_ndims}
        else:
            arguments = {name: getattr(distribution, name) for name in _constructor_arguments(distribution, path)}
        values = {name: self.value(value, f"{path}.{name}") for name, value in arguments.items()}
        return {"distribution": type(distribution).__name__, "arguments": values}


def _constructor_arguments(distribution: Distribution, path: str) -> list[str]:
    """The arguments from which a torch distribution can be built again."""
    cls = type(distribution)
    names = list(distribution.arg_constraints)
    for instead, one in (({"covariance_matrix", "precision_matrix"}, "scale_tril"), ({"probs"}, "logits")):
        if one in names:  # forms of one argument, of which a distribution takes a single one
            names = [name for name in names if name not in instead]
    if getattr(torch.distributions, cls.__name__, None) is not cls or not names:
        raise ConfigurationError(
            f"{path} is a {cls.__name__}, which cannot be saved. Use a distribution of torch.distributions that is "
            "given by its parameters, such as Gamma(2.0, 1.0) or LogNormal(0.0, 1.0)."
        )
    return names


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
