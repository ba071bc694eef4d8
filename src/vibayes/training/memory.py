"""What a CPU's allocator does with the memory of a step."""

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

# Settings of glibc's malloc.h: below which size blocks come from the heap (the largest value that it takes), how much
# free memory the heap may keep, and by how much it grows at once.
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _TOP_PAD = -3, -1, -2
_BLOCK, _KEPT, _GROWTH = 32 * 2**20, 2**31 - 1, 64 * 2**20

_CHOSEN = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> bool:
    """Let the process keep the memory that a step frees, up to 2 GiB, for the next one.

    glibc gives it back to the system otherwise, and every step pays for getting it again page by page. Does nothing
    where the process has another allocator, or where the environment has chosen its settings.

    Returns:
        Whether the allocator took the settings.

    >>> keep_freed_memory() in (True, False)
    True
    """
    if sys.platform != "linux" or any(name in os.environ for name in _CHOSEN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_THRESHOLD, _BLOCK), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _GROWTH))
    return all([mallopt(name, value) == 1 for name, value in settings])
