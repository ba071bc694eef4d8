"""`vibayes compare`: from a table to a ranking of models."""

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

__all__ = ["TABLE", "compare", "say_table", "show_comparison", "words"]

MAX_SEED = 2**32 - 1  # numpy's

TABLE = typer.Argument(help="A CSV or Parquet file with names of columns in its first line.", show_default=False)
TARGET = typer.Option("--target", "-t", help="The column to predict; again for several columns of numbers.")
TASK = typer.Option(help="regression or classification, where the target's values do not tell.")
IGNORE = typer.Option(help="Columns not to use, with commas between them.")
DEVICE = typer.Option(help="cpu, cuda, cuda:1; the CPU when left out.")
JSON = typer.Option("--json", help="Print all numbers as JSON on stdout, and nothing else there.")
SEED = typer.Option(help="Which rows are held out.", min=0, max=MAX_SEED)
QUIET = typer.Option("--quiet", "-q", help="Show no progress.")


def compare(
    table: Annotated[Path, TABLE],
    target: Annotated[list[str], TARGET],
    budget: Annotated[float, typer.Option(help="Minutes for everything.", min=0.01)] = 5.0,
    seeds: Annotated[int, typer.Option(help="Models per family, trained together.", min=1)] = 3,
    models: Annotated[str | None, typer.Option(help="Only these families, such as gp,deep-gp.")] = None,
    task: Annotated[str | None, TASK] = None,
    ignore: Annotated[list[str] | None, IGNORE] = None,
    test: Annotated[float | None, typer.Option(help="Share of rows to hold out; a tenth when left out.")] = None,
    seed: Annotated[int, SEED] = 0,
    device: Annotated[str | None, DEVICE] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="So many steps for every model in place of a time: the same on every machine.", min=1),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report, the model and the predictions.")] = Path(
        "comparison"
    ),
    json: Annotated[bool, JSON] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """Train the models that suit a table, rank them by evidence, and write a report.

    Holds out some rows, trains Gaussian processes, Bayesian neural networks, deep Gaussian and deep Wishart processes
    and deep kernel learning on the others, and writes a folder with report.html, the best model, predictions.csv for
    every row, and results.json. Control-C ends it with the results so far (exit code 130).

    Example: vibayes compare houses.csv --target price
    """
    code = run_compare(
        table, target, budget=budget, seeds=seeds, models=words(models), task=task, ignore=ignore, test=test,
        seed=seed, device=device, steps=steps, out=out, json=json, quiet=quiet,
    )  # fmt: skip
    if code:
        raise typer.Exit(code)


def run_compare(
    path: Path,
    target: list[str],
    *,
    budget: float,
    seeds: int,
    models: list[str] | None,
    task: str | None,
    ignore: list[str] | None,
    test: float | None,
    seed: int,
    device: str | None,
    steps: int | None,
    out: Path,
    json: bool,
    quiet: bool,
) -> int:
    """Do it; the exit code."""
    from vibayes.cli.display import LiveDisplay
    from vibayes.compare import compare as run
    from vibayes.compare import prepare, write
    from vibayes.experiments.results import writable_folder
    from vibayes.tables import read_table

    errors = Console(stderr=True, emoji=False)
    folder = writable_folder(out)
    read = read_table(path)
    ignored = words(ignore, read.frame.columns) or []
    data = prepare(read, target, task=task, ignore=ignored, test=test, seed=seed)
    if not quiet:
        say_table(errors, data)
    with LiveDisplay(errors, quiet=quiet) as display:
        found = run(data, minutes=budget, seeds=seeds, device=device, families=models, steps=steps, display=display)
    files = write(found, folder)
    if json:
        print(files["results"].read_text(encoding="utf-8"), end="")
    else:
        again = ["vibayes", "fit", str(path), *(part for name in target for part in ("--target", name))]
        again += ["--task", task] if task else []
        again += [part for name in ignored for part in ("--ignore", name)]
        show_comparison(Console(emoji=False), found, files, [*again, "--model", found.winner.family])
    if found.interrupted and not quiet:
        errors.print("interrupted: these are the results so far", style="bold red", highlight=False)
    return 130 if found.interrupted else 0


def words(given: str | list[str] | None, whole: Collection[str] = ()) -> list[str] | None:
    """Names with commas between them, from one option or several; an option that is one of `whole` is one name."""
    if given is None:
        return None
    parts = [given] if isinstance(given, str) else given
    return [word.strip() for part in parts for word in ([part] if part in whole else part.split(",")) if word.strip()]


def say_table(console: Console, data: Any) -> None:
    """What was read and how."""
    from vibayes.tables.cells import count

    used, columns = data.encoder.used, data.encoder.columns
    kinds: dict[str, int] = {}
    for column in used:
        kinds[column.kind] = kinds.get(column.kind, 0) + 1
    plural = {"number": "numbers", "category": "categories", "date": "dates"}
    told = ", ".join(count(n, kind, plural[kind]) for kind, n in kinds.items())
    said = [
        f"{data.table.path.name}: {count(len(data.table), 'row')}; to predict {', '.join(data.target.names)} "
        f"({data.target.task}) from {count(len(used), 'column')} ({told}), "
        f"{count(len(data.encoder.features), 'input')} for models; {count(len(data.train), 'row')} train, "
        f"{count(len(data.test), 'row')} held out.",
        *data.notes,
        *(f"Column {c.name!r} {c.note}." for c in columns if c.kind == "dropped" or c.form),
    ]
    for text in said:
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def show_comparison(console: Console, found: Any, files: dict[str, Path], again: list[str]) -> None:
    """The ranking, the verdict, and where everything is; `again` is the command that trains on all rows."""
    from vibayes.compare.scores import nats
    from vibayes.experiments.display import duration

    regression = found.data.target.kind == "regression"
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    grid.add_column("model", no_wrap=True)
    heads = ["evidence", "below best", "test LL", *(["RMSE", "in 95%"] if regression else ["accuracy", "ECE"])]
    for head in [*heads, "time"]:
        grid.add_column(head, justify="right", no_wrap=True)
    rows = [*found.ranking, *((r, None) for r in found.results if not r.about.ranked)]
    for r, gap in rows:
        scores = (
            [f"{r.score('rmse'):.4g}", f"{100 * r.score('coverage_95'):.0f}%"]
            if regression
            else [f"{100 * r.score('accuracy'):.1f}%", f"{r.score('ece'):.3f}"]
        )
        behind = "not ranked" if not r.about.ranked else "" if gap is None else f"{nats(gap.mean)}±{nats(gap.stderr)}"
        grid.add_row(
            r.family, nats(r.elbo), behind, nats(r.score("log_likelihood_standardized")), *scores,
            duration(r.trained.seconds), style="bold" if r is found.winner else None,
        )  # fmt: skip
    wide = Measurement.get(console, console.options.update(max_width=1_000), grid).maximum
    console.width = max(console.width, wide)  # a narrow terminal breaks lines, but no number is cut
    console.print(grid)
    console.print(found.verdict(), markup=False, highlight=False, soft_wrap=True)
    told = Text(
        f"\nPredict new rows:  {shlex.join(['vibayes', 'predict', str(files['model']), 'NEW.csv'])}\n"
        f"Use all rows:      {shlex.join(again)}\n"
        f"Predictions:       {files['predictions']}\n"
        "Report to open:    "
    )
    console.print(told.append(str(files["report"]), style="bold"), soft_wrap=True)
