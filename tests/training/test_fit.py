"""`fit`: what it optimizes, when it stops, and how it recovers."""

import copy
import gc
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Gamma
from torch.utils.data import DataLoader, TensorDataset

import vibayes as vb
from vibayes.compiler import can_compile
from vibayes.trainable import TrainableModel
from vibayes.training.checkpoint import load_state
from vibayes.training.graph import Compiled


def data(n: int = 24, p: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(n, 1, generator=generator) * 4 - 2
    y = torch.sin(2 * x) + 0.2 * torch.randn(n, p or 1, generator=generator)
    return x, y[:, 0] if p is None else y


def svgp(likelihood: vb.Likelihood | None = None, kernel: vb.Kernel | None = None, m: int = 5) -> vb.Model:
    torch.manual_seed(0)
    gp = vb.GP(1, kernel=kernel or vb.SquaredExponential(1), posterior=vb.LocalInducing(m))
    return vb.Model(nn.Sequential(nn.Identity(), gp), likelihood or vb.Gaussian(0.1))


def deep() -> vb.Model:
    torch.manual_seed(0)
    first = vb.GP(1, kernel=vb.SquaredExponential(1), mean=vb.IdentityMean(), posterior=vb.LocalInducing(4))
    return vb.Model(
        nn.Sequential(first, vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(4))), vb.Gaussian(0.1)
    )


def fit(model: TrainableModel, steps: int | None, *, log_every: int = 10, **options: object) -> vb.History:
    return vb.fit(model, options.pop("data", data()), steps=steps, log_every=log_every, progress=False, **options)


def parameters(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


# ---- what is optimized


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
@pytest.mark.parametrize("make", [svgp, deep])
def test_training_raises_the_bound(optimizer: str, make: Callable[[], vb.Model]) -> None:
    model = make()
    history = fit(model, 60, optimizer=optimizer, lr=0.05)
    assert history.elbo[-1] > history.elbo[0] + 5
    assert history.step[-1] <= 60
    assert not history.events
    found = model.elbo(*data(), n_samples=200)
    assert history.elbo[-1] == pytest.approx(found.value.item(), abs=5 + 5 * found.stderr.item())


def test_the_history_is_the_bound() -> None:
    model = svgp()
    model.initialize(*data())
    before = model.elbo(*data())
    history = fit(model, 1, kl_weight=0.1)
    assert history.step == [1]
    assert history.elbo == pytest.approx([before.value.item()])
    assert history.kl == pytest.approx([before.kl.item()])
    assert history.log_likelihood == pytest.approx([before.log_likelihood.item()])
    assert history.per_datapoint == pytest.approx([before.per_datapoint.item()])
    assert history.n_data == 24
    assert math.isnan(fit(svgp(vb.StudentT()), 1).noise[0])
    assert history.noise == pytest.approx([model.likelihood.noise.value.item()], rel=0.05)


def map_noise(y: Tensor, a: float, b: float) -> float:
    """The mode of `N(y; 0, s) Gamma(s; a, b)` over s: the root of b s^2 + (N/2 - a + 1) s - y^T y / 2."""
    linear, constant = len(y) / 2 - a + 1, -0.5 * float(y @ y)
    return (-linear + math.sqrt(linear**2 - 4 * b * constant)) / (2 * b)


@pytest.mark.parametrize("name", ["exact", "svgp", "sgpr"])
def test_hyperparameter_priors_move_the_optimum(name: str) -> None:
    """Without a signal the noise variance is all there is, and its mode is known."""
    x, _ = data(10)
    y = torch.linspace(-2, 2, 10)
    a, b = 30.0, 8.0
    noise = vb.Positive(1.0, prior=Gamma(a, b))
    kernel = vb.SquaredExponential(1)
    kernel.variance.fix(1e-12)
    kernel.lengthscale.fix()
    models: dict[str, Callable[[], TrainableModel]] = {
        "exact": lambda: vb.ExactGP(kernel, vb.Gaussian(noise)),
        "svgp": lambda: svgp(vb.Gaussian(noise), kernel),
        "sgpr": lambda: vb.SGPR(kernel, vb.Gaussian(noise), 3),
    }
    fit(models[name](), None, optimizer="lbfgs", data=(x, y))
    assert noise.value.item() == pytest.approx(map_noise(y, a, b), rel=1e-4)
    assert abs(map_noise(y, a, b) - float(y @ y) / 10) > 0.5  # where it would be without the prior


def test_fixed_hyperparameters_stay() -> None:
    for make in (svgp, lambda: vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))):
        model = make()
        model.likelihood.noise.fix(0.3)
        kernel = next(m for m in model.modules() if isinstance(m, vb.SquaredExponential))
        kernel.lengthscale.fix(0.7)
        fit(model, 15)
        assert model.likelihood.noise.value.item() == pytest.approx(0.3, rel=1e-12)
        assert kernel.lengthscale.value.item() == pytest.approx(0.7, rel=1e-12)
        assert kernel.variance.value.item() != 1.0
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(vb.ConfigurationError, match="Every parameter of the model is fixed"):
        fit(model, 5)


