"""R-hat and effective sample sizes against theory and against a plain implementation with scipy."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from vibayes.errors import ShapeError
from vibayes.mcmc import ess, ess_bulk, ess_tail, rhat


def autoregressive(rho: float, chains: int, n: int) -> Tensor:
    x = torch.empty(chains, n)
    x[:, 0] = torch.randn(chains)
    noise = (1 - rho**2) ** 0.5 * torch.randn(chains, n)
    for t in range(1, n):
        x[:, t] = rho * x[:, t - 1] + noise[:, t]
    return x


def plain_rhat(x: np.ndarray) -> float:
    """Vehtari et al. (2021), Eqs. 1 to 4 and 14, one number."""

    def scores(z: np.ndarray) -> np.ndarray:
        rank = scipy.stats.rankdata(z, method="average").reshape(z.shape)
        return scipy.stats.norm.ppf((rank - 3 / 8) / (z.size + 1 / 4))

    def split_rhat(z: np.ndarray) -> float:
        n = z.shape[1]
        between, within = n * z.mean(1).var(ddof=1), z.var(1, ddof=1).mean()
        return float(np.sqrt(((n - 1) / n * within + between / n) / within))

    n = x.shape[1] // 2
    halves = np.concatenate([x[:, :n], x[:, -n:]])
    return max(split_rhat(scores(halves)), split_rhat(scores(np.abs(halves - np.median(halves)))))


def plain_ess(x: np.ndarray) -> float:
    """Eqs. 10 to 13 with Geyer's sequence, lag by lag."""
    n = x.shape[1] // 2
    z = np.concatenate([x[:, :n], x[:, -n:]])
    m = len(z)
    within, between = z.var(1, ddof=1).mean(), z.mean(1).var(ddof=1)
    total = (n - 1) / n * within + between
    centred = z - z.mean(1, keepdims=True)
    gamma = np.array([(centred[:, : n - t] * centred[:, t:]).sum(1).mean() / (n - 1) for t in range(n)])
    rho = 1.0 - (within - gamma) / total
    rho[0] = 1.0
    tau, previous = -1.0, np.inf
    for t in range(0, n - 1, 2):
        pair = rho[t] + rho[t + 1]
        if pair <= 0:
            break
        previous = min(previous, pair)
        tau += 2 * previous
    return m * n / max(tau, 1 / np.log10(m * n))


@pytest.mark.parametrize("rho", [0.0, 0.8, -0.5])
def test_against_a_plain_implementation(rho: float) -> None:
    x = autoregressive(rho, 3, 101)
    x[0] += 0.4
    np.testing.assert_allclose(float(rhat(x)), plain_rhat(x.numpy()), rtol=1e-10)
    np.testing.assert_allclose(float(ess(x)), plain_ess(x.numpy()), rtol=1e-10)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_effective_sample_size_of_an_autoregression(rho: float) -> None:
    x = autoregressive(rho, 8, 4000)
    expected = 8 * 4000 * (1 - rho) / (1 + rho)
    for function in (ess, ess_bulk):
        assert 0.85 < float(function(x)) / expected < 1.15
    assert float(ess_tail(x)) > 0.8 * expected  # quantiles of such a chain are correlated less than its mean


def test_chains_that_disagree() -> None:
    x = torch.randn(4, 500)
    assert 0.99 < float(rhat(x)) < 1.01
    moved = x.clone()
    moved[0] += 2.0
    assert float(rhat(moved)) > 1.2
    wide = x.clone()
    wide[0] *= 5.0  # the same mean: only the folded part sees it
    assert float(rhat(wide)) > 1.1
    drifting = x + torch.linspace(0.0, 3.0, 500)  # alike in all chains: only their halves differ
    assert float(rhat(drifting)) > 1.2
    heavy = torch.distributions.Cauchy(0.0, 1.0).sample((4, 500))
    assert float(rhat(heavy)) < 1.02


def test_many_entries_at_once_and_ties() -> None:
    x = torch.randn(3, 50, 2, 4)
    together = rhat(x)
    assert together.shape == (2, 4)
    for function in (rhat, ess, ess_bulk, ess_tail):
        torch.testing.assert_close(function(x)[1, 2], function(x[:, :, 1, 2]))
    counts = torch.randint(0, 3, (3, 60)).double()
    np.testing.assert_allclose(float(rhat(counts)), plain_rhat(counts.numpy()), rtol=1e-10)


def test_constants_have_none() -> None:
    assert bool(rhat(torch.ones(2, 10)).isnan())
    assert bool(ess(torch.ones(2, 10)).isnan())


def test_too_few_draws() -> None:
    with pytest.raises(ShapeError, match="at least 4 draws"):
        rhat(torch.randn(4, 3))
