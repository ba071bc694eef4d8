"""The command line, `vibayes`."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; without typer and rich say what to install."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        print('error: the command line needs typer and rich: pip install "vibayes[cli]"', file=sys.stderr)
        sys.exit(1)
    from vibayes.cli.app import app

    app(prog_name="vibayes")
