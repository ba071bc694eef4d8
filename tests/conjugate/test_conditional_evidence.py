"""The conditional log marginal likelihood, as a number and as an objective."""

import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

import vibayes as vb
from vibayes.errors import ConfigurationError


def data(n: int = 20) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-2, 2, n)[:, None]
    return x, torch.sin(2 * x[:, 0]) + 0.3 * torch.randn(n)


@torch.no_grad()
def test_it_is_the_log_density_of_the_rest_given_some() -> None:
    x, y = data()
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.2))
    got = gp.conditional_log_marginal_likelihood(x, y, 12, orderings=3, seed=5)
    generator = torch.Generator().manual_seed(5)
    expected = []
    for _ in range(3):
        order = torch.randperm(20, generator=generator)
        given, rest = order[:12], order[12:]
        conditioned = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.2))
        conditioned.condition(x[given], y[given])
        prediction = conditioned.predict(x[rest], joint=True)
        covariance = prediction.covariance[0] + 0.2 * torch.eye(8)
        expected.append(multivariate_normal(prediction.mean.numpy(), covariance.numpy()).logpdf(y[rest].numpy()))
    assert float(got) == pytest.approx(sum(expected) / 3, abs=1e-8)


@torch.no_grad()
def test_the_objective_of_training_is_the_conditional_evidence() -> None:
    x, y = data()
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.2), conditional=0.6)
    gp.initialize(x, y)
    batch = gp.prepare(x, y)
    bound = gp(batch.x, batch.y)
    expected = gp.conditional_log_marginal_likelihood(x, y, 12, orderings=4, seed=0)
    assert float(bound.objective(1.0)) == pytest.approx(float(expected), abs=1e-9)
    assert float(gp.elbo(x, y).value) == pytest.approx(float(gp.log_marginal_likelihood(x, y)))


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_training_raises_it(optimizer: str) -> None:
    x, y = data()
    plain, conditional = (vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(1.0), conditional=c) for c in (None, 0.6))
    for gp in (plain, conditional):
        vb.fit(gp, (x, y), optimizer=optimizer, steps=80, lr=0.05, progress=False)
    with torch.no_grad():
        ours = conditional.conditional_log_marginal_likelihood(x, y, 12, orderings=4)
        theirs = plain.conditional_log_marginal_likelihood(x, y, 12, orderings=4)
        assert float(ours) > float(theirs)
        assert float(conditional.log_marginal_likelihood(x, y)) < float(plain.log_marginal_likelihood(x, y))


def test_replicas_train_on_it_too() -> None:
    x, y = data()
    models = [vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(1.0), conditional=0.6) for _ in range(3)]
    vb.fit(models[0], (x, y), optimizer="adam", steps=20, progress=False)
    vb.fit_many(models[1:], [(x, y), (x, y)], steps=20, progress=False, chunk=2)
    assert torch.allclose(models[1].kernel.lengthscale.value, models[0].kernel.lengthscale.value)


def test_bad_shares_are_refused() -> None:
    x, y = data(3)
    for share in (0.0, 1.0, 2.0):
        with pytest.raises(ConfigurationError, match="between 0 and 1"):
            vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(), conditional=share)
    with pytest.raises(ConfigurationError, match="0 of 3"):
        vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(), conditional=0.01).initialize(x, y)
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian())
    with pytest.raises(ConfigurationError, match="3 of 3"):
        gp.conditional_log_marginal_likelihood(x, y, 3)


@torch.no_grad()
def test_given_rows_are_a_share_of_the_rows_at_hand() -> None:
    x, y = data(30)
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.2), conditional=0.6)
    gp.initialize(x[:20], y[:20])
    for n in (10, 20, 30):
        expected = gp.conditional_log_marginal_likelihood(x[:n], y[:n], int(0.6 * n), orderings=4, seed=0)
        assert float(gp.elbo(x[:n], y[:n]).objective) == pytest.approx(float(expected), abs=1e-9)
    few = gp(*gp.prepare(x[:10], y[:10], torch.ones(10)))
    assert float(few.objective()) == pytest.approx(float(gp.elbo(x[:10], y[:10]).objective))


def test_it_is_trained_again_on_other_numbers_of_rows() -> None:
    x, y = data(30)
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.2), conditional=0.6)
    for n in (20, 10, 30):
        vb.fit(gp, (x[:n], y[:n]), steps=3, progress=False)
        assert gp._given_rows.shape == (4, int(0.6 * n))
    gp.condition(x[:1], y[:1])  # predictions need no share
    assert torch.isfinite(gp.predict(x).mean).all()
    with pytest.raises(ConfigurationError, match="1 of 1"):
        vb.fit(gp, (x[:1], y[:1]), steps=3, progress=False)


def test_refused_data_leave_no_trace() -> None:
    x, y = torch.randn(20, 2), torch.randn(20)
    gp = vb.ExactGP(vb.SquaredExponential(2), vb.Gaussian(0.2), mean=vb.LinearMean(2, 1), conditional=0.6)
    gp.initialize(x, y)
    before = gp.predict(x).mean
    with pytest.raises(ConfigurationError, match="1 of 1"):
        gp.initialize(x[:1], y[:1])
    assert torch.equal(gp.predict(x).mean, before)
