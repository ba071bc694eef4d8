"""Correlations, features, the monitor, and the report with its warnings."""

import math

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.diagnostics import Monitor, correlation, diagnose, effective_rank, features
from vibayes.errors import ConfigurationError


def data(n: int = 40) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-2, 2, n)[:, None]
    return x, torch.sin(2 * x[:, 0]) + 0.3 * torch.randn(n)


def network(w: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(1, 30), nn.ReLU(), nn.Linear(30, w))


def test_correlations_are_covariances_over_standard_deviations() -> None:
    net = network()
    kernel = vb.DeepKernel(net, vb.SquaredExponential(2, variance=3.0) + vb.LinearKernel(2))
    x, z = torch.randn(6, 1), torch.randn(2, 1)
    expected = kernel(z, x) / (kernel.diag(z)[:, None] * kernel.diag(x)).sqrt()
    gp = vb.ExactGP(kernel, vb.Gaussian())
    assert torch.allclose(correlation(gp, x, z), expected)
    layer = vb.GP(1, kernel=kernel.kernel, posterior=vb.LocalInducing(4))
    model = vb.Model(nn.Sequential(net, layer), vb.Gaussian())
    assert torch.allclose(correlation(model, x, z), expected)
    assert torch.allclose(features(model, x), net(x))


def test_correlations_are_in_user_units_and_one_at_the_reference() -> None:
    x, y = data()
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(), standardize="both")
    gp.initialize(100 * x, y)
    scaled = (x - x.mean()) / x.std(correction=0)
    plain = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian())
    found = correlation(gp, 100 * x, 100 * x[:3])
    assert torch.allclose(found, correlation(plain, scaled, scaled[:3]), atol=1e-2)  # n or n - 1
    assert torch.allclose(found[:, :3].diagonal(), torch.ones(3))


def test_features_of_global_inducing_models_leave_out_inducing_rows() -> None:
    x, _ = data()
    model = vb.Model(nn.Sequential(network(), vb.GP(1, kernel=vb.SquaredExponential(2))), vb.Gaussian(), inducing=x[:7])
    assert torch.allclose(features(model, x), model.network[0](x))


def test_plain_networks_have_features_but_no_correlations() -> None:
    x, y = data()
    model = vb.Model(nn.Sequential(network(), vb.Linear(2, 1, posterior=vb.Point())), vb.Gaussian())
    assert features(model, x).shape == (40, 2)
    with pytest.raises(ConfigurationError, match="no kernel"):
        correlation(model, x, x)
    found = diagnose(model, (x, y))
    assert "mean_correlation" not in found.numbers
    assert found.numbers["n_trained_on_evidence"] == 60 + 62 + 3 + 1
    with pytest.raises(ConfigurationError, match="nothing to draw"):
        found.plot()


def test_effective_rank() -> None:
    K = torch.diag(torch.tensor([4.0, 4.0, 0.0]))
    assert effective_rank(K) == pytest.approx(2.0)
    assert effective_rank(torch.zeros(3, 3)) == 0.0


def test_the_monitor_sees_the_split_of_the_evidence() -> None:
    x, y = data()
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(1.0))
    monitor = Monitor(gp, (x, y), (x + 0.05, y), every=2)
    history = vb.fit(gp, (x, y), optimizer="adam", steps=60, log_every=10, callback=monitor, progress=False)
    assert monitor.step == [10, 30, 50]
    assert history.step == [10, 20, 30, 40, 50, 60]
    constant = 20 * math.log(2 * math.pi)
    # the history's bound was measured before the step that the monitor sees behind it
    for bound, fit, complexity in zip(monitor.bound, monitor.data_fit, monitor.complexity, strict=True):
        assert 40 * bound == pytest.approx(fit + complexity - constant, abs=0.5)
    again = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(1.0))
    quiet = vb.fit(again, (x, y), optimizer="adam", steps=60, log_every=10, progress=False)
    assert quiet.elbo == history.elbo  # watching does not disturb


def test_the_monitor_does_not_disturb_draws() -> None:
    x, y = data()
    histories = []
    for watch in (False, True):
        torch.manual_seed(0)
        model = vb.Model(
            nn.Sequential(vb.GP(2, kernel=vb.SquaredExponential(1)), vb.GP(1, kernel=vb.SquaredExponential(2))),
            vb.Gaussian(0.1),
            inducing=x[::8],
        )
        monitor = Monitor(model, (x, y), n_samples=3) if watch else None
        histories.append(vb.fit(model, (x, y), steps=6, log_every=2, callback=monitor, n_samples=2, progress=False))
    assert histories[0].elbo == histories[1].elbo


def test_a_sound_model_has_no_warnings() -> None:
    x, y = data(200)
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    vb.fit(gp, (x[::2], y[::2]), progress=False)
    found = diagnose(gp, (x[::2], y[::2]), (x[1::2], y[1::2]))
    assert found.warnings == []
    assert found.numbers["data_fit_share"] == pytest.approx(1.0, abs=1e-3)
    assert "nothing looks wrong" in str(found)
    expected = float(gp.conditional_log_marginal_likelihood(x[::2], y[::2], 80, orderings=5).detach()) / 20
    assert found.numbers["conditional_per_row"] == pytest.approx(expected)


