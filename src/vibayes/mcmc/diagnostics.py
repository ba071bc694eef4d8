"""Have the chains converged, and how many independent draws are they worth?

Rank-normalised split R-hat and effective sample sizes of Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021).
Functions take draws `[C, S, ...]` of C chains and work on every entry of the last axes.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes.errors import ShapeError

__all__ = ["ess", "ess_bulk", "ess_tail", "rhat"]


def rhat(draws: Float[Tensor, "c s ..."]) -> Float[Tensor, "..."]:
    """Rank-normalised split R-hat: the larger of that of the draws and of their distance from the median.

    Near 1 when all halves of all chains agree in location and spread; above 1.01 (1.05 at most) they do not. One that
    is constant in all chains has NaN.

    >>> torch.manual_seed(0) and float(rhat(torch.randn(4, 500))) < 1.01
    True
    """
    halves = _split(_checked(draws))
    folded = (halves - _median(halves)).abs()
    return torch.maximum(_rhat(_normal_scores(halves)), _rhat(_normal_scores(folded)))


def ess(draws: Float[Tensor, "c s ..."]) -> Float[Tensor, "..."]:
    r"""Effective sample size for the mean: `C S / (1 + 2 sum_t rho_t)`.

    The autocorrelations `rho_t` combine those within chains with the variance between them, and are summed by Geyer's
    initial monotone sequence. No rank normalisation, so that `std / sqrt(ess)` is the standard error of the mean.

    >>> draws = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
    >>> 1500 < float(ess(draws)) < 2500, float(ess(draws.cumsum(1))) < 50
    (True, True)
    """
    return _ess(_split(_checked(draws)))


def ess_bulk(draws: Float[Tensor, "c s ..."]) -> Float[Tensor, "..."]:
    """Effective sample size of rank-normalised draws `[C, S, ...]`: how well the centre of the distribution is known.

    >>> heavy = torch.distributions.Cauchy(0.0, 1.0).sample((4, 500))  # which has no mean, but a centre
    >>> float(ess_bulk(heavy)) > 1000
    True
    """
    return _ess(_normal_scores(_split(_checked(draws))))


def ess_tail(draws: Float[Tensor, "c s ..."]) -> Float[Tensor, "..."]:
    """Effective sample size of draws `[C, S, ...]` for the 5% and 95% quantiles, the smaller of the two.

    >>> float(ess_tail(torch.randn(4, 500))) > 1000
    True
    """
    draws = _checked(draws)
    flat = draws.flatten(0, 1)
    found = [_ess(_split((draws <= flat.quantile(q, dim=0)).to(draws.dtype))) for q in (0.05, 0.95)]
    return torch.minimum(*found)


def _checked(draws: Tensor) -> Tensor:
    if draws.ndim < 2 or draws.shape[1] < 4:
        raise ShapeError(f"Expected draws [C, S, ...] of at least 4 draws per chain; got shape {list(draws.shape)}.")
    return draws.detach().double()


def _split(draws: Tensor) -> Tensor:
    """Each chain's halves as chains of their own; the middle draw of an odd number is left out."""
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, -half:]])


def _median(draws: Tensor) -> Tensor:
    return draws.flatten(0, 1).quantile(0.5, dim=0)


def _normal_scores(draws: Tensor) -> Tensor:
    """Normal quantiles of the ranks among all draws; equal draws share their mean rank."""
    flat = draws.flatten(0, 1).reshape(draws.shape[0] * draws.shape[1], -1).T.contiguous()  # [entries, n]
    ordered = flat.sort(1).values
    lower = torch.searchsorted(ordered, flat)
    upper = torch.searchsorted(ordered, flat, right=True)
    rank = 0.5 * (lower + upper + 1).to(flat.dtype)
    scores: Tensor = torch.special.ndtri((rank - 0.375) / (flat.shape[1] + 0.25))
    return scores.T.reshape(draws.shape)


def _variances(draws: Tensor) -> tuple[Tensor, Tensor]:
    """`W`, the mean variance within chains, and `B / S`, the variance of their means."""
    return draws.var(1).mean(0), draws.mean(1).var(0)


def _rhat(draws: Tensor) -> Tensor:
    within, between = _variances(draws)
    S = draws.shape[1]
    return (((S - 1) / S * within + between) / within).sqrt()


def _autocovariance(draws: Tensor) -> Tensor:
    """Of every chain at all lags, `[C, S, ...]`, by the fast Fourier transform."""
    S = draws.shape[1]
    centred = draws - draws.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * S, dim=1)
    found: Tensor = torch.fft.irfft(spectrum * spectrum.conj(), n=2 * S, dim=1)
    return found[:, :S] / S


def _ess(draws: Tensor) -> Tensor:
    C, S = draws.shape[:2]
    within, between = _variances(draws)
    total = (S - 1) / S * within + between
    rho = 1.0 - (within - _autocovariance(draws).mean(0) * S / (S - 1)) / total  # [S, ...]
    rho[0] = 1.0
    pairs = rho[: S // 2 * 2].reshape(S // 2, 2, *rho.shape[1:]).sum(1)  # positive for a reversible chain
    kept = (pairs > 0.0).cummin(0).values
    monotone = torch.where(kept, pairs, torch.inf).cummin(0).values
    tau = -1.0 + 2.0 * torch.where(kept, monotone, 0.0).sum(0)
    # as in Stan: chains that alternate can be worth more than independent draws, but not without end
    tau = tau.clamp_min(1.0 / torch.log10(torch.tensor(float(C * S))))
    return torch.where(total > 0.0, C * S / tau, torch.nan)
