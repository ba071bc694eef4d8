"""SGLD and SGHMC: their stationary distributions, their scales and clocks, and what they refuse."""

import math

import pytest
import torch
from torch import nn

import vibayes as vb
from vibayes.errors import ConfigurationError, TrainingError
from vibayes.mcmc import SGHMC, SGLD, robbins_monro, sample_minibatch

SIZES = {"n_data": 10, "batch_size": 10}


def test_the_spread_of_sgld_is_that_of_discrete_langevin_dynamics() -> None:
    # theta' = (1 - lr P / 2) theta + sqrt(lr) e has variance lr / (1 - (1 - lr P / 2)^2) = 1 / (P (1 - lr P / 4))
    P, lr = 4.0, 0.2
    theta = nn.Parameter(torch.zeros(40_000))
    optimizer = SGLD([theta], lr, reduction="total", seed=0, **SIZES)
    for _ in range(60):
        optimizer.zero_grad()
        (0.5 * P * theta.square().sum()).backward()
        optimizer.step()
    assert float(theta.detach().var()) == pytest.approx(1.0 / (P * (1.0 - lr * P / 4.0)), rel=0.03)


def test_the_spread_of_sghmc() -> None:
    # v' = (1 - a) v - lr P theta + s e, theta' = theta + v': solve for the stationary covariance
    P, lr, a = 4.0, 0.01, 0.2
    theta = nn.Parameter(torch.zeros(40_000))
    optimizer = SGHMC([theta], lr, friction=a, reduction="total", seed=0, **SIZES)
    for _ in range(300):
        optimizer.zero_grad()
        (0.5 * P * theta.square().sum()).backward()
        optimizer.step()
    A = torch.tensor([[1.0 - lr * P, 1.0 - a], [-lr * P, 1.0 - a]])
    noise = 2.0 * a * lr * torch.ones(2, 2)
    eye = torch.eye(4)
    expected = torch.linalg.solve(eye - torch.kron(A, A), noise.flatten()).reshape(2, 2)
    assert float(expected[0, 0]) == pytest.approx(1.0 / P, rel=0.15)  # near the target's
    assert float(theta.detach().var()) == pytest.approx(float(expected[0, 0]), rel=0.03)


@pytest.mark.parametrize("kind", [SGLD, SGHMC])
def test_gradients_stand_for_all_rows(kind: type[SGLD] | type[SGHMC]) -> None:
    x = torch.randn(20)
    moved = []
    for reduction in ("mean", "sum", "total"):
        theta = nn.Parameter(torch.ones(()))
        options = {"n_data": 100, "batch_size": 20, "reduction": reduction, "temperature": 0.0}
        optimizer = kind([theta], 1e-3, prior_precision=0.0 if reduction == "total" else 3.0, **options)
        rows = 0.5 * (x - theta).square()
        loss = {"mean": rows.mean(), "sum": rows.sum(), "total": 5 * rows.sum() + 1.5 * theta.square()}[reduction]
        loss.backward()
        optimizer.step()
        moved.append(theta.detach() - 1.0)
    torch.testing.assert_close(moved[0], moved[1])
    torch.testing.assert_close(moved[0], moved[2])
    half = 0.5 if kind is SGLD else 1.0
    torch.testing.assert_close(moved[0], -half * 1e-3 * (100 * (1.0 - x.mean()) + 3.0))


def test_the_rate_falls_by_epochs() -> None:
    theta = nn.Parameter(torch.zeros(()))
    optimizer = SGLD([theta], 1.0, n_data=100, batch_size=40, temperature=0.0, lr_schedule=robbins_monro(0.4))
    moves, epochs = [], []
    for _ in range(8):
        before = float(theta.detach())
        theta.grad = torch.tensor(-0.02)
        epochs.append(optimizer.epoch)
        optimizer.step()
        moves.append(float(theta.detach()) - before)
    assert epochs == [0, 0, 0, 1, 1, 2, 2, 2]
    for move, epoch in zip(moves, epochs, strict=True):
        assert move == pytest.approx(1.0 / (1.0 + 0.4 * epoch))


@pytest.mark.parametrize("kind", [SGLD, SGHMC])
def test_state_goes_on_where_it_stopped(kind: type[SGLD] | type[SGHMC]) -> None:
    def steps(optimizer: SGLD | SGHMC, theta: nn.Parameter, n: int) -> None:
        for _ in range(n):
            optimizer.zero_grad()
            theta.square().sum().backward()
            optimizer.step()

    whole, first = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    steps(kind([whole], 0.01, seed=1, **SIZES), whole, 7)
    optimizer = kind([first], 0.01, seed=1, **SIZES)
    steps(optimizer, first, 3)
    second = nn.Parameter(first.detach().clone())
    other = kind([second], 0.01, seed=1, **SIZES)
    other.load_state_dict(optimizer.state_dict())
    steps(other, second, 4)
    assert torch.equal(second, whole)
    assert other.steps == 7


