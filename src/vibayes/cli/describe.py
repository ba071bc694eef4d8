"""`vibayes describe`: what a saved model is and how it was trained."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

__all__ = ["describe"]


def describe(
    model: Annotated[Path, typer.Argument(help="Folder of a model, as fit or compare wrote it.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show what a saved model is: its family, inputs, target, hyperparameters, training and scores.

    Example: vibayes describe comparison/model
    """
    from vibayes.compare import TableModel

    loaded = TableModel.load(model)
    words = loaded.model.describe()
    if json:
        content = {
            "about": loaded.about,
            "target": loaded.target.to_dict(),
            "encoder": loaded.encoder.to_dict(),
            "model": words,
        }
        print(json_module.dumps(content, indent=1, ensure_ascii=False))
        return
    console, about = Console(emoji=False), loaded.about
    predicts = ", ".join(loaded.target.names)
    console.print(
        f"[bold]{escape(str(about.get('title', 'Model')))}[/] that predicts {escape(predicts)}", highlight=False
    )
    facts = {
        "task": loaded.target.task + (f", classes {', '.join(loaded.target.labels)}" if loaded.target.labels else ""),
        "table": f"{about.get('table')}: {about.get('rows_trained')} rows trained, {about.get('rows_held_out')} not",
        "training": f"{about.get('steps')} steps, {about.get('seconds') or 0:.1f} s; {about.get('stopped')}",
        "evidence": f"{about.get('elbo_per_datapoint'):.4g} nats per row" if about.get("elbo_per_datapoint") else "",
        "vibayes": about.get("vibayes"),
    }
    for name, value in facts.items():
        if value:
            console.print(f"  {name:10s}{value}", markup=False, highlight=False, soft_wrap=True)
    for name, value in (about.get("scores") or {}).items():
        shown = "unknown" if value is None else f"{value:.4g}"
        console.print(f"  held-out {name.replace('_', ' ')}: {shown}", markup=False, highlight=False)
    console.print("\n" + words, markup=False, highlight=False, soft_wrap=True)
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("column")
    grid.add_column("how it is used")
    for name, note in loaded.encoder.summary():
        grid.add_row(escape(name), escape(note))
    console.print(grid)
