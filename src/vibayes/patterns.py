"""Options that are given by names of parameters, with `*` for any letters."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence

from vibayes.errors import ConfigurationError

__all__ = ["check_patterns", "pattern_of"]


def pattern_of(name: str, patterns: Iterable[str]) -> str | None:
    """The pattern that decides for a name: the name itself, or else the longest one that stands for it.

    >>> pattern_of("0.kernel.variance.raw", ["*", "*.kernel.*", "likelihood.*"])
    '*.kernel.*'
    """
    found = [pattern for pattern in patterns if fnmatch.fnmatchcase(name, pattern)]
    return max(found, key=lambda pattern: (pattern == name, len(pattern)), default=None)


def check_patterns(option: str, given: Mapping[str, object], names: Sequence[str]) -> None:
    """Refuse a pattern that decides for no name."""
    used = {pattern_of(name, given) for name in names}
    for pattern in given:
        if pattern not in used:
            matched = any(fnmatch.fnmatchcase(name, pattern) for name in names)
            why = "Longer names have all that it stands for" if matched else f"No parameter is called {pattern!r}"
            raise ConfigurationError(f"{option}[{pattern!r}] is of no use. {why}. There are: {', '.join(names)}.")
