"""What `fit` does after steps that fail, and when it is interrupted."""

import gc
import logging
import math
from collections.abc import Callable

import pytest
import torch
from small_models import data, deep, fit, parameters, same, svgp
from torch import Tensor

import vibayes as vb


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
