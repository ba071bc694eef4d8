"""`fit` with schedules of its rate, weights of the KL and priors of hyperparameters."""

import math
from pathlib import Path

import pytest
import torch
from small_models import data, fit, same, svgp

import vibayes as vb
from vibayes.training.checkpoint import load_state


@pytest.mark.parametrize("kind", ["lr_schedule", "kl_weight"])
def test_schedules_are_asked_once_for_every_step(kind: str) -> None:
    asked: list[int] = []

    def schedule(step: int) -> float:
        asked.append(step)
        return 1.0

    fit(svgp(), 12, log_every=100, **{kind: schedule})
    assert list(dict.fromkeys(asked)) == list(range(12))


def test_schedules_take_effect_at_their_step() -> None:
    short, stopped = svgp(), svgp()
    fit(short, 5, kl_weight=0.3)
    stop = vb.schedules.piecewise([5], [1.0, 0.0])
    fit(stopped, 12, lr_schedule=stop, kl_weight=vb.schedules.piecewise([5], [0.3, 1.0]))
    assert same(short, stopped)
    for later in (vb.schedules.piecewise([6], [1.0, 0.0]), vb.schedules.piecewise([4], [1.0, 0.0])):
        other = svgp()
        fit(other, 12, lr_schedule=later, kl_weight=0.3)
        assert not same(short, other)


def test_the_kl_weight_matters_and_the_rate_is_logged() -> None:
    cold, plain = svgp(), svgp()
    history = fit(cold, 10, kl_weight=0.0, log_every=5, lr=0.02, lr_schedule=vb.schedules.piecewise([5], [1.0, 0.1]))
    fit(plain, 10, log_every=5, lr=0.02, lr_schedule=vb.schedules.piecewise([5], [1.0, 0.1]))
    assert not same(cold, plain)
    assert history.lr == pytest.approx([0.02, 0.002])
    halved = svgp()
    assert fit(halved, 10, lr=0.02, lr_schedule=0.5).lr == pytest.approx([0.01])


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_priors_of_hyperparameters_count(optimizer: str) -> None:
    prior = torch.distributions.LogNormal(math.log(3.0), 0.01)
    kernel = vb.SquaredExponential(1, lengthscale=vb.Positive(2.0, prior=prior))
    options = {"lr": 0.05} if optimizer == "adam" else {}
    fit(svgp(kernel=kernel), 60, optimizer=optimizer, **options)
    assert float(kernel.lengthscale.value.detach()) == pytest.approx(3.0, rel=0.03)


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_the_kl_weight_leaves_priors_of_hyperparameters_alone(optimizer: str) -> None:
    """An exact GP has no divergence, so that its course does not depend on the weight, whatever priors it has."""
    found = []
    for weight in (0.0, 1.0):
        prior = torch.distributions.LogNormal(math.log(3.0), 0.1)
        gp = vb.ExactGP(vb.SquaredExponential(1, lengthscale=vb.Positive(2.0, prior=prior)), vb.Gaussian(0.1))
        fit(gp, 10, optimizer=optimizer, kl_weight=weight)
        found.append(gp)
    assert same(*found)


def test_lbfgs_tempers() -> None:
    """The best Gaussian for `E[log N(y; f, noise)] - weight KL` is the best one for a noise of `weight noise`."""
    models = []
    for noise, weight in ((0.1, 0.2), (0.02, 1.0)):
        model = svgp(vb.Gaussian(noise))
        model.initialize(*data())
        model.requires_grad_(False)
        for name in ("mean", "raw_factor"):
            model.network[1].posterior.get_parameter(name).requires_grad_(True)
        fit(model, 300, optimizer="lbfgs", kl_weight=weight)
        models.append(model)
    tempered, other = (model.network[1].posterior for model in models)
    torch.testing.assert_close(tempered.mean, other.mean, rtol=1e-4, atol=1e-4)
    factors = (vb.linalg.lower_factor(posterior.raw_factor) for posterior in (tempered, other))
    torch.testing.assert_close(*factors, rtol=1e-3, atol=1e-3)


def test_lbfgs_compares_starts_by_the_last_weight_of_the_kl(tmp_path: Path) -> None:
    """Starts may end at different weights, where the schedule is longer than their iterations."""
    model, (x, y) = svgp(), data()
    fit(model, 5, optimizer="lbfgs", kl_weight=vb.schedules.linear(0.0, 1.0, 5), checkpoint=tmp_path / "state")
    found = load_state(tmp_path / "state")["run"]["best"]["value"]  # trained at the weight of the first step, zero
    with torch.no_grad():
        bound = model.elbo(x, y)
    assert found == pytest.approx(-float(bound.log_likelihood - 0.8 * bound.kl) / len(x), rel=1e-9)
