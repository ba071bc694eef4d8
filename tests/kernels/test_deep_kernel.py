"""Deep kernels in every model: exact and sparse regression, and the GP layer."""

import copy

import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor, nn

import vibayes as vb
from vibayes.errors import ConfigurationError, DataError, ShapeError
from vibayes.kernels import lipschitz_bound, spectral_normalize


def network(d: int = 3, w: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(d, 16), nn.ReLU(), nn.Linear(16, w))


def data(n: int = 40, d: int = 3) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, d)
    return x, torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(n)


class Counting(nn.Module):
    """A network that counts its passes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.passes = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.inner(x)


def test_it_is_the_kernel_of_features() -> None:
    net, base = network(), vb.SquaredExponential(2, ard=True, lengthscale=0.7, variance=2.0)
    kernel = vb.DeepKernel(net, base)
    x, z = torch.randn(5, 3), torch.randn(4, 3)
    assert torch.allclose(kernel(x, z), base(net(x), net(z)))
    assert torch.equal(kernel(x), base(net(x)))
    assert torch.allclose(kernel.diag(x), kernel(x).diagonal())
    summed = kernel + vb.LinearKernel(3)
    assert torch.allclose(summed(x, z), kernel(x, z) + vb.LinearKernel(3)(x, z))


@torch.no_grad()
def test_identity_1_evidence_of_deep_kernel_learning_against_scipy() -> None:
    x, y = data()
    kernel = vb.DeepKernel(network(), vb.SquaredExponential(2, variance=1.7))
    gp = vb.ExactGP(kernel, vb.Gaussian(0.3))
    covariance = (kernel(x) + 0.3 * torch.eye(len(x))).detach().numpy()
    expected = multivariate_normal(torch.zeros(len(x)).numpy(), covariance).logpdf(y.numpy())
    assert gp.log_marginal_likelihood(x, y).item() == pytest.approx(expected, abs=1e-9)


def test_identity_1_data_fit_is_minus_half_n_at_an_optimum() -> None:
    x, y = data(30)
    kernel = vb.DeepKernel(network(), vb.SquaredExponential(2))
    gp = vb.ExactGP(kernel, vb.Gaussian(0.3))
    vb.fit(gp, (x, y), steps=20, progress=False)  # L-BFGS over everything
    for parameter in kernel.network.parameters():
        parameter.requires_grad_(False)
    kernel.kernel.lengthscale.fix()
    vb.fit(gp, (x, y), progress=False)  # signal and noise variance converge
    assert gp.lml_terms(x, y).data_fit.item() == pytest.approx(-15.0, rel=1e-4)


def test_predictions_equal_those_of_a_gp_on_the_features() -> None:
    x, y = data()
    net = network()
    deep = vb.ExactGP(vb.DeepKernel(net, vb.SquaredExponential(2)), vb.Gaussian(0.1))
    plain = vb.ExactGP(vb.SquaredExponential(2), vb.Gaussian(0.1))
    deep.condition(x, y)
    plain.condition(net(x).detach(), y)
    new = torch.randn(7, 3)
    for joint in (False, True):
        a, b = deep.predict(new, joint=joint), plain.predict(net(new).detach(), joint=joint)
        assert torch.allclose(a.mean, b.mean)
        assert torch.allclose(a.variance, b.variance)
    assert torch.allclose(deep.predict(new, joint=True).covariance, plain.predict(net(new), joint=True).covariance)


@torch.no_grad()
def test_sgpr_has_inducing_points_among_the_features() -> None:
    x, y = data()
    net = network()
    kernel = vb.DeepKernel(net, vb.SquaredExponential(2))
    sparse = vb.SGPR(kernel, vb.Gaussian(0.1), inducing=x)  # the features of all rows: no bound, but the evidence
    exact = vb.ExactGP(copy.deepcopy(kernel), vb.Gaussian(0.1))
    sparse.jitter.fill_(1e-12)
    assert sparse.inducing.shape == (len(x), 2)
    assert torch.equal(sparse.inducing, net(x))
    assert float(sparse.elbo(x, y).value) == pytest.approx(float(exact.log_marginal_likelihood(x, y)), abs=1e-5)
    few = vb.SGPR(kernel, vb.Gaussian(0.1), inducing=6, standardize="inputs")
    few.initialize(x, y)
    features = net(few.prepare_inputs(x))
    nearest = torch.cdist(few.inducing, features).min(1).values
    assert few.inducing.shape == (6, 2)
    assert float(nearest.max()) < 1.0  # centres of features, not of inputs
    few.condition(x, y)
    assert few.predict(x).mean.shape == (40,)


def test_given_inducing_inputs_follow_the_units() -> None:
    x, y = data()
    net = network()
    for build in (
        lambda: vb.SGPR(vb.DeepKernel(net, vb.SquaredExponential(2)), vb.Gaussian(), x[:5], standardize="inputs"),
        lambda: vb.Model(
            vb.GP(1, kernel=vb.DeepKernel(net, vb.SquaredExponential(2)), posterior=vb.LocalInducing(5, inputs=x[:5])),
            vb.Gaussian(),
            standardize="inputs",
        ),
    ):
        model = build()
        model.initialize(10.0 * x + 3.0, y)
        expected = net(model.prepare_inputs(x[:5]))
        got = model.inducing if isinstance(model, vb.SGPR) else model.network.posterior.inputs
        assert torch.allclose(got, expected)


@torch.no_grad()
@pytest.mark.parametrize("posterior", [vb.LocalInducing(8), vb.GlobalInducing()])
def test_the_gp_layer_with_a_deep_kernel_is_a_network_and_a_gp_layer(posterior: vb.LocalInducing) -> None:
    x, y = data()
    net = network()
    inducing = None if posterior.local else x[:8]
    torch.manual_seed(3)
    one = vb.Model(
        vb.GP(1, kernel=vb.DeepKernel(net, vb.SquaredExponential(2)), posterior=posterior), vb.Gaussian(), inducing
    )
    torch.manual_seed(3)
    two = vb.Model(
        nn.Sequential(net, vb.GP(1, kernel=vb.SquaredExponential(2), posterior=posterior)), vb.Gaussian(), inducing
    )
    for model in (one, two):
        model.initialize(x, y)
    torch.manual_seed(4)
    a = one.elbo(x, y, n_samples=3)
    torch.manual_seed(4)
    b = two.elbo(x, y, n_samples=3)
    assert float(a.value) == pytest.approx(float(b.value), abs=1e-9)
    mean = vb.LinearMean(3, 1)  # of the layer's inputs, not of the features
    vb.Model(vb.GP(1, kernel=vb.DeepKernel(net, vb.SquaredExponential(2)), mean=mean, noise=0.1, posterior=posterior),
             vb.Gaussian(), inducing).elbo(x, y)  # fmt: skip


def test_features_are_computed_once_per_pass() -> None:
    x, y = data()
    counting = Counting(network())
    kernel = vb.DeepKernel(counting, vb.SquaredExponential(2), in_features=3)
    models = [
        vb.ExactGP(kernel, vb.Gaussian()),
        vb.SGPR(kernel, vb.Gaussian(), inducing=5),
        vb.Model(vb.GP(1, kernel=kernel, posterior=vb.LocalInducing(5)), vb.Gaussian()),
    ]
    for model in models:
        model.initialize(x, y)
        counting.passes = 0
        model.elbo(x, y)
        assert counting.passes == 1, type(model).__name__


def test_k_means_starts_in_feature_space_behind_a_network() -> None:
    x, y = data(60)
    net = network()
    layer = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(10))
    model = vb.Model(nn.Sequential(net, layer), vb.Gaussian())
    model.initialize(x, y)
    assert torch.allclose(layer.posterior.inputs, vb.choose_inducing(net(x), 10))
    greedy = vb.choose_inducing(net(x).detach(), 10, method="greedy", kernel=layer.kernel)
    given = vb.LocalInducing(10, inputs=greedy)
    chosen = vb.Model(nn.Sequential(net, vb.GP(1, kernel=vb.SquaredExponential(2), posterior=given)), vb.Gaussian())
    chosen.initialize(x, y)
    assert torch.equal(chosen.network[1].posterior.inputs, greedy)


# -- bad input ------------------------------------------------------------------------------------------------------


def _models(net: nn.Module) -> list[vb.ExactGP | vb.SGPR | vb.Model]:
    local = vb.LocalInducing(5)
    return [
        vb.ExactGP(vb.DeepKernel(net, vb.SquaredExponential(2)), vb.Gaussian()),
        vb.SGPR(vb.DeepKernel(net, vb.SquaredExponential(2)), vb.Gaussian(), inducing=5),
        vb.Model(vb.GP(1, kernel=vb.DeepKernel(net, vb.SquaredExponential(2)), posterior=local), vb.Gaussian()),
        vb.Model(nn.Sequential(net, vb.GP(1, kernel=vb.SquaredExponential(2), posterior=local)), vb.Gaussian()),
        vb.Model(nn.Sequential(net, vb.Linear(2, 1, posterior=vb.Point())), vb.Gaussian()),
    ]  # fmt: skip


def test_constant_features_are_refused() -> None:
    net = network()
    nn.init.zeros_(net[2].weight)
    for model in _models(net):
        with pytest.raises(ConfigurationError, match="same for all 40 training rows"):
            vb.fit(model, data(), steps=2, progress=False)
    dead = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    nn.init.constant_(dead[0].bias, -100.0)
    with pytest.raises(ConfigurationError, match="dead"):
        vb.ExactGP(vb.DeepKernel(dead, vb.SquaredExponential(2)), vb.Gaussian()).initialize(*data())


def test_equal_rows_have_equal_features_and_are_nobodys_fault() -> None:
    for model in _models(network()):
        model.initialize(torch.ones(4, 3), torch.randn(4))


def test_nan_features_are_refused() -> None:
    net = network()
    nn.init.constant_(net[2].bias, float("nan"))
    for model in _models(net):
        with pytest.raises(DataError, match="NaN or infinite for 40 of 40"):
            vb.fit(model, data(), steps=2, progress=False)


def test_a_wrong_feature_width_is_refused_when_the_kernel_is_built() -> None:
    with pytest.raises(ShapeError, match=r"features \[N, 3\].*gave shape \[2, 2\]"):
        vb.DeepKernel(network(), vb.SquaredExponential(3))
    with pytest.raises(ShapeError, match="in_features=4"):
        vb.DeepKernel(network(), vb.SquaredExponential(2), in_features=4)
    with pytest.raises(ConfigurationError, match="in_features="):
        vb.DeepKernel(nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.Flatten()), vb.LinearKernel(8))
    with pytest.raises(ConfigurationError, match="torch module"):
        vb.DeepKernel(lambda x: x, vb.SquaredExponential(2))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="kernel of the features"):
        vb.DeepKernel(network(), network())  # type: ignore[arg-type]


def test_images_are_flat_rows() -> None:
    net = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.Flatten())
    kernel = vb.DeepKernel(net, vb.SquaredExponential(8), in_features=16)
    assert kernel(torch.randn(3, 16)).shape == (3, 3)


def test_building_leaves_batch_normalisation_alone() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    vb.DeepKernel(net, vb.SquaredExponential(2))
    assert net.training
    assert int(net[1].num_batches_tracked) == 0


# -- spectral normalisation -----------------------------------------------------------------------------------------


@torch.no_grad()
def test_spectral_normalisation_bounds_distances() -> None:
    plain = nn.Sequential(nn.Linear(3, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 4))
    for layer in plain[::2]:
        layer.weight.data *= 5.0
    net = spectral_normalize(plain, 0.9)
    assert not hasattr(plain[0], "parametrizations")
    assert 0.95**3 * 0.9**3 < lipschitz_bound(net) <= 0.9**3
    a, b = torch.randn(500, 3), torch.randn(500, 3)
    ratio = (net(a) - net(b)).norm(dim=1) / (a - b).norm(dim=1)
    assert float(ratio.max()) <= lipschitz_bound(net)
    exact = torch.linalg.matrix_norm(plain[0].weight, 2) * torch.linalg.matrix_norm(plain[2].weight, 2)
    assert lipschitz_bound(plain[:3]) == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 500), (300, 300), (64, 3, 3, 3)])
def test_weights_are_scaled_down_only_where_they_must(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    layer: nn.Module = nn.Linear(shape[1], shape[0]) if len(shape) == 2 else nn.Conv2d(shape[1], shape[0], 3)
    layer = layer.to(dtype)
    norm = torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2)
    for share in (0.5, 0.99):
        bounded = spectral_normalize(layer, share * float(norm))
        got = torch.linalg.matrix_norm(bounded.weight.detach().flatten(1), 2)
        assert 0.95 * share < float(got / norm) < share + 1e-5
    assert torch.equal(spectral_normalize(layer, 1.1 * float(norm)).weight, layer.weight)
    nn.init.zeros_(layer.weight)
    assert torch.equal(spectral_normalize(layer).weight, layer.weight)


@torch.no_grad()
def test_the_bound_of_a_convolution_holds() -> None:
    conv = nn.Conv2d(2, 3, 3, padding=1, bias=False)
    x = torch.randn(200, 2, 8, 8)
    # the operator as a matrix, by its action on a basis
    basis = torch.eye(2 * 64).reshape(-1, 2, 8, 8)
    norm = torch.linalg.matrix_norm(conv(basis).flatten(1), 2)
    assert float(norm) <= lipschitz_bound(conv)
    assert lipschitz_bound(conv) == pytest.approx(3 * float(torch.linalg.matrix_norm(conv.weight.flatten(1), 2)))
    assert float((conv(x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)).max()) <= float(norm)
    with pytest.raises(ConfigurationError, match="BatchNorm"):
        lipschitz_bound(nn.Sequential(conv, nn.BatchNorm2d(3)))


@pytest.mark.parametrize("many", [False, True])
def test_a_spectrally_normalised_deep_kernel_keeps_its_bound_in_training(many: bool) -> None:
    x, y = data(60)
    models = []
    for _ in range(2):
        net = spectral_normalize(network(), 0.8)
        layer = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(10))
        models.append(vb.Model(nn.Sequential(net, layer), vb.Gaussian(0.1)))
    if many:
        histories = vb.fit_many(models, [(x, y)] * 2, steps=100, chunk=2, progress=False)
    else:
        histories = [vb.fit(model, (x, y), steps=100, progress=False) for model in models[:1]]
    assert all(history.elbo[-1] > history.elbo[0] for history in histories)
    assert lipschitz_bound(models[0].network[0]) <= 0.8**2
    with pytest.raises(ConfigurationError, match="positive"):
        spectral_normalize(network(), 0.0)
    with pytest.raises(ConfigurationError, match="no linear"):
        spectral_normalize(nn.ReLU())


# -- combinations in float32 ----------------------------------------------------------------------------------------


COMBINATIONS = {
    "scaled": lambda: 2.0 * vb.DeepKernel(network(), vb.SquaredExponential(2)),
    "with noise": lambda: vb.DeepKernel(network(), vb.SquaredExponential(2)) + vb.White(3),
    "sum": lambda: vb.DeepKernel(network(), vb.SquaredExponential(2)) + vb.SquaredExponential(3),
    "some columns": lambda: vb.ActiveDimensions(vb.DeepKernel(network(2), vb.SquaredExponential(2)), [0, 2], 3),
    "deep of deep": lambda: vb.DeepKernel(nn.Linear(3, 3), vb.DeepKernel(network(), vb.SquaredExponential(2))),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combinations_with_deep_kernels_train_in_float32(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    x, y = data()
    likelihood = vb.Gaussian(0.1)
    for model in (
        vb.SGPR(COMBINATIONS[name](), likelihood, 5),
        vb.Model(vb.GP(1, kernel=COMBINATIONS[name](), posterior=vb.LocalInducing(5)), likelihood),
        vb.Model(vb.GP(1, kernel=COMBINATIONS[name](), posterior=vb.GlobalInducing()), likelihood, inducing=x[:5]),
    ):
        history = vb.fit(model, (x, y), steps=3, progress=False)
        assert torch.isfinite(torch.tensor(history.elbo)).all()
        assert model.predict(x).mean.dtype == torch.float32


@torch.no_grad()
@pytest.mark.parametrize("name", COMBINATIONS)
def test_combinations_with_deep_kernels_take_float64_rows(name: str) -> None:
    kernel, x = COMBINATIONS[name](), torch.randn(6, 3)
    expected = kernel(x)
    found = kernel.float()(x)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
