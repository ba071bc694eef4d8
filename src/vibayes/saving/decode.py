"""From a description to objects: modules are made without running their constructors."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vibayes.errors import DataError
from vibayes.saving.encode import INTERNAL
from vibayes.saving.names import Given, check_given, find_class, find_function

__all__ = ["Decoder"]


class Decoder:
    """Builds what an `Encoder` described.

    Args:
        entries: the modules' entries.
        tensors: the tensors by name.
        given: classes and functions of the user, by name.
    """

    def __init__(self, entries: list[dict[str, Any]], tensors: Mapping[str, Tensor], given: Given) -> None:
        self.tensors, self.given = tensors, given
        self._parameters: dict[str, nn.Parameter] = {}
        self.modules: list[nn.Module] = []
        check_given([entry["class"] for entry in entries if not entry["known"]], given)
        for entry in entries:  # an entry refers only to those before it
            self.modules.append(self._module(entry))

    @property
    def roots(self) -> list[nn.Module]:
        """The modules that are no part of another one."""
        parts = {id(child) for module in self.modules for child in module._modules.values()}
        return [module for module in self.modules if id(module) not in parts]

    def _module(self, entry: dict[str, Any]) -> nn.Module:
        cls = find_class(entry["class"], self.given, known=entry["known"])
        if not issubclass(cls, nn.Module):
            raise DataError(f"{entry['class']} stands in the place of a module, and is none.")
        # Its constructor would draw starting values, look at data, and ask for arguments that a file of another
        # version may not have; what it made is in the file.
        module: nn.Module = cls.__new__(cls)
        nn.Module.__init__(module)
        module.training = bool(entry["training"])
        self._set(module, entry["attributes"])
        for key, value in entry["parameters"].items():
            module._parameters[key] = None if value is None else self.value(value)
        for key, value in entry["buffers"].items():
            module._buffers[key] = None if value is None else self.value(value)
        module._non_persistent_buffers_set = set(entry["volatile"])
        for key, number in entry["modules"].items():
            module._modules[key] = None if number is None else self._numbered(number)
        if entry["parametrized"]:  # weights that are computed, such as spectrally normalised ones
            parametrize._inject_new_class(module)
            for key in entry["parametrized"]:
                parametrize._inject_property(module, key)
        return module

    def _numbered(self, number: int) -> nn.Module:
        if not 0 <= number < len(self.modules):
            raise DataError(f"The description of the model refers to module {number}, which does not stand before it.")
        return self.modules[number]

    def _set(self, target: Any, attributes: Mapping[str, Any]) -> None:
        for key, value in attributes.items():
            if key in INTERNAL or key.startswith("__"):
                raise DataError(f"{key!r} is no attribute that a saved model may set.")
            object.__setattr__(target, key, self.value(value))

    def value(self, value: Any) -> Any:
        """The value that a JSON value stands for."""
        if not isinstance(value, dict):
            return value
        kind = next(iter(value))
        content = value[kind]
        if kind == "module":
            return self._numbered(content)
        if kind == "parameter":
            if content not in self._parameters:  # met twice, it is one parameter
                self._parameters[content] = nn.Parameter(self.tensors[content], value.get("learn", True))
            return self._parameters[content]
        if kind == "array":
            array = self.tensors[content].numpy()
            return array[()] if value["scalar"] else array
        if kind == "labels":
            return self._labels(value)
        if kind == "object":
            return self._object(content)
        if kind == "distribution":
            return self._distribution(content, value["arguments"])
        if kind == "dict":
            return {self.value(key): self.value(item) for key, item in content}
        if kind in ("list", "tuple", "set"):
            items = [self.value(item) for item in content]
            return {"list": list, "tuple": tuple, "set": set}[kind](items)
        simple: dict[str, Callable[[Any], Any]] = {
            "float": float,
            "tensor": self.tensors.__getitem__,
            "size": torch.Size,
            "dtype": _dtype,
            "device": torch.device,
            "function": lambda name: find_function(name, self.given),
        }
        return simple[kind](content)

    def _labels(self, value: dict[str, Any]) -> Any:
        items = [self.value(item) for item in value["labels"]]
        if value["text"]:
            return np.array(items, dtype=str).reshape(value["shape"])
        array = np.empty(len(items), dtype=object)
        array[:] = items
        return array.reshape(value["shape"])

    def _object(self, content: dict[str, Any]) -> Any:
        cls: Any = find_class(content["class"], self.given, known=True)
        found = cls.__new__(cls)
        self._set(found, content["attributes"])
        return found

    def _distribution(self, name: str, arguments: dict[str, Any]) -> Any:
        cls = getattr(torch.distributions, name, None)
        if not (isinstance(cls, type) and issubclass(cls, torch.distributions.Distribution)):
            raise DataError(f"The saved model names the distribution {name!r}, which this version of torch lacks.")
        # not validated: values were checked when the distribution was made, and checks do not work under vmap
        return cls(**{key: self.value(item) for key, item in arguments.items()}, validate_args=False)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise DataError(f"The saved model names the dtype {name!r}, which this version of torch lacks.")
    return found
