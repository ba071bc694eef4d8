"""HMC and NUTS leave their target invariant, adapt, resume, and refuse what cannot work."""

import math
from pathlib import Path

import pytest
import scipy.stats
import torch
from torch import Tensor

from vibayes.errors import ConfigurationError, TrainingError
from vibayes.mcmc import HMC, NUTS, Target, rhat, sample_posterior
from vibayes.mcmc.adaptation import DualAveraging, Scales, first_step_size, windows
from vibayes.mcmc.hmc import Sampler, State, energy, leapfrog
from vibayes.mcmc.nuts import _Tree

NORMAL = Target(lambda theta: -0.5 * theta.square().sum(), 2, dtype=torch.float64)


def logistic_normal() -> tuple[Target, Tensor]:
    """A skewed target with draws of its own: log of a gamma variable, and a normal whose spread is that gamma."""
    gamma = torch.distributions.Gamma(torch.tensor(2.0), torch.tensor(1.0))

    def log_density(theta: Tensor) -> Tensor:
        a, b = theta[0], theta[1]
        return 2.0 * a - a.exp() - 0.5 * (b * (-0.5 * a).exp()).square() - 0.5 * a

    g = gamma.sample((5000,))
    draws = torch.stack([g.log(), g.sqrt() * torch.randn(5000)], 1)
    return Target(log_density, 2), draws


@pytest.mark.parametrize(
    ("sampler", "step"), [(HMC(3, jitter=0.2), 1.1), (NUTS(6), 0.4), (NUTS(6), 1.1), (NUTS(max_depth=2), 1.1)]
)
def test_a_transition_leaves_the_target_invariant(sampler: Sampler, step: float) -> None:
    target, draws = logistic_normal()
    generator = torch.Generator().manual_seed(1)
    state = State.at(draws, target.evaluate)
    scale = torch.tensor([0.8, 1.3])
    for _ in range(4):
        found = sampler.transition(target.evaluate, state, torch.full((5000,), step), scale, generator)
        state = found.state
    assert float((state.position != draws).any(1).double().mean()) > 0.7
    g = torch.distributions.Gamma(torch.tensor(2.0), torch.tensor(1.0)).sample((5000,))
    a, b = state.position.unbind(1)
    assert scipy.stats.kstest(a.exp().numpy(), scipy.stats.gamma(2.0).cdf).pvalue > 1e-3
    assert scipy.stats.kstest((b * (-0.5 * a).exp()).numpy(), scipy.stats.norm.cdf).pvalue > 1e-3
    # the joint distribution too: a statistic of both
    fresh = g.sqrt() * torch.randn(5000) + g.log()
    assert scipy.stats.ks_2samp((a + b).numpy(), fresh.numpy()).pvalue > 1e-3


def test_states_carry_their_own_density_and_gradient() -> None:
    target, draws = logistic_normal()
    state = State.at(draws[:7], target.evaluate)
    found = NUTS(5).transition(target.evaluate, state, torch.full((7,), 0.5), torch.ones(2), torch.Generator())
    again = target.evaluate(found.state.position)
    torch.testing.assert_close(found.state.log_density, again.log_density)
    torch.testing.assert_close(found.state.gradient, again.gradient)


def test_leapfrog_is_reversible_and_second_order() -> None:
    target, draws = logistic_normal()
    state, momentum = State.at(draws[:5], target.evaluate), torch.randn(5, 2)
    errors = []
    for step in (0.02, 0.01):
        there, p = state, momentum
        for _ in range(round(0.2 / step)):
            there, p = leapfrog(target.evaluate, there, p, torch.full((5, 2), step))
        errors.append((energy(there, p) - energy(state, momentum)).abs().max())
        for _ in range(round(0.2 / step)):
            there, p = leapfrog(target.evaluate, there, p, torch.full((5, 2), -step))
        torch.testing.assert_close(there.position, state.position)
        torch.testing.assert_close(p, momentum)
    assert 3.0 < errors[0] / errors[1] < 5.0


