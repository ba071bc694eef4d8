"""Data-parallel training: two processes end in the same parameters as one with the joint batch."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

SCRIPT = """
import datetime, sys, torch
import torch.distributed as distributed
import vibayes as vb

rank, world, store, out, batch_size = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], eval(sys.argv[5])
posterior = eval(sys.argv[6])
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
if world > 1:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world,
                                   timeout=datetime.timedelta(seconds=60))
torch.manual_seed(0)
x = torch.randn(40, 2)
y = x[:, 0].sin() + 0.1 * torch.randn(40)
gp = vb.GP(1, kernel=vb.SquaredExponential(2, ard=True), posterior=posterior)
model = vb.Model(gp, vb.Gaussian(0.2), standardize="both")
try:
    history = vb.fit(model, (x, y), steps=60, batch_size=batch_size, log_every=20, progress=False,
                     checkpoint=out + ".checkpoint")
except vb.ConfigurationError as error:
    print(error)
    sys.exit(3)
if rank == 0:
    torch.save({**model.state_dict(), "elbo": torch.tensor(history.elbo)}, out)
if world > 1:
    distributed.barrier()
    distributed.destroy_process_group()
"""


WHITENED = "vb.LocalInducing(6)"
NATURAL = "vb.LocalInducing(6, form='pseudo', precision='natural')"


def run(folder: Path, world: int, batch_size: int | None, posterior: str = WHITENED) -> tuple[list[int], list[str]]:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    arguments = [str(world), str(folder / "store"), str(folder / f"world-{world}.pt"), repr(batch_size), posterior]
    processes = [
        subprocess.Popen([sys.executable, str(script), str(rank), *arguments], stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    printed = [p.communicate(timeout=120)[0] for p in processes]
    return [p.returncode for p in processes], printed


@pytest.mark.parametrize(("batch_size", "posterior"), [(16, WHITENED), (None, WHITENED), (16, NATURAL)])
def test_two_processes_equal_one(tmp_path: Path, batch_size: int | None, posterior: str) -> None:
    for world in (1, 2):
        assert run(tmp_path, world, batch_size, posterior)[0] == [0] * world
    one, two = torch.load(tmp_path / "world-1.pt"), torch.load(tmp_path / "world-2.pt")
    for name, value in one.items():
        assert torch.allclose(value.double(), two[name].double(), rtol=1e-9, atol=1e-12), name


def test_an_uneven_batch_is_refused(tmp_path: Path) -> None:
    codes, printed = run(tmp_path, 2, 15)
    assert codes == [3, 3]
    assert "multiple of 2, such as 14" in printed[0]
