"""Entropies and KL divergences against scipy, torch and Monte Carlo means of log densities."""

import pytest
import scipy.stats
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from wishart_cases import scale

from vibayes.distributions import InverseWishart, MatrixNormal, Wishart
from vibayes.errors import ConfigurationError, ShapeError

NU = [(3, 2.5), (3, 3.0), (3, 7.0), (1, 0.7)]


def mean_and_error(values: torch.Tensor) -> tuple[float, float]:
    return values.mean().item(), 4.0 * values.std().item() / len(values) ** 0.5


@pytest.mark.parametrize(("n", "nu"), NU)
def test_entropies(n: int, nu: float) -> None:
    wishart, inverse = Wishart(scale(n), nu), InverseWishart(scale(n), nu)
    assert wishart.entropy().item() == pytest.approx(scipy.stats.wishart(nu, scale(n).numpy()).entropy())
    expected, error = mean_and_error(-inverse.log_prob_factor(inverse.rsample_factor((40_000,)).factor))
    assert abs(inverse.entropy().item() - expected) < error


@pytest.mark.parametrize(("n", "nu"), NU)
def test_divergences_of_wisharts(n: int, nu: float) -> None:
    for kind in (Wishart, InverseWishart):
        p, q = kind(scale(n, 1), nu + 1.3), kind(scale(n, 2), nu)
        F = p.rsample_factor((40_000,)).factor
        expected, error = mean_and_error(p.log_prob_factor(F) - q.log_prob_factor(F))
        assert abs(kl_divergence(p, q).item() - expected) < error
        assert kl_divergence(p, p).item() == pytest.approx(0.0, abs=1e-10)


def test_singular_wisharts() -> None:
    p, q = Wishart(scale(3, 1), 2), Wishart(scale(3, 2), 2)
    F = p.rsample_factor((40_000,)).factor
    expected, error = mean_and_error(p.log_prob_factor(F) - q.log_prob_factor(F))
    assert abs(kl_divergence(p, q).item() - expected) < error
    assert kl_divergence(p, Wishart(scale(3, 2), 1)).item() == float("inf")  # the other has matrices of another rank
    with pytest.raises(ConfigurationError, match="singular"):
        p.entropy()


def test_matrix_normals() -> None:
    def both(seed: int) -> tuple[MatrixNormal, MultivariateNormal]:
        R, C = (torch.linalg.cholesky(scale(n, seed)) for n in (3, 2))
        mean = scale(3, seed)[:, :2]
        whole = torch.kron(R @ R.mT, C @ C.mT)  # of the rows, one after the other
        return MatrixNormal(mean, R, C), MultivariateNormal(mean.flatten(), whole)

    (p, p_flat), (q, q_flat) = both(1), both(2)
    torch.testing.assert_close(p.entropy(), p_flat.entropy())
    torch.testing.assert_close(kl_divergence(p, q), kl_divergence(p_flat, q_flat))


def test_batches_and_gradients() -> None:
    nu = torch.tensor([5.0, 6.5], requires_grad=True)
    S = scale(3).requires_grad_()
    p, q = Wishart(S, nu), Wishart(scale(3, 2), 4)
    assert p.entropy().shape == kl_divergence(p, q).shape == (2,)
    assert InverseWishart(S, nu).entropy().shape == (2,)
    found = torch.autograd.grad(kl_divergence(p, q).sum() + p.entropy().sum(), (nu, S))
    assert all(torch.isfinite(g).all() for g in found)


def test_matrices_of_different_sizes_are_refused() -> None:
    """A Wishart of three rows and one of two have different ranks, too, but no infinite divergence."""
    pairs = [(Wishart(scale(n), 5.0), InverseWishart(scale(n), 5.0)) for n in (3, 2)]
    normals = [MatrixNormal(torch.zeros(n, 2), torch.eye(n), torch.eye(2)) for n in (3, 2)]
    for p, q in (*zip(*pairs, strict=True), normals):
        with pytest.raises(ShapeError, match=r"one size.*\(3, .*\(2, "):
            kl_divergence(p, q)
