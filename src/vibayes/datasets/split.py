"""`Split`: the training and test rows of a data set, and the units they are in."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from vibayes.datasets._log import warn_once
from vibayes.errors import ConfigurationError, ShapeError

__all__ = ["Split", "Standardize"]

Standardize = Literal["inputs", "targets", "both"]

# Statistics are summed in float64 over pieces of this many rows, so that float32 images need no second copy.
_PIECE = 4096


@dataclass(frozen=True, repr=False, eq=False)
class Split:
    """Training and test rows of one data set.

    Inputs are `[N, D]` for tables and `[N, C, H, W]` for images. Targets are `[N]` (or `[N, P]` for several
    outputs) for regression, `[N]` of dtype long for classes. Where the source has no targets (the test grid
    of a toy, the SVHN images) the tensor of targets is empty, shape `[0]`; `has_test_targets` tells.

    Values were standardised as `standardize` says; `x_mean`, `x_std`, `y_mean`, `y_std` always map them back:

        value in original units = stored value * std + mean,

    with mean 0 and standard deviation 1 where nothing was standardised. So a predictive standard deviation is
    multiplied by `y_std`, and `log y_std` is subtracted from a log density, to return to original units.

    Attributes:
        x_train: training inputs.
        y_train: training targets.
        x_test: test inputs.
        y_test: test targets.
        name: of the data set.
        split: the number of the published split, or None.
        seed: of the random split or of the generated set, or None.
        standardize: what is standardised: None, "inputs", "targets" or "both".
        x_mean: what was subtracted from the inputs; per column or, for images, per channel.
        x_std: what they were divided by.
        y_mean: what was subtracted from the targets.
        y_std: what they were divided by.
        metadata: what else is known: row numbers in the source ("train_index", "test_index"), the true
            parameters of a generated set.

    Example:
        >>> from vibayes import datasets
        >>> split = datasets.cubic(seed=0).standardized("both")
        >>> split
        Split('cubic', seed=0, train=40, test=241, inputs=(1,), standardize='both')
        >>> bool(split.y_train.mean().abs() < 1e-12)
        True
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor = field(default_factory=lambda: torch.empty(0))
    name: str = "data"
    split: int | None = None
    seed: int | None = None
    standardize: Standardize | None = None
    x_mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    x_std: Tensor = field(default_factory=lambda: torch.ones(()))
    y_mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    y_std: Tensor = field(default_factory=lambda: torch.ones(()))
    metadata: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        items = [repr(self.name)]
        items += [f"{k}={v}" for k, v in (("split", self.split), ("seed", self.seed)) if v is not None]
        items += [f"train={len(self.x_train)}", f"test={len(self.x_test)}"]
        items += [f"inputs={tuple(self.x_train.shape[1:])}"]
        items += [f"standardize={self.standardize!r}"] if self.standardize else []
        return f"{type(self).__name__}({', '.join(items)})"

    @property
    def has_train_targets(self) -> bool:
        """Whether the training rows have targets."""
        return len(self.y_train) == len(self.x_train) > 0

    @property
    def has_test_targets(self) -> bool:
        """Whether the test rows have targets."""
        return len(self.y_test) == len(self.x_test) > 0

    def original_targets(self, y: Tensor) -> Tensor:
        """Targets or predicted means, mapped from the units of `y_train` to original units."""
        return y * self.y_std + self.y_mean

    def subset(self, n_train: int | None = None, n_test: int | None = None, every: int = 1) -> Self:
        """Fewer rows: every `every`-th training row, then the first `n_train`; the first `n_test` test rows.

        The statistics stay as they are, so the units do not change.
        """
        if every < 1:
            raise ConfigurationError(f"every must be at least 1; got {every}.")
        available = (len(self.x_train[::every]), len(self.x_test))
        for label, wanted, size in zip(("n_train", "n_test"), (n_train, n_test), available, strict=True):
            if wanted is not None and not 0 <= wanted <= size:
                raise ConfigurationError(f"{label} must be 0 to {size} for {self.name}; got {wanted}.")

        def fewer_train(rows: Tensor) -> Tensor:
            return rows[::every][:n_train].clone()  # a clone lets go of the rest of a large set

        def fewer_test(rows: Tensor) -> Tensor:
            return rows[:n_test].clone()

        cut = {"train_index": fewer_train, "test_index": fewer_test}
        return replace(
            self,
            x_train=fewer_train(self.x_train),
            y_train=fewer_train(self.y_train),
            x_test=fewer_test(self.x_test),
            y_test=fewer_test(self.y_test),
            metadata={key: cut[key](value) if key in cut else value for key, value in self.metadata.items()},
        )

    def standardized(self, which: Standardize = "both", *, ddof: int = 0, like: "Split | None" = None) -> Self:
        """Inputs, targets or both with mean 0 and standard deviation 1 over the *training* rows.

        Tables are standardised per column, images per channel. The variance has the denominator `n - ddof`:
        `ddof=0` is what most code does, `ddof=1` the unbiased estimate (Snelson's data in the thesis). A
        column that is constant over the training rows becomes zeros (its standard deviation counts as 1).

        Args:
            which: "inputs", "targets" or "both".
            ddof: what is subtracted from the number of rows in the denominator of the variance.
            like: take the statistics of this standardised split in place of those of the own training rows;
                for out-of-distribution inputs of a model that was trained on `like`.
        """
        if which not in ("inputs", "targets", "both"):
            raise ConfigurationError(f'standardize must be None, "inputs", "targets" or "both"; got {which!r}.')
        if like is None and len(self.x_train) <= ddof:
            raise ConfigurationError(
                f"{self.name} has {len(self.x_train)} training rows, too few for statistics with "
                f"ddof={ddof}. Give like=, a standardised split whose statistics are to be used."
            )
        changes: dict[str, Any] = {"standardize": which}
        if which in ("inputs", "both"):
            changes |= self._moved("x", ddof, like)
        if which in ("targets", "both"):
            if not self.y_train.is_floating_point() or (like is None and not self.has_train_targets):
                what = "class labels" if len(self.y_train) else "missing"
                raise ConfigurationError(
                    f'The targets of {self.name} are {what}, which cannot be standardised. Use standardize="inputs".'
                )
            changes |= self._moved("y", ddof, like)
        if self.standardize not in (None, which):
            changes["standardize"] = "both"
        return replace(self, **changes)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same rows on another device or in another floating-point dtype (class labels stay long)."""

        def move(value: Tensor) -> Tensor:
            return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

        names = ("x_train", "y_train", "x_test", "y_test", "x_mean", "x_std", "y_mean", "y_std")
        changes: dict[str, Any] = {name: move(getattr(self, name)) for name in names}
        return replace(self, **changes)

    def _moved(self, axis: Literal["x", "y"], ddof: int, like: "Split | None") -> dict[str, Tensor]:
        """The fields that change when x or y is standardised."""
        train, test, old_mean, old_std = (getattr(self, f"{axis}_{k}") for k in ("train", "test", "mean", "std"))
        if like is None:
            label = f"{self.name}: {'input' if axis == 'x' else 'target'}"
            mean, std = _statistics(train, ddof, label)
        else:
            if getattr(like, f"{axis}_train").shape[1:] != train.shape[1:]:
                raise ShapeError(
                    f"The rows of {self.name} have shape {tuple(train.shape[1:])}, those of {like.name} "
                    f"{tuple(getattr(like, f'{axis}_train').shape[1:])}: they cannot share statistics."
                )
            # From the present units to the original ones to those of `like`.
            mean = ((getattr(like, f"{axis}_mean") - old_mean) / old_std).to(train.dtype)
            std = (getattr(like, f"{axis}_std") / old_std).to(train.dtype)
        return {
            f"{axis}_train": (train - mean).div_(std) if len(train) else train,
            f"{axis}_test": (test - mean).div_(std) if len(test) else test,
            # Standardising twice composes, and the way back stays one multiplication and one addition.
            f"{axis}_mean": mean * old_std + old_mean,
            f"{axis}_std": std * old_std,
        }


def _statistics(values: Tensor, ddof: int, label: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per column or channel, in the shape that broadcasts against one row."""
    axes = (0, *range(2, values.ndim))
    shape = (*values.shape[1:2], *[1] * (values.ndim - 2))
    count = values.numel() // (values.shape[1] if values.ndim > 1 else 1)
    pieces = torch.split(values, _PIECE)
    moments = [torch.var_mean(p.double(), axes, correction=0) for p in pieces]
    variances, means = (torch.stack(parts).reshape(-1, *shape) for parts in zip(*moments, strict=True))
    weights = torch.tensor([len(p) / len(values) for p in pieces], dtype=torch.float64, device=values.device)
    weights = weights.reshape(-1, *[1] * len(shape))
    mean = (weights * means).sum(0)
    # Variance within the pieces plus variance between them.
    variance = (weights * (variances + (means - mean).square())).sum(0)
    std = (variance * count / (count - ddof)).sqrt()
    if bool((std <= 1e-6 * mean.abs()).any()):
        low, high = values.amin(axes).double().reshape(shape), values.amax(axes).double().reshape(shape)
        constant = (high - low) <= 10 * torch.finfo(values.dtype).eps * torch.maximum(low.abs(), high.abs())
        if bool(constant.any()):
            columns = constant.reshape(-1).nonzero().flatten().tolist()
            message = f"{label} column(s) {columns} are constant over the training rows and become zeros."
            warn_once(message, message)
        # A constant's computed mean may be off by rounding; the value itself makes the column exactly zero.
        mean, std = torch.where(constant, low, mean), torch.where(constant, 1.0, std)
    return mean.to(values.dtype), std.to(values.dtype)
