"""Which parameters are weights, stages of training, weight decay, pretraining."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import vibayes as vb
from vibayes.errors import ConfigurationError
from vibayes.pretraining import fit_noise
from vibayes.stages import freeze, network_weights, take_over, unfreeze


def data(n: int = 50) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-2, 2, n)[:, None]
    return x, torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(n)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(1, 10), nn.ReLU(), nn.Linear(10, 2))


def svdkl(net: nn.Module) -> vb.Model:
    layer = vb.GP(1, kernel=vb.SquaredExponential(2, ard=True), posterior=vb.LocalInducing(8))
    return vb.Model(nn.Sequential(net, layer), vb.Gaussian(0.1))


def test_network_weights_are_those_of_plain_modules_and_points() -> None:
    inside = {"network.0.0.weight", "network.0.0.bias", "network.0.2.weight", "network.0.2.bias"}
    assert set(network_weights(svdkl(network()))) == inside
    point = vb.Model(nn.Sequential(network(), vb.Linear(2, 1, posterior=vb.Point())), vb.Gaussian())
    assert set(network_weights(point)) == inside | {"network.1.posterior.weight"}
    mean_field = vb.Model(nn.Sequential(network(), vb.Linear(2, 1, posterior=vb.MeanField())), vb.Gaussian())
    assert set(network_weights(mean_field)) == inside
    deep = vb.ExactGP(vb.DeepKernel(network(), vb.SquaredExponential(2)), vb.Gaussian(), mean=vb.ConstantMean())
    assert {name.removeprefix("kernel.network.") for name in network_weights(deep)} == {
        "0.weight", "0.bias", "2.weight", "2.bias"
    }  # fmt: skip
    assert not network_weights(vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian()))
    normalised = vb.kernels.spectral_normalize(network())
    names = network_weights(vb.Model(nn.Sequential(normalised, vb.Linear(2, 1, posterior=vb.Point())), vb.Gaussian()))
    assert "network.0.0.parametrizations.weight.original" in names


@pytest.mark.parametrize("many", [False, True])
def test_weight_decay_adds_its_gradient_to_weights_only(many: bool) -> None:
    x, y = data(20)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(svdkl(network()))
    for model, decay in zip(models, (0.0, 0.3), strict=True):
        model.initialize(x, y)
        if many:
            vb.fit_many([model], [(x, y)], steps=1, lr=1e-3, weight_decay=decay, progress=False)
        else:
            vb.fit(model, (x, y), steps=1, lr=1e-3, weight_decay=decay, progress=False)
    # Adam's first step is lr times the sign of the gradient: compare with the penalised loss by hand
    torch.manual_seed(0)
    start = svdkl(network())
    start.initialize(x, y)
    weights = network_weights(start)
    penalty = 0.5 * 0.3 * len(x) * sum(w.square().sum() for w in weights.values())
    loss = penalty - start.elbo(x, y).value
    moved = dict(models[1].named_parameters())
    for name, parameter in start.named_parameters():
        (gradient,) = torch.autograd.grad(loss, parameter, retain_graph=True)
        expected = parameter - 1e-3 * gradient / (gradient.abs() + 1e-8)
        assert torch.allclose(moved[name], expected, atol=1e-8), name
    plain = dict(models[0].named_parameters())
    assert any(not torch.equal(plain[name], moved[name]) for name in weights)
    assert all(torch.equal(plain[name], moved[name]) for name in plain if name not in weights)


@pytest.mark.parametrize("batch_size", [None, 25])
def test_weight_decay_of_a_linear_model_is_ridge_regression(batch_size: int | None) -> None:
    x = torch.randn(50, 3)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(50)
    x, y = (torch.cat([t, t]) for t in (x, y))
    linear = vb.Linear(3, 1, bias=False, posterior=vb.Point(prior=False))
    model = vb.Model(linear, vb.Gaussian(0.5, learn=False))  # the loss per row is the squared error
    schedule = vb.schedules.piecewise([400, 700], [1.0, 0.1, 0.01])
    vb.fit(model, (x, y), steps=1000, lr=0.05, lr_schedule=schedule, batch_size=batch_size, weight_decay=0.3,
           progress=False)  # fmt: skip
    expected = torch.linalg.solve(2 * x.T @ x / len(x) + 0.3 * torch.eye(3), 2 * x.T @ y / len(x))
    assert torch.allclose(linear.posterior.weight[:, 0], expected, atol=1e-4 if batch_size is None else 2e-2)


def test_weight_decay_is_checked() -> None:
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian())
    with pytest.raises(ConfigurationError, match="optimizer='adam'"):
        vb.fit(gp, data(), weight_decay=0.1, progress=False)
    with pytest.raises(ConfigurationError, match="negative"):
        vb.fit(gp, data(), optimizer="adam", steps=1, weight_decay=-0.1, progress=False)


@pytest.mark.parametrize("prior", [vb.ScalePrior(), vb.SpatialIWPrior()])
def test_inferred_hyperparameters_of_weights_are_no_weights(prior: vb.priors.Prior) -> None:
    layer = vb.Conv2d(2, 3, 3, prior=prior, posterior=vb.MeanField())
    model = vb.Model(nn.Sequential(nn.Conv2d(1, 2, 1), layer, nn.Flatten()), vb.Categorical())
    assert set(network_weights(model)) == {"network.0.weight", "network.0.bias"}
    freeze(model)
    assert all(p.requires_grad for p in layer.prior.parameters())
    x, y = torch.randn(6, 1, 3, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    assert vb.diagnose(model, (x, y), n_samples=2).numbers["n_trained_on_evidence"] == 0  # all is frozen or inferred


def test_frozen_and_joint_stages() -> None:
    x, y = data()
    net = network()
    _, history = vb.pretrain(net, (x, y), steps=200, lr=1e-2, progress=False)
    assert history.elbo[-1] > history.elbo[0]
    before = [p.detach().clone() for p in net.parameters()]
    model = svdkl(net)
    names = freeze(model)
    assert len(names) == 4
    vb.fit(model, (x, y), steps=50, progress=False)
    frozen_bound = float(model.elbo(x, y).value.detach())
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    unfreeze(model)
    vb.fit(model, (x, y), steps=200, progress=False)
    assert not torch.equal(before[0], net[0].weight)
    assert float(model.elbo(x, y).value.detach()) > frozen_bound
    with pytest.raises(ConfigurationError, match="no network"):
        freeze(vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian()))


def test_freezing_stops_batch_normalisation() -> None:
    x, y = data()
    net = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    model = svdkl(net)
    vb.fit(model, (x, y), steps=3, progress=False)
    freeze(model)
    before = net[1].running_mean.clone()
    vb.fit(model, (x, y), steps=3, progress=False)
    assert torch.equal(before, net[1].running_mean)
    unfreeze(model)
    assert net[1].training


def test_freezing_stops_spectral_normalisation() -> None:
    x, y = data()
    net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), spectral_norm(nn.Linear(40, 30)), nn.Tanh(), nn.Linear(30, 2))
    model = svdkl(net)
    freeze(model)
    before = vb.diagnostics.features(model, x)
    vb.fit(model, (x, y), steps=3, progress=False)
    assert torch.equal(vb.diagnostics.features(model, x), before)
    unfreeze(model)
    assert all(module.training for module in net.modules())


def test_pretraining_on_squared_errors_sets_the_maximum_likelihood_noise() -> None:
    x, y = data()
    model, _ = vb.pretrain(network(), (10 * x, 5 * y), steps=200, lr=1e-2, standardize="both", progress=False)
    prediction = model.predict(10 * x)
    mse = (prediction.mean - 5 * y).square().mean()
    assert torch.allclose(prediction.aleatoric, mse)
    # no other noise has a higher likelihood
    best = float(prediction.log_prob(5 * y).mean())
    found = fit_noise(model, 10 * x, 5 * y)
    for factor in (0.9, 1.1):
        model.likelihood.noise.set(factor * found)
        assert float(model.predict(10 * x).log_prob(5 * y).mean()) < best


def test_pretraining_in_the_dtype_of_the_network() -> None:
    x, y = data()
    other = torch.float32 if x.dtype == torch.float64 else torch.float64
    model, _ = vb.pretrain(network().to(other), (x, y), steps=2, progress=False)
    assert model.predict(x).mean.dtype == other
    assert torch.get_default_dtype() != other


def test_pretraining_with_weights_of_rows() -> None:
    x, y = data()
    weights = torch.ones_like(y)
    weights[::2] = 0.0
    model, _ = vb.pretrain(network(), (x, torch.where(weights > 0, y, 100.0), weights), steps=2, progress=False)
    kept = weights > 0
    mse = (model.predict(x[kept]).mean - y[kept]).square().mean()
    assert torch.allclose(model.likelihood.noise.value, mse)
    with pytest.raises(ConfigurationError, match=r"data must be \(x, y\)"):
        vb.pretrain(network(), x, steps=2)


def test_pretraining_leaves_modes_as_they_are() -> None:
    x, y = data()
    net = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    net[1].eval()
    before = net[1].running_mean.clone()
    vb.pretrain(net, (x, y), steps=3, progress=False)
    assert not net[1].training
    assert torch.equal(before, net[1].running_mean)


def test_pretraining_for_classes() -> None:
    x, y = data()
    labels = (y > 0).long()
    model, _ = vb.pretrain(network(), (x, labels), vb.Categorical(), out_features=2, activation=nn.ReLU(), steps=200,
                           lr=1e-2, progress=False)  # fmt: skip
    assert vb.metrics.accuracy(model.predict(x), labels) > 0.9
    with pytest.raises(ConfigurationError, match="got the class Categorical; call it"):
        vb.pretrain(network(), (x, y), vb.Categorical, steps=1)


def test_take_over() -> None:
    a, b = network(), network()
    take_over(b, a)
    assert torch.equal(a[0].weight, b[0].weight)
    assert a[0].weight is not b[0].weight
    with pytest.raises(ConfigurationError, match=r"0\.weight"):
        take_over(nn.Sequential(nn.Linear(1, 5)), a)
