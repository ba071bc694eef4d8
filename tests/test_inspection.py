"""The functions of a model's layers."""

import math

import pytest
import torch
from torch import nn

import vibayes as vb

X = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]


def deep_gp(**options: object) -> vb.Model:
    layers = [vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(6, **options)) for _ in range(2)]
    return vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1))


def test_variances_on_grids_are_those_of_the_posteriors() -> None:
    """Each layer's function alone is a sparse GP, with moments in closed form."""
    model = deep_gp()
    with torch.no_grad():
        for layer in model.layers.values():
            layer.posterior.mean.copy_(torch.randn(6, 1))
            layer.posterior.raw_factor.copy_(0.3 * torch.randn(1, 6, 6))
    n = 20_000
    found = model.layer_functions(X, n, grids={"1": X + 0.5})
    for name, at in (("0", X), ("1", X + 0.5)):
        layer = model.layers[name]
        assert torch.equal(found[name].inputs, at.expand(n, -1, -1))
        alone = vb.GP(1, kernel=layer.kernel, posterior=vb.LocalInducing(6))
        single = vb.Model(alone, vb.Gaussian(0.1))
        alone.posterior.load_state_dict(layer.posterior.state_dict())
        prediction = single.predict(at)
        assert torch.allclose(found[name].mean[:, 0], prediction.mean, atol=5 * math.sqrt(2.0 / n))
        assert torch.allclose(found[name].variance[:, 0], prediction.epistemic, rtol=0.08, atol=1e-5)


def test_draws_of_all_layers_belong_together() -> None:
    model = vb.Model(
        nn.Sequential(
            vb.GP(2, kernel=vb.SquaredExponential(1), posterior=vb.GeneralizedWishart()),
            vb.GP(1, kernel=vb.SquaredExponential(2)),
        ),
        vb.Gaussian(0.1),
        inducing=X[::2],
    )
    found = model.layer_functions(X, 7)
    assert found["0"].draws.shape == (7, 9, 2)
    assert found["1"].draws.shape == (7, 9, 1)
    assert torch.equal(found["0"].draws, found["1"].inputs)
    assert torch.equal(found["0"].inputs, X.expand(7, -1, -1))
    assert not torch.equal(found["0"].draws[0], found["0"].draws[1])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_grid_does_not_change_the_rest() -> None:
    """A grid for one layer leaves the values of the others at the data in distribution: their mean and variance."""
    model = deep_gp()
    n = 8000
    with torch.no_grad():
        model.network[1].posterior.mean.copy_(2.0 * torch.randn(6, 1))
    with_grid = model.layer_functions(X, n, grids={"0": X - 3.0})["1"]
    without = model.layer_functions(X, n)["1"]
    error = math.sqrt(2.0 / n) * without.draws.std(0).max()
    assert torch.allclose(with_grid.mean, without.mean, atol=5 * float(error))
    assert torch.allclose(with_grid.variance, without.variance, rtol=0.15)


def test_inverse_wishart_layers_are_shown_and_take_no_grid_behind_them() -> None:
    network = nn.Sequential(
        vb.InverseWishartProcess(kernel=vb.SquaredExponential(1), dof=4.0), vb.GP(1, kernel=vb.SquaredExponential(1))
    )
    model = vb.Model(network, vb.Gaussian(0.1), inducing=X[::3])
    assert model.layer_functions(X, 2)["0"].draws.shape == (2, 9, 3 + 9)
    with pytest.raises(vb.ShapeError, match="only inner products have a meaning"):
        model.layer_functions(X, 2, grids={"1": X})


def test_what_cannot_be_shown_is_refused() -> None:
    model = deep_gp()
    with pytest.raises(vb.ConfigurationError, match="no layer '2'; the layers are '0', '1'"):
        model.layer_functions(X, 2, grids={"2": X})
    with pytest.raises(vb.ShapeError, match=r"\[G, 1\]"):
        model.layer_functions(X, 2, grids={"1": torch.zeros(3, 2)})
    with pytest.raises(vb.VibayesError, match="n must be"):
        model.layer_functions(X, 0)
