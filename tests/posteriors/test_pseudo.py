"""Regression onto pseudo-outputs against dense Gaussian algebra, with precisions that have no special values."""

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from vibayes import linalg
from vibayes.draw import Draw
from vibayes.posteriors.base import Site
from vibayes.posteriors.pseudo import pseudo_gaussian, sample_given_pseudo

P = 2
FORMS = ["diagonal", "per_output", "full", "full_per_output"]
SITES = ["process", "narrow", "wide"]


def site(kind: str) -> Site:
    """A process with four inducing rows; weights, fewer and more of them than inducing rows."""
    if kind == "process":
        X = torch.randn(4, 6)
        K = X @ X.mT / 6
        factor, _ = linalg.factor(K)
        return Site("w", factor.lower, P, K, factor=factor)
    return Site("w", torch.randn(*((5, 3) if kind == "narrow" else (3, 5))), P)


def precision(form: str, M: int) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """The diagonal of `Lambda` or a factor of it, as the functions take them; and `Lambda` for each output."""
    if form.startswith("full"):
        T = linalg.lower_factor(0.5 * torch.randn(*((M, M) if form == "full" else (P, M, M))))
        return None, T, (T @ T.mT).expand(P, M, M)
    diagonal = 0.2 + 2.0 * torch.rand(*((M,) if form == "diagonal" else (P, M)))
    return diagonal, None, torch.diag_embed(diagonal.expand(P, M))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", SITES)
def test_draws_and_log_ratios_are_of_the_dense_posterior(kind: str, form: str) -> None:
    at = site(kind)
    D = at.design
    assert D is not None
    M, K = D.shape
    y = torch.randn(M, P)
    diagonal, T, Lambda = precision(form, M)

    def drawn(noise: Tensor) -> tuple[Tensor, Tensor]:
        draw = Draw(noise={"w.inducing": noise}, jitter=0.1)  # of which I + positive gets none
        return sample_given_pseudo(at, draw, y, diagonal, T), draw.log_ratios["w"]

    noise = torch.randn(K if kind == "narrow" else K + M, P)
    v, log_ratio = drawn(noise)
    middle, _ = drawn(torch.zeros_like(noise))
    slopes = torch.autograd.functional.jacobian(lambda noise: drawn(noise)[0], noise)  # [K, P, noise, P]
    q = pseudo_gaussian(at, y, diagonal, T)
    expected = torch.zeros(())
    for p in range(P):
        covariance = torch.linalg.inv(torch.eye(K) + D.mT @ Lambda[p] @ D)
        mean = covariance @ D.mT @ Lambda[p] @ y[:, p]
        torch.testing.assert_close(middle[:, p], mean)  # draws are affine in their noise
        for other in range(P):
            shared = slopes[:, p].flatten(1) @ slopes[:, other].flatten(1).mT
            torch.testing.assert_close(shared, covariance if other == p else torch.zeros(K, K))
        R = q.factor.expand(P, K, K)[p]
        torch.testing.assert_close(q.mean[:, p], mean)
        torch.testing.assert_close(R @ R.mT, covariance)
        torch.testing.assert_close(q.log_det.expand(P)[p], torch.logdet(covariance))
        expected = expected + Normal(0.0, 1.0).log_prob(v[:, p]).sum()
        expected = expected - MultivariateNormal(mean, covariance).log_prob(v[:, p])
    torch.testing.assert_close(log_ratio, expected)
