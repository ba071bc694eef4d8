"""What happened during training, step by step."""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["History"]


@dataclass
class History:
    """The course of one training run; lists have one entry per logged step.

    Attributes:
        step: the step, counted from 1.
        elbo: the bound in total nats, never tempered (for `ExactGP` the log marginal likelihood).
        log_likelihood: its data term.
        kl: its divergence term.
        noise: the likelihood's noise variance (mean over outputs), NaN where it has none.
        lr: the learning rate.
        seconds: seconds of training so far, earlier parts of a resumed run included.
        n_data: how many rows the bound is for.
        stopped: why training ended.
        events: roll-backs and other things worth knowing.
    """

    n_data: int = 0
    step: list[int] = field(default_factory=list)
    elbo: list[float] = field(default_factory=list)
    log_likelihood: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    stopped: str = ""
    events: list[str] = field(default_factory=list)

    def log(self, *, step: int, log_likelihood: float, kl: float, noise: float, lr: float, seconds: float) -> None:
        """Append one logged step."""
        self.step.append(step)
        self.elbo.append(log_likelihood - kl)
        self.log_likelihood.append(log_likelihood)
        self.kl.append(kl)
        self.noise.append(noise)
        self.lr.append(lr)
        self.seconds.append(seconds)

    def forget_after(self, step: int) -> None:
        """Drop entries of steps that were rolled back."""
        keep = sum(s <= step for s in self.step)
        for name in ("step", "elbo", "log_likelihood", "kl", "noise", "lr", "seconds"):
            del getattr(self, name)[keep:]

    @property
    def per_datapoint(self) -> list[float]:
        """The bound in nats per data row."""
        return [value / max(self.n_data, 1) for value in self.elbo]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and strings, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "History":
        """The inverse of `to_dict`."""
        return cls(**values)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the learning curve (needs matplotlib)."""
        from vibayes.plotting import learning_curve

        return learning_curve(self, ax=ax)

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        if not self.step:
            return "History(empty)"
        return (
            f"History({self.step[-1]} steps, elbo {self.elbo[0]:.4g} -> {self.elbo[-1]:.4g}, "
            f"{self.seconds[-1]:.1f} s, {self.stopped or 'unfinished'})"
        )