@pytest.mark.parametrize(("step", "expected"), [(0.06, 63), (0.04, 127)])
def test_nuts_goes_half_way_round_a_circle(step: float, expected: int) -> None:
    # In many dimensions the orbits of a standard normal are near circles of period 2 pi, and turn after pi. With
    # 2^j - 1 steps in a trajectory, 63 of 0.06 are the first to span as much; of 0.04, 127.
    target = Target(lambda theta: -0.5 * theta.square().sum(), 2000)
    state = State.at(torch.randn(20, 2000), target.evaluate)
    steps = torch.full((20,), step)
    found = NUTS().transition(target.evaluate, state, steps, torch.ones(2000), torch.Generator().manual_seed(1))
    assert found.n_leapfrog.tolist() == [expected] * 20
    assert float(found.accept.mean()) > 0.8
    assert not bool(found.diverging.any())


def test_states_of_a_half_are_taken_by_their_weights() -> None:
    # many chains from one place with one momentum: the proposals' frequencies are the weights exp(-H) of four states
    n, step = 40_000, torch.full((40_000, 1), 1.3)
    evaluate = Target(lambda theta: -0.5 * theta.square().sum() - 0.1 * theta.pow(4).sum(), 1).evaluate
    start = State.at(torch.full((n, 1), 0.7), evaluate)
    momentum = torch.full((n, 1), 0.9)
    tree = _Tree(start, momentum)
    half = tree.half(torch.ones(n, dtype=torch.bool))
    generator = torch.Generator().manual_seed(0)
    visited, gains = [], []
    for leaf in range(4):
        end, p = leapfrog(evaluate, half.end, half.momentum, step)
        visited.append(float(end.position[0, 0]))
        gains.append(float((tree.start_energy - energy(end, p))[0]))
        half.valid = torch.ones(n, dtype=torch.bool)  # whether it turns is not the question here
        half.grow(end, p, leaf, generator)
    shares = torch.softmax(torch.tensor(gains), 0)
    assert float(shares.max() - shares.min()) > 0.1
    for place, share in zip(visited, shares.tolist(), strict=True):
        found = float((half.proposal.position[:, 0] == place).double().mean())
        assert found == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / n))
    assert float(half.log_weight[0]) == pytest.approx(float(torch.logsumexp(torch.tensor(gains), 0)))


def test_divergences_are_noted() -> None:
    state = State.at(torch.randn(10, 2), NORMAL.evaluate)
    for sampler in (NUTS(), HMC(10, jitter=0.0)):
        found = sampler.transition(NORMAL.evaluate, state, torch.full((10,), 50.0), torch.ones(2), torch.Generator())
        assert bool(found.diverging.all())
        torch.testing.assert_close(found.state.position, state.position)


def test_warm_up_finds_step_size_and_scales() -> None:
    std = torch.tensor([0.5, 1.0, 3.0])
    target = Target(lambda theta: -0.5 * (theta / std).square().sum(), 3)
    chains = sample_posterior(target, start=std * torch.randn(4, 3), n_warmup=100, n_samples=50, progress=False)
    assert chains.scale is not None
    assert chains.step_size is not None
    assert float((chains.scale / std).log().abs().max()) < 0.5
    assert 0.7 < float(chains.accept.mean()) < 0.98
    assert float(chains.n_leapfrog.double().mean()) < 20
    assert float(rhat(chains.draws).max()) < 1.1


def test_dual_averaging_reaches_its_target() -> None:
    steps = DualAveraging(torch.tensor([1e-3, 30.0]), 0.7)
    for _ in range(300):
        steps.update((-steps.step_size).exp())  # acceptance falls with the step: exp(-e) = 0.7
    torch.testing.assert_close(steps.average, torch.full((2,), -math.log(0.7)), rtol=0.05, atol=0.0)


