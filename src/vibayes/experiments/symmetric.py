"""A Gaussian fitted to a posterior with two equal modes (thesis, Fig. "symm_vi").

`y = |w| x + noise` cannot tell `w` from `-w`, so its posterior is symmetric, here `0.5 N(c, 0.25) + 0.5 N(-c, 0.25)`.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from vibayes import plotting
from vibayes._figures import label_axes, new_figure
from vibayes.experiments.record import Number, Result, Statement
from vibayes.quadrature import normal_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BestGaussian", "FoldedNormal", "best_gaussian", "kl_to_mixture", "symm_vi"]

# Distances of the modes from zero, with what an independent quadrature found: KL, m and s.
KNOWN = {0.4: (0.0031, 0.0, 0.637), 1.2: (0.4218, 0.0, 1.161), 1.5: (0.6888, 1.492, 0.512)}
MODE_STD = 0.5
LEVELS = (0.025, 0.5, 0.975)


def _log_normal(w: Tensor, mean: float, std: float) -> Tensor:
    return -0.5 * ((w - mean) / std).square() - math.log(std) - 0.5 * math.log(2.0 * math.pi)


def _log_mixture(w: Tensor, c: float, std: float) -> Tensor:
    """`log p(w)` of `p = 0.5 N(c, std^2) + 0.5 N(-c, std^2)`."""
    modes = torch.stack([_log_normal(w, mode, std) for mode in (c, -c)])
    return modes.logsumexp(0) - math.log(2.0)


def kl_to_mixture(m: Tensor, s: Tensor, c: float, std: float) -> Float[Tensor, ""]:
    """`KL(N(m, s^2) || 0.5 N(c, std^2) + 0.5 N(-c, std^2))` in nats, by quadrature over q.

    >>> far = kl_to_mixture(torch.tensor(9.0), torch.tensor(1.0), c=9.0, std=1.0)  # one of two separate modes
    >>> round(float(far), 4)
    0.6931
    """
    z, log_weights = normal_grid(0.05, m.dtype, m.device)
    cross_entropy = -(log_weights.exp() * _log_mixture(m + s * z, c, std)).sum()
    entropy = 0.5 * math.log(2.0 * math.pi * math.e) + s.log()
    return cross_entropy - entropy


@dataclass(frozen=True)
class BestGaussian:
    """The Gaussian `N(m, s^2)` nearest to the mixture of modes at `c` and `-c`."""

    c: float
    std: float
    m: float
    s: float
    kl: float

    def target(self, w: Tensor) -> Tensor:
        """The mixture's density."""
        return _log_mixture(w, self.c, self.std).exp()

    def density(self, w: Tensor) -> Tensor:
        """The Gaussian's density."""
        return _log_normal(w, self.m, self.s).exp()


def best_gaussian(c: float, std: float = 0.5) -> BestGaussian:
    """Minimise `KL(q || p)` over Gaussians q, from a start between the modes and one on the right mode.

    >>> round(best_gaussian(0.4).kl, 4)
    0.0031
    """
    found = [_descend(m, s, c, std) for m, s in ((0.1 * c, c + std), (c, std))]
    return min(found, key=lambda fitted: fitted.kl)


