"""Memory that is kept between steps: blocks come from the heap and stay there; nothing that was chosen is changed."""

import ctypes
import os
import subprocess
import sys

import pytest

REPORT = """
import ctypes, sys, torch
from vibayes.training.memory import keep_freed_memory

NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES]
info = ctypes.CDLL(None).mallinfo2
info.restype = Info

def mapped_and_kept():
    before = info().hblks
    block = torch.empty(24 * 2**20, dtype=torch.uint8)
    mapped = info().hblks - before
    del block
    return mapped, info().fordblks >= 24 * 2**20

print(sys.argv[1] == "keep" and keep_freed_memory(), *mapped_and_kept())
"""


def report(what: str, **environment: str) -> str:
    """Whether settings were taken, how many new blocks came from the system, and whether they stayed when freed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", REPORT, what],
        capture_output=True,
        text=True,
        check=True,
        env={**inherited, **environment},
    )
    return done.stdout.strip()


def has_glibc() -> bool:
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallinfo2")


@pytest.mark.skipif(not has_glibc(), reason="needs glibc 2.33 or later")
def test_freed_memory_is_kept() -> None:
    assert report("leave") == "False 1 False"
    assert report("keep") == "True 0 True"


@pytest.mark.skipif(not has_glibc(), reason="needs glibc 2.33 or later")
def test_settings_of_the_environment_stay() -> None:
    assert report("keep", MALLOC_TRIM_THRESHOLD_="1000000") == "False 1 False"
