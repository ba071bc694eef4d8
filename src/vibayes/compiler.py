"""What `torch.compile` needs, and what it says of itself while it works."""

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["can_compile", "quiet_compiler"]


def can_compile() -> bool:
    """Whether there is a C++ compiler, without which `torch.compile` does nothing for tensors on a CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++", "cl") if name)


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Pass over torch's warnings that torch itself uses what is deprecated there.

    They come while code is made, and not where it is found in the compiler's cache. Made into errors (`-W error`) they
    would end the compilation.
    """
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=category, module=r"torch\b")
        yield
