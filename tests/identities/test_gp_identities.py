"""Identities 1 to 3: exact, sparse and weight-space regression agree where theory says so."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

import vibayes as vb
from vibayes.conjugate import SGPR, ExactGP, GaussianBumps, LinearRegression
from vibayes.kernels import Kernel
from vibayes.trainable import TrainableModel

KERNELS = {
    "squared exponential": lambda: vb.SquaredExponential(2, ard=True, lengthscale=torch.tensor([0.7, 1.3])),
    "matern": lambda: vb.Matern32(2, lengthscale=0.8, variance=1.7),
    "linear plus constant": lambda: vb.LinearKernel(2) + 0.5 * vb.Matern52(2),
}


def data(n: int = 25, p: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=generator) * 4 - 2
    noise = 0.3 * torch.randn(n, p, generator=generator)
    return x, torch.sin(2 * x[:, :1]) * torch.linspace(1, 2, p) + 0.5 * x[:, 1:] + noise


def train(model: TrainableModel, x: Tensor, y: Tensor, iterations: int = 500) -> None:
    """Maximise the bound with L-BFGS."""
    model.initialize(x, y)
    batch = model.prepare(x, y)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=iterations,
        history_size=30,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -model(batch.x, batch.y).objective()
        loss.backward()
        return loss.detach()

    optimizer.step(closure)


def assert_close(a: Tensor | float, b: Tensor | float, rtol: float) -> None:
    a, b = (float(torch.as_tensor(v).detach()) for v in (a, b))
    assert math.isclose(a, b, rel_tol=rtol, abs_tol=0.0), (a, b)


# ---- 1. The exact marginal likelihood


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("per_output", [False, True])
def test_log_marginal_likelihood_is_the_normal_log_density(name: str, per_output: bool) -> None:
    x, y = data(p=2)
    noise = torch.tensor([0.2, 0.05]) if per_output else torch.tensor([0.1, 0.1])
    likelihood = vb.Gaussian(noise, out_features=2) if per_output else vb.Gaussian(0.1)
    gp = ExactGP(KERNELS[name](), likelihood, mean=vb.ConstantMean(0.4))
    K = gp.kernel(x).detach().numpy()
    expected = sum(
        scipy.stats.multivariate_normal(np.full(len(x), 0.4), K + noise[p].item() * np.eye(len(x))).logpdf(
            y[:, p].numpy()
        )
        for p in range(2)
    )
    assert_close(gp.log_marginal_likelihood(x, y), expected, 1e-10)
    assert_close(gp.elbo(x, y).value, expected, 1e-10)
    assert_close(sum(gp.lml_terms(x, y)), expected, 1e-10)


@pytest.mark.parametrize("name", ["squared exponential", "matern"])
def test_data_fit_is_minus_half_n_at_the_optimum(name: str) -> None:
    x, y = data(40)
    gp = ExactGP(KERNELS[name](), vb.Gaussian(0.5))
    assert abs(gp.lml_terms(x, y).data_fit.item() + 20) > 1.0
    train(gp, x, y)
    assert_close(gp.lml_terms(x, y).data_fit, -len(x) / 2, 1e-4)


def test_mean_and_scale_of_all_variances_move_the_data_fit() -> None:
    """Proposition behind the identity: scaling signal variance and noise by c divides the data fit by c."""
    x, y = data()
    gp = ExactGP(vb.SquaredExponential(2, variance=1.3), vb.Gaussian(0.2))
    before = gp.lml_terms(x, y).data_fit
    gp.kernel.variance.set(2.6)
    gp.likelihood.noise.set(0.4)
    assert_close(gp.lml_terms(x, y).data_fit, before / 2, 1e-12)


# ---- 2. Sparse bounds


def sparse_pair(kernel: Kernel, x: Tensor, z: Tensor, noise: float = 0.1) -> tuple[ExactGP, SGPR]:
    return ExactGP(kernel, vb.Gaussian(noise)), SGPR(kernel, vb.Gaussian(noise), z)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("m", [1, 5, 15])
def test_sgpr_is_below_the_evidence(name: str, m: int) -> None:
    x, y = data(p=2)
    exact, sparse = sparse_pair(KERNELS[name](), x, torch.randn(m, 2))
    assert sparse.elbo(x, y).value < exact.log_marginal_likelihood(x, y)


@pytest.mark.parametrize("name", ["squared exponential", "matern"])
def test_sgpr_is_the_evidence_when_inducing_inputs_are_the_training_inputs(name: str) -> None:
    x, y = data(p=2)
    exact, sparse = sparse_pair(KERNELS[name](), x, x)
    sparse.jitter.fill_(1e-12)
    assert_close(sparse.elbo(x, y).value, exact.log_marginal_likelihood(x, y), 1e-8)
    exact.condition(x, y)
    sparse.condition(x, y)
    new = torch.randn(7, 2)
    torch.testing.assert_close(sparse.predict(new).mean, exact.predict(new).mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(sparse.predict(new).std, exact.predict(new).std, rtol=1e-7, atol=1e-8)
    covariances = [m.predict(new, joint=True).covariance for m in (sparse, exact)]
    torch.testing.assert_close(*covariances, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", KERNELS)
def test_sgpr_is_titsias_formula(name: str) -> None:
    x, y = data(p=2)
    z = torch.randn(6, 2)
    model = SGPR(KERNELS[name](), vb.Gaussian(0.1), z, mean=vb.ConstantMean(0.2))
    with torch.no_grad():
        k = model.kernel
        Kzz = k(z)
        Kzz = Kzz + model.jitter * Kzz.diagonal().mean() * torch.eye(6)
        Q = k(x, z) @ torch.linalg.solve(Kzz, k(z, x))
        normal = scipy.stats.multivariate_normal(np.full(25, 0.2), (Q + 0.1 * torch.eye(25)).numpy())
        trace = (k.diag(x).sum() - Q.trace()) / 0.1  # 1/(2 noise), twice for two outputs
    assert_close(model.elbo(x, y).value, normal.logpdf(y.numpy().T).sum() - trace, 1e-9)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("per_output", [False, True])
def test_svgp_at_titsias_optimum_has_the_sgpr_bound(p: int, per_output: bool) -> None:
    x, y = data(p=p)
    z = torch.randn(6, 2)
    kernel = KERNELS["squared exponential"]()
    noise = torch.linspace(0.1, 0.3, p) if per_output else torch.tensor(0.1)

    def likelihood() -> vb.Gaussian:
        return vb.Gaussian(noise, out_features=p if per_output else None)

    mean = vb.ConstantMean(0.3)
    sgpr = SGPR(kernel, likelihood(), z, mean=mean)
    layer = vb.GP(p, kernel=kernel, mean=mean, posterior=vb.LocalInducing(6, inputs=z))
    svgp = vb.Model(layer, likelihood())
    q = sgpr.optimal_q(x, y)
    with torch.no_grad():
        layer.posterior.mean.copy_(q.mean)
        log_diagonal = torch.diag_embed(q.factor.diagonal(dim1=-2, dim2=-1).log())
        layer.posterior.raw_factor.copy_(q.factor.tril(-1) + log_diagonal)
    bounds = sgpr.elbo(x, y), svgp.elbo(x, y)
    assert_close(bounds[1].value, bounds[0].value, 1e-8)
    assert_close(bounds[1].log_likelihood, bounds[0].log_likelihood, 1e-8)
    assert_close(bounds[1].kl, bounds[0].kl, 1e-8)

    sgpr.condition(x, y)
    svgp.target_axes.fill_(2)
    new = torch.randn(7, 2)
    torch.testing.assert_close(svgp.predict(new).mean, sgpr.predict(new).mean)
    torch.testing.assert_close(svgp.predict(new).std, sgpr.predict(new).std)

    # the optimum: no gradient, and every step away is lower
    svgp.elbo(x, y).value.backward()
    assert layer.posterior.mean.grad.abs().max() < 1e-8
    assert layer.posterior.raw_factor.grad.abs().max() < 1e-8
    with torch.no_grad():
        layer.posterior.mean.add_(0.01)
    assert svgp.elbo(x, y).value < bounds[0].value - 1e-6


@pytest.mark.parametrize("precision", ["full", "full_per_output"])
def test_full_precisions_reach_every_whitened_gaussian_below_the_prior(precision: str) -> None:
    """The two forms of local inducing points are one family: `R R^T = (I + L^T Lambda L)^-1` solved for `Lambda`."""
    p = 1 if precision == "full" else 3
    x, y = data(p=p)
    z = x[::4]
    m = len(z)
    kernel = KERNELS["matern"]()

    def model(form: str, **options: str) -> tuple[vb.Model, vb.LocalInducing]:
        layer = vb.GP(p, kernel=kernel, posterior=vb.LocalInducing(m, form=form, inputs=z, **options))
        made = vb.Model(layer, vb.Gaussian(0.1))
        made.jitter.fill_(1e-12)
        return made, layer.posterior

    whitened, q = model("whitened")
    pseudo, q_pseudo = model("pseudo", precision=precision)
    R = 0.3 * torch.eye(m) + 0.1 * torch.randn(p, m, m).tril()
    assert float(torch.linalg.eigvalsh(R @ R.mT).max()) < 1.0
    mean = torch.randn(m, p)
    B = torch.linalg.inv(R @ R.mT)  # [P, M, M]
    inverse = torch.linalg.inv(torch.linalg.cholesky(kernel(z)))
    Lambda = inverse.T @ (B - torch.eye(m)) @ inverse
    T = torch.linalg.cholesky(Lambda)

    def raw(factor: Tensor) -> Tensor:
        return factor.tril(-1) + torch.diag_embed(factor.diagonal(dim1=-2, dim2=-1).log())

    with torch.no_grad():
        q.mean.copy_(mean)
        q.raw_factor.copy_(raw(R))
        q_pseudo.raw_factor.copy_(raw(T).view_as(q_pseudo.raw_factor))
        outputs = torch.linalg.solve(Lambda, inverse.T @ (B @ mean.mT[..., None]))  # [P, M, 1]
        q_pseudo.pseudo_outputs.copy_(outputs[..., 0].mT)
    assert_close(pseudo.elbo(x, y).value, whitened.elbo(x, y).value, 1e-8)


@pytest.mark.parametrize("name", ["squared exponential", "matern"])
def test_pseudo_observations_at_the_data_reach_the_evidence(name: str) -> None:
    x, y = data(p=2)
    kernel, noise = KERNELS[name](), 0.1
    exact = ExactGP(kernel, vb.Gaussian(noise))
    layer = vb.GP(2, kernel=kernel, posterior=vb.LocalInducing(25, form="pseudo", inputs=x))
    model = vb.Model(layer, vb.Gaussian(noise))
    model.jitter.fill_(1e-12)
    with torch.no_grad():
        layer.posterior.pseudo_outputs.copy_(y)
    layer.posterior.precision.set(1 / noise)
    assert_close(model.elbo(x, y).value, exact.log_marginal_likelihood(x, y), 1e-8)


# ---- 3. Weight space and function space


class FeatureKernel(Kernel):
    """`variance phi(x)^T phi(z)`."""

    def __init__(self, features: GaussianBumps, variance: float) -> None:
        super().__init__(2)
        self.basis, self.variance = features, variance

    def _matrix(self, x: Tensor, z: Tensor | None) -> Tensor:
        return self.variance * self.basis(x) @ self.basis(x if z is None else z).mT

    def _diag(self, x: Tensor) -> Tensor:
        return self.variance * self.basis(x).square().sum(-1)


def regression(posterior: str, p: int = 1) -> LinearRegression:
    bumps = GaussianBumps(torch.randn(12, 2, generator=torch.Generator().manual_seed(1)), lengthscale=1.1)
    return LinearRegression(bumps, posterior=posterior, noise=0.1, prior_variance=0.6, out_features=p)


def test_linear_regression_is_a_gp_with_the_feature_kernel() -> None:
    x, y = data(p=2)
    blr = regression("exact")
    gp = ExactGP(FeatureKernel(blr.features, 0.6), vb.Gaussian(0.1))
    assert_close(blr.log_marginal_likelihood(x, y), gp.log_marginal_likelihood(x, y), 1e-10)
    assert_close(blr.elbo(x, y).value, gp.log_marginal_likelihood(x, y), 1e-10)
    blr.condition(x, y)
    gp.condition(x, y)
    new = torch.randn(7, 2)
    torch.testing.assert_close(blr.predict(new).mean, gp.predict(new).mean)
    torch.testing.assert_close(blr.predict(new).std, gp.predict(new).std)
    covariances = [m.predict(new, joint=True).covariance for m in (blr, gp)]
    torch.testing.assert_close(*covariances)


def test_full_covariance_reaches_the_evidence_and_mean_field_stays_below() -> None:
    x, y = data(p=2)
    evidence = regression("exact").log_marginal_likelihood(x, y)
    full, rough = regression("full", 2), regression("mean_field", 2)
    full.initialize(x, y)
    rough.initialize(x, y)
    assert_close(full.elbo(x, y).value, evidence, 1e-10)
    assert rough.elbo(x, y).value < evidence - 1.0


def test_trained_full_covariance_reaches_the_best_evidence() -> None:
    x, y = data()
    exact, full, rough = regression("exact"), regression("full"), regression("mean_field")
    for model in (exact, full, rough):
        train(model, x, y, 2000)
    best = exact.log_marginal_likelihood(x, y)
    assert_close(full.elbo(x, y).value, best, 1e-5)
    assert_close(full.prior_variance.value, exact.prior_variance.value, 1e-2)
    assert rough.elbo(x, y).value < best - 0.1
    assert rough.elbo(x, y).value < rough.log_marginal_likelihood(x, y) < best
    assert rough.prior_variance.value < exact.prior_variance.value  # the bias the thesis shows
