"""Closed-form models on networks with dropout and batch normalisation predict in evaluation mode."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.conjugate import SGPR, ExactGP, LinearRegression
from vibayes.conjugate.base import ConjugateModel
from vibayes.modes import averages


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))


def deep() -> vb.DeepKernel:
    return vb.DeepKernel(network(), vb.SquaredExponential(3))


def data(n: int = 30) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2)
    return x, torch.sin(x[:, 0]) + 0.1 * torch.randn(n)


MODELS: dict[str, Callable[[], ConjugateModel]] = {
    "exact GP": lambda: ExactGP(deep(), vb.Gaussian(0.1)),
    "SGPR": lambda: SGPR(deep(), vb.Gaussian(0.1), 8),
    "SGPR, given inputs": lambda: SGPR(deep(), vb.Gaussian(0.1), torch.randn(8, 2)),
    **{
        f"{posterior} regression": lambda posterior=posterior: LinearRegression(
            network(), posterior=posterior, noise=0.1, n_features=3
        )
        for posterior in ("exact", "full", "mean_field", "point")
    },
}


def states(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in averages(model).items()}


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_repeatable_and_leave_averages_and_modes_alone(name: str) -> None:
    x, y = data()
    model = MODELS[name]()
    vb.fit(model, (x, y), optimizer="adam", steps=5, progress=False)
    before = states(model)
    assert int(before[next(n for n in before if n.endswith("tracked"))]) > 0
    whole, again, alone = model.predict(x), model.predict(x), model.predict(x[:1])
    assert torch.equal(whole.mean, again.mean)
    torch.testing.assert_close(alone.mean, whole.mean[:1])
    torch.testing.assert_close(alone.std, whole.std[:1])
    torch.manual_seed(1)
    drawn = model.sample_functions(x[:3], 2)
    torch.manual_seed(1)
    assert torch.equal(drawn, model.sample_functions(x[:3], 2))
    if isinstance(model, LinearRegression):
        assert torch.equal(model.weights().mean, model.weights().mean)
    assert all(torch.equal(before[n], b) for n, b in states(model).items())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("name", MODELS)
def test_starts_and_conditioning_leave_averages_alone(name: str) -> None:
    x, y = data()
    model = MODELS[name]()
    model.initialize(x, y)
    model.condition(x[:1], y[:1])  # one row, which batch normalisation takes in evaluation mode only
    assert all(int(b) == 0 for n, b in averages(model).items() if n.endswith("tracked"))