def _descend(m: float, s: float, c: float, std: float) -> BestGaussian:
    point = torch.tensor([m, math.log(s)], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [point], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = kl_to_mixture(point[0], point[1].exp(), c, std)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    kl = kl_to_mixture(point[0], point[1].exp(), c, std)
    mean, log_scale = point.detach().tolist()  # -mean is as good
    return BestGaussian(c, std, abs(mean), math.exp(log_scale), float(kl.detach()))


@dataclass(frozen=True)
class FoldedNormal:
    """The distribution of `|w|`, `w ~ N(m, s^2)`; of the symmetric mixture it is that of either mode."""

    m: float
    s: float

    def cdf(self, t: Tensor) -> Tensor:
        """`P(|w| <= t)` for `t >= 0`."""
        upper, lower = ((end - self.m) / self.s for end in (t, -t))
        probability: Tensor = torch.special.ndtr(upper) - torch.special.ndtr(lower)
        return probability

    def quantile(self, levels: Float[Tensor, " q"]) -> Float[Tensor, " q"]:
        """Quantiles by bisection, to rounding.

        >>> half = FoldedNormal(0.0, 1.0).quantile(torch.tensor([0.5], dtype=torch.float64))
        >>> round(half.item(), 6)  # the 75% point of the standard normal
        0.67449
        """
        low, high = torch.zeros_like(levels), torch.full_like(levels, abs(self.m) + 40.0 * self.s)
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = self.cdf(middle) < levels
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return 0.5 * (low + high)


def symm_vi(seed: int = 0) -> Result:
    """The best Gaussian for three distances of the modes, and what it predicts for `|w| x`."""
    numbers, found, quantiles, error = [], {}, {}, {}
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    for c, (kl, m, s) in KNOWN.items():
        best = found[c] = best_gaussian(c, MODE_STD)
        quantiles[c] = [FoldedNormal(*pair).quantile(levels) for pair in ((c, MODE_STD), (best.m, best.s))]
        error[c] = float((quantiles[c][1] - quantiles[c][0]).abs().max())
        numbers += [
            Number(f"KL, c={c}", best.kl, reference=kl),
            Number(f"m, c={c}", best.m, reference=m),
            Number(f"s, c={c}", best.s, reference=s),
            Number(f"largest error of the quantiles of |w|, c={c}", error[c]),
        ]
    statements = [
        Statement(
            "the predictions for c = 1.2 are far worse than those for 0.4 and 1.5",
            error[1.2] > 5 * max(error[0.4], error[1.5]),
        ),
        Statement("q sits on one mode at c = 1.5 and pays about log 2", abs(found[1.5].kl - math.log(2)) < 0.01),
    ]
    with plotting.style():
        figure = new_figure(7.4, 2.1 * len(KNOWN) + 0.4)
        rows = figure.subplots(len(KNOWN), 2, sharex="col")
        for (c, best), (left, right) in zip(found.items(), rows, strict=True):
            _densities(left, best)
            _predictions(right, c, quantiles[c])
        for ax in rows[0]:
            ax.legend(loc="upper left", fontsize=7)
        rows[-1][0].set_xlabel("w")
        rows[-1][1].set_xlabel("x")
    setup = {"posterior": "0.5 N(c, std^2) + 0.5 N(-c, std^2)", "std": MODE_STD}
    return Result(figure, numbers, statements, setup)


# p is wider, so that it is seen behind a q that covers it
_LINES = {"p": ("black", 2.2), "q": ("vermilion", 1.2)}


def _densities(ax: "Axes", best: BestGaussian) -> None:
    w = torch.linspace(-4.0, 4.0, 401, dtype=torch.float64)
    for (name, (colour, width)), curve in zip(_LINES.items(), (best.target(w), best.density(w)), strict=True):
        ax.plot(w, curve, color=plotting.COLOURS[colour], linewidth=width, label=f"{name}(w)")
    label_axes(ax, f"c = {best.c}:  KL(q ‖ p) = {best.kl:.4f}", "", "density")
    ax.set_ylim(bottom=0.0)
    ax.margins(x=0)


def _predictions(ax: "Axes", c: float, quantiles: list[Tensor]) -> None:
    x = torch.linspace(-2.0, 2.0, 3, dtype=torch.float64)  # quantiles of |w| x are straight on each side of zero
    for (name, (colour, width)), (lower, median, upper) in zip(_LINES.items(), quantiles, strict=True):
        ax.plot(x, median * x, color=plotting.COLOURS[colour], linewidth=width, label=f"{name}: median")
        for slope, label in ((lower, f"{name}: 95% interval"), (upper, None)):
            ax.plot(x, slope * x, color=plotting.COLOURS[colour], linewidth=0.7 * width, linestyle="--", label=label)
    label_axes(ax, f"c = {c}:  |w| x", "", "y")
    ax.margins(x=0)
