"""Identities 9 to 11: densities of the Wishart family against other code and numerical Jacobians, and moments."""

import sys
from pathlib import Path

import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.distributions import Gamma, Normal

from vibayes.distributions import GeneralizedSingularWishart, InverseWishart, LowerUpper, Wishart

sys.path.insert(0, str(Path(__file__).parents[1] / "distributions"))
from wishart_cases import PAIRS, build, free_elements, parameters, scale, standard

FORMS = ["plain", "A", "dense", "AB"]


def log_density_by_jacobian(q: GeneralizedSingularWishart, T: Tensor) -> Tensor:
    """Density of G's free elements: that of T's entries over the numerical Jacobian of T -> G."""
    n, nt = T.shape
    rows, columns = free_elements(n, nt)
    L, eye = q.scale_tril, torch.eye(nt)
    A = torch.eye(n) if q.A is None else q.A.matrix
    B = eye if q.B is None else q.B

    def free_of_G(entries: Tensor) -> Tensor:
        T = torch.zeros(n, nt).index_put((rows, columns), entries)
        F = L @ A @ T @ B
        return (F @ F.T)[rows, columns]

    entries = T[rows, columns]
    log_q = entries.new_zeros(())
    for i, j, t in zip(rows.tolist(), columns.tolist(), entries, strict=True):
        if i == j:
            log_q = log_q + Gamma(q.alpha[j], q.beta[j]).log_prob(t**2) + (2 * t).log()
        else:
            log_q = log_q + Normal(q.mu[i, j], q.sigma[i, j]).log_prob(t)
    return log_q - torch.linalg.slogdet(torch.func.jacrev(free_of_G)(entries)).logabsdet


@pytest.mark.parametrize(("n", "nu"), [(1, 0.3), (1, 1.0), (2, 1.4), (2, 2), (3, 2.01), (3, 3), (3, 7.5), (5, 5)])
def test_9_wishart_density_is_scipys(n: int, nu: float) -> None:
    S = scale(n)
    wishart = Wishart(S, nu)
    for seed in range(10, 15):
        G = scale(n, seed)  # a draw with nu near N - 1 may be singular to rounding, which scipy refuses
        expected = scipy.stats.wishart(nu, S.numpy()).logpdf(G.numpy())
        assert wishart.log_prob(G).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("n", "nu"), PAIRS)
def test_9_singular_density_follows_from_the_bartlett_jacobian(n: int, nu: int) -> None:
    S = scale(n)
    wishart = Wishart(S, nu)
    q = GeneralizedSingularWishart(S, nu, **standard(n, nu))
    for _ in range(3):
        F, T, log_det = wishart.rsample_factor()
        expected = pytest.approx(log_density_by_jacobian(q, T).item(), rel=1e-10, abs=1e-10)
        assert wishart.log_prob(F @ F.T).item() == expected
        assert wishart.log_prob_factor(F, log_det).item() == expected


@pytest.mark.parametrize(("n", "nu"), [*PAIRS, (3, 2.3)])
def test_10_standard_parameters_give_the_wishart(n: int, nu: float) -> None:
    S, identity = scale(n), LowerUpper(torch.eye(n))
    wishart = Wishart(S, nu)
    G = wishart.sample((4,))
    p = standard(n, nu)
    B = torch.eye(len(p["alpha"]))
    for q in (
        GeneralizedSingularWishart(S, nu, **p),
        GeneralizedSingularWishart(S, nu, **p, A=identity),
        GeneralizedSingularWishart(S, nu, **p, A=torch.eye(n), B=B),
    ):
        torch.testing.assert_close(q.log_prob(G), wishart.log_prob(G), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(q.mean, wishart.mean)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "nu"), PAIRS)
def test_10_generalized_density_is_a_change_of_variables(n: int, nu: int, form: str) -> None:
    q = build(nu, parameters(n, nu), form)
    if q.A is not None:
        assert torch.linalg.det(q.A.matrix) < 0
    for _ in range(3):
        F, T, log_det = q.rsample_factor()
        expected = log_density_by_jacobian(q, T)
        turn = torch.linalg.qr(torch.randn(q.rank, q.rank)).Q
        padded = torch.nn.functional.pad(F @ turn, (0, 3))
        for found in (
            q.log_prob(F @ F.T),
            q.log_prob_factor(F),
            q.log_prob_factor(padded),
            q.log_prob_bartlett(T),
            q.log_prob_bartlett(T, log_det),
        ):
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("n", "nu"), [(2, 1), (3, 2), (4, 2), (3, 3), (2, 5), (3, 2.6)])
def test_11_wishart_moments(n: int, nu: float) -> None:
    S = scale(n)
    wishart = Wishart(S, nu)
    torch.testing.assert_close(wishart.mean, nu * S)
    d = S.diagonal()
    torch.testing.assert_close(wishart.variance, nu * (S**2 + torch.outer(d, d)))
    assert_moments(wishart, wishart.sample((40_000,)))


def test_11_inverse_wishart_moments() -> None:
    S = scale(3)
    inverse = InverseWishart(S, 14.5)
    G = inverse.sample((40_000,))
    assert_moments(inverse, G)
    assert_moments(Wishart(torch.linalg.inv_ex(S).inverse, 14.5), torch.linalg.inv_ex(G).inverse)


def assert_moments(distribution: Wishart | InverseWishart, G: Tensor) -> None:
    """Mean and variance within five standard errors; those of the variance by the fourth moment."""
    root = len(G) ** 0.5
    squares = (G - distribution.mean).square()
    assert bool(((G.mean(0) - distribution.mean).abs() < 5 * G.std(0) / root).all())
    assert bool(((squares.mean(0) - distribution.variance).abs() < 5 * squares.std(0) / root).all())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "nu"), [(4, 2), (3, 3)])
def test_11_generalized_mean(n: int, nu: int, form: str) -> None:
    q = build(nu, parameters(n, nu), form)
    G = q.sample((20_000,))
    assert bool(((G.mean(0) - q.mean).abs() < 5 * G.std(0) / len(G) ** 0.5).all())
