"""What happened during training, step by step."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Callback", "History", "Logged"]


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

    >>> import torch, vibayes as vb
    >>> x = torch.linspace(-3, 3, 30)[:, None]
    >>> layer = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(10))
    >>> history = vb.fit(vb.Model(layer, vb.Gaussian(0.1)), (x, torch.sin(x[:, 0])), steps=150, progress=False)
    >>> history.step, history.elbo[-1] > history.elbo[0], history.stopped
    ([50, 100, 150], True, 'ran the 150 steps asked for')
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

    @property
    def per_datapoint(self) -> list[float]:
        """The bound in nats per data row."""
        return [value / max(self.n_data, 1) for value in self.elbo]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and strings, for JSON; the lists are copies."""
        return _with_own_lists(vars(self))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "History":
        """The inverse of `to_dict`."""
        return cls(**_with_own_lists(values))

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the learning curve (needs matplotlib)."""
        from vibayes.plotting import learning_curve

        return learning_curve(self, ax=ax)

    def last(self, replica: int = 0) -> "Logged":
        """The newest entry, as a callback gets it."""
        return Logged(
            step=self.step[-1],
            elbo=self.elbo[-1],
            per_datapoint=self.elbo[-1] / max(self.n_data, 1),
            log_likelihood=self.log_likelihood[-1],
            kl=self.kl[-1],
            noise=self.noise[-1],
            lr=self.lr[-1],
            seconds=self.seconds[-1],
            replica=replica,
        )

    def __len__(self) -> int:
        return len(self.step)

    def __repr__(self) -> str:
        if not self.step:
            return f"History(empty, {self.stopped})" if self.stopped else "History(empty)"
        course = f"{self.elbo[0]:.4g} -> {self.elbo[-1]:.4g}" if len(self.elbo) > 1 else f"{self.elbo[0]:.4g}"
        return (
            f"History({self.step[-1]} steps, elbo {course}, {self.seconds[-1]:.1f} s, {self.stopped or 'unfinished'})"
        )


def _with_own_lists(values: dict[str, Any]) -> dict[str, Any]:
    """A copy in one go: number by number, as in `asdict`, a long history would take longer than the steps it is of."""
    return {name: list(value) if isinstance(value, list) else value for name, value in values.items()}


@dataclass(frozen=True)
class Logged:
    """One entry of a `History`, as `fit(callback=...)` hands it on; see there for what the numbers are.

    Attributes:
        replica: which of the models of `fit_many` it is about; 0 for `fit`.

    >>> history = History(n_data=10)
    >>> history.log(step=50, log_likelihood=-5.0, kl=1.0, noise=0.1, lr=0.01, seconds=2.0)
    >>> history.last().numbers()["per_datapoint"]
    -0.6
    """

    step: int
    elbo: float
    per_datapoint: float
    log_likelihood: float
    kl: float
    noise: float
    lr: float
    seconds: float
    replica: int = 0

    def numbers(self) -> dict[str, float]:
        """The numbers by name, without step and replica: what a logger writes down."""
        return {name: value for name, value in asdict(self).items() if name not in ("step", "replica")}


# Called with every logged entry; an answer that is true ends the training (of that replica).
Callback = Callable[[Logged], object]
