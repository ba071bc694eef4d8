"""`sample_posterior`: draw the parameters of any model from their posterior by HMC or NUTS."""

import logging
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vibayes.data import check_count
from vibayes.errors import ConfigurationError, TrainingError, kind_of
from vibayes.mcmc.adaptation import Warmup, first_step_size
from vibayes.mcmc.chains import Chains
from vibayes.mcmc.hmc import HMC, Sampler, State, Transition
from vibayes.mcmc.nuts import NUTS
from vibayes.mcmc.parts import Priors
from vibayes.mcmc.target import ModelTarget, Target, as_target, digest
from vibayes.trainable import TrainableModel
from vibayes.training.checkpoint import Keeper
from vibayes.training.progress import Progress
from vibayes.training.run import Clock, as_number

__all__ = ["check_repeatable", "find_start", "sample_posterior"]

logger = logging.getLogger("vibayes")

_SAMPLERS: dict[str, Callable[[], Sampler]] = {"nuts": NUTS, "hmc": HMC}


def sample_posterior(
    model: TrainableModel | Target,
    data: Any = None,
    *,
    n_samples: int = 1000,
    n_warmup: int = 1000,
    n_chains: int = 4,
    sampler: str | Sampler = "nuts",
    priors: Priors | None = None,
    start: str | Tensor = "prior",
    step_size: float | None = None,
    target_accept: float = 0.8,
    adapt_scale: bool = True,
    thin: int = 1,
    seed: int = 0,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 15.0,
    compile: bool = False,
) -> Chains:
    """Sample everything in a model that training would change from its posterior.

    All chains move together: one evaluation of the density, by `vmap`, serves them all. Warm-up adapts a step size per
    chain by dual averaging and the scales of all parameters, as in Stan; its draws are thrown away.

    What needs a prior and in which space it lives is said in `mcmc.ModelTarget`.

    Args:
        model: a `Model` whose layers have `Point` posteriors, an `ExactGP` or `SGPR` (their hyperparameters, and the
            weights of a `DeepKernel`), or a `mcmc.Target`, any log density.
        data: `(x, y)` or `(x, y, weights)`; None for a `Target`.
        n_samples: draws to keep from each chain.
        n_warmup: transitions before that.
        n_chains: how many chains.
        sampler: `"nuts"`, `"hmc"`, or one with options: `mcmc.HMC(n_leapfrog=50)`.
        priors: for parameters without one, by name: `{"kernel.network.*": Normal(0.0, 1.0)}`.
        start: `"prior"`, a draw from it for every chain; `"model"`, the model as it is; or vectors `[C, D]` or `[D]`.
        step_size: a fixed one; adapted when None.
        target_accept: the acceptance rate that step sizes are adapted to.
        adapt_scale: whether warm-up learns the scales of parameters; otherwise they stay those of the prior.
        thin: transitions per draw that is kept.
        seed: governs starts and chains.
        progress: whether to show progress.
        checkpoint: a file from which a killed run goes on, on CPU to exactly the same draws.
        checkpoint_seconds: how often it is written.
        compile: evaluate the density through `torch.compile`; on a CPU that takes a C++ compiler.

    >>> import torch, vibayes as vb
    >>> x = torch.linspace(0, 1, 10, dtype=torch.float64)[:, None]
    >>> gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1)).double()
    >>> prior = torch.distributions.LogNormal(torch.tensor(0.0).double(), 1.0)
    >>> chains = vb.sample_posterior(gp, (x, torch.sin(6 * x[:, 0])), priors={"*": prior}, n_chains=2,
    ...                              n_samples=20, n_warmup=20, progress=False)
    >>> chains.values["kernel.lengthscale"].shape
    torch.Size([2, 20])
    >>> chains.predict(x)
    Prediction(regression, 10 rows, 40 draws; .mean .std .quantile .interval .cdf .log_prob .sample)
    """
    _check_numbers(n_samples, n_warmup, n_chains, thin, step_size, target_accept)
    kernel = _sampler(sampler)
    target = as_target(model, data, priors, seed)
    if compile:
        target.compile()
    generator = torch.Generator(target.device).manual_seed(seed)
    evaluate = target.evaluate
    position = find_start(target, start, n_chains, generator)
    state = State.at(position, evaluate)
    check_repeatable(target, state)
    scale = target.prior_scale(generator)
    if step_size is None:
        first = first_step_size(evaluate, state, scale, generator, torch.ones_like(state.log_density))
        _refuse_stuck(first == 0.0, "No step size, however small, keeps the energy")
    else:
        first = torch.full_like(state.log_density, step_size)
    warmup = Warmup(first, scale, n_warmup, target_accept, step_size is None, adapt_scale)

    keeper = Keeper(
        checkpoint,
        checkpoint_seconds,
        {
            **target.fingerprint(),
            "n_warmup": n_warmup,
            "n_chains": n_chains,
            "start": start if isinstance(start, str) else digest([position]),
            "sampler": repr(kernel),
            "step_size": step_size,
            "target_accept": target_accept,
            "adapt_scale": adapt_scale,
            "thin": thin,
            "seed": seed,
        },
    )
    run = _Run(target, kernel, state, warmup, generator, thin)
    found = keeper.load()
    if found is not None:
        run.restore(found)
        _check_density(run, checkpoint)
    total = n_warmup + n_samples * thin
    with Progress(total, show=progress, label="sample") as shown:
        try:
            while run.number < total:
                run.advance()
                shown.update(run.number, run.text() if progress else "")
                if keeper.due:
                    keeper.save(run.state())
        finally:  # at the end, and when interrupted
            if checkpoint is not None:
                keeper.save(run.state(), force=True)
    chains = run.chains(n_samples)
    diverged = int(chains.diverging.sum())
    if diverged:
        logger.warning("%d of %d transitions diverged; see Chains.summary().", diverged, chains.diverging.numel())
    return chains