def test_scales_are_pooled_within_chains() -> None:
    scales = Scales(torch.zeros(3, 1))
    values = 2.0 * torch.randn(400, 3, 1) + torch.tensor([[-100.0], [0.0], [100.0]])
    for value in values:
        scales.update(value)
    torch.testing.assert_close(scales.standard_deviation(), values.var(0).mean(0).sqrt(), rtol=0.01, atol=0.0)


def test_first_step_size() -> None:
    state = State.at(torch.zeros(2, 2), NORMAL.evaluate)
    found = first_step_size(NORMAL.evaluate, state, torch.ones(2), torch.Generator(), torch.tensor([1e-4, 1e3]))
    assert bool(((found > 0.2) & (found < 8.0)).all())


@pytest.mark.parametrize("n", [0, 10, 30, 149, 150, 1000, 5000])
def test_windows_lie_inside_the_warm_up(n: int) -> None:
    first, ends = windows(n)
    assert first <= n
    assert ends == sorted(set(ends))
    assert all(first < end <= n for end in ends)


@pytest.mark.parametrize("stop", [15, 37])
def test_a_killed_run_goes_on_to_the_same_draws(tmp_path: Path, stop: int) -> None:
    options = {"n_warmup": 30, "n_samples": 10, "n_chains": 2, "thin": 2, "seed": 3, "progress": False}
    start = torch.tensor([1.0, -1.0])
    whole = sample_posterior(NORMAL, start=start, **options)

    class KilledError(Exception):
        pass

    class Mortal(NUTS):
        left = stop

        def transition(self, *args: object) -> object:  # type: ignore[override]
            self.left -= 1
            if self.left < 0:
                raise KilledError
            return super().transition(*args)  # type: ignore[arg-type]

    file = tmp_path / "chains"
    with pytest.raises(KilledError):
        sample_posterior(NORMAL, start=start, sampler=Mortal(), checkpoint=file, checkpoint_seconds=0.0, **options)
    resumed = sample_posterior(NORMAL, start=start, checkpoint=file, **options)
    assert torch.equal(resumed.draws, whole.draws)
    assert torch.equal(resumed.log_density, whole.log_density)
    with pytest.raises(ConfigurationError, match="another run"):
        sample_posterior(NORMAL, start=start, checkpoint=file, **{**options, "seed": 4})


@pytest.mark.parametrize("stop", [60, 105, 160, 213])
def test_an_interrupted_run_keeps_every_whole_transition(tmp_path: Path, stop: int) -> None:
    # stopped amid a transition of the warm-up, twice, while it looks for a step size, and amid one of those kept
    options = {"n_warmup": 30, "n_samples": 20, "n_chains": 2, "seed": 3, "progress": False}
    evaluations, last = 0, math.inf

    def mortal(theta: Tensor) -> Tensor:
        nonlocal evaluations
        evaluations += 1
        if evaluations == last:
            raise KeyboardInterrupt
        return -0.5 * theta.square().sum()

    target, start, file = Target(mortal, 2), torch.tensor([1.0, -1.0]), tmp_path / "chains"
    whole = sample_posterior(target, start=start, **options)
    needed, evaluations, last = evaluations, 0, stop
    with pytest.raises(KeyboardInterrupt):
        sample_posterior(target, start=start, checkpoint=file, checkpoint_seconds=1e6, **options)
    evaluations, last = 0, math.inf
    resumed = sample_posterior(target, start=start, checkpoint=file, **options)
    assert evaluations < needed - stop + 30  # those of the start, and of what was made again
    assert torch.equal(resumed.draws, whole.draws)
    assert torch.equal(resumed.n_leapfrog, whole.n_leapfrog)


def test_chains_that_are_to_start_elsewhere_do_not_go_on(tmp_path: Path) -> None:
    options = {"n_warmup": 5, "n_samples": 2, "checkpoint": tmp_path / "chains", "progress": False}
    sample_posterior(NORMAL, start=torch.zeros(2), **options)
    with pytest.raises(ConfigurationError, match="start was"):
        sample_posterior(NORMAL, start=torch.ones(2), **options)