def test_weights_are_used() -> None:
    """Rows of weight zero could as well be missing; the bound's scale is the same."""
    x, y = data()
    z = torch.linspace(-2, 2, 5)[:, None]
    weights = torch.ones(24)
    weights[12:] = 0.0
    kept, dropped = (
        vb.Model(vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(5, inputs=z)), vb.Gaussian(0.1))
        for _ in range(2)
    )
    wild = torch.where(weights == 0, 1e3, y)
    fit(kept, 20, data=(x, wild, weights))
    fit(dropped, 20, data=(x[:12], y[:12]))
    torch.testing.assert_close(kept.predict(x).mean, dropped.predict(x).mean)


@pytest.mark.parametrize("name", ["exact", "sgpr", "regression"])
def test_closed_form_models_condition_on_what_they_were_fitted_to(name: str) -> None:
    x, y = data()
    models: dict[str, Callable[[], TrainableModel]] = {
        "exact": lambda: vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1)),
        "sgpr": lambda: vb.SGPR(vb.SquaredExponential(1), vb.Gaussian(0.1), torch.linspace(-2, 2, 5)[:, None]),
        "regression": lambda: vb.LinearRegression(noise=0.1),
    }
    model = models[name]()
    fit(model, 5, data=(x, y))
    fit(model, 5, data=(x, y + 100))
    fresh = models[name]()
    fresh.load_state_dict(model.state_dict())
    fresh.condition(x, y + 100)
    torch.testing.assert_close(model.predict(x).mean, fresh.predict(x).mean)
    weights = torch.ones(24)
    weights[5:] = 0.0
    for source in ((x, y, weights), TensorDataset(x, y, weights)):
        model = models[name]()
        fit(model, 5, data=source)
        fresh.load_state_dict(model.state_dict())
        fresh.condition(x[:5], y[:5])
        torch.testing.assert_close(model.predict(x).mean, fresh.predict(x).mean)


def test_datasets_and_loaders_train_as_tensors_do() -> None:
    x, y = data()
    start = svgp()
    tensors, dataset, loader, whole = (copy.deepcopy(start) for _ in range(4))
    loader.initialize(x, y)  # which shuffles
    fit(tensors, 20, batch_size=6, data=(x, y))
    fit(dataset, 20, batch_size=6, data=TensorDataset(x, y))
    assert same(tensors, dataset)
    fit(loader, 20, data=DataLoader(TensorDataset(x, y), batch_size=24, shuffle=True))
    fit(whole, 20, data=(x, y))
    for a, b in zip(loader.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    uneven = svgp()
    history = fit(uneven, 20, data=DataLoader(TensorDataset(x, y, torch.ones(24)), batch_size=7, shuffle=True))
    assert history.n_data == 24
    assert math.isfinite(history.elbo[-1])


@pytest.mark.parametrize("weight_decay", [0.0, 0.25])
def test_rows_of_a_loaders_short_last_batch_count_as_others(weight_decay: float) -> None:
    x, y = torch.ones(21, 1), torch.cat([torch.zeros(20), torch.full((1,), 10.0)])
    model = vb.Model(vb.Linear(1, 1, bias=False, posterior=vb.Point(prior=False)), vb.Gaussian(1.0, learn=False))
    loader = DataLoader(TensorDataset(x, y), batch_size=20)
    rate = vb.schedules.exponential(1.0, 1e-3, 300, hold=100)
    vb.fit(model, loader, steps=300, lr=0.05, lr_schedule=rate, weight_decay=weight_decay, progress=False)
    # the mean of all rows, drawn to zero by the decay of the loss per row; with batches alike it would be about 5
    expected = 10 / 21 / (1 + weight_decay)
    assert float(model.predict(x[:1]).mean) == pytest.approx(expected, rel=0.05)


# ---- randomness


@pytest.mark.parametrize("make", [svgp, deep, lambda: svgp(vb.StudentT())])
@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_a_seed_decides_everything_and_leaves_the_generators(make: Callable[[], vb.Model], optimizer: str) -> None:
    options = {} if optimizer == "lbfgs" else {"batch_size": 7}
    first, again = make(), make()
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global state is what must stay
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    fit(first, 12, optimizer=optimizer, **options)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == before_numpy  # noqa: NPY002
    torch.manual_seed(2)
    fit(again, 12, optimizer=optimizer, **options)
    assert same(first, again)


def test_seeds_differ() -> None:
    first, second = deep(), deep()
    fit(first, 5, seed=0)
    fit(second, 5, seed=1)
    assert not same(first, second)


def test_the_generator_is_left_alone_by_a_failure() -> None:
    before = torch.get_rng_state()
    with pytest.raises(vb.DataError):
        fit(svgp(), 5, data=(torch.full((3, 1), math.nan), torch.zeros(3)))
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state()[:8], before[:8])


