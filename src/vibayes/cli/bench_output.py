"""What `vibayes bench` prints: the experiments there are, and the numbers of figures as they come."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vibayes.experiments.catalogue import EXPERIMENTS
from vibayes.experiments.commands import status
from vibayes.experiments.experiment import Experiment
from vibayes.experiments.figures import run_figures

__all__ = ["draw_figures", "show_experiments"]


def show_experiments(console: Console) -> None:
    """Print the experiments by name."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("what it does")
    table.add_column("state")
    for name, experiment in EXPERIMENTS.items():
        colour = "dim" if experiment.needs else "green"
        table.add_row(name, escape(experiment.title), f"[{colour}]{escape(status(experiment))}[/]")
    console.print(table)
    console.print("More of one: vibayes bench show NAME. Run it: vibayes bench run NAME", highlight=False)


def draw_figures(console: Console, experiment: Experiment, out: Path, figures: Sequence[str] | None, seed: int) -> None:
    """Run an experiment that draws figures and print every figure's numbers as they come."""
    shown: dict[str, dict[str, Any]] = {}  # the result file may hold figures of earlier runs too

    def report(figure: str, entry: dict[str, Any]) -> None:
        shown[figure] = entry
        _show(console, figure, entry, out / experiment.name)

    with console.status(f"running {escape(experiment.name)}"):
        found = run_figures(experiment, out, figures=figures, seed=seed, report=report)
    made = [figure for figure, entry in shown.items() if not entry["skipped"]]
    skipped = [figure for figure in shown if figure not in made]
    console.print(f"{len(made)} of {len(shown)} figures in {found['seconds']:.1f} s.", highlight=False)
    if skipped:
        console.print(f"[yellow]Skipped: {', '.join(skipped)}.[/]")
    console.print(f"Numbers: {escape(found['file'])}", soft_wrap=True, highlight=False)


def _show(console: Console, figure: str, entry: dict[str, Any], out: Path) -> None:
    console.print(f"[bold]{figure}[/]  {entry['label']}", highlight=False)
    if entry["skipped"]:
        console.print(f"  [yellow]skipped:[/] {escape(entry['skipped'])}\n", soft_wrap=True, highlight=False)
        return
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    columns = [key for key in ("thesis", "reference") if any(n[key] is not None for n in entry["numbers"])]
    table.add_column("  number", header_style="dim", style="default")
    for column in ("ours", *columns):
        table.add_column(column, justify="right", header_style="dim", no_wrap=True)
    for number in entry["numbers"]:
        mark = " *" if number["note"] else ""
        known = ["" if number[column] is None else f"{number[column]:g}" for column in columns]
        table.add_row(f"  {number['name']}{mark}", f"{number['ours']:.4f}", *known)
    console.print(table)
    for note in dict.fromkeys(number["note"] for number in entry["numbers"] if number["note"]):
        console.print(f"  * {note}", style="dim", highlight=False)
    for statement in entry["statements"]:
        mark = "[green]✓[/]" if statement["holds"] else "[red]does not hold:[/]"
        console.print(f"  {mark} {escape(statement['text'])}", highlight=False)
    picture = str(out / entry["file"]) if entry["file"] else "not drawn: matplotlib is missing (vibayes bench draw)"
    console.print(f"  {escape(picture)}\n", soft_wrap=True, highlight=False)
