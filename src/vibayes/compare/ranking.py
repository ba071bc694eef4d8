"""The ranking of families by their evidence, and how sure it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vibayes.compare.families import FAMILIES, Family
from vibayes.compare.scores import Bounds
from vibayes.compare.training import Trained
from vibayes.errors import ConfigurationError

__all__ = ["STRONG", "Difference", "Result", "paired", "rank"]

# A difference of log evidences below this many nats is no strong evidence, however precisely it is known.
STRONG = 3.0
# A bound that gains more than this, in nats per row, over the last quarter of its training is not at its end.
RISING = 0.02


@dataclass
class Result:
    """What became of one family.

    Attributes:
        family: its name.
        trained: its models.
        bounds: the evidence bound of each model, in the order of `trained.models`.
        scores: held-out scores of each model.
    """

    family: str
    trained: Trained
    bounds: list[Bounds]
    scores: list[dict[str, float]]

    @property
    def about(self) -> Family:
        """The family's entry in the registry."""
        return FAMILIES[self.family]

    @property
    def elbo(self) -> float:
        """The mean over seeds, in nats per row."""
        return float(np.mean([b.value for b in self.bounds]))

    @property
    def stderr(self) -> float:
        """Standard error of `elbo`: over seeds, or Monte Carlo where there is one model."""
        values = [b.value for b in self.bounds]
        monte_carlo = math.sqrt(sum(b.stderr**2 for b in self.bounds)) / len(values)
        over_seeds = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return max(monte_carlo, over_seeds)

    @property
    def best(self) -> int:
        """Which model has the highest bound."""
        return int(np.argmax([b.value for b in self.bounds]))

    @property
    def rising(self) -> bool:
        """Whether the bound of some seed still rose when its time was over, by over 0.02 nats per row in a quarter."""
        if self.trained.starts or self.trained.out_of_reach:
            return False
        ends = [history.per_datapoint for history in self.trained.histories]
        return any(len(bounds) < 4 or bounds[-1] - bounds[3 * len(bounds) // 4 - 1] > RISING for bounds in ends)

    def score(self, name: str) -> float:
        """The mean of a score over seeds."""
        return float(np.mean([s[name] for s in self.scores]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        histories = self.trained.histories
        return {
            "family": self.family,
            "title": self.about.title,
            "ranked": self.about.ranked,
            "why_not_ranked": self.about.why_not,
            "elbo_per_datapoint": self.elbo,
            "elbo_stderr": self.stderr,
            "scores": {name: self.score(name) for name in self.scores[0]},
            "seconds": self.trained.seconds,
            "interrupted": self.trained.interrupted,
            "out_of_reach": self.trained.out_of_reach,
            "starts": self.trained.starts,
            "seeds": [
                {
                    "seed": seed,
                    "elbo_per_datapoint": b.value,
                    "elbo_monte_carlo_stderr": b.stderr,
                    "scores": s,
                    "steps": h.step[-1],
                    "stopped": h.stopped,
                    "events": h.events,
                }
                for seed, b, s, h in zip(self.trained.seeds, self.bounds, self.scores, histories, strict=True)
            ],
        }


@dataclass(frozen=True)
class Difference:
    """How far one family's bound lies below another's, seed by seed, in nats per row.

    Attributes:
        mean: the mean difference; positive when the first is better.
        stderr: its standard error.
        n_data: for how many rows.
    """

    mean: float
    stderr: float
    n_data: int

    @property
    def clear(self) -> bool:
        """Whether it is more than two standard errors, and strong: over 3 nats in all (Kass and Raftery 1995)."""
        return abs(self.mean) > 2.0 * self.stderr and abs(self.mean) * self.n_data > STRONG


def paired(first: Result, second: Result) -> Difference:
    """The difference of two families' bounds, paired over the seeds they share.

    A family with closed-form evidence has one value for all seeds. Monte Carlo errors are part of the standard error.
    """
    a = dict(zip(first.trained.seeds, first.bounds, strict=True))
    b = dict(zip(second.trained.seeds, second.bounds, strict=True))
    if len(a) > 1 and len(b) > 1 and set(a) & set(b):
        pairs = [(a[seed], b[seed]) for seed in a if seed in b]
    else:
        wide, narrow = (first.bounds, second.bounds) if len(a) >= len(b) else (second.bounds, first.bounds)
        pairs = [(one, narrow[0]) if wide is first.bounds else (narrow[0], one) for one in wide]
    values = np.array([one.value - other.value for one, other in pairs])
    n = len(values)
    monte_carlo = math.sqrt(sum(one.stderr**2 + other.stderr**2 for one, other in pairs)) / n
    over_seeds = float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    return Difference(float(values.mean()), max(monte_carlo, over_seeds), first.trained.histories[0].n_data)


def rank(results: Sequence[Result]) -> list[tuple[Result, Difference | None]]:
    """Ranked families, best first, each with how far it lies below the best (None for the best itself)."""
    ranked = sorted((r for r in results if r.about.ranked), key=lambda r: r.elbo, reverse=True)
    if not ranked:
        raise ConfigurationError(
            "Only families without a comparable evidence were trained; add one that has, such as gp."
        )
    return [(result, None if result is ranked[0] else paired(ranked[0], result)) for result in ranked]