# ---- schedules


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


# ---- stopping


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


# ---- when steps go wrong


class Flaky(vb.Gaussian):
    """A likelihood that is NaN at some of its calls."""

    def __init__(self, bad: Callable[[int], bool]) -> None:
        super().__init__(0.1)
        self.bad, self.calls = bad, 0

    def _expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, eps: Tensor | None) -> Tensor:
        self.calls += 1
        found = super()._expected_log_prob(mean, variance, y, eps)
        return found * math.nan if self.bad(self.calls) else found


class Breaking(vb.SquaredExponential):
    """A kernel that stops being positive definite after some calls."""

    def __init__(self, after: int) -> None:
        super().__init__(1)
        self.after, self.calls = after, 0

    def _matrix(self, x: Tensor, z: Tensor | None) -> Tensor:
        self.calls += 1
        K = super()._matrix(x, z)
        return -K if self.calls > self.after and z is None else K


def test_one_bad_step_is_undone(caplog: pytest.LogCaptureFixture) -> None:
    model = svgp(Flaky(lambda call: call == 25))
    with caplog.at_level(logging.WARNING, logger="vibayes"):
        history = fit(model, 60, lr=0.02)
    assert len(history.events) == 1
    assert "bound was not finite" in history.events[0]
    assert "1.0e-05" in history.events[0]
    assert caplog.messages == history.events
    assert model.jitter.item() == pytest.approx(1e-5)
    assert history.lr[0] == pytest.approx(0.02)
    assert history.lr[-1] == pytest.approx(0.01)
    assert history.step[-1] == 60
    assert all(math.isfinite(e) for e in history.elbo)
    assert history.elbo[-1] > history.elbo[0]
    assert torch.isfinite(model.predict(data()[0]).mean).all()


@pytest.mark.parametrize("apart", [12, 8])
def test_failures_are_forgotten_after_more_than_ten_good_looks(apart: int) -> None:
    """Six of them, one more than are tolerated, with 11 or 7 good looks between them."""
    model = svgp(Flaky(lambda call: call % apart == 0))
    if apart == 12:
        assert len(fit(model, 73, log_every=1).events) == 6
    else:
        with pytest.raises(vb.TrainingError, match="also after going back 5 times"):
            fit(model, 73, log_every=1)


