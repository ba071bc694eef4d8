"""What the commands for tables show while they train: a bar for every family on a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape

from vibayes.compare import Family, Result
from vibayes.experiments.display import duration

__all__ = ["LiveDisplay"]

PLAIN_SECONDS = 15.0


class LiveDisplay:
    """Shows on stderr which family trains, how far it is, its bound so far, and the time left.

    Args:
        console: where to.
        quiet: show nothing at all.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self._live = console.is_terminal and not quiet
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._count, self._place = 0, 0
        self._now: Family | None = None
        self._last = 0.0
        self._begin, self._seconds = time.monotonic(), math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def begin(self, families: Sequence[Family], seconds: float) -> None:
        """Prepare a line for every family."""
        self._count, self._seconds, self._begin = len(families), seconds, time.monotonic()
        if not self._live:
            return
        from rich.progress import BarColumn, Progress, TextColumn

        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            console=self.console,
        )
        self._bars.start()
        for family in families:
            self._tasks[family.name] = self._bars.add_task(f"[dim]{escape(family.title)}", total=1.0, text="")

    def family(self, family: Family, seconds: float) -> None:
        """A family begins."""
        self._now, self._place, self._last = family, self._place + 1, time.monotonic()
        if self._bars is not None:
            self._bars.update(self._tasks[family.name], description=escape(family.title))
        elif not self.quiet:
            self._plain(f"{self._place}/{self._count} {family.title}: training, at most {duration(seconds)}")

    def progress(self, fraction: float, bound: float) -> None:
        """How far it is."""
        assert self._now is not None
        if self._bars is not None:
            left = max(0.0, self._seconds - (time.monotonic() - self._begin))
            text = f"evidence {bound:.3f} so far, at most {duration(left)} left in all"
            self._bars.update(self._tasks[self._now.name], completed=fraction, text=text)
        elif not self.quiet and time.monotonic() - self._last > PLAIN_SECONDS:
            self._last = time.monotonic()
            self._plain(f"    {100 * fraction:.0f}%, evidence {bound:.3f} nats per row so far")

    def result(self, result: Result) -> None:
        """A family is done."""
        what = "accuracy" if "accuracy" in result.scores[0] else "rmse"
        text = (
            f"evidence {result.elbo:.3f} ± {result.stderr:.3f}, held-out {what} {result.score(what):.4g}, "
            f"{duration(result.trained.seconds)}"
        )
        if self._bars is not None:
            self._bars.update(self._tasks[result.family], completed=1.0, text=text)
        elif not self.quiet:
            self._plain(f"    {text}")

    def failed(self, family: Family, reason: str) -> None:
        """A family could not be trained."""
        if self._bars is not None:
            self._bars.update(self._tasks[family.name], text=f"[red]failed:[/] {escape(reason)}")
        elif not self.quiet:
            self._plain(f"    failed: {reason}")

    def say(self, text: str) -> None:
        """Something worth knowing."""
        if not self.quiet:
            self._plain(text)

    def _plain(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        sys.stderr.flush()
