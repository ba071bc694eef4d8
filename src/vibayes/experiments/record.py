"""What an experiment writes: figures, numbers beside the published ones, and where they came from."""

import functools
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import vibayes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Number", "Result", "Statement", "machine_name", "one_thread", "provenance"]


@dataclass(frozen=True)
class Number:
    """One number of a figure or table.

    Attributes:
        name: what it is.
        ours: what this run got.
        thesis: what the thesis prints; None where it prints nothing.
        reference: what an independent computation of the same set-up got; None where there is none.
        note: why the two need not agree.
        row: columns that tell the row of a reference table where the number stands.
    """

    name: str
    ours: float
    thesis: float | None = None
    reference: float | None = None
    note: str = ""
    row: dict[str, str] | None = None


@dataclass(frozen=True)
class Statement:
    """What the thesis says of a figure, and whether this run bears it out."""

    text: str
    holds: bool


@dataclass
class Result:
    """One figure with its numbers.

    Attributes:
        figure: the drawing, or None where it is made from the arrays afterwards.
        numbers: its numbers.
        statements: the thesis's statements about it.
        setup: what the figure depends on, such as data, noise and starting values.
        arrays: what the drawing shows, where it is made afterwards (`Drawing.paint`).
    """

    figure: "Figure | None"
    numbers: list[Number]
    statements: list[Statement] = field(default_factory=list)
    setup: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Tensor] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All but the drawing and its arrays, for JSON."""
        return {
            "setup": self.setup,
            "numbers": [
                {key: value for key, value in asdict(number).items() if key != "row" or value is not None}
                for number in self.numbers
            ],
            "statements": [asdict(statement) for statement in self.statements],
        }


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices of a few hundred rows are fastest on one thread, and then other programs hardly slow them down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def provenance() -> dict[str, Any]:
    """Code version, command and hardware of this process."""
    return {
        "version": vibayes.__version__,
        "commit": _commit(),
        "command": _command(),
        "hardware": {
            "machine": platform.machine(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "software": {"python": platform.python_version(), "torch": torch.__version__, "system": platform.system()},
    }


def machine_name(hardware: Mapping[str, Any], device: str | None = None) -> str:
    """For people: what did the work, by the `hardware` of `provenance` and the device, if it is known.

    >>> machine_name({"processor": "AMD EPYC", "cores": 2, "threads": 1, "gpu": "NVIDIA H200"}, "cpu")
    'AMD EPYC, 1 of 2 cores'
    """
    if not hardware:
        return "not known"
    if hardware.get("gpu") and device != "cpu":
        return str(hardware["gpu"])
    return f"{hardware.get('processor')}, {hardware.get('threads')} of {hardware.get('cores')} cores"


@functools.cache  # what a sweep of hours runs is what stood there when it began
def _commit() -> str | None:
    """The commit of the source tree, with "+changes" if it was edited since; None when installed without git."""
    folder = Path(vibayes.__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        # an environment may lie inside some other repository: ask whether that one holds this file
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _command() -> str:
    program = Path(sys.argv[0])
    name = f"python -m {program.parent.name}" if program.name == "__main__.py" else program.name
    if program.name == "__main__.py" and program.parent.parent.name == "vibayes":
        name = f"python -m vibayes.{program.parent.name}"
    return " ".join([name, *(shlex.quote(argument) for argument in sys.argv[1:])])


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
