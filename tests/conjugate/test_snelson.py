"""The thesis's numbers on Snelson's data (figures of the introduction and the deep kernel learning chapter)."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import vibayes as vb
from vibayes.conjugate import SGPR, ExactGP

FILE = Path(os.environ.get("VIBAYES_DATA", ".")) / "toy" / "snelson.npz"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="set VIBAYES_DATA to a folder with toy/snelson.npz")


def snelson() -> tuple[Tensor, Tensor]:
    with np.load(FILE) as stored:
        return torch.tensor(stored["x"]).reshape(-1, 1), torch.tensor(stored["y"]).reshape(-1)


def twenty() -> tuple[Tensor, Tensor]:
    x, y = snelson()
    return x[::10], y[::10]


def test_exact_gp_on_all_points() -> None:
    x, y = ((v - v.mean(0)) / v.std(0) for v in snelson())  # standard deviations with n - 1
    gp = ExactGP(vb.SquaredExponential(1), vb.Gaussian(1.0))
    vb.fit(gp, (x, y), progress=False)
    assert gp.log_marginal_likelihood(x, y).item() == pytest.approx(-89.309, abs=2e-3)


def test_exact_gp_on_twenty_points() -> None:
    x, y = twenty()
    gp = ExactGP(vb.SquaredExponential(1), vb.Gaussian(1.0), mean=vb.ConstantMean(0.0))
    vb.fit(gp, (x, y), progress=False)
    assert gp.log_marginal_likelihood(x, y).item() == pytest.approx(-14.215, abs=1e-3)
    assert gp.kernel.lengthscale.value.item() == pytest.approx(0.4152, abs=1e-3)
    assert gp.mean.value.value.item() == pytest.approx(-0.28, abs=0.02)


@pytest.mark.parametrize(("m", "bound", "lengthscale"), [(10, -14.742, 0.526), (2, -24.461, 1.100)])
def test_sgpr_on_twenty_points(m: int, bound: float, lengthscale: float) -> None:
    """Two inducing inputs end in a local optimum from this start, as the thesis's figure does."""
    x, y = twenty()
    model = SGPR(vb.SquaredExponential(1), vb.Gaussian(1.0), x[:m], mean=vb.ConstantMean(0.0))
    vb.fit(model, (x, y), progress=False)
    assert model.elbo(x, y).value.item() == pytest.approx(bound, abs=2e-3)
    assert model.kernel.lengthscale.value.item() == pytest.approx(lengthscale, abs=2e-3)
