"""Sampling with minibatches: SGLD or SGHMC over the parameters of any model."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from vibayes.data import check_count
from vibayes.errors import ConfigurationError, TrainingError
from vibayes.mcmc.chains import Chains
from vibayes.mcmc.parts import Priors
from vibayes.mcmc.sgld import SGHMC, SGLD, EpochSchedule, robbins_monro
from vibayes.mcmc.target import ModelTarget
from vibayes.trainable import Batch, TrainableModel
from vibayes.training.batches import as_batches
from vibayes.training.progress import Progress
from vibayes.training.run import Clock, as_number, check_seed

__all__ = ["sample_minibatch"]


def sample_minibatch(
    model: TrainableModel,
    data: Any,
    *,
    batch_size: int | None = None,
    lr: float = 1e-3,
    burn_in: int = 100,
    epochs: int = 100,
    every: int = 2,
    method: str = "sgld",
    priors: Priors | None = None,
    lr_schedule: EpochSchedule | None = None,
    friction: float = 0.1,
    temperature: float = 1.0,
    seed: int = 0,
    progress: bool = True,
) -> Chains:
    """Sample a model's parameters by stochastic-gradient MCMC, one chain from where the model is.

    The target is that of `mcmc.ModelTarget`, its likelihood estimated on minibatches of `batch_size` rows. Bounds that
    are drawn (a GP layer with a likelihood that needs Monte Carlo) are allowed. Defaults are the schedule of the
    thesis (App. "Implementation details"): 100 epochs of burn-in, then one draw every second epoch for 100 epochs, with
    `lr_t = lr / N / (1 + 0.4 epoch)`. The model is left at the last draw; running averages of a network's batch
    normalisation are kept with every draw.

    Args:
        model: any model, trained or at its start.
        data: `(x, y)`, `(x, y, weights)`.
        batch_size: rows per step; there is no default.
        lr: the step size *times the number of rows*, as the thesis gives it.
        burn_in: epochs before the first draw.
        epochs: epochs of sampling.
        every: epochs between two draws.
        method: `"sgld"` or `"sghmc"`.
        priors: as in `sample_posterior`; None in place of a distribution is a flat prior.
        lr_schedule: factor of `lr` in each epoch; `robbins_monro(0.4)` when None.
        friction: of SGHMC.
        temperature: see `SGLD`.
        seed: governs the order of rows and the noise.
        progress: whether to show progress.

    >>> import torch, vibayes as vb
    >>> x = torch.randn(50, 1)
    >>> model = vb.Model(vb.Linear(1, 1, posterior=vb.Point()), vb.Gaussian(0.1, learn=False))
    >>> chains = sample_minibatch(model, (x, 2 * x[:, 0]), batch_size=10, burn_in=1, epochs=4, progress=False)
    >>> chains.draws.shape
    torch.Size([1, 2, 2])
    """
    if batch_size is None:
        raise ConfigurationError(
            "sample_minibatch needs batch_size, the rows of a minibatch, such as 100; for all rows at once and exact "
            "chains use sample_posterior."
        )
    if not 0 < as_number(lr) < math.inf:
        raise ConfigurationError(f"lr must be positive, got {lr!r}.")
    for name, value in (("batch_size", batch_size), ("epochs", epochs), ("every", every)):
        check_count(value, name)
    if burn_in != 0:
        check_count(burn_in, "burn_in")
    if every > epochs:
        raise ConfigurationError(f"every ({every}) must not exceed epochs ({epochs}): no draw would be kept.")
    target = ModelTarget(model, data, priors, seed=check_seed(seed))
    batches = as_batches(data, batch_size, seed)
    batches.begin(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    n, size = batches.n_data, batches.batch_size
    options: dict[str, Any] = {
        "n_data": n,
        "batch_size": size,
        "reduction": "total",
        "lr_schedule": lr_schedule or robbins_monro(0.4),
        "temperature": temperature,
        "seed": seed,
    }
    if method == "sgld":
        optimizer: SGLD | SGHMC = SGLD(parameters, lr / n, **options)
    elif method == "sghmc":
        optimizer = SGHMC(parameters, lr / n, friction=friction, **options)
    else:
        raise ConfigurationError(f"method must be 'sgld' or 'sghmc', got {method!r}.")

    per_epoch = math.ceil(n / size)
    kept: list[Tensor] = []
    densities: list[Tensor] = []
    averages: list[dict[str, Tensor]] = []
    clock = Clock()
    cuda = [target.device] if target.device.type == "cuda" else []
    with (
        Progress((burn_in + epochs) * per_epoch, show=progress, label=method) as shown,
        torch.random.fork_rng(devices=cuda),
    ):
        torch.manual_seed(seed)  # of bounds that are drawn
        for epoch in range(burn_in + epochs):
            total = torch.zeros((), dtype=target.dtype, device=target.device)
            for step in range(epoch * per_epoch, (epoch + 1) * per_epoch):
                optimizer.zero_grad()
                log_density = _log_density(target, batches.at(step), n, parameters)
                (-log_density).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += log_density.detach() / per_epoch
            mean = float(total)
            if not math.isfinite(mean):
                raise TrainingError(
                    f"The log density is not finite in epoch {epoch}: the chain has diverged. Use a smaller lr, or "
                    "start from a trained model."
                )
            phase = "burn-in" if epoch < burn_in else "sampling"
            shown.update((epoch + 1) * per_epoch, f"{phase}, log density {mean:.1f}")
            if epoch >= burn_in and (epoch - burn_in + 1) % every == 0:
                kept.append(target.current())
                densities.append(total)
                averages.append(_running_averages(model))
    optimizer.zero_grad()
    buffers = {name: torch.stack([a[name] for a in averages])[None] for name in averages[0]}
    return Chains(
        target,
        torch.stack(kept)[None],
        torch.stack(densities)[None],
        seconds=clock.seconds,
        buffers=buffers,
    )


def _log_density(target: ModelTarget, batch: Batch, n_data: int, parameters: list[nn.Parameter]) -> Tensor:
    """The log density of the model's parameters, its likelihood estimated on a batch."""
    bound = target.model(batch.x, batch.y, batch.weights, scale=n_data / len(batch.x), n_samples=1)
    theta = torch.cat([p.reshape(-1) for p in parameters])
    log_density: Tensor = (bound.log_likelihood + bound.log_ratio).sum() + target.log_extra_prior(theta)
    return log_density


def _running_averages(model: nn.Module) -> dict[str, Tensor]:
    """Copies of what batch normalisation keeps."""
    names = ("running_mean", "running_var")
    return {name: b.clone() for name, b in model.named_buffers() if name.rpartition(".")[2] in names}
