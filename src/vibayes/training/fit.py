"""`fit`: train any model."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as distributed

from vibayes.augment import Augment
from vibayes.errors import ConfigurationError, kind_of
from vibayes.trainable import TrainableModel
from vibayes.training.adam import AdamRun
from vibayes.training.batches import Batches, as_batches
from vibayes.training.checkpoint import Keeper
from vibayes.training.history import Callback, History
from vibayes.training.lbfgs import LbfgsRun
from vibayes.training.problem import Noise, Single
from vibayes.training.progress import Progress
from vibayes.training.run import Options, check_options, check_priors, find_device
from vibayes.training.schedules import Schedule, as_schedule
from vibayes.training.structure import fingerprint

__all__ = ["fit"]


def fit(
    model: TrainableModel,
    data: Any,
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    optimizer: str | None = None,
    lr: float = 1e-2,
    lr_schedule: float | Schedule = 1.0,
    lr_factors: Mapping[str, float] | None = None,
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
    graph: bool | None = None,
    compile: bool = False,
    noise: Noise | None = None,
    callback: Callback | None = None,
    weight_decay: float = 0.0,
    natural_rate: float = 0.1,
    augment: Augment | None = None,
) -> History:
    """Train a model by maximising its bound (or evidence) and return the history.

    When a step gives NaN or a matrix cannot be factorised, training goes back to the last good state with more
    jitter and smaller steps, says so, and after a few tries gives up with a `TrainingError` or
    `NotPositiveDefiniteError` that names the layer. Then, as when interrupted, the model is at its last good state.

    Where `torch.distributed` is initialised (under `torchrun`), every process takes its part of each batch and
    gradients are averaged. All processes must call `fit` with the same arguments, and then train one model together.

    Args:
        model: a `Model`, `ExactGP`, `SGPR` or `LinearRegression`.
        data: `(x, y)` or `(x, y, weights)` as tensors or arrays, or a `Dataset` or `DataLoader` of such items.
        steps: how many steps (iterations, for L-BFGS). None: L-BFGS until it converges; Adam until the bound,
            averaged over windows of `log_every` steps, rises by less than `tolerance` nats per row in ten windows
            at the given learning rate and again at a tenth of it; neither before the weight of the KL has reached its
            last value; at most `max_steps`.
        batch_size: rows per step; all rows when None (1,000 for a `Dataset`).
        optimizer: `"adam"` or `"lbfgs"`; by default L-BFGS for closed-form models and Adam for the rest.
        lr: learning rate of Adam.
        lr_schedule: factor of `lr` at each step, e.g. `schedules.piecewise([10_000], [1.0, 0.1])`.
        lr_factors: with Adam, factors of `lr` for some parameters, by name, with `*` for any letters, such as
            `{"inducing": 0.1, "*.kernel.*": 3.0}`. A parameter's own name counts before patterns, and a longer pattern
            before a shorter one. Names are those of `model.named_parameters()`, hyperparameters without `.raw`.
        kl_weight: weight of the KL, a number or a schedule. The history holds the untempered bound.
        n_samples: draws per step; by default 10, or 1 where all draws of the layers are the same.
        seed: governs starting values, the order of minibatches and the draws. Threads of a process share torch's
            generator: of runs at the same time, draws do not repeat. Use processes for that.
        device: where to train, e.g. `"cuda"`; by default where the model is.
        progress: whether to show progress.
        checkpoint: a file that makes the run resumable: killed at any moment and started again with the same
            arguments it continues, on CPU to exactly the same parameters. A finished run continues when it is given
            more steps.
        checkpoint_seconds: how often it is written.
        restarts: with L-BFGS, from how many starts; the best evidence is kept.
        log_every: steps between two entries of the history.
        max_steps: the cap when `steps` is None.
        tolerance: see `steps`.
        graph: on a GPU, capture the step in a CUDA graph; where possible when None.
        compile: compile the bound and Adam by `torch.compile`, which takes a minute or less; see docs/decisions.
        noise: prepared noise of the draws at a step, `[S, ...]` by name; for comparisons.
        callback: called with each new entry of the history, a `Logged` (`.step`, `.elbo`, `.numbers()`), to write it
            to a logger; training ends when it returns something true. What it draws at random, as `model.elbo` does,
            does not change the run's draws on a CPU. Under `torchrun` it is called in every process and must return
            the same in each.
        weight_decay: with Adam, adds `weight_decay / 2 * |w|^2` to the loss per row, where `w` are the weights of plain
            torch modules and of `Point` layers; hyperparameters and variational parameters have priors instead. The
            history's bound does not contain it.
        natural_rate: with Adam, rate of the natural gradients that move the last layer's posterior where its precision
            is `"natural"`, at most 1; it falls as the square root of `lr_schedule`.
        augment: with Adam, changes the inputs of every batch at random, on the device: a function such as
            `augment.Compose(augment.RandomCrop(4), augment.RandomFlip())`. It sees inputs in the model's units. The
            bound of augmented data is not a bound for the data themselves.

    >>> import torch, vibayes as vb
    >>> x = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    >>> gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1)).double()
    >>> history = vb.fit(gp, (x, torch.sin(6 * x[:, 0])), progress=False)
    >>> history.stopped
    'L-BFGS converged'
    """
    if not isinstance(model, TrainableModel):
        raise ConfigurationError(
            f"fit trains vibayes models; got {kind_of(model)}. Wrap a network in vibayes.Model(network, likelihood)."
        )
    name = model.optimizer if optimizer is None else optimizer
    several = distributed.is_available() and distributed.is_initialized()
    world, rank = (distributed.get_world_size(), distributed.get_rank()) if several else (1, 0)
    place = model.device if device is None else find_device(device)
    options = Options(
        steps=steps,
        max_steps=max_steps,
        lr_schedule=as_schedule(lr_schedule),
        kl_weight=as_schedule(kl_weight),
        n_samples=n_samples or 1,
        log_every=log_every,
        tolerance=tolerance,
        restarts=restarts,
        graph=graph,
        compile=compile,
        world_size=world,
        callback=callback,
        weight_decay=weight_decay,
        natural_rate=natural_rate,
        lr_factors=lr_factors or {},
    )
    check_options(options, n_samples, [lr], [seed])
    _check_optimizer(name, options, augment)
    model.to(place)
    batches = as_batches(data, batch_size, seed, augment)

    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        if not bool(model.ready):
            model.initialize(*batches.start())
        check_priors(model)
        batches.begin(model)
        if n_samples is None:  # the model has met rows by now
            options = replace(options, n_samples=10 if model.draws_differ else 1)
        problem = _problem(model, batches, options.n_samples, noise, name)
        torch.manual_seed(seed)  # starts must not decide the draws: a model initialised before trains alike
        with Progress(steps or (None if name == "lbfgs" else max_steps), show=progress and rank == 0) as shown:
            mark = {} if checkpoint is None else fingerprint([model], [batches], options, name, [seed], [lr])
            keeper = Keeper(checkpoint, checkpoint_seconds, mark)
            keeper.writes = rank == 0
            run: AdamRun | LbfgsRun
            if name == "adam":
                run = AdamRun(problem, options, keeper.save, shown, [lr])
            else:
                run = LbfgsRun(problem, options, keeper.save, shown, seed)
            found = keeper.load()
            if found is not None:
                run.restore(found)
            if world > 1:
                distributed.barrier()  # nobody may write the checkpoint before everybody has read it
            return run.train()[0]


def _problem(model: TrainableModel, batches: Batches, n_samples: int, noise: Noise | None, optimizer: str) -> Single:
    """What is trained, or an error that says why that optimizer cannot."""
    if optimizer == "lbfgs" and batches.batch_size < batches.n_data:
        raise ConfigurationError("L-BFGS needs all rows at every step; leave batch_size out or use optimizer='adam'.")
    problem = Single(model, batches, n_samples, noise)
    if problem.sites and optimizer != "adam":
        raise ConfigurationError(
            'A posterior with precision="natural" moves beside Adam: use optimizer="adam", or precision="full".'
        )
    if not problem.parameters:
        raise ConfigurationError("Every parameter of the model is fixed; there is nothing to train.")
    return problem


def _check_optimizer(name: str, options: Options, augment: Augment | None) -> None:
    if name not in ("adam", "lbfgs"):
        raise ConfigurationError(f"optimizer must be 'adam' or 'lbfgs', got {name!r}.")
    if options.restarts > 1 and name != "lbfgs":
        raise ConfigurationError("restarts go with optimizer='lbfgs'; for Adam, train several models with fit_many.")
    if options.weight_decay and name != "adam":
        raise ConfigurationError("weight_decay goes with optimizer='adam'; with L-BFGS give hyperparameters priors.")
    if options.lr_factors and name != "adam":
        raise ConfigurationError("lr_factors go with optimizer='adam': L-BFGS has one rate for all.")
    if augment is not None and name != "adam":
        raise ConfigurationError("augment goes with optimizer='adam': L-BFGS needs the same data at every step.")
    if options.world_size > 1 and name != "adam":
        raise ConfigurationError("Training on several processes goes with optimizer='adam'.")
