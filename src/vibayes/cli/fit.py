"""`vibayes fit`: train one model on a table and save it."""

import json as json_module
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from vibayes.cli.compare import DEVICE, IGNORE, JSON, QUIET, SEED, TABLE, TARGET, TASK, say_table, words

__all__ = ["fit"]


def fit(
    table: Annotated[Path, TABLE],
    target: Annotated[list[str], TARGET],
    model: Annotated[str, typer.Option("--model", "-m", help="The family; see above.")] = "gp",
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = Path("model"),
    budget: Annotated[float, typer.Option(help="Minutes of training at most.", min=0.01)] = 5.0,
    seeds: Annotated[int, typer.Option(help="Models to train, of which the best by evidence is kept.", min=1)] = 1,
    test: Annotated[float, typer.Option(help="Share of rows to hold out and score; none by default.")] = 0.0,
    task: Annotated[str | None, TASK] = None,
    ignore: Annotated[list[str] | None, IGNORE] = None,
    seed: Annotated[int, SEED] = 0,
    device: Annotated[str | None, DEVICE] = None,
    steps: Annotated[int | None, typer.Option(help="So many steps in place of a time.", min=1)] = None,
    json: Annotated[bool, JSON] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """Train one model on all rows of a table and save it.

    Families: gp, gp-matern, gp-two-scales, bnn-mean-field, bnn-global, deep-gp, deep-wishart, dkl; `vibayes compare`
    finds out which suits a table. Predict new rows with `vibayes predict`.

    Example: vibayes fit houses.csv --target price --model deep-gp --out houses-model
    """
    from vibayes.cli.display import LiveDisplay
    from vibayes.compare import choose, prepare
    from vibayes.compare.output import about_model
    from vibayes.compare.ranking import Result
    from vibayes.compare.scores import bound, scores
    from vibayes.compare.table_model import TableModel
    from vibayes.compare.training import train
    from vibayes.experiments.results import writable_folder
    from vibayes.tables import read_table

    errors = Console(stderr=True, emoji=False)
    folder = writable_folder(out)
    read = read_table(table)
    ignored = words(ignore, read.frame.columns) or ()
    data = prepare(read, target, task=task, ignore=ignored, test=test, seed=seed)
    if not quiet:
        say_table(errors, data)
    problem = data.problem(data.train, budget)
    (family,), _ = choose(problem, [model])
    with LiveDisplay(errors, quiet=quiet) as display:
        display.begin([family], 60.0 * budget)
        display.family(family, 60.0 * budget)
        trained = train(
            family, problem, range(seeds), 60.0 * budget, device=device, steps=steps, watch=display.progress
        )
    bounds = [bound(m, problem.x, problem.y) for m in trained.models]
    held = data.part(data.test)
    found = [scores(m, *held) if len(data.test) else {} for m in trained.models]
    result = Result(family.name, trained, bounds, found)
    about: dict[str, Any] = about_model(data, result)
    TableModel(trained.models[result.best], data.encoder, data.target, about).save(folder)
    if json:
        print(json_module.dumps(about, indent=1, ensure_ascii=False))
    else:
        console = Console(emoji=False)
        console.print(f"{family.title}: evidence {about['elbo_per_datapoint']:.3f} nats per row.", highlight=False)
        for name, value in about["scores"].items():
            shown = "unknown" if value is None else f"{value:.4g}"
            console.print(f"  held-out {name.replace('_', ' ')}: {shown}", highlight=False)
        command = shlex.join(["vibayes", "predict", str(folder), "NEW.csv"])
        console.print(f"Model: {folder}\nPredict: {command}", markup=False, highlight=False, soft_wrap=True)
    if trained.interrupted:
        errors.print("interrupted: the model is saved as far as it came", style="bold red", highlight=False)
        raise typer.Exit(130)
