"""What hears of a comparison while it goes on."""

from collections.abc import Sequence
from typing import Protocol

from vibayes.compare.families import Family
from vibayes.compare.ranking import Result

__all__ = ["Display", "Silent"]


class Display(Protocol):
    """Hears what a comparison does while it does it."""

    def begin(self, families: Sequence[Family], seconds: float) -> None:
        """The families that will be trained and the time there is."""

    def family(self, family: Family, seconds: float) -> None:
        """A family begins, with about so many seconds."""

    def progress(self, fraction: float, bound: float) -> None:
        """How far the family is, and its bound in nats per row so far."""

    def result(self, result: Result) -> None:
        """A family is trained and measured."""

    def failed(self, family: Family, reason: str) -> None:
        """A family could not be trained."""

    def say(self, text: str) -> None:
        """Something worth knowing."""


class Silent:
    """A display that shows nothing."""

    def begin(self, families: Sequence[Family], seconds: float) -> None:
        """Nothing."""

    def family(self, family: Family, seconds: float) -> None:
        """Nothing."""

    def progress(self, fraction: float, bound: float) -> None:
        """Nothing."""

    def result(self, result: Result) -> None:
        """Nothing."""

    def failed(self, family: Family, reason: str) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""
