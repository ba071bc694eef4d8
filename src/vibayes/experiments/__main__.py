"""`python -m vibayes.experiments`: the benchmark system without the extras of the command line."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vibayes.errors import VibayesError
from vibayes.experiments import commands
from vibayes.experiments.catalogue import EXPERIMENTS
from vibayes.experiments.executors import EXECUTORS
from vibayes.experiments.experiment import Experiment
from vibayes.experiments.figures import run_figures
from vibayes.experiments.runner import Settings
from vibayes.experiments.sweep import Selection
from vibayes.experiments.tables import FORMATS

__all__ = ["main"]


def _show(name: str, entry: dict[str, Any]) -> None:
    if entry["skipped"]:
        print(f"{name}: skipped. {entry['skipped']}", flush=True)
        return
    print(f"{name}: {entry['file'] or 'not drawn, matplotlib is missing'} ({entry['seconds']:.1f} s)")
    for number in entry["numbers"]:
        known = "".join(f"  {key} {number[key]:g}" for key in ("thesis", "reference") if number[key] is not None)
        print(f"  {number['name']:<44} {number['ours']:>10.4f}{known}")
    for statement in entry["statements"]:
        print(f"  {'yes' if statement['holds'] else 'NO '} {statement['text']}")
    sys.stdout.flush()


def _draw_figures(experiment: Experiment, out: Path, figures: Sequence[str] | None, seed: int) -> None:
    found = run_figures(experiment, out, figures=figures, seed=seed, report=_show)
    print(f"Numbers: {found['file']}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m vibayes.experiments", description="Experiments of the thesis.")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="the experiments there are")
    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument("name", help="the experiment")
    chosen.add_argument("--datasets", nargs="+", help="only these data sets")
    chosen.add_argument("--models", nargs="+", help="only these models")
    chosen.add_argument("--depths", help="only these depths, such as 2-5")
    chosen.add_argument("--priors", nargs="+", help="only these priors")
    chosen.add_argument("--splits", help="only these splits, such as 0-4,7")
    chosen.add_argument("--steps", type=int, help="training steps, instead of the experiment's")
    chosen.add_argument("--dtype", help="float32 or float64")
    chosen.add_argument("--set", dest="changes", action="append", metavar="KEY=VALUE", help="another option: lr=0.01")
    chosen.add_argument("--preset", help="a named start or schedule; `show` lists them")
    actions.add_parser("show", parents=[chosen], help="all that an experiment is, or what chosen runs of it are")
    chosen.add_argument("--out", type=Path, default=commands.DEFAULT_OUT, help="folder of results (%(default)s)")
    run = actions.add_parser("run", parents=[chosen], help="run an experiment")
    run.add_argument("--device", help="cpu, cuda, cuda:1; a GPU where there is one by default")
    run.add_argument("--executor", default="process", help=f"where groups train: {', '.join(EXECUTORS)}")
    run.add_argument("--workers", type=int, help="how many groups train at once")
    run.add_argument("--address", help="of a Ray cluster; without it one is started here")
    run.add_argument("--group", type=int, help="how many runs train together at most")
    run.add_argument("--chunk", type=int, help="how many models of a group share one step")
    run.add_argument("--compile", action="store_true", help="shorter steps, after a minute or two of compiling")
    run.add_argument("--checkpoint-seconds", type=float, default=15.0, help="how often a group's state is kept")
    run.add_argument("--no-wait", dest="wait", action="store_false", help="do not wait for runs of other processes")
    run.add_argument("--quiet", action="store_true", help="show no progress")
    run.add_argument("--figures", nargs="+", help="only these figures, of experiments that draw")
    run.add_argument("--seed", type=int, help="of what is drawn at random in figures (0); sweeps take --set seed=1")
    draw = actions.add_parser("draw", help="draw figures from the arrays of an earlier run, without computing again")
    draw.add_argument("name", help="the experiment")
    draw.add_argument("--out", type=Path, default=commands.DEFAULT_OUT, help="folder of results (%(default)s)")
    table = actions.add_parser("table", parents=[chosen], help="ours beside the thesis's")
    table.add_argument("--format", dest="form", default="md", help=", ".join(FORMATS))
    table.add_argument("--all", dest="everything", action="store_true", help="rows without a result of ours, too")
    report = actions.add_parser("report", help="one HTML page with everything")
    report.add_argument("names", nargs="*", help="experiments; all that have results by default")
    report.add_argument("--results", type=Path, default=commands.DEFAULT_OUT, help="folder of results (%(default)s)")
    report.add_argument("--out", type=Path, default=Path("report.html"), help="the page (%(default)s)")
    return parser


_SELECTION = ("datasets", "models", "depths", "priors", "splits", "steps", "dtype", "changes", "preset")
_SETTINGS = ("out", "device", "group", "chunk", "compile", "checkpoint_seconds", "wait")


def _act(given: argparse.Namespace) -> int:
    if given.action == "list":
        for name, experiment in EXPERIMENTS.items():
            print(f"{name}: {experiment.title} [{commands.status(experiment)}]")
    elif given.action == "draw":
        for picture in commands.draw(given.name, out=given.out):
            print(picture)
    elif given.action == "report":
        print(commands.report(given.names, out=given.results, file=given.out))
    else:
        options = vars(given)
        chosen: Selection = commands.select(**{key: options.pop(key) for key in _SELECTION})
        name = options.pop("name")
        action = options.pop("action")
        if action == "show":
            print(commands.describe(name, chosen))
            return 0
        if action == "run":
            settings = Settings(**{key: options.pop(key) for key in _SETTINGS}, show=not options.pop("quiet"))
            return commands.run_experiment(name, chosen, settings, draw_figures=_draw_figures, **options)
        print(commands.table(name, chosen, need_folder=True, **options), end="")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 1 after an error and 130 when interrupted."""
    given = _parser().parse_args(arguments)
    try:
        return _act(given)
    except (VibayesError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; finished runs are kept, and the rest goes on from here next time", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
