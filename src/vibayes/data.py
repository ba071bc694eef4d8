"""What enters a model: arrays of any kind become checked tensors, and units become the model's own."""

import logging
import math
import numbers
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from vibayes.errors import ConfigurationError, DataError, ShapeError

__all__ = [
    "STANDARDIZE",
    "DataShapeError",
    "Units",
    "as_rows",
    "as_tensor",
    "as_weights",
    "check_count",
    "check_finite",
    "has_many_digits",
]

logger = logging.getLogger("vibayes")

STANDARDIZE = (None, "inputs", "targets", "both")


class DataShapeError(DataError, ShapeError):
    """Data whose shape does not fit: another width or length than needed, or no row axis."""


def check_count(value: Any, name: str) -> int:
    """Refuse what is not a positive whole number.

    >>> check_count(3, "n_samples")
    3
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ConfigurationError(f"{name} must be at least 1, a whole number; got {value!r}.")
    return int(value)


def as_tensor(values: Any, what: str, *, device: torch.device | None = None) -> Tensor:
    """A tensor from a tensor, a numpy array, a pandas object or a list; `what` names it in errors."""
    if isinstance(values, Tensor):
        tensor = values.detach()
        if tensor.layout != torch.strided:
            raise DataError(f"{what} is a sparse tensor; pass {what}.to_dense().")
    else:
        try:
            # what a masked array hides is missing, whatever number stands there
            masked = isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "buif"
            array = values.astype(np.float64).filled(math.nan) if masked else np.asarray(values)
        except ValueError as error:  # ragged lists
            raise DataError(f"{what} cannot be read as an array: {error}.") from None
        if array.dtype == object and all(_is_missing(v) or isinstance(v, numbers.Real | np.bool_) for v in array.flat):
            # columns of different types, as data frames have
            numeric = [math.nan if _is_missing(v) else float(v) for v in array.flat]
            array = np.array(numeric, dtype=np.float64).reshape(array.shape)
        if array.dtype.kind not in "buif":
            raise DataError(
                f"{what} holds values of type {array.dtype}; numbers are needed. "
                "Encode categories and dates as numbers first."
            )
        # torch wants native numbers of at most 64 bits in a plain layout, and the memory to be its own
        dtype = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
        tensor = torch.from_numpy(np.array(array, dtype=dtype, order="C"))
    if tensor.is_complex():
        raise DataError(f"{what} is complex; real numbers are needed.")
    return tensor.to(device) if device is not None else tensor


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ == "NAType"  # pandas.NA


def check_finite(tensor: Tensor, what: str) -> None:
    """Refuse NaN and infinite values, saying how many there are and where the first one is."""
    if not tensor.is_floating_point():
        return
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        where = bad.nonzero()[0].tolist()
        value = tensor[tuple(where)].item()
        kind = "NaN" if value != value else "infinite"
        raise DataError(
            f"{what} has {int(bad.sum())} value(s) that are NaN or infinite; the first is {kind}, "
            f"in row {where[0]}{f', column {where[1]}' if len(where) > 1 else ''}. "
            "Drop or impute those rows before fitting."
        )


def as_rows(
    values: Any,
    what: str = "x",
    *,
    shape: tuple[int, ...] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    all_digits: bool = False,
) -> Tensor:
    """Checked input rows `[N, ...]` of a floating dtype.

    Args:
        values: an array of any kind; integers and booleans are cast.
        what: its name in error messages.
        shape: the shape each row must have, when known.
        dtype: the dtype to cast to (the default dtype when None).
        device: the device to put it on.
        all_digits: give back float64, whatever the dtype, where values have more digits than float32: to standardise.

    >>> as_rows([[1, 2], [3, 4]], dtype=torch.float64).dtype
    torch.float64
    """
    tensor = as_tensor(values, what, device=device)
    if tensor.numel() == 0:
        raise DataError(f"{what} is empty (shape {list(tensor.shape)}); pass at least one row and one column.")
    if tensor.ndim < 2:
        raise DataShapeError(
            f"{what} must have one row per observation, [N, D]; got shape {list(tensor.shape)}. "
            f"For a single input column use {what}[:, None]."
        )
    if shape is not None and tuple(tensor.shape[1:]) != shape:
        advice = "Pass" if len(shape) == 1 and tensor.ndim == 2 else "Reshape them to that, with"
        raise DataShapeError(
            f"{what} must have rows of shape {list(shape)}, as the model was built or fitted with; got rows of shape "
            f"{list(tensor.shape[1:])}. {advice} the same columns in the same order."
        )
    cast = tensor.to(dtype or torch.get_default_dtype())
    check_finite(cast, what)
    return tensor.double() if all_digits and has_many_digits(tensor) else cast


def has_many_digits(tensor: Tensor) -> bool:
    """Whether numbers of this dtype may have more digits than float32 holds."""
    return tensor.dtype.itemsize >= (8 if tensor.is_floating_point() else 4)


def as_weights(values: Any, n: int, *, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Checked weights, one non-negative number per row."""
    weights = as_tensor(values, "weights", device=device).to(dtype)
    if tuple(weights.shape) != (n,):
        raise DataShapeError(f"weights must hold one number per row, [{n}]; got shape {list(weights.shape)}.")
    check_finite(weights, "weights")
    if bool((weights < 0).any()):
        raise DataError("weights must not be negative; use 0 to leave a row out.")
    return weights


