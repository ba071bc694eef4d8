"""When `fit` stops by itself, and when it goes on."""

import pytest
import torch
from small_models import data, fit, svgp

import vibayes as vb


def test_adam_stops_by_itself() -> None:
    history = fit(svgp(), None, tolerance=0.5, log_every=2)
    assert history.stopped == "the smoothed bound no longer rose"
    assert 20 < history.step[-1] < 500
    assert history.lr[-1] == pytest.approx(0.1 * history.lr[0])


def test_the_tolerance_is_per_row() -> None:
    """Ten windows bring less than a nat per row here and more in all, so that both plateaus are found at once."""
    history = fit(svgp(), None, tolerance=1.0, log_every=2, lr=1e-3)
    assert history.step[-1] == 2 * 2 * 11
    assert history.elbo[-1] - history.elbo[0] > 10.0


def test_adam_does_not_stop_while_the_weight_of_the_kl_rises() -> None:
    x = torch.linspace(-2, 2, 20)[:, None]
    last = vb.Linear(5, 1, posterior=vb.MeanField())
    network = torch.nn.Sequential(vb.Linear(1, 5, posterior=vb.MeanField()), torch.nn.Tanh(), last)
    rise = vb.schedules.linear(0.0, 1.0, 300)  # at a constant weight it would stop at step 135
    options = {"kl_weight": rise, "n_samples": 2, "log_every": 5, "tolerance": 0.1, "progress": False}
    history = vb.fit(vb.Model(network, vb.Gaussian(0.1)), (x, torch.sin(2 * x[:, 0])), **options)
    assert history.stopped == "the smoothed bound no longer rose"
    assert history.step[-1] > 300


@pytest.mark.parametrize("steps", [None, 400])
def test_lbfgs_does_not_stop_while_the_weight_of_the_kl_rises(steps: int | None) -> None:
    x = torch.linspace(-1, 1, 30)[:, None]
    y = torch.sin(3 * x[:, 0])
    bumps = vb.conjugate.GaussianBumps(torch.linspace(-1, 1, 5), lengthscale=0.5)
    bounds = []
    for weight in (1.0, vb.schedules.linear(0.0, 1.0, 60), vb.schedules.piecewise([50], [3.0, 1.0])):
        model = vb.LinearRegression(bumps, posterior="mean_field", noise=0.1)
        vb.fit(model, (x, y), optimizer="lbfgs", steps=steps, kl_weight=weight, progress=False)
        bounds.append(model.elbo(x, y).value.item())
    assert bounds == pytest.approx([bounds[0]] * 3, abs=1e-3)


def test_adam_waits_for_a_weight_of_the_kl_that_comes_later() -> None:
    x = torch.linspace(-2, 2, 20)[:, None]
    gp = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(5))
    options = {"log_every": 5, "lr": 0.05, "max_steps": 250, "tolerance": 1.0, "progress": False}
    model = vb.Model(gp, vb.Gaussian(0.1))  # which would stop at step 120
    history = vb.fit(model, (x, x[:, 0].sin()), kl_weight=lambda step: 0.0 if step < 200 else 1.0, **options)
    assert history.step[-1] > 200


def test_adam_does_not_stop_while_its_rate_rises() -> None:
    """With a rate that is next to nothing the bound does not rise, which says little of the rate to come."""

    def rising(step: int) -> float:
        return 1e-12 * (step + 1) if step < 30 else 1.0

    history = fit(svgp(), None, log_every=1, lr_schedule=rising, max_steps=40)
    assert history.stopped == "reached max_steps=40"
    assert history.lr[-1] == pytest.approx(0.01)


def test_a_schedule_may_end_before_the_most_steps() -> None:
    x = torch.linspace(-2, 2, 20)[:, None]
    gp = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(5))
    weights = [1.0] * 1_500
    options = {"log_every": 5, "lr": 0.05, "tolerance": 1.0, "progress": False}
    history = vb.fit(vb.Model(gp, vb.Gaussian(0.1)), (x, x[:, 0].sin()), kl_weight=weights.__getitem__, **options)
    assert history.stopped == "the smoothed bound no longer rose"


def test_a_run_that_never_was_well_is_an_error() -> None:
    x = torch.randn(10, 2)
    model = vb.Model(vb.Linear(2, 1, posterior=vb.MeanField()), vb.Gaussian(0.1))
    model.initialize(x, x[:, 0])
    with torch.no_grad():
        model.likelihood.noise.raw.fill_(float("nan"))
    with pytest.raises(vb.TrainingError, match="not finite"):
        vb.fit(model, (x, x[:, 0]), steps=100, progress=False)


def test_parameters_without_a_part_in_the_bound_are_nothing_to_train() -> None:
    x = torch.randn(10, 2)
    layer = vb.Linear(2, 1, prior=vb.ScalePrior(), posterior=vb.FromPrior())
    with pytest.raises(vb.ConfigurationError, match="part in the bound"):
        vb.fit(vb.Model(layer, vb.Gaussian(0.1, learn=False)), (x, x[:, 0]), steps=3, progress=False)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_lbfgs_takes_no_negative_weight_of_the_kl(value: float) -> None:
    with pytest.raises(vb.ConfigurationError, match="kl_weight must not be negative, infinite or NaN; at step 0"):
        fit(svgp(), 20, optimizer="lbfgs", kl_weight=value)


@pytest.mark.parametrize("name", ["kl_weight", "lr_schedule"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), lambda step: 1.0 - step])
def test_schedules_must_not_be_negative(name: str, value: object) -> None:
    x = torch.randn(10, 2)
    model = vb.Model(vb.Linear(2, 1, posterior=vb.MeanField()), vb.Gaussian(0.1))
    with pytest.raises(vb.ConfigurationError, match=f"{name} must not be negative"):
        vb.fit(model, (x, x[:, 0]), steps=10, progress=False, **{name: value})


def test_adam_goes_on_while_the_bound_rises() -> None:
    history = fit(svgp(), None, tolerance=1e-6, log_every=2, max_steps=80)
    assert history.stopped.startswith("reached max_steps=80")
    assert history.step[-1] == 80


def test_a_number_of_steps_is_kept() -> None:
    history = fit(svgp(), 23, log_every=10)
    assert history.step == [10, 20, 23]
    assert history.stopped == "ran the 23 steps asked for"
    exact = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    history = fit(exact, 2)
    assert history.step[-1] == 2
    assert "2 iterations" in history.stopped
    assert fit(exact, None).stopped == "L-BFGS converged"


def test_fitting_again_goes_on() -> None:
    model = svgp()
    fit(model, 30)
    before = model.elbo(*data()).value
    inputs = model.network[1].posterior.inputs.detach().clone()
    fit(model, 1, lr=1e-12)
    torch.testing.assert_close(model.network[1].posterior.inputs.detach(), inputs)  # not started over
    fit(model, 60, lr=0.02)
    assert model.elbo(*data()).value > before
