"""The bound as a person reads it."""

import math

import pytest
import torch

import vibayes as vb
from vibayes.bound import Bound, Elbo


def bound(draws: int = 4) -> Bound:
    return Bound(
        log_likelihood=torch.randn(draws) - 5,
        log_ratio=torch.randn(draws) - 2,
        log_prior=torch.tensor(-0.7),
        failures={},
        targets={},
    )


def test_objective() -> None:
    terms = bound()
    expected = terms.log_likelihood.mean() + 0.3 * terms.log_ratio.mean() - 0.7
    torch.testing.assert_close(terms.objective(0.3), expected)
    torch.testing.assert_close(terms.objective(torch.tensor(0.3)), expected)


def test_value_is_never_tempered() -> None:
    terms = bound()
    elbo = Elbo.of(terms, n_data=10, log_jacobian=torch.tensor(0.5), kl_weight=0.25)
    torch.testing.assert_close(elbo.value, (terms.log_likelihood + terms.log_ratio).mean())
    torch.testing.assert_close(elbo.objective, terms.objective(0.25))
    torch.testing.assert_close(elbo.per_datapoint, elbo.value / 10)
    torch.testing.assert_close(elbo.in_user_units, elbo.value - 10 * 0.5)
    assert elbo.kl_weight == 0.25


def test_standard_error() -> None:
    terms = bound(50)
    elbo = Elbo.of(terms, n_data=1, log_jacobian=torch.zeros(()))
    torch.testing.assert_close(elbo.stderr, (terms.log_likelihood + terms.log_ratio).std() / math.sqrt(50))
    assert torch.isnan(Elbo.of(bound(1), n_data=1, log_jacobian=torch.zeros(())).stderr)
    assert Elbo.of(bound(1), n_data=1, log_jacobian=torch.zeros(()), exact=True).stderr == 0.0


def test_it_prints_and_differentiates() -> None:
    x = torch.linspace(-1, 1, 5)[:, None]
    model = vb.Model(vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(3)), vb.Gaussian())
    elbo = model.elbo(x, x[:, 0])
    assert repr(elbo).startswith(f"Elbo(value={elbo.value.item():.4f}, log_likelihood=")
    elbo.objective.backward()
    assert all(p.grad is not None for p in model.parameters())
    with pytest.raises(AttributeError):
        elbo.kl = torch.zeros(())
