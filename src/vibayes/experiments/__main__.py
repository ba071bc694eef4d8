"""`python -m vibayes.experiments`: run experiments without the extras of the command line."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from vibayes.errors import VibayesError
from vibayes.experiments import EXPERIMENTS, run

__all__ = ["main"]


def _show(name: str, entry: dict[str, Any]) -> None:
    if entry["skipped"]:
        print(f"{name}: skipped. {entry['skipped']}", flush=True)
        return
    print(f"{name}: {entry['file']} ({entry['seconds']:.1f} s)")
    for number in entry["numbers"]:
        known = "".join(f"  {key} {number[key]:g}" for key in ("thesis", "reference") if number[key] is not None)
        print(f"  {number['name']:<44} {number['ours']:>10.4f}{known}")
    for statement in entry["statements"]:
        print(f"  {'yes' if statement['holds'] else 'NO '} {statement['text']}")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 1 after an error and 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="python -m vibayes.experiments", description="Experiments of the thesis.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the experiments there are")
    runs = commands.add_parser("run", help="run an experiment")
    runs.add_argument("name", choices=sorted(EXPERIMENTS))
    runs.add_argument("--out", default="results-local", help="folder for figures and numbers (%(default)s)")
    runs.add_argument("--figures", nargs="+", help="only these figures, by name or label")
    runs.add_argument("--seed", type=int, default=0, help="of what is drawn at random (%(default)s)")
    given = parser.parse_args(arguments)
    if given.command == "list":
        for name, description in EXPERIMENTS.items():
            print(f"{name}: {description}")
        return 0
    try:
        found = run(given.name, given.out, figures=given.figures, seed=given.seed, report=_show)
    except (VibayesError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(f"Numbers: {found['file']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