def _check_numbers(
    n_samples: int, n_warmup: int, n_chains: int, thin: int, step_size: float | None, target_accept: float
) -> None:
    for name, value in (("n_samples", n_samples), ("n_chains", n_chains), ("thin", thin)):
        check_count(value, name)
    if n_warmup != 0:
        check_count(n_warmup, "n_warmup")
    if step_size is not None and not 0.0 < as_number(step_size) < math.inf:
        raise ConfigurationError(
            f"step_size must be positive, got {step_size!r}; leave it out to have it adapted during warm-up."
        )
    if not 0.0 < as_number(target_accept) < 1.0:
        raise ConfigurationError(f"target_accept must lie strictly between 0 and 1, got {target_accept!r}.")


def _check_density(run: "_Run", checkpoint: Any) -> None:
    """Refuse to go on with chains of another density, which has the same fingerprint."""
    fresh, before = run.target.evaluate(run.current.position).log_density, run.current.log_density
    if not torch.allclose(fresh, before, rtol=1e-4, atol=1e-3):
        raise ConfigurationError(
            f"The checkpoint {checkpoint} belongs to another density: where its chains stand, the log density is "
            f"{fresh.tolist()} and was {before.tolist()}. Use another file, or delete it."
        )


def _sampler(sampler: str | Sampler) -> Sampler:
    if isinstance(sampler, str):
        if sampler not in _SAMPLERS:
            raise ConfigurationError(
                f"sampler must be 'nuts', 'hmc' or an object such as mcmc.HMC(n_leapfrog=50); got {sampler!r}."
            )
        return _SAMPLERS[sampler]()
    if not callable(getattr(sampler, "transition", None)):
        raise ConfigurationError(
            f"sampler must be 'nuts', 'hmc' or an object with a method transition; got {type(sampler).__name__}."
        )
    return sampler


