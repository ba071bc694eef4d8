"""`fit`: train any model."""

import logging
import os
import time
from pathlib import Path
from typing import Any

import torch

from vibayes.conjugate.base import ConjugateModel
from vibayes.errors import ConfigurationError
from vibayes.trainable import TrainableModel
from vibayes.training.adam import AdamRun
from vibayes.training.batches import Batches, as_batches
from vibayes.training.checkpoint import load_state, save_state
from vibayes.training.history import History
from vibayes.training.lbfgs import LbfgsRun
from vibayes.training.progress import Progress
from vibayes.training.run import Options, Run
from vibayes.training.schedules import Schedule, as_schedule

__all__ = ["fit"]

logger = logging.getLogger("vibayes")

_RUNS: dict[str, type[AdamRun] | type[LbfgsRun]] = {"adam": AdamRun, "lbfgs": LbfgsRun}


def fit(
    model: TrainableModel,
    data: Any,
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    optimizer: str | None = None,
    lr: float = 1e-2,
    lr_schedule: float | Schedule = 1.0,
    kl_weight: float | Schedule = 1.0,
    n_samples: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 15.0,
    restarts: int = 1,
    log_every: int = 50,
    max_steps: int = 20_000,
    tolerance: float = 1e-3,
) -> History:
    """Train a model by maximising its bound (or evidence) and return the history.

    When a step gives NaN or a matrix cannot be factorised, training goes back to the last good state with more
    jitter and smaller steps, says so, and after a few tries gives up with an error that names the layer. Interrupted,
    it leaves the model at its last good state.

    Args:
        model: a `Model`, `ExactGP`, `SGPR` or `LinearRegression`.
        data: `(x, y)` or `(x, y, weights)` as tensors or arrays, or a `Dataset` or `DataLoader` of such items.
        steps: how many steps (iterations, for L-BFGS). None: L-BFGS until it converges; Adam until the bound,
            averaged over windows of `log_every` steps, rises by less than `tolerance` nats per row in ten windows
            at the given learning rate and again at a tenth of it, at most `max_steps`.
        batch_size: rows per step; all rows when None (1,000 for a `Dataset`).
        optimizer: `"adam"` or `"lbfgs"`; by default L-BFGS for closed-form models and Adam for the rest.
        lr: learning rate of Adam.
        lr_schedule: factor of `lr` at each step, e.g. `schedules.piecewise([10_000], [1.0, 0.1])`.
        kl_weight: weight of the KL, a number or a schedule. The history holds the untempered bound.
        n_samples: draws per step; by default 10, or 1 where all draws are the same.
        seed: governs starting values, the order of minibatches and the draws.
        device: where to train, e.g. `"cuda"`; by default where the model is.
        progress: whether to show progress.
        checkpoint: a file that makes the run resumable: killed at any moment and started again with the same
            arguments it continues, on CPU to exactly the same parameters.
        checkpoint_seconds: how often it is written.
        restarts: with L-BFGS, from how many starts; the best evidence is kept.
        log_every: steps between two entries of the history.
        max_steps: the cap when `steps` is None.
        tolerance: see `steps`.

    >>> import torch, vibayes as vb
    >>> x = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    >>> gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1)).double()
    >>> history = vb.fit(gp, (x, torch.sin(6 * x[:, 0])), progress=False)
    >>> history.stopped
    'L-BFGS converged'
    """
    if not isinstance(model, TrainableModel):
        raise ConfigurationError(
            f"fit trains vibayes models; got {type(model).__name__}. Wrap a network in vibayes.Model(network, "
            "likelihood)."
        )
    name = model.optimizer if optimizer is None else optimizer
    options = Options(
        steps=steps,
        max_steps=max_steps,
        lr=lr,
        lr_schedule=as_schedule(lr_schedule),
        kl_weight=as_schedule(kl_weight),
        n_samples=n_samples or (10 if model.draws_differ else 1),
        log_every=log_every,
        tolerance=tolerance,
        restarts=restarts,
    )
    _check(options, name, n_samples)
    place = model.device if device is None else _device(device)
    model.to(place)
    batches = as_batches(data, batch_size, seed)

    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        if isinstance(model, ConjugateModel):  # its predictions condition on the rows it was fitted to, with weights
            model.condition(*batches.start())
        elif not bool(model.ready):
            model.initialize(*batches.start()[:2])
        batches.begin(model)
        if name == "lbfgs" and batches.batch_size < batches.n_data:
            raise ConfigurationError(
                "L-BFGS needs all rows at every step; leave batch_size out or use optimizer='adam'."
            )
        with Progress(steps or (None if name == "lbfgs" else max_steps), show=progress) as shown:
            keeper = _Keeper(checkpoint, checkpoint_seconds, _fingerprint(model, batches, options, name, seed))
            run: Run = _RUNS[name](model, batches, options, keeper.save, shown)
            if not run.parameters:
                raise ConfigurationError("Every parameter of the model is fixed; there is nothing to train.")
            found = keeper.load()
            if found is not None:
                run.restore(found)
            run.train()
    return run.history


