"""Data-parallel training: two processes end in the same parameters as one with the joint batch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

CASES = {
    "minibatches": (16, "vb.LocalInducing(6)"),
    "all rows": (None, "vb.LocalInducing(6)"),
    "natural gradients": (16, "vb.LocalInducing(6, form='pseudo', precision='natural')"),
}

TRAIN = """
import torch
import vibayes as vb

def train(batch_size, posterior, checkpoint):
    torch.manual_seed(0)
    x = torch.randn(40, 2)
    y = x[:, 0].sin() + 0.1 * torch.randn(40)
    gp = vb.GP(1, kernel=vb.SquaredExponential(2, ard=True), posterior=eval(posterior))
    model = vb.Model(gp, vb.Gaussian(0.2), standardize="both")
    history = vb.fit(model, (x, y), steps=60, batch_size=batch_size, log_every=20, progress=False,
                     checkpoint=checkpoint)
    return {**model.state_dict(), "elbo": torch.tensor(history.elbo)}
"""

PROCESS = (
    TRAIN
    + """
import datetime, sys
import torch.distributed as distributed

rank, folder, cases = int(sys.argv[1]), sys.argv[2], eval(sys.argv[3])
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
                               timeout=datetime.timedelta(seconds=60))
found = {name: train(*case, f"{folder}/{name}") for name, case in cases.items()}
try:
    train(15, "vb.LocalInducing(6)", None)
except vb.ConfigurationError as error:
    found["refused"] = str(error)
torch.save(found, f"{folder}/{rank}.pt")
distributed.barrier()
distributed.destroy_process_group()
"""
)


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes that train together has in the end."""
    folder = tmp_path_factory.mktemp("two")
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(rank), str(folder), repr(CASES)]) for rank in range(2)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(tmp_path: Path, of_two: list[dict[str, Any]], case: str) -> None:
    defined: dict[str, Any] = {}
    exec(TRAIN, defined)
    one = defined["train"](*CASES[case], tmp_path / "alone")
    for two in of_two:
        for name, value in one.items():
            assert torch.allclose(value.double(), two[case][name].double(), rtol=1e-9, atol=1e-12), name


def test_an_uneven_batch_is_refused(of_two: list[dict[str, Any]]) -> None:
    assert all("multiple of 2, such as 14" in two["refused"] for two in of_two)