def find_start(target: Target, start: str | Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Starting vectors `[n, D]` of finite density; from the prior, a draw without is drawn again."""
    if isinstance(start, str):
        if start == "prior":
            return _prior_start(target, n, generator)
        if start != "model" or not isinstance(target, ModelTarget):
            raise ConfigurationError(
                f"start must be 'prior', 'model' (where a model is sampled) or vectors [C, D]; got {start!r}."
            )
        vectors = target.current().expand(n, -1)
    else:
        try:
            vectors = torch.as_tensor(start, dtype=target.dtype, device=target.device)
        except (TypeError, ValueError, RuntimeError):
            raise ConfigurationError(
                f"start must be 'prior', 'model' or vectors [C, D]; got {kind_of(start)}."
            ) from None
        if vectors.shape not in ((n, target.size), (target.size,)):
            raise ConfigurationError(
                f"start must have shape [{n}, {target.size}] or [{target.size}]; got {list(vectors.shape)}."
            )
        vectors = vectors.expand(n, -1)
    bad = ~torch.isfinite(target.evaluate(vectors).log_density)
    if bool(bad.any()):
        chains = bad.nonzero().flatten().tolist()
        raise ConfigurationError(
            f"The log density, or its gradient, is not finite at the start of chain(s) {chains}. "
            "Start elsewhere, or check data and priors at that point."
        )
    return vectors.clone()


def _prior_start(target: Target, n: int, generator: torch.Generator) -> Tensor:
    vectors = target.sample_prior(n, generator)
    for _ in range(100):
        bad = ~torch.isfinite(target.evaluate(vectors).log_density)
        if not bool(bad.any()):
            return vectors
        vectors = torch.where(bad[:, None], target.sample_prior(n, generator), vectors)
    raise ConfigurationError(
        "The log density is not finite at any of 100 draws from the prior. Check the data and the priors, or pass "
        "start= with vectors where it is."
    )


def check_repeatable(target: Target, state: State) -> None:
    """Refuse a density that differs from one evaluation to the next."""
    again = target.evaluate(state.position).log_density
    if not torch.allclose(again, state.log_density, rtol=1e-4, atol=1e-3):
        raise ConfigurationError(
            "The log density differs from one evaluation to the next, as the bound of a model does whose layers are "
            "drawn. HMC and NUTS need the density itself: give layers Point() posteriors and remove dropout. With "
            "minibatches and noisy bounds use mcmc.sample_minibatch."
        )


def _refuse_stuck(stuck: Tensor, what: str) -> None:
    if bool(stuck.any()):
        raise TrainingError(
            f"{what} in chain(s) {stuck.nonzero().flatten().tolist()}: they diverge from the start. The log density "
            "may be infinitely steep there, or its gradient wrong. Start elsewhere (start=), use tighter priors, or "
            "float64."
        )


class _Run:
    """Chains while they are sampled.

    Attributes:
        number: how many transitions were made.
        whole: all that is needed to go on but for the draws, as it was after the last transition that was completed.
    """

    def __init__(
        self, target: Target, kernel: Sampler, state: State, warmup: Warmup, generator: torch.Generator, thin: int
    ) -> None:
        self.target, self.kernel, self.current, self.warmup = target, kernel, state, warmup
        self.generator, self.thin, self.number = generator, thin, 0
        self._moved = torch.zeros_like(state.log_density, dtype=torch.bool)
        self._last: Transition | None = None
        self._kept: dict[str, list[Tensor]] = {
            name: [] for name in ("draws", "log_density", "accept", "diverging", "n_leapfrog")
        }
        self._clock = Clock()
        self.whole = self._whole()

    def advance(self) -> None:
        """One transition."""
        number, warmup = self.number, self.warmup
        evaluate = self.target.evaluate
        step = self.kernel.transition(evaluate, self.current, warmup.step_size(number), warmup.scale, self.generator)
        self._moved = self._moved | (step.state.position != self.current.position).any(1)
        self.current, self._last = step.state, step
        self.number += 1
        if number < warmup.n_warmup:
            warmup.learn(number, step.state.position, step.accept, evaluate, self.generator)
        if self.number in (warmup.n_warmup, 100):
            _refuse_stuck(~self._moved, f"Not one of {self.number} transitions was accepted")
        if number >= warmup.n_warmup and (self.number - warmup.n_warmup) % self.thin == 0:
            found = (step.state.position, step.state.log_density, step.accept, step.diverging, step.n_leapfrog)
            for kept, value in zip(self._kept.values(), found, strict=True):
                kept.append(value)
        self.whole = self._whole()

    def text(self) -> str:
        """For the progress line."""
        if self._last is None:
            return ""
        phase = "warm-up" if self.number <= self.warmup.n_warmup else "sampling"
        log_density = float(self._last.state.log_density.mean())
        diverged = sum(int(d.sum()) for d in self._kept["diverging"][-1000:])
        return f"{phase}, log density {log_density:.1f}" + (f", {diverged} diverged" if diverged else "")

    def _whole(self) -> dict[str, Any]:
        """See `whole`; a transition makes new tensors and leaves these as they are."""
        return {
            "step": self.number,
            "current": list(self.current),
            "warmup": self.warmup.state(),
            "generator": self.generator.get_state(),
            "moved": self._moved,
            "seconds": self._clock.seconds,
        }

    def state(self) -> dict[str, Any]:
        """All that is needed to go on, also in the middle of a transition; empty lists of draws are None."""
        n = max(0, self.whole["step"] - self.warmup.n_warmup) // self.thin
        kept = {name: torch.stack(values[:n], 1) if n else None for name, values in self._kept.items()}
        return {**self.whole, "kept": kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Put it back."""
        like = self.current
        self.number = state["step"]
        self.current = State(*(t.to(like.position) for t in state["current"]))
        self.warmup.restore(state["warmup"])
        self.generator.set_state(state["generator"])
        self._moved = state["moved"].to(like.position.device)
        for name, kept in state["kept"].items():
            values = [] if kept is None else list(kept.to(like.position.device).unbind(1))
            self._kept[name] = values
        self._clock = Clock(state["seconds"])
        self.whole = self._whole()

    def chains(self, n_samples: int) -> Chains:
        """What was kept."""
        kept = {name: torch.stack(values[:n_samples], 1) for name, values in self._kept.items()}
        return Chains(
            self.target,
            kept["draws"],
            kept["log_density"],
            accept=kept["accept"],
            diverging=kept["diverging"],
            n_leapfrog=kept["n_leapfrog"],
            step_size=self.warmup.step_size(self.number),
            scale=self.warmup.scale,
            seconds=self._clock.seconds,
        )