def test_overfitted_deep_kernels_are_warned_of() -> None:
    pytest.importorskip("matplotlib")
    torch.manual_seed(1)
    x = torch.rand(60, 1) * 4 - 2
    y = torch.sin(2 * x[:, 0]) + 0.3 * torch.randn(60)
    train, test = (x[:20], y[:20]), (x[20:], y[20:])
    net = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 2))
    gp = vb.ExactGP(vb.DeepKernel(net, vb.SquaredExponential(2, ard=True)), vb.Gaussian(0.1))
    monitor = Monitor(gp, train, test)
    vb.fit(gp, train, optimizer="adam", steps=500, lr=1e-2, log_every=25, callback=monitor, progress=False)
    found = diagnose(gp, train, test, monitor)
    text = "\n".join(found.warnings)
    assert "parameters were trained on the evidence of 20 targets" in text
    assert "the model overfits" in text
    assert "the evidence is overfitting" in text
    assert found.numbers["ll_gap"] > 0.5
    figure = found.plot()
    assert [ax.get_title() for ax in figure.axes[:3]] == [
        "Nats per row", "Parts of the evidence", "Prior correlations of training rows"
    ]  # fmt: skip


def test_the_bound_is_drawn_in_the_units_of_the_log_likelihoods() -> None:
    pytest.importorskip("matplotlib")
    x, y = data()
    y = 100 * y
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1), standardize="both")
    monitor = Monitor(gp, (x, y))
    vb.fit(gp, (x, y), optimizer="adam", steps=4, log_every=2, callback=monitor, progress=False)
    bound, likelihood = diagnose(gp, (x, y), history=monitor).plot().axes[0].lines
    loss = math.log(float(y.std(correction=0)))
    assert list(bound.get_ydata()) == pytest.approx([value - loss for value in monitor.bound])
    assert list(likelihood.get_ydata()) == monitor.train_ll


def test_collapsed_features_are_warned_of() -> None:
    x, y = data()
    net = nn.Linear(1, 2)
    nn.init.constant_(net.weight, 1e-3)
    gp = vb.ExactGP(vb.DeepKernel(net, vb.SquaredExponential(2)), vb.Gaussian(0.1))
    gp.condition(x, y)
    found = diagnose(gp, (x, y))
    assert any("collapsed" in text for text in found.warnings)
    assert found.numbers["effective_rank"] == pytest.approx(1.0, abs=1e-3)
    assert found.numbers["feature_dimension"] == pytest.approx(1.0, abs=1e-6)


def test_variational_parameters_are_not_counted() -> None:
    x, y = data()
    layer = vb.GP(1, kernel=vb.SquaredExponential(2, ard=True), posterior=vb.LocalInducing(10))
    model = vb.Model(nn.Sequential(network(), layer), vb.Gaussian(0.1))
    model.initialize(x, y)
    # weights 30 + 30 + 60 + 2, lengthscales 2, variance 1, noise 1
    assert diagnose(model, (x, y)).numbers["n_trained_on_evidence"] == 126


def test_classes_are_diagnosed_too() -> None:
    x, y = data()
    layer = vb.GP(2, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(10))
    model = vb.Model(layer, vb.Categorical())
    labels = (y > 0).long()
    vb.fit(model, (x, labels), steps=100, lr=0.05, progress=False)
    found = diagnose(model, (x, labels), (x, labels))
    assert found.numbers["train_error"] < 0.2
    assert found.numbers["ll_gap"] == pytest.approx(0.0, abs=0.05)


def test_wrong_arguments() -> None:
    x, y = data()
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    history = vb.fit(gp, (x, y), steps=3, progress=False)
    with pytest.raises(ConfigurationError, match="Monitor"):
        diagnose(gp, (x, y), history=history)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="every"):
        Monitor(gp, (x, y), every=0)
    x = torch.linspace(-1, 1, 6)[:, None]
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian())
    gp.condition(x, x[:, 0])
    with pytest.raises(ConfigurationError, match=r"data must be \(x, y\)"):
        diagnose(gp, x)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"test must be \(x, y\)"):
        diagnose(gp, (x, x[:, 0]), x)  # type: ignore[arg-type]


def test_predictions_without_a_mean_are_watched_and_diagnosed() -> None:
    x, y = data()
    model = vb.Model(vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(5)), vb.StudentT(1.0, 0.3))
    monitor = Monitor(model, (x, y))
    vb.fit(model, (x, y), steps=2, log_every=1, callback=monitor, progress=False)
    found = diagnose(model, (x, y), (x, y), monitor)
    assert math.isnan(monitor.train_error[0])
    assert math.isnan(found.numbers["test_error"])
    assert math.isfinite(monitor.train_ll[0])


def test_data_frames_are_diagnosed() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = data()
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    gp.condition(x, y)
    frame, series = pandas.DataFrame({"x": x[:, 0]}, index=range(5, 45)), pandas.Series(y, index=range(5, 45))
    assert diagnose(gp, (frame, series), (frame, series)).numbers == diagnose(gp, (x, y), (x, y)).numbers
