"""Running the functions that draw an experiment's figures, and writing what they found."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from vibayes import datasets, plotting
from vibayes.errors import DataError
from vibayes.experiments.names import pick
from vibayes.experiments.record import Result, double_precision, one_thread, provenance
from vibayes.experiments.results import writable_folder, write_file

__all__ = ["Drawing"]

Report = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Drawing:
    """The figures of one experiment.

    Attributes:
        experiment: its name.
        figures: by a short name, functions of a seed that draw a figure and give its numbers.
        labels: the figures' labels in the thesis, by short name.
        files: the data set that a figure reads from a file, where it does.
    """

    experiment: str
    figures: Mapping[str, Callable[[int], Result]]
    labels: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        out: str | os.PathLike[str],
        *,
        figures: Sequence[str] | None = None,
        seed: int = 0,
        report: Report | None = None,
    ) -> dict[str, Any]:
        """Draw the figures into a folder and write their numbers to `EXPERIMENT.json` there.

        Figures whose data files are missing are skipped; the result file says so.

        Args:
            out: the folder.
            figures: names or labels; all when None.
            seed: of what is drawn at random. Toy data have their own.
            report: called after every figure with its name and its entry of the result file.

        Returns:
            What the result file says, and its path as "file".
        """
        names = self._chosen(figures)
        folder = writable_folder(out)
        entries: dict[str, Any] = {}
        begin = time.monotonic()
        for name in names:
            entry: dict[str, Any] = {"label": self.labels[name], "file": None, "skipped": None}
            start = time.monotonic()
            try:
                if name in self.files:
                    datasets.load(self.files[name])
            except DataError as error:
                entry["skipped"] = str(error)
            else:
                with one_thread(), _conditions(seed):
                    result = self.figures[name](seed)
                entry["file"] = plotting.save(result.figure, folder / f"{name}.png").name
                entry.update(result.to_dict())
            entry["seconds"] = round(time.monotonic() - start, 3)
            entries[name] = entry
            if report is not None:
                report(name, entry)
        with one_thread():
            origin = provenance()
        found = {
            "experiment": self.experiment,
            **origin,
            "seed": seed,
            "seconds": round(time.monotonic() - begin, 3),
            "figures": entries,
        }
        file = folder / f"{self.experiment}.json"
        write_file(file, json.dumps(found, indent=1, allow_nan=False) + "\n")
        return {**found, "file": str(file)}

    def _chosen(self, figures: Sequence[str] | None) -> list[str]:
        by_label = {self.labels[name]: name for name in self.figures}
        short = None if figures is None else [by_label.get(figure, figure) for figure in figures]
        return pick(short, self.figures, "figure")


@contextmanager
def _conditions(seed: int) -> Iterator[None]:
    """float64, and draws that depend on the seed alone."""
    with double_precision(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
