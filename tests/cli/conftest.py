"""What tests of the command line share."""

import pytest


@pytest.fixture
def interruptible() -> str:
    """The program as `python -c` runs it.

    What a shell starts in the background ignores Control-C, and so does whatever that starts: tests too, unless they
    ask for the signal again.
    """
    return (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from vibayes.cli import main; main()"
    )