def test_a_bad_step_with_a_prior_is_undone_too() -> None:
    """Torch's own checks of distributions must not get in the way of going back."""
    model = svgp(Flaky(lambda call: call == 12))
    model.likelihood.noise = vb.Positive(0.1, prior=torch.distributions.LogNormal(0.0, 1.0))
    history = fit(model, 40)
    assert len(history.events) == 1
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_bad_last_step_leaves_finite_parameters() -> None:
    for bad in (20, 15):
        model = svgp(Flaky(lambda call, bad=bad: call == bad))
        fit(model, 20)
        assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_gradient_that_is_not_finite_counts() -> None:
    """A finite loss with a NaN gradient poisons the parameters; the last good ones come back."""
    model = svgp()
    calls = 0

    def poison(gradient: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return gradient * math.nan if calls == 17 else gradient

    model.network[1].posterior.mean.register_hook(poison)
    history = fit(model, 40)
    assert len(history.events) == 1
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("first_bad", [1, 34])
def test_giving_up_leaves_the_last_good_state(first_bad: int) -> None:
    model, twin = svgp(Flaky(lambda call: call >= first_bad)), svgp()
    with pytest.raises(vb.TrainingError, match=r"bound was not finite.*smaller lr.*noise"):
        fit(model, 500)
    if first_bad == 1:
        twin.initialize(*data())
    else:
        fit(twin, 30)
    for a, b in zip(parameters(model), parameters(twin), strict=True):
        assert torch.equal(a, b)
    assert model.jitter.item() == pytest.approx(1e-6)  # as it was when all was well
    assert torch.isfinite(model.predict(data()[0]).mean).all()


def test_a_failing_factorization_names_its_layer() -> None:
    kernel = Breaking(after=40)
    model = svgp(kernel=kernel)
    with pytest.raises(vb.NotPositiveDefiniteError, match=r"layer '1' was not positive definite.*torch\.float64"):
        fit(model, 500)
    kernel.after = 10**9
    assert torch.isfinite(model.elbo(*data()).value)


def test_lbfgs_gives_up_too() -> None:
    model = svgp(kernel=Breaking(after=3))
    before = parameters(model)
    with pytest.raises(vb.NotPositiveDefiniteError, match="layer '1'"):
        fit(model, 50, optimizer="lbfgs")
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert len(before) == len(parameters(model))
    assert model.jitter.item() == pytest.approx(1e-6)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_the_last_good_state(kind: type[BaseException]) -> None:
    def weight(step: int) -> float:
        if step == 27:
            raise kind("stop")
        return 1.0

    model, twin = svgp(), svgp()
    with pytest.raises(kind, match="stop"):
        fit(model, 100, kl_weight=weight)
    fit(twin, 20)
    assert same(model, twin)


def test_an_interrupted_lbfgs_keeps_what_it_has() -> None:
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 60:
            raise KeyboardInterrupt

    model = deep()
    model.initialize(*data())
    before = model.elbo(*data(), n_samples=200).value
    hook = model.register_forward_pre_hook(count)
    with pytest.raises(KeyboardInterrupt):
        fit(model, 400, optimizer="lbfgs", n_samples=5)
    hook.remove()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert model.elbo(*data(), n_samples=200).value > before + 5


@pytest.mark.parametrize("make", [svgp, deep])
@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_training_leaves_no_tensors_for_the_garbage_collector(make: Callable[[], vb.Model], optimizer: str) -> None:
    model = make()
    fit(model, 3, optimizer=optimizer)
    assert all(parameter.grad is None for parameter in model.parameters())
    gc.collect()
    gc.disable()
    try:
        before = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
        fit(model, 3, optimizer=optimizer)
        assert sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()) <= before
    finally:
        gc.enable()


# ---- what fit refuses


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a positive whole number, got 0"),
        ({"steps": 2.5}, "steps must be a positive"),
        ({"steps": True}, "steps must be a positive"),
        ({"n_samples": 0}, "n_samples must be a positive"),
        ({"log_every": 0}, "log_every must be a positive"),
        ({"max_steps": -1}, "max_steps must be a positive"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"lr": math.nan}, "lr must be positive"),
        ({"optimizer": "sgd"}, "optimizer must be.*adam.*lbfgs.*'sgd'"),
        ({"restarts": 2}, "restarts go with optimizer='lbfgs'"),
        ({"optimizer": "lbfgs", "batch_size": 5}, "L-BFGS needs all rows"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"device": "gpu0"}, "Unknown device 'gpu0'"),
        ({"kl_weight": "annealed"}, "A schedule is a number, or a function"),
        ({"lr_schedule": "cosine"}, "A schedule is a number, or a function"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(vb.ConfigurationError, match=message):
        vb.fit(svgp(), data(), **{"steps": 5, "progress": False, **options})


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    plain, theirs = svgp(), svgp()
    fit(plain, 4, batch_size=5, seed=3, n_samples=2, lr=0.5)
    options = {"batch_size": np.int64(5), "seed": np.int64(3), "n_samples": np.int32(2), "lr": np.float32(0.5)}
    for steps in (np.int64(2), np.int64(4)):  # the second time it resumes
        fit(theirs, steps, checkpoint=tmp_path / "run", **options)
    assert same(plain, theirs)


@pytest.mark.parametrize("seed", [-3, 2**40, 2**63 + 1])
def test_any_seed_will_do(seed: int) -> None:
    x, y = data()
    vb.fit(svgp(), DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True), steps=3, seed=seed, progress=False)
    fit(vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1)), None, restarts=2, seed=seed)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu() -> None:
    with pytest.raises(vb.ConfigurationError, match=r"device='cuda' was asked for, but no CUDA GPU.*device='cpu'"):
        fit(svgp(), 5, device="cuda")
    assert fit(svgp(), 1, device="cpu").step == [1]
    assert fit(svgp(), 1, device=torch.device("cpu")).step == [1]


