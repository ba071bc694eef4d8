"""The sampling experiments, small: fully Bayesian deep kernels, the reference of the cubic toy, and SGLD on images."""

import math
import os
from pathlib import Path

import pytest
import torch

from vibayes import datasets
from vibayes.datasets import Split
from vibayes.experiments import catalogue, cubic_hmc, dkl_hmc, dkl_sgld
from vibayes.mcmc import HMC

SNELSON = Path(os.environ.get("VIBAYES_DATA", ".")) / "toy" / "snelson.npz"


@pytest.mark.skipif(not SNELSON.exists(), reason="set VIBAYES_DATA to a folder with toy/snelson.npz")
def test_fully_bayesian_deep_kernels() -> None:
    quick = {"n_chains": 2, "n_samples": 4, "thin": 1, "compile": False}
    result = dkl_hmc.toy_hmc_20(0, n_warmup=4, sampler=HMC(2), **quick)
    numbers = {n.name: n.ours for n in result.numbers}
    assert math.isfinite(numbers["mean LML along the chains"])
    assert len(dkl_hmc.paint(result.arrays).axes) == 2
    chains, data = dkl_hmc.sample(10, 0, n_warmup=2, sampler=HMC(1), **quick)
    assert chains.target.size == 5352 + 4  # weights and biases; two lengthscales, variance, noise
    assert len(data.x_train) == 20
    spread = chains.values["kernel.kernel.lengthscale"]
    assert bool((spread > 3.0).all())  # of the size of the features, where the chains began


def test_the_reference_of_the_cubic_toy() -> None:
    result = cubic_hmc.cubic_hmc(0, n_chains=2, n_warmup=5, n_samples=4, max_depth=2, compile=False)
    assert result.statements[0].text.startswith("R-hat")
    assert math.isfinite(result.numbers[0].ours)
    assert result.arrays["mean"].shape == result.arrays["std"].shape == (len(result.arrays["grid"]),)
    assert len(cubic_hmc.paint(result.arrays).axes) == 1


def test_the_data_of_the_cubic_toy() -> None:
    data = cubic_hmc.cubic()
    assert float(data.x.mean()) == pytest.approx(0.0, abs=1e-12)
    assert float(data.y.std()) == pytest.approx(1.0)
    raw = datasets.cubic(cubic_hmc.DATA_SEED)
    assert data.noise * float(raw.y_train.var()) == pytest.approx(9.0)
    assert bool(data.near[data.gap].all())
    assert float(data.x.abs().min()) > float(data.grid[data.gap].abs().max())


def tiny_images(classes: bool) -> Split:
    x = torch.rand(40, 3, 8, 8, dtype=torch.float32)
    brightness = x.mean((1, 2, 3))
    y = (brightness > brightness.median()).long() if classes else (brightness - brightness.mean()) / brightness.std()
    return Split(x[:30], y[:30], x[30:], y[30:])


@pytest.mark.parametrize("dataset", ["cifar10", "utkface"])
def test_sgld_on_images(dataset: str) -> None:
    split = tiny_images(dataset == "cifar10")
    result = dkl_sgld.sgld(0, dataset=dataset, split=split, width=2, epochs=0.02, n_inducing=4, q=3)
    numbers = {n.name: n for n in result.numbers}
    for method in ("NN", "SVDKL"):
        assert math.isfinite(numbers[f"test_ll, {method}"].ours)
        assert numbers[f"test_ll, {method}"].row is None  # a reduced run stands in no table
    assert ("ece, NN" in numbers) == (dataset == "cifar10")
    assert result.setup["draws"] == 2


def test_they_are_in_the_catalogue() -> None:
    for name in ("dkl-hmc", "dkl-sgld"):
        assert catalogue.get(name).script
        assert not catalogue.get(name).needs
