"""Annealed importance sampling: the evidence of any model from chains that go from the prior to the posterior."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.data import check_count
from vibayes.errors import ConfigurationError, kind_of
from vibayes.evidence.estimate import Evidence
from vibayes.mcmc.chains import Chains
from vibayes.mcmc.hmc import HMC, State
from vibayes.mcmc.parts import Priors
from vibayes.mcmc.sample import check_repeatable, find_start
from vibayes.mcmc.target import ModelTarget, Target, as_target
from vibayes.trainable import TrainableModel
from vibayes.training.progress import Progress

__all__ = ["Annealing", "ais", "anneal", "reverse_ais"]


@dataclass(frozen=True)
class Annealing:
    """A path from prior to posterior, `p_t(theta) ~ p(theta) p(y | theta)^beta_t`, and how chains move along it.

    Attributes:
        betas: `[T + 1]`, rising from 0 to 1.
        step_size: `[T]`, of the transition at `betas[1:]`.
        scale: `[T, D]`, the standard deviations that momenta are scaled by there.
        n_leapfrog: leapfrog steps of a transition.
    """

    betas: Float[Tensor, " t1"]
    step_size: Float[Tensor, " t"]
    scale: Float[Tensor, "t d"]
    n_leapfrog: int


def anneal(
    target: Target,
    betas: Tensor,
    *,
    n_leapfrog: int,
    n_particles: int,
    generator: torch.Generator,
    target_accept: float = 0.8,
    shown: Progress | None = None,
) -> Annealing:
    """Find step sizes and scales along a path with particles of their own.

    Scales are the particles' standard deviations. Particles of the estimate itself do not enter, so that it stays
    unbiased.
    """
    position = find_start(target, "prior", n_particles, generator)
    log_step, steps, scales = math.log(0.1), [], []
    sampler = HMC(n_leapfrog)
    for t, beta in enumerate(betas[1:]):
        scale = position.std(0).clamp_min(1e-6)
        scales.append(scale)
        found = target.evaluate(position, beta)
        state = State(position, found.log_density, found.gradient)
        step_size = torch.full_like(found.log_density, math.exp(log_step))
        moved = sampler.transition(partial(target.evaluate, beta=beta), state, step_size, scale, generator)
        position = moved.state.position
        steps.append(math.exp(log_step))
        log_step += 0.2 * (float(moved.accept.mean()) - target_accept)
        if shown is not None:
            shown.update(t + 1, f"tuning, acceptance {float(moved.accept.mean()):.2f}")
    return Annealing(betas, betas.new_tensor(steps), torch.stack(scales), n_leapfrog)


def ais(
    model: TrainableModel | Target,
    data: Any = None,
    *,
    n_particles: int = 64,
    n_steps: int = 500,
    n_leapfrog: int = 10,
    betas: Sequence[float] | Tensor | None = None,
    path: Annealing | None = None,
    priors: Priors | None = None,
    seed: int = 0,
    progress: bool = True,
    compile: bool = False,
) -> Evidence:
    r"""Estimate the log evidence `log p(y)` of a model by annealed importance sampling (Neal 2001).

    Particles start as draws from the prior and follow `p(theta) p(y | theta)^beta` from `beta = 0` to 1, with one HMC
    transition at every step. The mean of their weights `exp(sum_t (beta_t - beta_{t-1}) log p(y | theta_{t-1}))` is an
    unbiased estimate of `p(y)`, so that its logarithm is a lower bound of `log p(y)` in expectation, and one that
    tightens with more steps. For an upper bound see `reverse_ais`.

    What `theta` is, and which models can be taken, is said in `mcmc.ModelTarget`; all priors must be proper. The
    evidence is that of the targets the model trains on; see `Evidence.in_user_units`.

    Args:
        model: a model, or a `mcmc.Target` with a prior.
        data: `(x, y)` or `(x, y, weights)`; None for a `Target`.
        n_particles: how many.
        n_steps: temperatures between prior and posterior: `beta_t = (t / n_steps)^4`.
        n_leapfrog: leapfrog steps of each transition.
        betas: temperatures of your own, rising from 0 to 1, in place of `n_steps`.
        path: one found before, by `anneal`; found by a run with other particles when None.
        priors: for parameters without one.
        seed: governs everything.
        progress: whether to show progress.
        compile: evaluate through `torch.compile`.

    >>> import torch, vibayes as vb
    >>> x = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    >>> model = vb.Model(vb.Linear(1, 1, posterior=vb.Point()), vb.Gaussian(1.0, learn=False))
    >>> found = vb.evidence.ais(model, (x, x[:, 0]), n_particles=10, n_steps=20, progress=False)
    >>> found.kind
    'lower bound in expectation'
    """
    check_count(n_particles, "n_particles")
    target, generator = _begin(model, data, priors, seed, compile)
    with Progress(None, show=progress, label="ais") as shown:
        if path is None:
            path = _find_path(target, n_particles, n_steps, n_leapfrog, betas, generator, shown)
        position = target.sample_prior(n_particles, generator)
        weights = torch.zeros(n_particles, dtype=target.dtype, device=target.device)
        log_likelihood = target.evaluate(position, 0.0).log_likelihood
        for t in range(len(path.step_size)):
            weights = weights + (path.betas[t + 1] - path.betas[t]) * log_likelihood
            position, log_likelihood = _move(target, position, path, t, generator)
            shown.update(t + 1, f"of {len(path.step_size)} steps")
    return Evidence.of(weights, "lower", *_units(target))


def reverse_ais(
    chains: Chains,
    *,
    n_particles: int = 64,
    n_steps: int = 500,
    n_leapfrog: int = 10,
    betas: Sequence[float] | Tensor | None = None,
    path: Annealing | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Evidence:
    r"""An upper bound of the log evidence, in expectation: `ais` backwards from posterior draws.

    (Burda, Grosse & Salakhutdinov 2015; Grosse, Ancha & Roy 2016.) The mean weight of particles that go from the
    posterior to the prior estimates `1 / p(y)`. It is a bound where the draws are exact; from chains, as far as they
    have converged. Together with `ais` it brackets the evidence.

    Args:
        chains: draws from the posterior, from `sample_posterior`; particles start at evenly spaced ones.
        n_particles: how many.
        n_steps: as in `ais`, and so are all the rest.
        n_leapfrog: leapfrog steps of each transition.
        betas: temperatures of your own, rising from 0 to 1.
        path: one found before, by `anneal`.
        seed: governs everything.
        progress: whether to show progress.

    >>> import torch, vibayes as vb
    >>> x = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    >>> model = vb.Model(vb.Linear(1, 1, posterior=vb.Point()), vb.Gaussian(1.0, learn=False))
    >>> chains = vb.sample_posterior(model, (x, x[:, 0]), n_samples=20, n_warmup=20, progress=False)
    >>> vb.evidence.reverse_ais(chains, n_particles=10, n_steps=20, progress=False).kind
    'upper bound in expectation'
    """
    check_count(n_particles, "n_particles")
    if not isinstance(chains, Chains):
        raise ConfigurationError(f"reverse_ais starts at the draws of sample_posterior, Chains; got {kind_of(chains)}.")
    target, generator = _begin(chains.target, None, None, seed, False)
    draws = chains.draws.flatten(0, 1)
    if len(draws) < n_particles:
        raise ConfigurationError(f"{n_particles} particles need as many posterior draws; the chains have {len(draws)}.")
    position = draws[torch.linspace(0, len(draws) - 1, n_particles).round().long().to(draws.device)].to(target.dtype)
    with Progress(None, show=progress, label="ais") as shown:
        if path is None:
            path = _find_path(target, n_particles, n_steps, n_leapfrog, betas, generator, shown)
        weights = torch.zeros(n_particles, dtype=target.dtype, device=target.device)
        for t in reversed(range(len(path.step_size))):  # the same transitions as forwards, each one reversible
            position, log_likelihood = _move(target, position, path, t, generator)
            weights = weights - (path.betas[t + 1] - path.betas[t]) * log_likelihood
            shown.update(len(path.step_size) - t, f"of {len(path.step_size)} steps")
    return Evidence.of(weights, "upper", *_units(target))


def _begin(
    model: TrainableModel | Target, data: Any, priors: Priors | None, seed: int, compile: bool
) -> tuple[Target, torch.Generator]:
    target = as_target(model, data, priors, seed)
    if not target.has_prior:
        flat = [p.name for p in target.parts if p.flat] if isinstance(target, ModelTarget) else []
        which = f": {', '.join(flat)} have a flat one" if flat else ""
        raise ConfigurationError(
            f"The evidence needs a proper prior that can be drawn from{which}. Give priors=, or a Target with "
            "log_prior= and sample_prior=."
        )
    cut = [p.name for p in target.parts if p.truncated] if isinstance(target, ModelTarget) else []
    if cut:
        raise ConfigurationError(
            f"The priors of {', '.join(cut)} reach beyond the values that these can have, so that their densities are "
            "not normalised, and no evidence could be told. Use priors of positive numbers, such as LogNormal."
        )
    if compile:
        target.compile()
    generator = torch.Generator(target.device).manual_seed(seed)
    position = target.sample_prior(2, generator)
    check_repeatable(target, State.at(position, target.evaluate))
    return target, generator


def _find_path(
    target: Target,
    n_particles: int,
    n_steps: int,
    n_leapfrog: int,
    betas: Sequence[float] | Tensor | None,
    generator: torch.Generator,
    shown: Progress,
) -> Annealing:
    check_count(n_leapfrog, "n_leapfrog")
    if betas is None:
        # most of the change is near the prior: with N rows, the likelihood takes over at beta of about 1 / N
        ladder = torch.linspace(0.0, 1.0, check_count(n_steps, "n_steps") + 1, dtype=torch.float64) ** 4
    else:
        ladder = torch.as_tensor(betas, dtype=torch.float64)
        rising = ladder.ndim == 1 and len(ladder) > 1 and bool((ladder.diff() > 0).all())
        if not (rising and float(ladder[0]) == 0.0 and float(ladder[-1]) == 1.0):
            raise ConfigurationError("betas must rise from 0 to 1.")
    ladder = ladder.to(device=target.device, dtype=target.dtype)
    pilot = max(n_particles, 16)
    return anneal(target, ladder, n_leapfrog=n_leapfrog, n_particles=pilot, generator=generator, shown=shown)


def _move(
    target: Target, position: Tensor, path: Annealing, t: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """One transition at `betas[t + 1]`; positions and their log likelihoods."""
    beta = path.betas[t + 1]
    step_size = path.step_size[t].expand(len(position))
    found = target.evaluate(position, beta)
    state = State(position, found.log_density, found.gradient)

    moved = HMC(path.n_leapfrog).transition(
        partial(target.evaluate, beta=beta), state, step_size, path.scale[t], generator
    )
    # log density = log prior + beta log likelihood, and beta may be tiny: evaluate rather than subtract
    return moved.state.position, target.evaluate(moved.state.position, beta).log_likelihood


def _units(target: Target) -> tuple[float, float]:
    """Rows of data and the log Jacobian of a model's units."""
    if not isinstance(target, ModelTarget):
        return 0, 0.0
    return target.n_data, float(target.model.units.log_jacobian())