class _Keeper:
    """Writes the checkpoint now and then, and reads one that fits."""

    def __init__(self, path: str | os.PathLike[str] | None, every: float, fingerprint: dict[str, Any]) -> None:
        self.path = None if path is None else Path(path)
        self.every, self.fingerprint = every, fingerprint
        self._last = time.monotonic()
        if self.path is not None:
            if self.path.is_dir():
                raise ConfigurationError(f"checkpoint={str(self.path)!r} is a folder; name a file in it.")
            try:  # find out now, not after an hour, that nothing can be written there
                self.path.parent.mkdir(parents=True, exist_ok=True)
                probe = self.path.with_name(self.path.name + ".probe")
                probe.touch()
                probe.unlink()
            except OSError as error:
                raise ConfigurationError(
                    f"The checkpoint {self.path} cannot be written ({error.strerror}). Choose a writable folder."
                ) from error

    def save(self, state: dict[str, Any], *, force: bool = False) -> None:
        if self.path is None or not (force or time.monotonic() - self._last >= self.every):
            return
        try:
            save_state(self.path, {"fingerprint": self.fingerprint, "run": state})
        except OSError as error:  # a full disk must not cost the run
            logger.warning("The checkpoint %s could not be written (%s); training goes on.", self.path, error)
        self._last = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        if self.path is None or not self.path.exists():
            return None
        kept = load_state(self.path)
        changed = [
            f"{key} was {kept['fingerprint'].get(key)!r} and is {value!r}"
            for key, value in self.fingerprint.items()
            if kept["fingerprint"].get(key) != value
        ]
        if changed:
            raise ConfigurationError(
                f"The checkpoint {self.path} belongs to another run: {'; '.join(changed)}. "
                "Use another file, or delete it to start over."
            )
        run: dict[str, Any] = kept["run"]
        logger.info("Resuming at step %d from %s.", run["step"], self.path)
        return run


def _fingerprint(
    model: TrainableModel, batches: Batches, options: Options, optimizer: str, seed: int
) -> dict[str, Any]:
    """What must be the same for a checkpoint to be this run's."""
    return {
        "parameters": [f"{n} {tuple(p.shape)} {p.dtype}" for n, p in model.named_parameters()],
        "data": batches.digest(),
        "n_data": batches.n_data,
        "batch_size": batches.batch_size,
        "optimizer": optimizer,
        "lr": options.lr,
        "n_samples": options.n_samples,
        "seed": seed,
        "log_every": options.log_every,
        "restarts": options.restarts,
    }


def _device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigurationError(f"Unknown device {device!r}: {error}") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(
            f"device={str(device)!r} was asked for, but no CUDA GPU is available. Use device='cpu'."
        )
    return place


def _check(options: Options, optimizer: str, n_samples: int | None) -> None:
    if optimizer not in _RUNS:
        raise ConfigurationError(f"optimizer must be one of {sorted(_RUNS)}, got {optimizer!r}.")
    if options.restarts > 1 and optimizer != "lbfgs":
        raise ConfigurationError("restarts go with optimizer='lbfgs'; Adam trains from one start.")
    whole = {
        "steps": options.steps,
        "n_samples": n_samples,
        "log_every": options.log_every,
        "max_steps": options.max_steps,
        "restarts": options.restarts,
    }
    for key, value in whole.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigurationError(f"{key} must be a positive whole number, got {value!r}.")
    if not options.lr > 0:
        raise ConfigurationError(f"lr must be positive, got {options.lr}.")
