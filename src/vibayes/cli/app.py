"""The commands and how they fail: in one readable line."""

from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from vibayes.cli.bench import bench
from vibayes.cli.compare import compare
from vibayes.cli.describe import describe
from vibayes.cli.fit import fit
from vibayes.cli.predict import predict
from vibayes.errors import VibayesError

__all__ = ["app"]


class _Commands(TyperGroup):
    """Errors of the package and of the file system become one line and exit code 1, an interrupt 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _say("interrupted", "what was written before is complete")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader of our output has had enough
            raise
        except (VibayesError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            _say("error", str(error))
            raise typer.Exit(1) from None


def _console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, emoji=False)  # or else the label fig:back:... would become a picture


def _say(what: str, message: str) -> None:
    line = Text.assemble((f"{what}: ", "bold red"), " ".join(message.split()))
    _console(stderr=True).print(line, soft_wrap=True)


app = typer.Typer(
    cls=_Commands,
    name="vibayes",
    help="Variational Bayesian models on PyTorch: build, train and compare them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _command in (compare, fit, predict, describe):
    app.command()(_command)
app.add_typer(bench, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        import vibayes

        print(f"vibayes {vibayes.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from (a traceback).")] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the table and the report.")] = Path("demo-output"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer models and steps: seconds, but rougher fits.")] = False,
) -> None:
    """Compare models on a small table of patients, and write the report that `vibayes compare` writes.

    Needs no data files, no network and no GPU, and about a minute and a half.
    """
    from vibayes.cli.demo import run

    code = run(_console(), out, quick=quick)
    if code:
        raise typer.Exit(code)


for _known in (*app.registered_commands, *bench.registered_commands):  # a terminal breaks lines where it ends, not we
    _known.help = "\n\n".join(" ".join(part.split()) for part in (getdoc(_known.callback) or "").split("\n\n"))
