"""The logger of the data sets, and warnings that are worth saying once."""

import logging

__all__ = ["logger", "warn_once"]

logger = logging.getLogger("vibayes.datasets")

_said: set[str] = set()


def warn_once(key: str, message: str) -> None:
    """Log a warning the first time that `key` comes up in this process."""
    if key not in _said:
        _said.add(key)
        logger.warning(message)
