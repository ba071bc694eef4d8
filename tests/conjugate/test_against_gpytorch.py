"""Exact, sparse and stochastic variational GPs against GPyTorch, at the same hyperparameters and jitter."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import vibayes as vb
from vibayes.conjugate import SGPR, ExactGP
from vibayes.kernels import Kernel

# GPyTorch and its linear algebra warn about jitter, deprecations and caches; none of it is ours to fix.
pytestmark = pytest.mark.filterwarnings("ignore")
gpytorch = pytest.importorskip("gpytorch")

NOISE, CONSTANT = 0.15, 0.3
LENGTHSCALES = torch.tensor([0.8, 1.7], dtype=torch.float64)

KERNELS: dict[str, tuple[Callable[[], Kernel], Callable[[], "gpytorch.kernels.Kernel"]]] = {
    "squared exponential": (
        lambda: vb.SquaredExponential(2, ard=True, lengthscale=LENGTHSCALES),
        lambda: gpytorch.kernels.RBFKernel(ard_num_dims=2),
    ),
    "matern 1/2": (
        lambda: vb.Matern12(2, ard=True, lengthscale=LENGTHSCALES),
        lambda: gpytorch.kernels.MaternKernel(nu=0.5, ard_num_dims=2),
    ),
    "matern 3/2": (
        lambda: vb.Matern32(2, ard=True, lengthscale=LENGTHSCALES),
        lambda: gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2),
    ),
    "matern 5/2": (
        lambda: vb.Matern52(2, ard=True, lengthscale=LENGTHSCALES),
        lambda: gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=2),
    ),
}


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> tuple[Kernel, "gpytorch.kernels.Kernel"]:
    ours, theirs = (make() for make in KERNELS[request.param])
    theirs.lengthscale = LENGTHSCALES
    return ours, theirs


@pytest.fixture
def data() -> tuple[Tensor, Tensor, Tensor]:
    x = 2 * torch.randn(30, 2)
    return x, torch.sin(x[:, 0]) + 0.3 * x[:, 1] + 0.3 * torch.randn(30), torch.randn(9, 2)


def reference_likelihood() -> "gpytorch.likelihoods.GaussianLikelihood":
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = NOISE
    return likelihood


def reference_mean() -> "gpytorch.means.ConstantMean":
    mean = gpytorch.means.ConstantMean()
    mean.initialize(constant=CONSTANT)
    return mean


class ReferenceExact(gpytorch.models.ExactGP):
    def __init__(self, x: Tensor, y: Tensor, kernel: "gpytorch.kernels.Kernel") -> None:
        super().__init__(x, y, reference_likelihood())
        self.mean_module, self.covar_module = reference_mean(), kernel

    def forward(self, x: Tensor) -> "gpytorch.distributions.MultivariateNormal":
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class ReferenceVariational(gpytorch.models.ApproximateGP):
    def __init__(self, z: Tensor, kernel: "gpytorch.kernels.Kernel") -> None:
        q = gpytorch.variational.CholeskyVariationalDistribution(len(z))
        super().__init__(gpytorch.variational.VariationalStrategy(self, z, q, learn_inducing_locations=True))
        self.mean_module, self.covar_module = reference_mean(), kernel

    def forward(self, x: Tensor) -> "gpytorch.distributions.MultivariateNormal":
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def log_marginal_likelihood(reference: ReferenceExact, x: Tensor, y: Tensor) -> Tensor:
    reference.train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(reference.likelihood, reference)
    return len(x) * mll(reference(x), y)  # it divides by the number of data


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-6, atol=1e-9)


def test_exact_gp(kernels: tuple[Kernel, "gpytorch.kernels.Kernel"], data: tuple[Tensor, ...]) -> None:
    x, y, new = data
    gp = ExactGP(kernels[0], vb.Gaussian(NOISE), mean=vb.ConstantMean(CONSTANT))
    reference = ReferenceExact(x, y, kernels[1])
    value = gp.log_marginal_likelihood(x, y)
    expected = log_marginal_likelihood(reference, x, y)
    assert_close(value, expected)
    value.backward()
    expected.backward()
    # ours is the gradient of log l, theirs of the inverse softplus of l
    slope = LENGTHSCALES * torch.expm1(LENGTHSCALES).reciprocal().add(1.0)
    assert_close(kernels[0].lengthscale.raw.grad, kernels[1].raw_lengthscale.grad[0] * slope)

    gp.condition(x, y)
    reference.eval()
    with torch.no_grad():
        posterior = reference(new)
        prediction = gp.predict(new, joint=True)
        assert_close(prediction.mean, posterior.mean)
        assert_close(prediction.covariance[0], posterior.covariance_matrix)
        assert_close(prediction.variance, reference.likelihood(posterior).variance)


def test_sgpr(kernels: tuple[Kernel, "gpytorch.kernels.Kernel"], data: tuple[Tensor, ...]) -> None:
    x, y, new = data
    z = torch.randn(7, 2)
    model = SGPR(kernels[0], vb.Gaussian(NOISE), z, mean=vb.ConstantMean(CONSTANT))
    model.jitter.zero_()  # GPyTorch adds none to this matrix where the factorization succeeds without
    likelihood = reference_likelihood()
    sparse = gpytorch.kernels.InducingPointKernel(kernels[1], inducing_points=z.clone(), likelihood=likelihood)
    reference = ReferenceExact(x, y, sparse)
    reference.likelihood.noise = likelihood.noise = NOISE
    assert_close(model.elbo(x, y).value, log_marginal_likelihood(reference, x, y))
    model.condition(x, y)
    reference.eval()
    # By default GPyTorch predicts with exact variances on the diagonal of the training matrix too, which is not
    # the posterior of Titsias's bound; without it, it leaves out of new rows what inducing values do not explain.
    with torch.no_grad(), gpytorch.settings.sgpr_diagonal_correction(False):
        posterior = reference(new)
        prediction = model.predict(new)
        Kzn = kernels[1](z, new).to_dense()
        explained = (Kzn * torch.linalg.solve(kernels[1](z).to_dense(), Kzn)).sum(0)
        assert_close(prediction.mean, posterior.mean)
        assert_close(prediction.epistemic, posterior.variance + 1.0 - explained)


@pytest.mark.parametrize("jitter", [1e-6, 1e-3])
def test_svgp(kernels: tuple[Kernel, "gpytorch.kernels.Kernel"], data: tuple[Tensor, ...], jitter: float) -> None:
    x, y, new = data
    z, m, raw = torch.randn(7, 2), torch.randn(7), 0.3 * torch.randn(7, 7)
    layer = vb.GP(1, kernel=kernels[0], mean=vb.ConstantMean(CONSTANT), posterior=vb.LocalInducing(7, inputs=z))
    model = vb.Model(layer, vb.Gaussian(NOISE))
    model.jitter.fill_(jitter)  # relative to the variance, which is one
    reference, likelihood = ReferenceVariational(z, kernels[1]), reference_likelihood()
    strategy = reference.variational_strategy
    strategy.variational_params_initialized.fill_(1)
    with torch.no_grad():
        layer.posterior.mean.copy_(m[:, None])
        layer.posterior.raw_factor.copy_(raw)
        strategy._variational_distribution.variational_mean.copy_(m)
        factor = raw.tril(-1) + raw.diagonal().exp().diag()
        strategy._variational_distribution.chol_variational_covar.copy_(factor)

    with gpytorch.settings.variational_cholesky_jitter(double_value=jitter):
        elbo = gpytorch.mlls.VariationalELBO(likelihood, reference, num_data=len(x))
        # GPyTorch also adds the jitter to the variances of data rows, and divides by the number of data
        expected = len(x) * (elbo(reference(x), y) + jitter / (2 * NOISE))
        assert_close(model.elbo(x, y).value, expected)
        reference.eval()
        with torch.no_grad():
            posterior = reference(new)
            prediction = model.predict(new)
            assert_close(prediction.mean, posterior.mean)
            assert_close(prediction.epistemic, posterior.variance - jitter)
