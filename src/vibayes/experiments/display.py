"""What a sweep shows while it runs: what trains, how fast, and the time left.

Workers leave their progress in small files, whatever process or machine they run on, and one thread reads them.
"""

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vibayes import datasets
from vibayes.errors import VibayesError
from vibayes.experiments.dkl_models import FULL_BATCH, FULL_BATCH_STEPS
from vibayes.experiments.experiment import Unit
from vibayes.experiments.models import n_steps, tried
from vibayes.experiments.sweep import Group

__all__ = ["Display", "ProgressFile", "cost", "duration"]

PLAIN_SECONDS = 10.0
LIVE_SECONDS = 0.5
SILENT_SECONDS = 120.0


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(75), duration(7400)
    ('1:15', '2:03:20')
    """
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def steps_of(unit: Unit) -> int:
    """How many steps a run takes, as far as is known without its data."""
    data = unit.options.get("data", {})
    try:
        info = datasets.info(unit.dataset)
        # images have a fixed split; of tables nine tenths are trained on
        most = info.n_train if info.kind == "image" and info.n_train else round(0.9 * info.n_rows)
        rows = min(data.get("n_train") or most, most)
        steps = n_steps(unit.options["training"], rows)
    except VibayesError:
        return 1
    return min(steps, FULL_BATCH_STEPS) if unit.builder in FULL_BATCH else steps


def cost(unit: Unit) -> float:
    """About how much work a run is, in arbitrary units: steps times the linear algebra of one step.

    A run that chooses among settings takes as many times as long as there are settings.
    """
    M = unit.options.get("model", {}).get("n_inducing") or 100
    batch = unit.options.get("training", {}).get("batch_size") or 1000
    # besides arithmetic, a step has an overhead: about that of 150 x 150 x 150 products
    settings = math.prod(map(len, tried(unit.options.get("training", {})).values()))
    return float(settings * steps_of(unit)) * (M**3 + batch * M**2 + 150.0**3)


class ProgressFile:
    """Called with the step by whoever trains a group; leaves the progress beside the group's checkpoint."""

    def __init__(self, group: Group, also: Callable[[int], None] | None = None) -> None:
        self.path = group.folder.with_name(group.folder.name + ".progress")
        self.steps, self.also = steps_of(group.units[0]), also
        runs, chunk = len(group.units), group.how.get("chunk") or len(group.units)
        sizes = len(tried(group.units[0].options.get("training", {})).get("batch_size", [None]))
        self.rounds = -(-runs // chunk) * sizes  # rates and starts are tried side by side, batch sizes are not
        self.round, self.last = 0, 0
        self.begin = time.time()
        self.first: int | None = None
        self.clear()

    def clear(self) -> None:
        """Forget what an earlier process left."""
        self.path.unlink(missing_ok=True)

    def __call__(self, step: int, steps: int) -> None:
        """Note that training is at a step of so many, which the model's builder may have limited."""
        self.steps = steps
        if step < self.last:
            self.round = min(self.round + 1, self.rounds - 1)
        self.last = step
        done = self.round * self.steps + step
        if self.first is None:
            self.first, self.begin = done, time.time()
        elapsed = time.time() - self.begin
        content = {
            "fraction": min(1.0, done / (self.steps * self.rounds)),
            "first": min(1.0, self.first / (self.steps * self.rounds)),
            "step": step,
            "steps": self.steps,
            "rate": (done - self.first) / elapsed if elapsed > 0 else None,
            "seconds": elapsed,
            "pid": os.getpid(),
        }
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        with contextlib.suppress(OSError):
            aside.write_text(json.dumps(content))
            os.replace(aside, self.path)
        if self.also is not None:
            self.also(step)


@dataclass
class _Shown:
    group: Group
    cost: float
    state: str = "waiting"
    fraction: float = 0.0
    first: float = 0.0
    text: str = ""


class Display:
    """A live table on a terminal, a line now and then elsewhere.

    Args:
        out: the folder of results.
        groups: what is to be trained.
        show: whether to show anything.
        finished_before: how many runs had results.
        wanted: how many runs there are.
    """

    def __init__(
        self, out: Path, groups: Sequence[Group], *, show: bool = True, finished_before: int = 0, wanted: int = 0
    ) -> None:
        self.out, self.show = out, show
        self.finished, self.wanted = finished_before, wanted
        self.groups = {g.folder: _Shown(g, sum(cost(u) for u in g.units)) for g in groups}
        self.begin = time.monotonic()
        self._stop = threading.Event()
        self._live: Any = None
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._note = ""

    def __enter__(self) -> Self:
        if self.show:
            if self.groups:
                runs = sum(len(s.group.units) for s in self.groups.values())
                self._say(f"{self.finished} of {self.wanted} runs are finished; training {runs} in {self.out}")
            if sys.stderr.isatty():
                with contextlib.suppress(ImportError):
                    from rich.console import Console
                    from rich.live import Live

                    self._live = Live(console=Console(stderr=True), refresh_per_second=2, transient=True)
                    self._live.start()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._live is not None:
            self._live.stop()

    def done(self, group: Group, state: str, message: str, runs: int) -> None:
        """A group has ended, and with it so many of the runs that are wanted."""
        shown = self.groups.setdefault(group.folder, _Shown(group, sum(cost(u) for u in group.units)))
        shown.state, shown.fraction = state, 1.0
        self.finished += runs
        if self.show:
            left = self.time_left()
            end = f"FAILED: {message}" if state == "failed" else f"done{'' if left is None else f', {left} left'}"
            self._say(f"[{self.finished}/{self.wanted}] {group.title}: {end}")

    def waiting(self, groups: int) -> None:
        """Nothing is left but what other processes are at."""
        note = f"waiting for {groups} group{'s' if groups > 1 else ''} that other processes are training"
        if self.show and note != self._note:
            self._say(note)
        self._note = note

    def time_left(self) -> str | None:
        """Until the sweep ends, from what was done so far; None when nothing is known yet."""
        done = sum(s.cost * (s.fraction - s.first) for s in self.groups.values())
        total = sum(s.cost * (1.0 - s.fraction) for s in self.groups.values())
        elapsed = time.monotonic() - self.begin
        return None if done <= 0 or elapsed < 1 else duration(elapsed * total / done)

    def lines(self) -> list[str]:
        """What runs now, one line per group, and a line for the sweep."""
        self._look()
        running = [f"  {s.group.title}  {s.text}" for s in self.groups.values() if s.state == "running"]
        left = self.time_left()
        head = f"[{self.finished}/{self.wanted} runs]  {duration(time.monotonic() - self.begin)} so far"
        return [head + (f", {left} left" if left else ""), *running]

    def _look(self) -> None:
        for shown in self.groups.values():
            if shown.state in ("done", "failed"):
                continue
            path = shown.group.folder.with_name(shown.group.folder.name + ".progress")
            try:
                if time.time() - path.stat().st_mtime > SILENT_SECONDS:  # left by a process that was killed
                    continue
                seen = json.loads(path.read_text())
            except (OSError, json.JSONDecodeError):
                continue
            if shown.state == "waiting":
                shown.first = float(seen["first"])
            shown.state, shown.fraction = "running", float(seen["fraction"])
            rate = seen["rate"]
            shown.text = f"step {seen['step']}/{seen['steps']}"
            if rate:
                rest = (1.0 - shown.fraction) / max(shown.fraction - seen["first"], 1e-9)
                shown.text += f"  {rate:.0f} steps/s" if rate >= 10 else f"  {rate:.2g} steps/s"
                shown.text += f"  {duration(rest * seen['seconds'])} left"

    def _loop(self) -> None:
        every = LIVE_SECONDS if self._live is not None else PLAIN_SECONDS
        while not self._stop.wait(every):
            lines = self.lines()
            if self._live is not None:
                from rich.text import Text

                self._live.update(Text("\n".join(lines[:20])))
            else:
                print("\n".join(lines), file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)
