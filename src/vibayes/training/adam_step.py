"""One step of Adam: its tensor operations, and the tensors that it reads and writes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from vibayes.compiler import quiet_compiler
from vibayes.errors import ConfigurationError
from vibayes.patterns import check_patterns, pattern_of
from vibayes.training.graph import Compiled, Step
from vibayes.training.optim import Adam
from vibayes.training.problem import Problem
from vibayes.training.run import NOT_FINITE, Options, generators, not_positive_definite, set_generators, value_at

__all__ = ["AdamStep"]


class AdamStep:
    """A step of Adam, and of natural gradients, on R replicas; nothing in it waits for the device.

    It reads and writes the same tensors every time. What it notes of its replicas is added up until `forget`.

    Args:
        problem: what to optimize.
        options: how.

    Attributes:
        rates: learning rates `[R]`; read, as are `natural_rates` `[R]` and `kl_weight`.
        given: the numbers that were `put` into these.
        terms: log likelihood and log ratio of the last step, and the sum of objectives, `[3, R]`; written.
        bad: which replicas had an objective that was not finite, `[R]`; written.
        failed: by the first bad step, which factorizations failed, `[sites, R]`; written.
    """

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem, self.options = problem, options
        R, device, dtype = problem.replicas, problem.device, problem.jitter.dtype
        check_patterns("lr_factors", options.lr_factors, problem.names)
        self.own_factors = [_factor(name, options.lr_factors) for name in problem.names]  # of parameters' rates
        self.optimizer = Adam(problem.parameters)
        # objectives are sums over rows, so the decay of a loss per row counts once for each
        self.decay = options.weight_decay * torch.tensor(problem.n_data, dtype=dtype, device=device)
        self.rates = torch.zeros(R, dtype=dtype, device=device)
        self.natural_rates = torch.zeros(R, dtype=torch.float64, device=device)
        self.kl_weight = torch.ones((), dtype=dtype, device=device)
        # by this natural gradients divide what they head for; without a KL there is no best posterior to head for
        self.tempering = (value_at(options.kl_weight, options.last_step - 1) or 1.0) if problem.sites else 1.0
        self.given: dict[str, Any] = {}
        self.terms = torch.zeros(3, R, dtype=dtype, device=device)
        self.bad = torch.zeros(R, dtype=torch.bool, device=device)
        self.failed: Tensor | None = None
        self.sites: list[str] = []
        self._bound = Compiled(problem.bound, device, self._keep) if options.compile else problem.bound
        self._update = Compiled(self.optimizer.step, device) if options.compile else self.optimizer.step
        self._shares: set[float] = set()  # of the batches there were: one for each of their sizes
        self.step = Step(problem, options)

    def __call__(self) -> None:
        """Make the step on the loaded batch."""
        compiling = isinstance(self._bound, Compiled) and self.problem.share not in self._shares
        self._shares.add(self.problem.share)
        with quiet_compiler() if compiling else nullcontext():
            self.step(self._compute)

    def put(self, name: str, value: Any) -> None:
        """Write numbers that the step reads, where they changed."""
        if self.given.get(name) != value:
            tensor: Tensor = getattr(self, name)
            tensor.copy_(torch.tensor(value, dtype=tensor.dtype), non_blocking=True)
            self.given[name] = value

    def _compute(self) -> None:
        """The tensor operations of one step."""
        problem = self.problem
        bound = self._bound()
        log_likelihood, log_ratio = bound.log_likelihood.mean(1), bound.log_ratio.mean(1)
        objective = log_likelihood + self.kl_weight * log_ratio + bound.log_prior  # [R]
        if not objective.requires_grad:
            raise ConfigurationError(
                "No parameter that is to be trained has a part in the bound"
                + ("." if torch.is_grad_enabled() else ": gradients are switched off by no_grad or inference_mode.")
            )
        try:
            gradients = torch.autograd.grad(-objective.sum(), problem.parameters, allow_unused=True)
        except Exception as error:  # what the compiler made may fail in its backward pass only
            if not (isinstance(self._bound, Compiled) and self._bound.failed(error)):
                raise
            return self._compute()
        rates = [problem.spread(self.rates, p) for p in problem.parameters]
        self._update(
            self._of_the_loss(gradients),
            [r if f == 1.0 else f * r for r, f in zip(rates, self.own_factors, strict=True)],
        )
        with torch.no_grad():
            self._move_sites(bound.targets)
            self.terms[0].copy_(log_likelihood)
            self.terms[1].copy_(log_ratio)
            self.terms[2].add_(objective)
            if bound.failures:
                fails = torch.stack(list(bound.failures.values()))  # [sites, R]
                if self.failed is None:
                    self.sites, self.failed = list(bound.failures), torch.zeros_like(fails)
                self.failed |= fails & ~self.bad
            self.bad |= ~torch.isfinite(objective)

    def _of_the_loss(self, given: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """The gradients of what is minimised, from those of the batch's objective: with decay, over all processes."""
        problem = self.problem
        gradients = tuple(
            torch.zeros_like(p) if g is None else g for p, g in zip(problem.parameters, given, strict=True)
        )
        if self.options.weight_decay:
            gradients = tuple(
                g + problem.spread(self.decay, p) * p.detach() if decayed else g
                for g, p, decayed in zip(gradients, problem.parameters, problem.decayed, strict=True)
            )
        if problem.share != 1.0:
            gradients = tuple(problem.share * g for g in gradients)
        if self.options.world_size > 1:
            for gradient in gradients:
                distributed.all_reduce(gradient)
                gradient.div_(self.options.world_size)
        return gradients

    def _move_sites(self, targets: Mapping[str, Tensor]) -> None:
        """A step of natural gradients."""
        problem = self.problem
        for name, site in problem.sites.items():
            target = targets[name] / self.tempering
            if self.options.world_size > 1:
                distributed.all_reduce(target)
                target = target / self.options.world_size
            site.lerp_(target.view_as(site), problem.spread(problem.share * self.natural_rates, site))

    def _keep(self) -> Callable[[], None]:
        """What evaluating the bound changes, as it is now: a function that puts it back."""
        device, averages = self.problem.device, list(self.problem.averages.values())
        states, values = generators(device), [average.clone() for average in averages]

        def put_back() -> None:
            set_generators(states, device)
            with torch.no_grad():
                for average, value in zip(averages, values, strict=True):
                    average.copy_(value)

        return put_back

    def agree(self) -> None:
        """Give every process the same numbers, so that all decide alike."""
        if self.options.world_size > 1:
            distributed.all_reduce(self.terms)
            self.terms /= self.options.world_size
            bad = self.bad.to(self.terms.dtype)
            distributed.all_reduce(bad, op=distributed.ReduceOp.MAX)
            self.bad.copy_(bad > 0)

    def forget(self) -> None:
        """Begin a new window of steps."""
        self.terms[2].zero_()
        self.bad.zero_()
        if self.failed is not None:
            self.failed.zero_()

    def reason(self, r: int) -> str:
        """In words, which factorization failed first, or that none did."""
        if self.failed is not None:
            for site, failed in zip(self.sites, self.failed[:, r].tolist(), strict=True):
                if failed:
                    return not_positive_definite(site)
        return NOT_FINITE


def _factor(name: str, factors: Mapping[str, float]) -> float:
    """That of a parameter's learning rate."""
    pattern = pattern_of(name, factors)
    return 1.0 if pattern is None else float(factors[pattern])
