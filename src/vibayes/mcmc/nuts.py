"""The No-U-Turn sampler, without recursion, for all chains at once."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vibayes.data import check_count
from vibayes.mcmc.hmc import DIVERGENCE, Evaluate, State, Transition, energy, leapfrog, normal, uniform

__all__ = ["NUTS"]


class NUTS:
    r"""The No-U-Turn sampler (Hoffman & Gelman 2014) with multinomial draws along the trajectory (Betancourt 2017).

    A trajectory doubles, forwards or backwards at random, until it turns back on itself. States of the new half
    replace the proposal by their weights `exp(-H)`. A trajectory turns when either end's momentum points against the
    sum of all momenta (less half of both ends, as in NumPyro), for the whole and for every half of a half inside it.

    All chains double at the same time, so that one evaluation of the density serves them all; those that are done wait
    for the others. Inside a half of `2^j` steps the checks are those of a binary tree whose leaves come in order: at
    an odd leaf n, one tree ends for every trailing one of n in binary. Only the first leaf of trees that are still
    open is kept, at most j of them (Phan, Pradhan & Jankowiak 2019; Lao & Dillon 2019).

    Args:
        max_depth: at most `2^max_depth - 1` leapfrog steps.

    >>> NUTS()
    NUTS(max_depth=10)
    """

    def __init__(self, max_depth: int = 10) -> None:
        self.max_depth = check_count(max_depth, "max_depth")

    def __repr__(self) -> str:
        return f"NUTS(max_depth={self.max_depth})"

    def transition(
        self, evaluate: Evaluate, state: State, step_size: Tensor, scale: Tensor, generator: torch.Generator
    ) -> Transition:
        """Build one trajectory in every chain and move to a state on it."""
        momentum = normal(state.position, generator)
        tree = _Tree(state, momentum)
        for depth in range(self.max_depth):
            forward = uniform(step_size, generator) < 0.5
            half = tree.half(forward)
            step = torch.where(forward, step_size, -step_size)[:, None] * scale
            for leaf in range(2**depth):
                half.grow(*leapfrog(evaluate, half.end, half.momentum, step), leaf, generator)
                if not bool(half.valid.any()):
                    break
            tree.join(half, forward, generator)
            if not bool(tree.growing.any()):
                break
        count = tree.n_leapfrog.clamp_min(1)
        return Transition(tree.proposal, tree.accept / count, tree.diverging, tree.n_leapfrog)


class _Half:
    """The new half of a trajectory while it grows."""

    def __init__(self, end: State, momentum: Tensor, valid: Tensor, start_energy: Tensor) -> None:
        self.end, self.momentum, self.start_energy = end, momentum, start_energy
        self.valid: Bool[Tensor, " c"] = valid  # still growing: it has neither turned nor diverged
        self.proposal = end
        self.log_weight = torch.full_like(end.log_density, -torch.inf)
        self.total = torch.zeros_like(momentum)  # sum of momenta
        self._open: list[tuple[Tensor, Tensor]] = []  # of each open tree, its first momentum and the sum before it
        self.steps: list[tuple[Tensor, Tensor]] = []  # of each leaf, which chains took it, and what energy they gained

    def grow(self, end: State, momentum: Tensor, leaf: int, generator: torch.Generator) -> None:
        """Take in one state; chains whose half is over keep what they had."""
        before, self.end, self.momentum = self.valid, end, momentum
        gain = torch.nan_to_num(self.start_energy - energy(end, momentum), nan=-torch.inf)
        self.steps.append((before, gain))
        log_weight = torch.logaddexp(self.log_weight, gain)
        taken = uniform(gain, generator).log() < gain - log_weight
        self.proposal = end.where(taken & before, self.proposal)
        self.log_weight = log_weight
        valid = before & (gain >= -DIVERGENCE)
        if leaf % 2 == 0:
            del self._open[leaf.bit_count() :]  # the rest are over
            self._open.append((momentum, self.total))
        self.total = self.total + momentum
        if leaf % 2 == 1:
            ending = (leaf ^ (leaf + 1)).bit_count() - 1  # trailing ones
            for first, sum_before in self._open[-ending:]:
                valid = valid & ~turns(first, momentum, self.total - sum_before)
        self.valid = valid


class _Tree:
    """The whole trajectory: its two ends, the state chosen from it, and what is counted along it."""

    def __init__(self, state: State, momentum: Tensor) -> None:
        self.start_energy = energy(state, momentum)
        self.left, self.right, self.proposal = state, state, state
        self.left_momentum, self.right_momentum, self.total = momentum, momentum, momentum
        self.log_weight = torch.zeros_like(self.start_energy)
        self.accept = torch.zeros_like(self.start_energy)
        self.growing = torch.ones_like(self.start_energy, dtype=torch.bool)
        self.diverging = torch.zeros_like(self.growing)
        self.n_leapfrog = torch.zeros_like(self.growing, dtype=torch.long)

    def half(self, forward: Bool[Tensor, " c"]) -> _Half:
        """A new half that starts at one end of every chain's trajectory."""
        momentum = torch.where(forward[:, None], self.right_momentum, self.left_momentum)
        return _Half(self.right.where(forward, self.left), momentum, self.growing, self.start_energy)

    def join(self, half: _Half, forward: Bool[Tensor, " c"], generator: torch.Generator) -> None:
        """Count a half's steps, and add it where it is complete; where it is not, the trajectory ends without it."""
        active, gain = (torch.stack(of_all) for of_all in zip(*half.steps, strict=True))  # [leaves, C]
        self.accept = self.accept + torch.where(active, gain.clamp_max(0.0).exp(), 0.0).sum(0)
        self.n_leapfrog = self.n_leapfrog + active.sum(0)
        self.diverging = self.diverging | (active & (gain < -DIVERGENCE)).any(0)
        done = half.valid
        favoured = uniform(half.log_weight, generator).log() < half.log_weight - self.log_weight
        self.proposal = half.proposal.where(done & favoured, self.proposal)
        self.log_weight = torch.where(done, torch.logaddexp(self.log_weight, half.log_weight), self.log_weight)
        self.total = torch.where(done[:, None], self.total + half.total, self.total)
        to_right, to_left = done & forward, done & ~forward
        self.right, self.left = half.end.where(to_right, self.right), half.end.where(to_left, self.left)
        self.right_momentum = torch.where(to_right[:, None], half.momentum, self.right_momentum)
        self.left_momentum = torch.where(to_left[:, None], half.momentum, self.left_momentum)
        self.growing = done & ~turns(self.left_momentum, self.right_momentum, self.total)


def turns(first: Float[Tensor, "c d"], last: Float[Tensor, "c d"], total: Float[Tensor, "c d"]) -> Bool[Tensor, " c"]:
    """Whether a trajectory turns back at one of its ends."""
    middle = total - 0.5 * (first + last)
    return ((first * middle).sum(1) <= 0.0) | ((last * middle).sum(1) <= 0.0)
