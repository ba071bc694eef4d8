"""`vibayes bench`: run the experiments, and set their numbers beside the thesis's."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vibayes.experiments import commands
from vibayes.experiments.runner import Settings

__all__ = ["bench"]

bench = typer.Typer(
    help="Reproduce figures and tables of the thesis behind this package.", no_args_is_help=True, add_completion=False
)

Name = Annotated[str, typer.Argument(help="The experiment; `vibayes bench list` shows them.")]
Out = Annotated[Path, typer.Option(help="Folder of results.")]
Datasets = Annotated[list[str] | None, typer.Option(help="Only these data sets, with commas between them.")]
Models = Annotated[list[str] | None, typer.Option(help="Only these models, with commas between them.")]
Depths = Annotated[str | None, typer.Option(help="Only these depths, such as 2-5.")]
Priors = Annotated[list[str] | None, typer.Option(help="Only these priors, with commas between them.")]
Splits = Annotated[str | None, typer.Option(help="Only these splits, such as 0-4,7.")]
Steps = Annotated[int | None, typer.Option(help="Training steps, instead of the experiment's.")]
Dtype = Annotated[str | None, typer.Option(help="float32 or float64.")]
Preset = Annotated[str | None, typer.Option(help="A named start or schedule; `vibayes bench show` lists them.")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Another option, KEY=VALUE, such as lr=0.01.")]


def _console() -> Console:
    return Console(emoji=False)  # or else the label fig:back:... would become a picture


@bench.command("list")
def list_() -> None:
    """Show the experiments there are."""
    from vibayes.cli.bench_output import show_experiments

    show_experiments(_console())


@bench.command()
def show(
    name: Name,
    datasets: Datasets = None,
    models: Models = None,
    depths: Depths = None,
    priors: Priors = None,
    preset: Preset = None,
    changes: Changes = None,
) -> None:
    """Show all that an experiment is: data sets, models, options, tables.

    Of chosen runs also the folders of their results.
    """
    chosen = commands.select(
        datasets=datasets, models=models, depths=depths, priors=priors, changes=changes, preset=preset
    )
    print(commands.describe(name, chosen))


@bench.command()
def run(
    name: Name,
    out: Out = commands.DEFAULT_OUT,
    datasets: Datasets = None,
    models: Models = None,
    depths: Depths = None,
    priors: Priors = None,
    splits: Splits = None,
    steps: Steps = None,
    dtype: Dtype = None,
    preset: Preset = None,
    changes: Changes = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; a GPU where there is one.")] = None,
    executor: Annotated[str, typer.Option(help="Where groups train: process (this one), processes, ray.")] = "process",
    workers: Annotated[int | None, typer.Option(help="How many groups train at once.")] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; without it one is started here.")] = None,
    group: Annotated[int | None, typer.Option(help="How many runs train together at most.")] = None,
    chunk: Annotated[int | None, typer.Option(help="How many models of a group share one step.")] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Shorter steps, after a minute of compiling.")] = False,
    checkpoint_seconds: Annotated[float, typer.Option(help="How often a group's state is kept.")] = 15.0,
    wait: Annotated[bool, typer.Option(help="Wait for runs that other processes are at.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    figures: Annotated[
        list[str] | None, typer.Option(help="Only these figures, of experiments that draw, with commas between them.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of what is drawn at random in figures (0); sweeps take --set seed=1.")
    ] = None,
) -> None:
    """Run an experiment: train whatever has no result yet, or draw its figures.

    Killed at any moment and started again, it goes on where it was; several processes can share one folder. Data files
    are looked for in the folder $VIBAYES_DATA; figures without their data are skipped.
    """
    chosen = commands.select(
        datasets=datasets, models=models, depths=depths, priors=priors, splits=splits, steps=steps, dtype=dtype,
        changes=changes, preset=preset,
    )  # fmt: skip
    from vibayes.cli.bench_output import draw_figures

    settings = Settings(out, device, group, chunk, compile, checkpoint_seconds, wait=wait, show=not quiet)
    code = commands.run_experiment(
        name, chosen, settings, executor=executor, workers=workers, address=address, figures=figures, seed=seed,
        draw_figures=partial(draw_figures, _console()),
    )  # fmt: skip
    if code:
        raise typer.Exit(code)


@bench.command()
def draw(name: Name, out: Out = commands.DEFAULT_OUT) -> None:
    """Draw figures from the arrays of an earlier run, without computing again."""
    for picture in commands.draw(name, out=out):
        print(picture)


@bench.command()
def table(
    name: Name,
    out: Out = commands.DEFAULT_OUT,
    form: Annotated[str, typer.Option("--format", help="md, csv or json.")] = "md",
    everything: Annotated[bool, typer.Option("--all", help="Rows without a result of ours, too.")] = False,
    datasets: Datasets = None,
    models: Models = None,
    depths: Depths = None,
    priors: Priors = None,
    splits: Splits = None,
    steps: Steps = None,
    dtype: Dtype = None,
    preset: Preset = None,
    changes: Changes = None,
) -> None:
    """Set the numbers of an experiment beside the thesis's, with standard errors and a verdict."""
    chosen = commands.select(
        datasets=datasets, models=models, depths=depths, priors=priors, splits=splits, steps=steps, dtype=dtype,
        changes=changes, preset=preset,
    )  # fmt: skip
    print(commands.table(name, chosen, out=out, form=form, everything=everything, need_folder=True), end="")


@bench.command()
def report(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; all that have results by default.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of results.")] = commands.DEFAULT_OUT,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page with all tables, curves, plots and timings."""
    print(commands.report(names, out=results, file=out))
