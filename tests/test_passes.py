"""How many draws go through a network at once."""

import pytest
import torch
from torch import nn

import vibayes as vb
from vibayes import passes as passes_module
from vibayes.passes import predicted_at_once


@pytest.mark.parametrize("ask", ["sample_functions", "layer_functions", "log_weights"])
def test_joint_draws_of_images_come_a_few_at_a_time(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(6, 1, 12, 12), torch.arange(6) % 3
    posterior = vb.MeanField()
    layers = (vb.Conv2d(1, 2, 3, padding=1, posterior=posterior), nn.Flatten(), vb.Linear(288, 3, posterior=posterior))
    model = vb.Model(nn.Sequential(*layers), vb.Categorical())
    model.initialize(x, y)
    passes: list[int] = []
    model.network.register_forward_pre_hook(lambda *_: passes.append(1))

    def asked() -> tuple[int, ...]:
        passes.clear()
        if ask == "layer_functions":
            return tuple(model.layer_functions(x, 10)["0"].draws.shape[:2])
        found = model.sample_functions(x, 10) if ask == "sample_functions" else model.log_weights(x, y, 10)
        return tuple(found.shape[:2])

    whole = asked()
    assert len(passes) == 1
    monkeypatch.setattr(passes_module, "_ROWS_PER_PASS", 18)  # three draws of six images
    assert asked() == whole
    assert len(passes) == 4


@pytest.mark.parametrize("ask", ["sample_functions", "layer_functions", "predict"])
def test_joint_draws_of_deep_processes_come_a_few_at_a_time(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the first layer each draw has a covariance of all rows; one layer has one for all draws."""
    x = torch.randn(6, 2)
    monkeypatch.setattr(passes_module, "_JOINT_NUMBERS_PER_PASS", 3 * (6 + 2) ** 2)
    layers = [vb.GP(1, kernel=vb.SquaredExponential(2)), vb.GP(1, kernel=vb.SquaredExponential(1))]
    for network, expected in ((nn.Sequential(*layers), 4), (vb.GP(1, kernel=vb.SquaredExponential(2)), 1)):
        model = vb.Model(network, vb.Gaussian(0.1), inducing=x[:2])
        passes: list[int] = []
        model.network.register_forward_pre_hook(lambda *_, passes=passes: passes.append(1))
        if ask == "layer_functions":
            found = next(iter(model.layer_functions(x, 10).values())).draws[..., 0]
        else:
            joint = model.predict(x, 10, joint=True) if ask == "predict" else None
            found = model.sample_functions(x, 10) if joint is None else joint.sample(10)
        assert found.shape == (10, 6)
        assert len(passes) == expected


def test_draws_of_large_covariances_come_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(64, 60, 3, 3)
    model = vb.Model(nn.Sequential(vb.Conv2d(60, 1, 3, padding=1), nn.Flatten(), vb.Linear(9, 3)), vb.Categorical(),
                     inducing=x[:61])  # fmt: skip
    model.initialize(x, torch.arange(64) % 3)
    few = predicted_at_once(x, None, 6, 61, model.layers.values())[1]
    assert few == 20_000_000 // 541**2
    monkeypatch.setattr(passes_module, "_NUMBERS_PER_PASS", 2 * 541**2)
    passes: list[int] = []
    model.network.register_forward_pre_hook(lambda *_: passes.append(1))
    assert model.predict(x, n_samples=6).probs.shape == (64, 3)
    assert len(passes) == 3
    assert model.network[0].covariance_size(40) == 360  # patches, of which there are fewer than weights
