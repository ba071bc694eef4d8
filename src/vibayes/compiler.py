"""What `torch.compile` needs and is told, and what it says of itself while it works."""

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["can_compile", "compiler_options", "quiet_compiler"]

# With torch 2.11 vectorised code of a deep GP's gradients on a CPU wrote behind the end of its arrays, and training
# ended in glibc's "memory corruption"; with 2.13 it does not. Versions between have not been tried.
_VECTORS_ARE_SOUND = [int(part) for part in torch.__version__.split(".")[:2]] >= [2, 13]


def can_compile() -> bool:
    """Whether there is a C++ compiler, without which `torch.compile` does nothing for tensors on a CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++", "cl") if name)


def compiler_options(device: torch.device) -> dict[str, Any] | None:
    """What the compiler is told: on a CPU to draw torch's normals, and to leave vectors alone where it errs in them."""
    if device.type != "cpu":
        return None
    return {"fallback_random": True} if _VECTORS_ARE_SOUND else {"fallback_random": True, "cpp.simdlen": 1}


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
