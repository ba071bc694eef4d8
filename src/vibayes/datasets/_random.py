"""The source of random numbers of splits and toys."""

import numpy as np

from vibayes.errors import ConfigurationError

__all__ = ["random_state"]


def random_state(seed: int) -> np.random.RandomState:
    """`numpy.random.RandomState(seed)`: its stream is frozen, while `default_rng`'s may change with numpy."""
    try:
        return np.random.RandomState(seed)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"seed must be an integer from 0 to 2**32 - 1; got {seed!r}.") from error
