"""Sparse GP regression: inducing inputs, the split of the bound, failures."""

import pytest
import torch

import vibayes as vb
from vibayes.conjugate import SGPR, ExactGP


def data(n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(n, 1) * 6
    return x, torch.sin(x[:, 0]) + 0.1 * torch.randn(n)


def test_a_number_of_inducing_inputs_becomes_kmeans_centres() -> None:
    x, y = data()
    model = SGPR(vb.SquaredExponential(1), vb.Gaussian(0.1), 6)
    assert model.inducing.shape == (6, 1)
    model.initialize(x, y)
    torch.testing.assert_close(model.inducing.detach(), vb.choose_inducing(x, 6))


def test_given_inducing_inputs_come_back_when_starting_over() -> None:
    x, y = data()
    z = x[:5]
    model = SGPR(vb.SquaredExponential(1), vb.Gaussian(0.1), z)
    with torch.no_grad():
        model.inducing.add_(1.0)
    model.initialize(x, y)
    torch.testing.assert_close(model.inducing.detach(), z)
    assert model.inducing.data_ptr() != z.data_ptr()


def test_fixed_inducing_inputs_stay() -> None:
    x, y = data()
    model = SGPR(vb.SquaredExponential(1), vb.Gaussian(0.1), x[:5])
    model.inducing.requires_grad_(False)
    vb.fit(model, (x, y), steps=5, progress=False)
    torch.testing.assert_close(model.inducing.detach(), x[:5])


def test_more_inducing_inputs_never_lower_the_bound() -> None:
    x, y = data()
    bounds = []
    for m in (1, 3, 6, 12):
        model = SGPR(vb.SquaredExponential(1), vb.Gaussian(0.1), x[:m])
        model.jitter.fill_(1e-10)
        bounds.append(model.elbo(x, y).value.item())
    assert bounds == sorted(bounds)
    assert bounds[-1] - bounds[0] > 1.0


def test_optimal_q_is_that_of_the_thesis() -> None:
    """`m = K_zz S K_zx y / noise`, `cov = K_zz S K_zz`, `S = (K_zz + K_zx K_xz / noise)^-1`, for `u = L v`."""
    x, y = data()
    model = SGPR(vb.SquaredExponential(1, variance=1.4), vb.Gaussian(0.1), x[:5])
    with torch.no_grad():
        q = model.optimal_q(x, y)
        Kzz = model.kernel(x[:5])
        Kzz = Kzz + model.jitter * Kzz.diagonal().mean() * torch.eye(5)
        Kzx = model.kernel(x[:5], x)
        inner = torch.linalg.inv(Kzz + Kzx @ Kzx.mT / 0.1)
        L = torch.linalg.cholesky(Kzz)
    torch.testing.assert_close(L @ q.mean[:, 0], Kzz @ inner @ Kzx @ y / 0.1, rtol=1e-7, atol=1e-8)
    root = L @ q.factor[0]
    torch.testing.assert_close(root @ root.mT, Kzz @ inner @ Kzz, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(q.factor, q.factor.tril())
    torch.testing.assert_close(q.log_det[0], torch.logdet(q.factor[0] @ q.factor[0].mT))


def test_small_noise_keeps_bound_and_gradients_accurate() -> None:
    """Noise of 1e-6 of the signal: the bound agrees with the one in matrices of size N."""
    x, y = data()
    y = torch.sin(x[:, 0])
    model = SGPR(vb.SquaredExponential(1), vb.Gaussian(1e-6), torch.linspace(0, 6, 12)[:, None])
    elbo = model.elbo(x, y).value
    A = model._project(x)[0]
    normal = torch.distributions.MultivariateNormal(torch.zeros(40), A.mT @ A + 1e-6 * torch.eye(40))
    reference = normal.log_prob(y) - (40 - A.square().sum()) / 2e-6
    torch.testing.assert_close(elbo, reference, rtol=1e-7, atol=0)
    found = torch.autograd.grad(elbo, model.kernel.lengthscale.raw)[0]
    torch.testing.assert_close(
        found, torch.autograd.grad(reference, model.kernel.lengthscale.raw)[0], rtol=1e-4, atol=0
    )


def test_coinciding_inducing_inputs_without_jitter_are_an_error_with_advice() -> None:
    x, y = data()
    model = SGPR(vb.SquaredExponential(1), vb.Gaussian(0.1), x[:1].expand(20, 1) + 1e-9 * torch.randn(20, 1))
    model.condition(x, y)
    model.jitter.zero_()
    bound = model(*model.prepare(x, y))
    assert torch.isnan(bound.objective())
    assert bound.failures["inducing kernel matrix"] > 0
    with pytest.raises(vb.NotPositiveDefiniteError, match=r"\[20, 20\].*fewer inducing"):
        model.predict(x)


def test_refusals() -> None:
    for wrong in (0, 5.0, True):
        with pytest.raises(vb.ConfigurationError, match="number of inducing inputs must be at least 1"):
            SGPR(vb.SquaredExponential(1), vb.Gaussian(), wrong)
    with pytest.raises(vb.ShapeError, match="inducing"):
        SGPR(vb.SquaredExponential(2), vb.Gaussian(), torch.randn(5, 1))


@pytest.mark.parametrize("rough", ["matern", "steps"])
def test_rough_kernels_in_float32(rough: str) -> None:
    """At rows that are inducing inputs too, where such kernels have a kink and float32 sees a distance."""
    x = torch.rand(200, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 10 - 5
    y = torch.sin(2 * x[:, 0])
    found = []
    kernel = vb.Matern12(1, lengthscale=0.1) if rough == "matern" else vb.ArcCosine(1, order=0, bias=1.0)
    sparse, exact = SGPR(kernel, vb.Gaussian(0.01), x[::2]), ExactGP(kernel, vb.Gaussian(0.01))
    for dtype in (torch.float64, torch.float32):
        sparse.to(dtype)
        exact.to(dtype)
        sparse.condition(x, y)
        evidence = exact.log_marginal_likelihood(x, y)
        found.append((sparse.elbo(x, y).value.double(), evidence.double(), sparse.predict(x).epistemic.double()))
    for wide, narrow in zip(*found, strict=True):
        torch.testing.assert_close(narrow, wide, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("noise", [1e-2, 1e-5])
def test_float32_has_the_bound_and_the_posterior_of_float64(noise: float) -> None:
    """Rows over fifty lengthscales, where squared distances lose digits, and noise below those digits."""
    x = torch.linspace(0, 50, 200)[:, None]
    y = torch.sin(x[:, 0])
    found = []
    for dtype in (torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        model = SGPR(vb.SquaredExponential(1), vb.Gaussian(noise), x[::2])
        model.condition(x, y)
        new = x[::10].float() + 0.1  # the same in both dtypes
        prediction, joint = model.predict(new), model.predict(new, joint=True)
        q, elbo = model.optimal_q(x, y), model.elbo(x.float(), y.float())
        assert {dtype} == {part.dtype for part in (prediction.mean, joint.covariance, q.mean, q.factor, elbo.value)}
        parts = (elbo.value, prediction.mean, prediction.epistemic, joint.covariance)
        found.append([part.detach().double() for part in parts])
    for double, single in zip(*found, strict=True):
        torch.testing.assert_close(single, double, rtol=1e-3, atol=1e-3 * noise)