class Units(nn.Module):
    """The map between a user's units and the standardised ones a model works in.

    Statistics are per column, and per channel of images `[C, H, W]`. They are buffers of the shape of a row, so they
    are saved with the model and stacked over replicas. A constant column or channel is mapped to zero, and said so
    once. Statistics stay float64 in a model of float32, and rows of float64 are standardised in it: columns far from
    zero against their spread, such as seconds since 1970, lose their digits only afterwards.

    Args:
        standardize: `None`, `"inputs"`, `"targets"` or `"both"`.
    """

    x_mean: Tensor
    x_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor

    def __init__(self, standardize: str | None = None) -> None:
        super().__init__()
        if standardize not in STANDARDIZE:
            raise ConfigurationError(f"standardize must be one of {STANDARDIZE}, got {standardize!r}.")
        self.standardize = standardize
        for name, start in (("x_mean", 0.0), ("x_scale", 1.0), ("y_mean", 0.0), ("y_scale", 1.0)):
            self.register_buffer(name, torch.tensor(start, dtype=torch.float64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = {name: buffer for name, buffer in self.named_buffers() if not buffer.is_meta}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in kept.items():  # to another device, but not to another dtype
            moved: Tensor = getattr(self, name)
            if not moved.is_meta:
                setattr(self, name, buffer.to(moved.device))
        return self

    @property
    def of_inputs(self) -> bool:
        """Whether inputs are standardised."""
        return self.standardize in ("inputs", "both")

    @property
    def of_targets(self) -> bool:
        """Whether targets are standardised."""
        return self.standardize in ("targets", "both")

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """Take the statistics from training rows; a row of weight `w` counts as `w` rows."""
        if self.of_inputs:
            self.x_mean, self.x_scale = (t.double() for t in _statistics(x, "input", weights))
        if self.of_targets:
            self.y_mean, self.y_scale = (t.double() for t in _statistics(y, "target", weights))

    def inputs(self, x: Tensor) -> Tensor:
        """User inputs in the model's units, computed in their dtype."""
        return (x - self.x_mean.to(x.dtype)) / self.x_scale.to(x.dtype) if self.of_inputs else x

    def targets(self, y: Tensor) -> Tensor:
        """User targets in the model's units."""
        return (y - self.y_mean.to(y.dtype)) / self.y_scale.to(y.dtype) if self.of_targets else y

    def outputs(self, f: Tensor) -> Tensor:
        """Function values of the model in user units."""
        return f * self.y_scale.to(f.dtype) + self.y_mean.to(f.dtype) if self.of_targets else f

    def log_jacobian(self) -> Tensor:
        """`sum_p log scale_p`: what one row's log density loses on the way to user units."""
        return self.y_scale.log().sum()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Statistics are scalars until data was seen; take the stored shapes.
        for name in ("x_mean", "x_scale", "y_mean", "y_scale"):
            if prefix + name in state_dict:
                current: Tensor = getattr(self, name)
                if current.shape != state_dict[prefix + name].shape:
                    setattr(self, name, current.new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *args)


def _statistics(rows: Tensor, what: str, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and scale, of the shape of a row.

    Those of images are alike at every place: statistics per pixel would blow up pixels at the border that hardly ever
    change, and notice translations.
    """
    axes = (0, 2, 3) if rows.ndim == 4 else (0,)
    if weights is not None:
        rows, weights = rows[weights > 0], weights[weights > 0]
    low, high = rows.amin(axes, keepdim=True), rows.amax(axes, keepdim=True)
    limits, size = torch.finfo(rows.dtype), torch.maximum(-low, high)
    extreme = (size < limits.tiny**0.4) | (size > limits.max**0.4)
    if bool(extreme.any()):  # at a size of about 1 squares neither vanish nor overflow; a power of two rounds nothing
        size = torch.where(extreme, torch.exp2(size.clamp_min(limits.tiny).log2().floor()), 1.0)
        rows, low, high = rows / size, low / size, high / size
    else:
        size = torch.ones_like(size)
    if weights is None:
        mean, scale = rows.mean(axes, keepdim=True), rows.std(axes, correction=0, keepdim=True)
    else:
        share = weights.reshape(-1, *[1] * (rows.ndim - 1)).expand_as(rows[:, :1])
        share = share / share.sum(axes, keepdim=True)
        mean = (share * rows).sum(axes, keepdim=True)
        scale = (share * (rows - mean).square()).sum(axes, keepdim=True).sqrt()
    # rounding leaves a constant with a tiny scale, and a larger one in float32 and in sums over many places
    spread = max(1e-12, 4 * torch.finfo(rows.dtype).eps)
    constant = (low == high) | (scale <= spread * torch.maximum(-low, high))
    if bool(constant.any()):
        which = constant.flatten().nonzero().flatten().tolist()
        kind = "channel" if rows.ndim == 4 else "column"
        logger.info("Constant %s %s(s) %s: standardised to zero.", what, kind, which)
    first = rows[:1]
    centre, width = (
        torch.where(constant, first, mean) * size,
        torch.where(constant, torch.ones_like(first), scale * size),
    )
    return centre[0], width[0]
