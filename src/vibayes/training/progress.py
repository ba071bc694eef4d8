"""A progress line for long work: a rich bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any, Self

__all__ = ["Progress"]


class Progress:
    """Shows how far a run is, how fast, and how long it will take.

    Args:
        total: how many steps there will be at most; None when unknown.
        show: whether to show anything.
        label: what runs.
    """

    def __init__(self, total: int | None, *, show: bool = True, label: str = "fit") -> None:
        self.total, self.show, self.label = total, show, label
        self._bar: Any = None
        self._task: Any = None
        self._last = self._begin = time.monotonic()

    def __enter__(self) -> Self:
        if self.show and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
                from rich.progress import Progress as Bar
            except ImportError:
                return self
            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, text="")
        return self

    def update(self, step: int, text: str) -> None:
        """Say where the run is."""
        if not self.show:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=step, text=text)
        elif time.monotonic() - self._last > 10:
            self._last = time.monotonic()
            of = f"/{self.total}" if self.total else ""
            rate = f"{self._last - self._begin:.0f} s"
            print(f"{self.label}: step {step}{of}  {text}  {rate}", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