@pytest.mark.parametrize("kind", [SGLD, SGHMC])
def test_what_is_refused(kind: type[SGLD] | type[SGHMC]) -> None:
    theta = [nn.Parameter(torch.zeros(1))]
    with pytest.raises(ConfigurationError, match="needs n_data"):
        kind(theta, 1e-3)
    with pytest.raises(ConfigurationError, match="batch_size"):
        kind(theta, 1e-3, n_data=10)
    with pytest.raises(ConfigurationError, match="must not exceed"):
        kind(theta, 1e-3, n_data=10, batch_size=11)
    with pytest.raises(ConfigurationError, match="lr must be positive"):
        kind(theta, 0.0, **SIZES)
    with pytest.raises(ConfigurationError, match="reduction"):
        kind(theta, 1.0, reduction="none", **SIZES)
    for name in ("prior_precision", "temperature"):
        with pytest.raises(ConfigurationError, match=name):
            kind(theta, 1.0, **{name: -1.0}, **SIZES)
    with pytest.raises(ConfigurationError, match="friction"):
        SGHMC(theta, 1.0, friction=0.0, **SIZES)
    with pytest.raises(ConfigurationError, match="noise_estimate"):
        SGHMC(theta, 1.0, friction=0.1, noise_estimate=0.1, **SIZES)
    with pytest.raises(ConfigurationError, match="decay"):
        robbins_monro(-1.0)


# -- models ----------------------------------------------------------------------------------------------------------


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(60, 1)
    return x, 2.0 * x[:, 0] + 0.3 * torch.randn(60)


def test_models_are_sampled_on_the_schedule_of_the_thesis() -> None:
    model = vb.Model(vb.Linear(1, 1, posterior=vb.Point()), vb.Gaussian(0.1))
    prior = torch.distributions.LogNormal(0.0, 1.0)
    options = {"batch_size": 25, "burn_in": 3, "epochs": 6, "progress": False, "priors": {"*noise": prior}}
    chains = sample_minibatch(model, data(), **options)
    assert chains.draws.shape == (1, 3, 3)
    assert torch.equal(chains.draws[0, -1], chains.target.current())
    assert math.isfinite(float(chains.predict(torch.zeros(2, 1)).mean.sum()))
    again = vb.Model(vb.Linear(1, 1, posterior=vb.Point()), vb.Gaussian(0.1))
    again.load_state_dict(model.state_dict())
    torch.manual_seed(0)
    assert again.network.posterior.weight.shape == (2, 1)


def test_running_averages_are_kept_with_the_draws() -> None:
    head = vb.Linear(4, 1, posterior=vb.Point())
    network = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.ReLU(), head)
    model = vb.Model(network, vb.Gaussian(0.1, learn=False))
    flat = {"network.0.*": None, "network.1.*": None}
    chains = sample_minibatch(model, data(), batch_size=20, burn_in=0, epochs=4, priors=flat, progress=False)
    averages = chains.buffers["network.1.running_mean"]
    assert averages.shape == (1, 2, 4)
    assert not torch.equal(averages[0, 0], averages[0, 1])
    x = torch.randn(5, 1)
    mean = chains.functions(x)[-1]  # the model is at the last draw
    model.eval()
    torch.testing.assert_close(mean, model.predict(x, n_samples=1).mean)


def test_a_seed_governs_bounds_that_are_drawn_and_leaves_the_generator() -> None:
    x, y = data()
    found = []
    for other in (1, 2):
        torch.manual_seed(0)
        gp = vb.GP(3, kernel=vb.SquaredExponential(x.shape[1]), posterior=vb.LocalInducing(3))
        model = vb.Model(gp, vb.Categorical())
        torch.manual_seed(other)
        before = torch.get_rng_state()
        chains = sample_minibatch(
            model, (x, (y > 0).long()), batch_size=10, burn_in=1, epochs=2, every=1, priors={"*": None}, progress=False
        )
        assert torch.equal(before, torch.get_rng_state())
        found.append(chains.draws)
    assert torch.equal(*found)


def test_bad_options_are_refused() -> None:
    model = vb.Model(vb.Linear(1, 1, posterior=vb.Point()), vb.Gaussian(0.1, learn=False))
    with pytest.raises(ConfigurationError, match="needs batch_size"):
        sample_minibatch(model, data())
    with pytest.raises(ConfigurationError, match="method"):
        sample_minibatch(model, data(), batch_size=10, method="nuts")
    with pytest.raises(ConfigurationError, match="no draw would be kept"):
        sample_minibatch(model, data(), batch_size=10, epochs=1, every=2)
    with pytest.raises(ConfigurationError, match="lr must be positive"):
        sample_minibatch(model, data(), batch_size=10, lr=0.0)
    with pytest.raises(ConfigurationError, match="lr must be positive, got '1'"):
        sample_minibatch(model, data(), batch_size=10, lr="1")
    with pytest.raises(ConfigurationError, match="seed must be a whole number"):
        sample_minibatch(model, data(), batch_size=10, seed=0.5)
    with pytest.raises(TrainingError, match="diverged"):
        sample_minibatch(model, data(), batch_size=10, lr=1e9, burn_in=5, epochs=300, progress=False)


def test_a_minibatch_stands_for_all_rows() -> None:
    """Where parameters stay, the mean over the batches of an epoch is the log density given all rows."""
    x = torch.randn(50, 1, generator=torch.Generator().manual_seed(0))
    model = vb.Model(vb.Linear(1, 1, posterior=vb.Point()), vb.Gaussian(0.1, learn=False))
    options = {"lr": 1e-13, "temperature": 0.0, "burn_in": 0, "epochs": 1, "every": 1, "progress": False}
    chains = sample_minibatch(model, (x, 2 * x[:, 0]), batch_size=10, **options)
    whole = chains.target.evaluate(chains.target.current()[None])
    assert float(chains.log_density) == pytest.approx(float(whole.log_density), rel=1e-9)