def test_more_draws_later(tmp_path: Path) -> None:
    options = {"n_warmup": 20, "n_chains": 2, "start": torch.zeros(2), "progress": False}
    whole = sample_posterior(NORMAL, n_samples=9, **options)
    sample_posterior(NORMAL, n_samples=4, checkpoint=tmp_path / "chains", **options)
    longer = sample_posterior(NORMAL, n_samples=9, checkpoint=tmp_path / "chains", **options)
    assert torch.equal(longer.draws, whole.draws)


def test_bad_options_are_refused() -> None:
    start = torch.zeros(2)
    for name in ("n_chains", "n_samples", "thin"):
        for value in (0, -1, 1.5, True):
            with pytest.raises(ConfigurationError, match=name):
                sample_posterior(NORMAL, start=start, progress=False, **{name: value})
    with pytest.raises(ConfigurationError, match="step_size must be positive, got 0"):
        sample_posterior(NORMAL, start=start, step_size=0.0, progress=False)
    with pytest.raises(ConfigurationError, match="step_size"):
        sample_posterior(NORMAL, start=start, step_size=math.nan, progress=False)
    with pytest.raises(ConfigurationError, match="step_size must be positive, got 'small'"):
        sample_posterior(NORMAL, start=start, step_size="small", progress=False)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="seed must be a whole number, got None"):
        sample_posterior(NORMAL, start=start, seed=None, progress=False)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"start must be .* got dict"):
        sample_posterior(NORMAL, start={"a": 1.0}, progress=False)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="target_accept"):
        sample_posterior(NORMAL, start=start, target_accept=1.0, progress=False)
    with pytest.raises(ConfigurationError, match="sampler must be"):
        sample_posterior(NORMAL, start=start, sampler="gibbs", progress=False)
    with pytest.raises(ConfigurationError, match="no prior to draw from"):
        sample_posterior(NORMAL, progress=False)
    with pytest.raises(ConfigurationError, match="shape"):
        sample_posterior(NORMAL, start=torch.zeros(3), progress=False)
    with pytest.raises(ConfigurationError, match="start must be"):
        sample_posterior(NORMAL, start="model", progress=False)
    with pytest.raises(ConfigurationError, match="holds its data"):
        sample_posterior(NORMAL, (torch.zeros(1, 1), torch.zeros(1)), start=start)
    with pytest.raises(ConfigurationError, match="n_leapfrog"):
        HMC(0)
    with pytest.raises(ConfigurationError, match="jitter"):
        HMC(10, jitter=1.0)
    with pytest.raises(ConfigurationError, match="max_depth"):
        NUTS(0)


def test_a_density_that_is_not_finite_at_the_start_is_refused() -> None:
    target = Target(lambda theta: theta.log().sum(), 2)
    with pytest.raises(ConfigurationError, match=r"not finite at the start of chain\(s\) \[1\]"):
        sample_posterior(target, start=torch.tensor([[1.0, 1.0], [-1.0, 1.0]]), n_chains=2, progress=False)


def test_chains_that_diverge_from_the_start_are_refused() -> None:
    # finite at the start, and nowhere else
    alone = Target(lambda theta: torch.where(theta.abs().sum() == 0.0, 0.0, torch.nan) + 0.0 * theta.sum(), 2)
    with pytest.raises(TrainingError, match=r"chain\(s\) \[0, 1\]"):
        sample_posterior(alone, start=torch.zeros(2), n_chains=2, progress=False)
    with pytest.raises(TrainingError, match="Not one of 40 transitions was accepted"):
        sample_posterior(NORMAL, start=torch.ones(2), step_size=1e6, n_warmup=40, adapt_scale=False, progress=False)


def test_a_density_that_is_drawn_is_refused() -> None:
    noisy = Target(lambda theta: theta.sum() * 0.0 + torch.rand(()), 1)
    with pytest.raises((ConfigurationError, RuntimeError)):
        sample_posterior(noisy, start=torch.zeros(1), progress=False)
