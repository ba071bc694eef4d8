"""What every model has in common: a likelihood, units, checked data, and a bound to maximise."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from vibayes import linalg
from vibayes.bound import Bound, Elbo
from vibayes.data import (
    DataShapeError,
    Units,
    as_rows,
    as_tensor,
    as_weights,
    check_count,
    check_finite,
    has_many_digits,
)
from vibayes.errors import ConfigurationError, DataError, NotFittedError
from vibayes.likelihoods import Likelihood, Mixture
from vibayes.parameters import log_prior
from vibayes.prediction import Prediction
from vibayes.saving import save

__all__ = ["Batch", "TrainableModel"]


class Batch(NamedTuple):
    """Data rows in the model's units, dtype and device."""

    x: Tensor
    y: Tensor
    weights: Tensor | None = None


class TrainableModel(nn.Module, ABC):
    """A model that `fit` can train: `forward` is its bound on prepared data.

    Attributes:
        likelihood: the distribution of targets given function values.
        units: the map between user units and the model's.
        jitter: relative jitter of factorizations, a tensor so that it can differ between replicas.
        ready: whether `initialize` has been called.
        optimizer: the optimizer `fit` takes unless told otherwise.
    """

    jitter: Tensor
    ready: Tensor
    target_axes: Tensor
    optimizer = "adam"

    def __init__(self, likelihood: Likelihood, standardize: str | None = None) -> None:
        super().__init__()
        if not isinstance(likelihood, Likelihood):
            raise ConfigurationError(
                f"likelihood must be a likelihood such as Gaussian(), got {type(likelihood).__name__}."
            )
        self.likelihood = likelihood
        self.units = Units(standardize)
        if self.units.of_targets and not likelihood.scalable:
            raise ConfigurationError(
                f"Targets of {type(likelihood).__name__} have no units and cannot be standardised; "
                'use standardize="inputs" or None.'
            )
        self.register_buffer("ready", torch.tensor(False))
        # 2 when targets were given as [N, P]: predictions come back in the same form
        self.register_buffer("target_axes", torch.tensor(1))
        self.row_shape: tuple[int, ...] | None = None

    def _finish(self) -> None:
        """Check dtypes once all parameters exist, and set the jitter."""
        by_dtype = {p.dtype: name for name, p in self.named_parameters() if p.is_floating_point()}
        if len(by_dtype) > 1:
            found = ", ".join(f"{name} is {dtype}" for dtype, name in by_dtype.items())
            raise ConfigurationError(
                f"All parameters of a model need one dtype; {found}. Build every part under one "
                "torch.set_default_dtype, and convert the finished model with model.double() or model.float()."
            )
        dtype = next(iter(by_dtype), torch.get_default_dtype())
        linalg.check_dtype(dtype)
        self.register_buffer("jitter", torch.tensor(linalg.JITTER, dtype=dtype))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Convert as torch does, to dtypes that models work in."""
        linalg.check_dtype(fn(self.jitter.new_empty(0)).dtype)  # before anything is rounded
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of parameters, to which data are cast."""
        return self.jitter.dtype

    @property
    def device(self) -> torch.device:
        """The device of parameters, to which data are moved."""
        return self.jitter.device

    @property
    def draws_differ(self) -> bool:
        """Whether the bound is a Monte Carlo mean over draws; False where everything is closed-form."""
        return False

    @property
    def exact(self) -> bool:
        """Whether nothing that a pass gives, in the mode the model is in, is left to chance."""
        return not self.draws_differ

    @abstractmethod
    def describe(self) -> str:
        """What the model is made of, with its hyperparameters and sizes, as text."""

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
        *,
        scale: float | Tensor = 1.0,
        n_samples: int = 1,
        noise: Mapping[str, Tensor] | None = None,
    ) -> Bound:
        """The terms of the bound on prepared data; `scale` is `n_data / batch rows`."""

    @abstractmethod
    def _start(self, batch: Batch) -> None:
        """Set data-dependent starting values from prepared training data."""

    def _meet(self, rows: Tensor) -> None:
        """Look at rows that came in, checked, before anything is made of them."""
        return

    @property
    def n_targets(self) -> int | None:
        """How many targets (classes) the model is built for, where it is known."""
        return None

    def observe(self, batch: Batch) -> None:
        """Keep prepared training data, for models whose predictions condition on them."""
        return

    def prepare_inputs(self, x: Any, what: str = "x") -> Tensor:
        """Inputs checked, cast and in the model's units."""
        self._check_units()
        self._check_precision()
        rows = self._rows(x, what)
        self._meet(rows.to(self.dtype))
        return self.units.inputs(rows).to(self.dtype)

    def _rows(self, x: Any, what: str = "x") -> Tensor:
        """Checked rows in user units; with all their digits where they are to be standardised."""
        kept = self.units.of_inputs
        return as_rows(x, what, shape=self.row_shape, dtype=self.dtype, device=self.device, all_digits=kept)

    def _check(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        self._check_precision()
        rows = self._rows(x)
        targets = as_tensor(y, "y", device=self.device)
        if targets.ndim == 0 or targets.shape[0] != rows.shape[0]:
            raise DataShapeError(
                f"x has {rows.shape[0]} rows but y has {targets.shape[0] if targets.ndim else 'no'} entries; "
                "both must describe the same observations. Pass one target for each row."
            )
        kept = self.units.of_targets and has_many_digits(targets)  # until they are standardised
        if not targets.is_floating_point() and self.likelihood.kind != "classes":
            targets = targets.double() if kept else targets.to(self.dtype)
        targets = self.likelihood.check_targets(targets, self.n_targets)
        if targets.is_floating_point() and targets.dtype != self.dtype:
            cast = targets.to(self.dtype)
            check_finite(cast, f"y in {self.dtype}")  # a large float64 number overflows in float32
            targets = targets if kept else cast
        self._meet(rows.to(self.dtype))
        return rows, targets

    def _check_precision(self) -> None:
        if torch.is_autocast_enabled(self.device.type):
            raise ConfigurationError(
                f"Models work in float32 or float64, and torch.autocast would round kernel matrices to "
                f"{torch.get_autocast_dtype(self.device.type)}. Leave it, or use it only inside the forward of a plain "
                "network of your own."
            )

    def _check_units(self) -> None:
        if self.units.standardize is not None and not bool(self.ready):
            raise NotFittedError(
                f"{type(self).__name__} standardises by training statistics, and has seen no training data. "
                "Call model.initialize(x, y) or fit first."
            )

    def prepare(self, x: Any, y: Any, weights: Any = None) -> Batch:
        """Training data checked, cast and in the model's units."""
        self._check_units()
        rows, targets = self._check(x, y)
        checked = None if weights is None else as_weights(weights, len(rows), dtype=self.dtype, device=self.device)
        return Batch(*self._in_units(rows, targets), checked)

    def _in_units(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Checked rows and targets in the model's units and dtype; classes as they are."""
        y = self.units.targets(targets)
        return self.units.inputs(rows).to(self.dtype), y.to(self.dtype) if y.is_floating_point() else y

    def initialize(self, x: Any, y: Any, weights: Any = None) -> None:
        """Take everything that depends on the data before training starts: units and starting values.

        `fit` calls this when nobody did. Calling it again starts over from the given data. Weights enter the units,
        and what a closed-form model infers: a row of weight `w` counts as `w` rows there.
        """
        rows, targets = self._check(x, y)
        if weights is not None:
            weights = as_weights(weights, len(rows), dtype=self.dtype, device=self.device)
            if not bool((weights > 0).any()):
                raise DataError("Every weight is zero; at least one row must count.")
        before = (self.row_shape, self.target_axes.clone(), self.units.state_dict(keep_vars=False))
        self.row_shape = tuple(rows.shape[1:])
        self.target_axes.fill_(2 if as_tensor(y, "y").ndim == 2 else 1)
        try:
            self.units.learn(rows, targets, weights)
            self._start(Batch(*self._in_units(rows, targets), weights))
        except BaseException:  # data that do not fit leave no trace of their shapes and units
            self.row_shape = before[0]
            self.target_axes.copy_(before[1])
            self.units.load_state_dict(before[2])
            raise
        self.ready.fill_(True)

    def elbo(self, x: Any, y: Any, n_samples: int = 10, n_data: int | None = None, kl_weight: float = 1.0) -> Elbo:
        """The evidence lower bound for these data, differentiable, also with respect to inputs that ask for it.

        Plain torch modules such as `nn.BatchNorm1d` and `nn.Dropout` behave as the model's mode says, as in a loop of
        your own: `model.eval()` first for the bound of a trained model. (Predictions are always made in that mode.)

        Under `torch.no_grad()` a `Model` takes its rows and draws a few at a time, so that memory does not grow with
        them; with gradients all of them are in memory at once.

        Args:
            x: inputs `[N, ...]`.
            y: targets `[N]` or `[N, P]`.
            n_samples: how many draws.
            n_data: size of the whole data set when `(x, y)` is a minibatch of it.
            kl_weight: weight of the KL in `Elbo.objective`; `Elbo.value` always has weight one.

        Returns:
            An `Elbo`: `value` in total nats, its Monte Carlo error `stderr`, `per_datapoint`, and the `objective` to
            train on.
        """
        check_count(n_samples, "n_samples")
        batch = self.prepare(x, y)
        if isinstance(x, Tensor) and x.requires_grad:  # such as features that a network outside the model makes
            rows = self.units.inputs(x.to(self.device, torch.promote_types(x.dtype, self.dtype)))
            batch = Batch(rows.to(self.dtype), batch.y, batch.weights)
        total = len(batch.x) if n_data is None else check_count(n_data, "n_data")
        return Elbo.of(
            self._whole_bound(batch, total / len(batch.x), n_samples),
            n_data=total,
            log_jacobian=self.units.log_jacobian().to(self.dtype),
            kl_weight=kl_weight,
            exact=self.exact,
        )

    def _whole_bound(self, batch: Batch, scale: float, n_samples: int) -> Bound:
        """The terms of `elbo`, all rows at once."""
        bound: Bound = self(batch.x, batch.y, scale=scale, n_samples=n_samples)
        return bound

    @abstractmethod
    def predict(
        self, x: Any, n_samples: int = 100, batch_size: int | None = None, *, joint: bool = False
    ) -> Prediction:
        """The predictive distribution at new inputs, in user units."""

    def log_prior(self) -> Tensor:
        """Sum of the log-priors of all hyperparameters."""
        return self.jitter.new_zeros(()) + log_prior(self)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model into a folder, from which `vibayes.load` reads it; see `vibayes.saving.save`."""
        save(self, folder)

    def _squeezes(self, n_targets: int) -> bool:
        """Whether one target column is given back as `[N]`, as it came in."""
        return n_targets == 1 and int(self.target_axes) == 1

    def _prediction(self, mixture: Mixture, covariance: Tensor | None = None) -> Prediction:
        """A `Prediction` in user units."""
        scaled, one_column = self.units.of_targets, mixture.kind == "classes" or mixture.n_targets == 1
        return Prediction(
            mixture,
            loc=self.units.y_mean if scaled else None,
            scale=self.units.y_scale if scaled else None,
            squeeze=one_column and int(self.target_axes) == 1,
            covariance=covariance,
        )
