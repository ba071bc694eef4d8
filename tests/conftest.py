"""Shared by all tests: float64 by default, fixed seeds, one thread per process."""

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest
import torch

# Tests run side by side, one process per core; threads on top of that only get in each other's way.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# What an earlier run compiled is not looked for: a test is to see what a new machine sees.
_cache = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _cache.name
# Shells start jobs in the background with interrupts ignored, and so would be what some tests start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `cuda` where there is no GPU."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def _float64_and_seed() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)
