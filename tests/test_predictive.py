"""Predictions and function draws of a `Model`."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from toy_models import data, deep, svgp
from vibayes.draw import Draw


@pytest.mark.parametrize("likelihood", [vb.Gaussian, vb.StudentT, vb.Poisson, vb.Bernoulli])
def test_predictions_do_not_depend_on_the_batch_size(likelihood: type[vb.Likelihood]) -> None:
    x, _ = data()
    model = svgp(likelihood())
    whole = model.predict(x)
    for size in (1, 5, 24, 100):
        torch.testing.assert_close(model.predict(x, batch_size=size).mean, whole.mean)
        torch.testing.assert_close(model.predict(x, batch_size=size).variance, whole.variance)


def test_predictions_of_a_deep_model_agree_across_batch_sizes() -> None:
    x, _ = data()
    model = deep()
    whole, parts = model.predict(x, n_samples=4000), model.predict(x, n_samples=4000, batch_size=7)
    assert ((whole.mean - parts.mean).abs() < 5 * (2 * whole.epistemic / 4000).sqrt()).all()
    torch.testing.assert_close(whole.epistemic, parts.epistemic, rtol=0.25, atol=0)


@pytest.mark.parametrize("p", [1, 2])
def test_function_draws_have_the_predicted_moments(p: int) -> None:
    x, y = data(8, p)
    model = svgp(outputs=p, standardize="both")
    vb.fit(model, (x, y), steps=30, progress=False)
    prediction = model.predict(x, joint=True)
    n = 20_000
    draws = model.sample_functions(x, n)  # [n, N, P]
    error = (prediction.epistemic / n).sqrt()
    assert ((draws.mean(0) - prediction.mean).abs() < 4.5 * error).all()
    for k in range(p):
        centred = draws[..., k] - prediction.mean[:, k]
        products = centred[:, :, None] * centred[:, None, :]
        within = (products.mean(0) - prediction.covariance[k]).abs() < 4.5 * products.std(0) / n**0.5
        assert within.all()


def test_joint_covariance_of_a_deep_model() -> None:
    x, _ = data(5)
    model = deep()
    n = 10_000
    prediction = model.predict(x, n_samples=n, joint=True)
    covariance = prediction.covariance.reshape(5, 5)
    torch.testing.assert_close(covariance.diagonal(), prediction.epistemic)
    draws = model.sample_functions(x, n)
    products = (draws - draws.mean(0))[:, :, None] * (draws - draws.mean(0))[:, None, :]
    assert ((products.mean(0) - covariance).abs() < 6 * products.std(0) / n**0.5).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("make", [svgp, deep])
def test_equal_rows_get_equal_values_in_a_draw(dtype: torch.dtype, make: Callable[[], vb.Model]) -> None:
    x, y = data(10)
    model = make().to(dtype)
    vb.fit(model, (x, y), steps=30, lr=0.05, progress=False)
    draws = model.sample_functions(torch.cat([x, x]), 20)
    assert torch.isfinite(draws).all()
    tolerance = 1e-6 if dtype == torch.float64 else 0.05
    assert ((draws[:, :10] - draws[:, 10:]).abs() < tolerance).all()
    assert draws[:, 0].std() > 1e-3


def test_function_draws_on_a_dense_grid_are_finite_and_smooth() -> None:
    """Rows so close that their covariance is singular to rounding, in float32."""
    torch.set_default_dtype(torch.float32)
    x = torch.linspace(-3, 3, 200)[:, None]
    gp = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(8, inputs=x[::25]))
    model = vb.Model(gp, vb.Gaussian(0.1))
    gp.posterior.raw_factor.data.copy_(-4.0 * torch.eye(8))
    draws = model.sample_functions(x, 5)
    assert torch.isfinite(draws).all()
    assert (draws.diff(dim=1).abs() < 0.2).all()


def test_a_matrix_that_cannot_be_factorised_is_an_error() -> None:
    x, y = data()
    z = torch.zeros(3, 2)
    gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3, inputs=z))
    model = vb.Model(nn.Sequential(gp), vb.Gaussian(0.1))
    model.jitter.fill_(0.0)
    for call in (
        model.predict,
        lambda rows: model.predict(rows, joint=True),
        model.sample_functions,
        lambda rows: model.log_weights(rows, y),
    ):
        with pytest.raises(
            vb.NotPositiveDefiniteError,
            match=r"layer '0' \(\[3, 3\], torch.float64.*jitter 0.*or a larger model.jitter\.$",
        ):
            call(x)
    assert torch.isnan(model.elbo(x, y).value)


LIKELIHOODS: dict[str, tuple[Callable[[], vb.Likelihood], int, Callable[[Tensor], Tensor]]] = {
    "gaussian": (vb.Gaussian, 1, lambda f: f),
    "two gaussians": (lambda: vb.Gaussian(0.5, out_features=2), 2, lambda f: torch.stack([f, 2 * f], 1)),
    "heteroscedastic": (vb.HeteroscedasticGaussian, 2, lambda f: f),
    "two heteroscedastic": (vb.HeteroscedasticGaussian, 4, lambda f: torch.stack([f, -f], 1)),
    "student t": (vb.StudentT, 1, lambda f: f),
    "bernoulli": (vb.Bernoulli, 1, lambda f: f > 0),
    "probit": (lambda: vb.Bernoulli("probit"), 1, lambda f: (f > 0).long()),
    "categorical": (vb.Categorical, 3, lambda f: (f > -0.5).long() + (f > 0.5).long()),
    "poisson": (vb.Poisson, 1, lambda f: (2 + 2 * f).clamp_min(0).round()),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("make", [svgp, deep])
def test_every_likelihood_trains_and_predicts(name: str, make: Callable[..., vb.Model]) -> None:
    build, outputs, targets = LIKELIHOODS[name]
    x, f = data()
    y = targets(f)
    model = make(outputs=outputs, likelihood=build())
    history = vb.fit(model, (x, y), steps=40, lr=0.05, n_samples=5, log_every=1, progress=False, batch_size=12)
    assert np.mean(history.elbo[-10:]) > np.mean(history.elbo[:10])
    prediction = model.predict(x, n_samples=20)
    log_prob = prediction.log_prob(y)
    assert log_prob.shape == (24,)
    assert torch.isfinite(log_prob).all()
    columns = y.shape[1:] if model.likelihood.kind != "classes" else (3,)
    assert model.sample_functions(x, 3).shape == (3, 24, *columns)
    if model.likelihood.kind == "regression":
        joint = model.predict(x, n_samples=20, joint=True)
        torch.testing.assert_close(
            joint.covariance.reshape(-1, 24, 24).diagonal(dim1=1, dim2=2).mT.reshape(joint.epistemic.shape),
            joint.epistemic,
        )
    else:
        with pytest.raises(vb.ConfigurationError, match=r"joint=True.*sample_functions"):
            model.predict(x, joint=True)


def test_draws_of_heteroscedastic_functions_are_in_user_units() -> None:
    x, f = data()
    y = 1000 * f + 5e4
    model = svgp(vb.HeteroscedasticGaussian(), 2, standardize="both")
    vb.fit(model, (x, y), steps=20, progress=False)
    n = 4000
    draws, prediction = model.sample_functions(x, n), model.predict(x)
    assert draws.shape == (n, 24)
    assert ((draws.mean(0) - prediction.mean).abs() < 5 * draws.std(0) / n**0.5).all()


def test_predictions_hold_few_inducing_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go through with every batch and every draw, and bound both; they are sent no oftener than needed."""
    monkeypatch.setattr("vibayes.passes._ROWS_PER_PASS", 100)
    passes: list[int] = []
    network = nn.Sequential(vb.Linear(2, 5), nn.ReLU(), vb.Linear(5, 1))
    model = vb.Model(network, vb.Gaussian(0.1), inducing=torch.randn(20, 2))
    network[1].register_forward_hook(lambda module, rows, out: passes.append(len(out)))
    x = torch.randn(60, 2)
    prediction = model.predict(x, n_samples=50)
    assert passes == 3 * 10 * [40]  # three batches of as many rows, five draws at a time
    assert prediction.n_draws == 50
    assert len(prediction.mixture.mean.unique(dim=0)) == 50
    passes.clear()
    model.predict(x, n_samples=50, batch_size=30)
    assert passes == [50, 50]


def test_every_row_of_classes_has_noise_of_its_own() -> None:
    """The bound is that of the latent noise given, `[draws, samples, rows, classes]`."""
    x, y = torch.randn(7, 2), torch.arange(7) % 3
    layer = vb.GP(3, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(4))
    model = vb.Model(layer, vb.Categorical(n_latent_noise=5))
    eps = torch.randn(2, 5, 7, 3)
    bound = model(x, y, n_samples=2, noise={"likelihood": eps})
    with Draw(jitter=model.jitter, output="network") as draw:
        layer(x)
    assert draw.output is not None
    mean, variance = draw.output.mean, draw.output.variance
    each = [model.likelihood.expected_log_prob(mean, variance, y, one).sum() for one in eps]
    torch.testing.assert_close(bound.log_likelihood, torch.stack(each))
