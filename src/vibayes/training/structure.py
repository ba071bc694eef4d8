"""What a model is made of, in a form that can be compared: for models that train together, and for checkpoints."""

import dataclasses
import functools
import inspect
import zlib
from collections.abc import Sequence
from types import CodeType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Distribution, Transform
from torch.distributions.utils import lazy_property
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from vibayes.parameters import hyperparameters
from vibayes.trainable import TrainableModel
from vibayes.training.batches import Batches
from vibayes.training.run import Options, value_at
from vibayes.training.schedules import Schedule

__all__ = ["fingerprint", "structure"]


def fingerprint(
    models: Sequence[TrainableModel],
    sources: Sequence[Batches],
    options: Options,
    optimizer: str,
    seeds: list[int],
    rates: list[float],
) -> dict[str, Any]:
    """What must be the same for a checkpoint to be this run's; one entry per replica in lists."""

    def plain(values: list[Any]) -> Any:
        return values[0] if len(values) == 1 else values

    augment = sources[0].augment
    return {
        **{f"model {name}": repr(value) for name, value in structure(models[0], own=False).items()},
        **{f"fixed {name}": plain([_fixed(model)[name] for model in models]) for name in _fixed(models[0])},
        "data": plain([s.digest() for s in sources]),
        "n_data": plain([s.n_data for s in sources]),
        "batch_size": sources[0].batch_size,
        "optimizer": optimizer,
        "lr": plain(rates),
        "lr_schedule": _values(options.lr_schedule),
        "kl_weight": _values(options.kl_weight),
        "n_samples": options.n_samples,
        "seed": plain(seeds),
        "log_every": options.log_every,
        "restarts": options.restarts,
        "weight_decay": options.weight_decay,
        "natural_rate": options.natural_rate,
        "augment": None if augment is None else _words(augment),
        **({"lr_factors": dict(options.lr_factors)} if options.lr_factors else {}),
    }


def _fixed(model: TrainableModel) -> dict[str, list[float]]:
    """Values of hyperparameters that training leaves as they are, to six digits."""
    fixed = [(name, h.value.flatten().tolist()) for name, h in hyperparameters(model) if not h.raw.requires_grad]
    return {name: [float(f"{value:.6g}") for value in values] for name, values in fixed}


def _values(schedule: Schedule) -> list[float | None]:
    """A schedule by some of its values."""
    return [value_at(schedule, step) for step in (0, 10, 100, 1_000, 10_000, 100_000)]


def structure(model: nn.Module, *, own: bool = True) -> dict[str, Any]:
    """What models must have in common to be trained alike: classes, shapes, what is fixed, settings but no starts.

    Args:
        model: the model.
        own: whether settings of modules that are neither torch's nor ours count; they may be anything, such as a count.
    """
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        known = own or type(module).__module__.partition(".")[0] in ("torch", "vibayes")
        settings = {
            key: setting
            for key, value in sorted(vars(module).items())
            if known and not key.startswith(("_", "given_")) and key not in _NO_SETTINGS
            if (setting := _setting(value, code=own)) is not None
        }
        if isinstance(module, _NormBase | _DropoutNd):
            settings["training"] = module.training
        found[name or "the model"] = (type(module).__name__, settings)
    for name, parameter in model.named_parameters():
        found[f"parameter {name}"] = (tuple(parameter.shape), parameter.dtype, parameter.requires_grad)
    return found


# the mode, which matters to few modules only, and what is known once data were seen
_NO_SETTINGS = ("training", "row_shape")


def _setting(value: Any, *, code: bool, within: tuple[Any, ...] = ()) -> Any:
    """An attribute in a form that can be compared and printed; None where it is no setting.

    Args:
        value: the attribute.
        code: whether functions count, and what is made of settings but for our own; a checkpoint does not tell of them.
        within: what it is a part of.
    """
    if _is_plain(value):
        return value
    if isinstance(value, Distribution):
        return _numbers_of(value)
    is_data = dataclasses.is_dataclass(value) and not isinstance(value, type)
    if is_data and type(value).__module__.partition(".")[0] == "vibayes":
        return str(value)
    if not code or any(value is whole for whole in within):
        return None

    def inside(part: Any) -> Any:
        return _setting(part, code=True, within=(*within, value))

    if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biufc"):
        return tuple(value.shape), str(value.dtype), zlib.crc32(_bytes(value))
    if isinstance(value, list | tuple):
        return [inside(part) for part in value]
    if isinstance(value, dict):
        return {str(key): inside(part) for key, part in value.items()}
    if is_data:
        return type(value).__name__, {
            part.name: inside(getattr(value, part.name)) for part in dataclasses.fields(value)
        }
    if isinstance(value, functools.partial):
        return [inside(part) for part in (value.func, value.args, value.keywords)]
    if inspect.isroutine(value):
        kept = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        given = [getattr(value, name, None) for name in ("__defaults__", "__kwdefaults__", "__self__")]
        body = getattr(value, "__code__", None)  # lambdas of one place have one name
        return _words(value), 0 if body is None else zlib.crc32(_steps(body).encode()), inside(kept), inside(given)
    return None


def _words(function: Any) -> str:
    """A function or object in words that are the same in every process."""
    name = getattr(function, "__qualname__", None) or repr(function)
    return type(function).__qualname__ if " at 0x" in name else name


def _bytes(value: Tensor | NDArray[Any]) -> bytes:
    if isinstance(value, Tensor):
        value = value.detach().to_dense().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return value.tobytes()


def _steps(body: CodeType) -> str:
    """What a function does, but for what it keeps from where it was made."""
    constants = [_steps(part) if isinstance(part, CodeType) else repr(part) for part in body.co_consts]
    return f"{body.co_code!r} {body.co_names} {constants}"


def _numbers_of(prior: Distribution | Transform) -> tuple[str, dict[str, Any]]:
    """A distribution by its class and numbers; what is computed from them on demand is left out."""
    found: dict[str, Any] = {}
    for key, value in sorted(vars(prior).items()):
        if isinstance(getattr(type(prior), key, None), lazy_property):
            continue
        if isinstance(value, Tensor):
            found[key] = value.tolist()
        elif isinstance(value, Distribution):
            found[key] = _numbers_of(value)
        elif isinstance(value, list | tuple) and value and all(isinstance(v, Transform) for v in value):
            found[key] = [_numbers_of(v) for v in value]
        elif isinstance(value, float | int) and not key.startswith("_"):
            found[key] = value
    return type(prior).__name__, found


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)
