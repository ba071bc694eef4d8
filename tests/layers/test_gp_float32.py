"""Layers of float32 factorize kernel matrices that float32 itself would make indefinite."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import vibayes as vb
from vibayes import linalg
from vibayes.bound import Bound
from vibayes.draw import Draw
from vibayes.layers import Layer

X = torch.linspace(-2, 2, 400, dtype=torch.float64)[:, None]
LAYERS: dict[str, Callable[[], Layer]] = {
    "global": lambda: vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.GlobalInducing("full")),
    "local": lambda: vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(400, inputs=X)),
    "pseudo": lambda: vb.GP(
        1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(400, form="pseudo", inputs=X)
    ),
    "wishart": lambda: vb.GP(3, kernel=vb.SquaredExponential(1), posterior=vb.GeneralizedWishart("AB")),
    "inverse wishart": lambda: vb.InverseWishartProcess(kernel=vb.SquaredExponential(1), out_features=3),
}


def test_the_kernel_matrix_in_float32_is_indefinite_beyond_the_jitter() -> None:
    with torch.no_grad():
        values = torch.linalg.eigvalsh(vb.SquaredExponential(1).float()(X.float()).double())
    assert float(values.min()) < -1e-6


def bounds(name: str, jitter: float) -> tuple[Bound, Bound]:
    """Of one model in float64 and in float32, with the same noise."""
    layer, y = LAYERS[name](), X[:, 0].sin()
    last = vb.GP(1, kernel=vb.SquaredExponential(3, lengthscale=2.0), posterior=vb.GlobalInducing("full"))
    network = nn.Sequential(layer, last) if "wishart" in name else layer
    model = vb.Model(network, vb.Gaussian(0.1), inducing=None if layer.posterior.local else X)
    model.initialize(X, y)
    draw = Draw(n_inducing=0 if layer.posterior.local else 400, jitter=model.jitter)
    with torch.no_grad():
        model._pass(X, draw)
    noise = {site: torch.randn(3, *shape) for site, shape in draw.requests.items()}
    found = []
    for dtype in (torch.float64, torch.float32):
        model.to(dtype).jitter.fill_(jitter)
        given = {site: values.to(dtype) for site, values in noise.items()}
        with torch.no_grad():
            found.append(model(X.to(dtype), y.to(dtype)[:, None], n_samples=3, noise=given))
    return found[0], found[1]


@pytest.mark.parametrize("name", LAYERS)
def test_log_ratios_are_those_of_float64_with_little_jitter(name: str) -> None:
    """Without kernel matrices in float64 they are NaN."""
    wide, narrow = bounds(name, 1e-6)
    torch.testing.assert_close(narrow.log_ratio.double() / 400, wide.log_ratio / 400, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_log_likelihoods_are_those_of_float64(name: str) -> None:
    """Rows on top of inducing rows, in draws that use every direction of a nearly singular matrix: the worst case."""
    wide, narrow = bounds(name, linalg.JITTER)
    torch.testing.assert_close(narrow.log_likelihood.double() / 400, wide.log_likelihood / 400, rtol=0.0, atol=1e-3)


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("name", ["global", "local"])
def test_means_of_data_rows_are_those_of_float64(name: str, joint: bool) -> None:
    """Of drawn inducing values and of integrated ones; with the factor in float32 they are off by more than 0.1."""
    layer = LAYERS[name]()
    local = layer.posterior.local
    model = vb.Model(layer, vb.Gaussian(0.1), inducing=None if local else X)
    if local:
        torch.nn.init.normal_(layer.posterior.mean)
    x, noise = torch.linspace(-2.1, 2.1, 50)[:, None], torch.randn(800, 1)
    found = []
    for dtype in (torch.float64, torch.float32):
        model.to(dtype)
        given = {"network.inducing": noise.to(dtype)}
        draw = Draw(n_inducing=model.n_inducing, jitter=model.jitter, joint=joint, output="network", noise=given)
        with torch.no_grad():
            found.append(model._pass(x.to(dtype), draw)[0].double())
    torch.testing.assert_close(found[1], found[0], rtol=0.0, atol=5e-3)
