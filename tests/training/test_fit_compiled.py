"""`fit` with compiled steps."""

from typing import Any

import pytest
import torch
from small_models import data, svgp
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import vibayes as vb
from vibayes.compiler import can_compile
from vibayes.training.graph import Compiled


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