FACTORS = {"*kernel*": 0.5, "network.1.kernel.lengthscale": 3.0, "*posterior*": 0.1}


def test_parameters_have_rates_of_their_own() -> None:
    """Adam's first step is as long as the rate, whatever the gradient."""
    model = svgp()
    fit(model, 3)  # some gradients are zero at the start
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fit(model, 1, lr=0.01, lr_factors=FACTORS)
    moved = {name: float((p.detach() - before[name]).abs().max()) for name, p in model.named_parameters()}
    rates = {"likelihood.noise": 0.01, "network.1.kernel.lengthscale": 0.03, "network.1.kernel.variance": 0.005}
    posterior = {f"network.1.posterior.{name}": 0.001 for name in ("inputs", "mean", "raw_factor")}
    assert moved == pytest.approx({**{f"{name}.raw": rate for name, rate in rates.items()}, **posterior}, rel=1e-3)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"nobody": 2.0}, r"lr_factors\['nobody'\] is of no use. No parameter is called 'nobody'. There are: .*noise"),
        ({"likelihood.*": 2.0, "*noise": 1.0}, r"'\*noise'\] is of no use. Longer names have all"),
        ({"*": 0.0}, r"must be a positive number, got 0.0. To keep .* requires_grad_"),
        ({"*": math.nan}, "must be a positive number, got nan"),
        ({"*": "fast"}, "must be a positive number, got 'fast'"),
        ([("*", 1.0)], "must be factors by name, .* got list"),
    ],
)
def test_factors_of_rates_that_make_no_sense_are_refused(factors: Any, message: str) -> None:
    with pytest.raises(vb.ConfigurationError, match=message):
        fit(svgp(), 1, lr_factors=factors)


def test_lbfgs_has_one_rate() -> None:
    with pytest.raises(vb.ConfigurationError, match="lr_factors go with optimizer='adam'"):
        fit(svgp(), 1, optimizer="lbfgs", lr_factors=FACTORS)


def test_only_models_are_trained() -> None:
    with pytest.raises(vb.ConfigurationError, match=r"got Linear. Wrap a network in vibayes\.Model"):
        vb.fit(nn.Linear(1, 1), data(), steps=5)


@pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler")
def test_compiled_steps_draw_what_eager_ones_draw(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.linspace(-2.0, 2.0, 20)[:, None]

    def train(compile: bool) -> list[float]:
        torch.manual_seed(0)
        network = nn.Sequential(vb.GP(2, kernel=vb.SquaredExponential(1)), vb.GP(1, kernel=vb.SquaredExponential(2)))
        model = vb.Model(network, vb.Gaussian(0.1), inducing=x[::4])
        return vb.fit(
            model, (x, x[:, 0].sin()), steps=5, n_samples=3, log_every=1, compile=compile, progress=False
        ).elbo

    assert train(True) == pytest.approx(train(False), rel=1e-9)
    assert "without it" not in caplog.text


@pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler")
def test_steps_of_many_models_are_compiled(caplog: pytest.LogCaptureFixture) -> None:
    """The compiler gives up on code that it has met too often, and all models run by the code of one method."""

    class Shift:
        def __init__(self, by: int) -> None:
            self.by = by

        def step(self, x: Tensor) -> Tensor:
            return x + self.by

    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        steps = [Compiled(Shift(by).step, torch.device("cpu")) for by in range(3)]
        assert [float(step(torch.zeros(1))) for step in steps] == [0, 1, 2]
    assert "without it" not in caplog.text


@pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler")
def test_compiled_steps_take_the_shorter_batch_at_the_end_of_an_epoch(caplog: pytest.LogCaptureFixture) -> None:
    """Code for all sizes, which the compiler tries at the second one, cannot be made of this model."""
    x = torch.linspace(-2.0, 2.0, 7)[:, None]
    loader = DataLoader(TensorDataset(x, x[:, 0].sin()), 4)

    def train(compile: bool) -> list[float]:
        torch.manual_seed(0)
        layers = (nn.Linear(1, 3), nn.Dropout(0.5), vb.Linear(3, 1, posterior=vb.MeanField()))
        model = vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1))
        return vb.fit(model, loader, steps=4, n_samples=2, log_every=1, compile=compile, progress=False).elbo

    assert train(True) == pytest.approx(train(False), rel=1e-9)
    assert "without it" not in caplog.text


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_training_goes_on_where_the_compiler_fails(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of what the compiler makes, the backward pass may be the first to fail."""

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if where == "forward":
                raise AssertionError("expected size 20==20")
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *g: Tensor) -> Tensor:
            raise AssertionError("expected size 20==20\nsecond line")

    def compile_badly(function: Any, **_: Any) -> Any:
        def call(*args: Any) -> Any:
            found = function(*args)
            if found is None:
                return None  # Adam's update
            return found._replace(log_likelihood=Failing.apply(found.log_likelihood))

        return call

    monkeypatch.setattr(torch, "compile", compile_badly)
    model = svgp()
    history = vb.fit(model, data(), steps=5, log_every=1, compile=True, progress=False)
    assert len(history) == 5
    assert "torch.compile failed and the step runs without it: expected size 20==20" in caplog.text
    assert "second line" not in caplog.text


def test_a_step_that_the_compiler_failed_in_begins_again_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the noise and the averages that it had, so that training is that without the compiler."""

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *g: Tensor) -> Tensor:
            raise AssertionError("expected size 20==20")

    def compile_badly(function: Any, **_: Any) -> Any:
        def call(*args: Any) -> Any:
            found = function(*args)
            return None if found is None else found._replace(log_ratio=Failing.apply(found.log_ratio))

        return call

    monkeypatch.setattr(torch, "compile", compile_badly)
    x = torch.randn(20, 2)

    def trained(compile: bool) -> vb.Model:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), vb.Linear(3, 1, posterior=vb.MeanField()))
        model = vb.Model(network, vb.StudentT(4.0, 0.1))
        vb.fit(model, (x, x[:, 0]), steps=6, n_samples=2, compile=compile, progress=False)
        return model

    eager, fallen_back = trained(False), trained(True)
    assert int(fallen_back.network[1].num_batches_tracked) == 6
    for (name, a), b in zip(eager.state_dict().items(), fallen_back.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_noise_that_is_not_that_of_the_draws_is_named() -> None:
    x = torch.randn(20, 2)
    model = vb.Model(vb.Linear(2, 1), vb.StudentT(4.0, 0.1), inducing=x[:5])
    with pytest.raises(
        vb.ConfigurationError, match=r"noise must hold 'network\.inducing', of shape .* it holds nothing"
    ):
        vb.fit_many([model], [(x, x[:, 0])], steps=2, n_samples=2, noise=lambda _: {}, progress=False)
    for draws in (1, 3):
        few = {"network.inducing": torch.zeros(1, draws, 3, 1)}
        with pytest.raises(vb.ShapeError, match=r"'network\.inducing' must have an axis of 2 draws"):
            vb.fit_many([model], [(x, x[:, 0])], steps=2, n_samples=2, noise=lambda _, few=few: few, progress=False)
    for other in (torch.zeros(2, 1, 1), torch.zeros(2, 3), torch.zeros(2, 3, 1, dtype=torch.float32)):
        with pytest.raises(
            vb.ShapeError, match=r"'network\.inducing' must be of shape \[3, 1\] behind .* torch.float64"
        ):
            vb.fit(model, (x, x[:, 0]), steps=2, n_samples=2, noise=lambda _, n=other: {"network.inducing": n})
    right = {"network.inducing": torch.zeros(2, 3, 1)}
    vb.fit(model, (x, x[:, 0]), steps=2, n_samples=2, noise=lambda _: right, progress=False)
