"""Memory that is kept between steps: no page faults where blocks come and go, nothing that was chosen is changed."""

import os
import subprocess
import sys

import pytest

COUNT = """
import os, resource, torch
from vibayes.training.memory import keep_freed_memory
torch.set_num_threads(1)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [torch.ones(2**20, dtype=torch.float64) for _ in range(8)]  # 64 MiB
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()  # what loads by itself
without = faults()
took = keep_freed_memory()
faults()
print(took, without, faults())
"""


def count(**environment: str) -> list[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, check=True, env={**inherited, **environment}
    )
    return done.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_freed_memory_is_kept() -> None:
    took, without, after = count()
    if took == "False":
        pytest.skip("another allocator")
    assert int(without) > 20_000  # 64 MiB are 16,384 pages, fetched again in every round unless huge pages serve
    assert int(after) < int(without) / 50


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_settings_of_the_environment_stay() -> None:
    assert count(MALLOC_TRIM_THRESHOLD_="1000000")[0] == "False"
