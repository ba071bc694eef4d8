"""Names that a person types: checked, with the nearest known one in the message."""

import difflib
from collections.abc import Collection, Iterable

from vibayes.errors import ConfigurationError

__all__ = ["check_name", "parse_numbers", "pick"]

# The largest number in a range that is typed: a slip of the finger must not fill the memory.
_MOST = 99_999


def check_name(name: str, known: Collection[str], what: str) -> str:
    """`name` as the registry spells it.

    >>> check_name("Boston", ["boston", "energy"], "data set")
    'boston'
    >>> check_name("enrgy", ["boston", "energy"], "data set")
    Traceback (most recent call last):
    ...
    vibayes.errors.ConfigurationError: There is no data set 'enrgy'. Did you mean 'energy'? Known: boston, energy.
    """
    if isinstance(name, str) and name in known:
        return name
    lowered = {k.lower(): k for k in known}
    typed = str(name).strip().lower()  # a value of --set may be anything
    if typed in lowered:
        return lowered[typed]
    close = difflib.get_close_matches(typed, lowered, n=1, cutoff=0.4)
    guess = f" Did you mean {lowered[close[0]]!r}?" if close else ""
    raise ConfigurationError(f"There is no {what} {name!r}.{guess} Known: {', '.join(known) or 'none'}.")


def pick(wanted: Iterable[str] | None, known: Collection[str], what: str) -> list[str]:
    """The known names that are wanted, in the order of `known`; all of them when nothing is asked for."""
    if wanted is None:
        return list(known)
    chosen = {check_name(name, known, what) for name in wanted}
    return [name for name in known if name in chosen]


def parse_numbers(text: str, what: str = "splits") -> list[int]:
    """Whole numbers from `"0-4,7"`.

    >>> parse_numbers("0-2, 7")
    [0, 1, 2, 7]
    """
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ConfigurationError(f"{what} are whole numbers and ranges such as 0-4,7; got {text!r}.")
        if int(last or first) > _MOST:
            raise ConfigurationError(f"{what} are numbers up to {_MOST:,}; got {text!r}.")
        found.update(range(int(first), int(last or first) + 1))
    return sorted(found)
