"""How many rows and draws go through a network at once."""

import pytest
import torch
from torch import nn

import vibayes as vb
from vibayes import passes as passes_module
from vibayes.passes import rows_at_once


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
    few = rows_at_once(x, None, 6, 61, model.layers.values())[1]
    assert few == 20_000_000 // 541**2
    monkeypatch.setattr(passes_module, "_NUMBERS_PER_PASS", 2 * 541**2)
    passes: list[int] = []
    model.network.register_forward_pre_hook(lambda *_: passes.append(1))
    assert model.predict(x, n_samples=6).probs.shape == (64, 3)
    assert len(passes) == 3
    assert model.network[0].covariance_size(40) == 360  # patches, of which there are fewer than weights


def deep_gp(x: torch.Tensor) -> vb.Model:
    layers = [vb.GP(2, kernel=vb.SquaredExponential(2)), vb.GP(1, kernel=vb.SquaredExponential(2))]
    return vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1), inducing=x[:4])


def counted(model: vb.Model) -> list[int]:
    """How many data rows each pass of the network takes."""
    passes: list[int] = []
    model.network.register_forward_pre_hook(lambda _, rows: passes.append(len(rows[0]) - model.n_inducing))
    return passes


def test_bounds_without_gradients_take_rows_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(22, 2)
    y = x[:, 0].sin()
    monkeypatch.setattr(passes_module, "_ROWS_PER_PASS", 2_000 * 8)
    model = deep_gp(x)
    vb.fit(model, (x, y), steps=20, progress=False)
    whole = model.elbo(x, y, n_samples=2_000, n_data=44)
    passes = counted(model)
    with torch.no_grad():
        parts = model.elbo(x, y, n_samples=2_000, n_data=44)
    assert passes == [8, 8, 6]
    for name in ("log_likelihood", "kl", "value"):
        off = abs(float(getattr(parts, name)) - float(getattr(whole, name).detach()))
        assert off < 4 * float(parts.stderr + whole.stderr)
    # every draw's value is one of the whole bound; parts have draws of their own, so that less is left to chance
    assert 0.3 * whole.stderr < parts.stderr < whole.stderr


def test_bounds_without_gradients_are_the_same_where_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(22, 2)
    model = vb.Model(vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(5)), vb.Gaussian(0.1))
    vb.fit(model, (x, x[:, 0].sin()), steps=20, progress=False)
    whole = model.elbo(x, x[:, 0].sin())
    monkeypatch.setattr(passes_module, "_ROWS_PER_PASS", 5)
    passes = counted(model)
    with torch.no_grad():
        parts = model.elbo(x, x[:, 0].sin())
    assert passes == [5, 5, 5, 5, 2]
    torch.testing.assert_close(parts.log_likelihood, whole.log_likelihood.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(parts.kl, whole.kl.detach(), rtol=1e-12, atol=0)
    assert parts.stderr == 0


def test_bounds_by_statistics_of_the_batch_take_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch normalisation in training mode sees the rows that go through together."""
    x = torch.randn(22, 2)
    network = nn.Sequential(nn.BatchNorm1d(2), vb.Linear(2, 1, posterior=vb.MeanField()))
    model = vb.Model(network, vb.Gaussian(0.1))
    model.initialize(x, x[:, 0].sin())
    monkeypatch.setattr(passes_module, "_ROWS_PER_PASS", 8)
    passes = counted(model)
    with torch.no_grad():
        model.elbo(x, x[:, 0].sin(), n_samples=1)
        model.eval()
        model.elbo(x, x[:, 0].sin(), n_samples=1)
    assert passes == [22, 8, 8, 6]


def test_draws_of_bounds_come_a_few_at_a_time_where_there_are_many_inducing_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(6, 2)
    model = deep_gp(x)
    model.initialize(x, x[:, 0].sin())
    monkeypatch.setattr(passes_module, "_ROWS_PER_PASS", 12)  # three draws of four inducing rows
    passes = counted(model)
    with torch.no_grad():
        assert model.elbo(x, x[:, 0].sin(), n_samples=7).value.isfinite()
    assert passes == [4, 4, 4, 2, 2, 2]
