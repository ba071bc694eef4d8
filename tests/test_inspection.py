"""The functions of a model's layers."""

import math

import pytest
import torch
from torch import Tensor, nn

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
        vb.InverseWishartProcess(kernel=vb.SquaredExponential(1), dof=4.0),
        vb.GP(1, kernel=vb.SquaredExponential(1)),
        vb.GP(1, kernel=vb.SquaredExponential(1)),
    )
    model = vb.Model(network, vb.Gaussian(0.1), inducing=X[::3])
    assert model.layer_functions(X, 2)["0"].draws.shape == (2, 9, 3 + 9)
    for grids in ({"1": X}, {"0": X, "1": X}):
        with pytest.raises(vb.ConfigurationError, match="only inner products have a meaning"):
            model.layer_functions(X, 2, grids=grids)
    assert model.layer_functions(X, 2, grids={"2": X[:4]})["2"].draws.shape == (2, 4, 1)  # features proper


POSTERIORS = {"mean field": vb.MeanField, "local": lambda: vb.LocalInducing(5), "global": vb.GlobalInducing}


def convolutions(posterior: str) -> vb.Model:
    made = POSTERIORS[posterior]
    network = nn.Sequential(
        vb.Conv2d(1, 2, 3, padding=1, posterior=made()),
        vb.Conv2d(2, 3, 2, posterior=made()),
        nn.Flatten(),
        vb.Linear(3 * 16, 1, posterior=made()),
    )
    return vb.Model(network, vb.Gaussian(0.1), inducing=torch.randn(4, 1, 5, 5) if posterior == "global" else None)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_a_grid_of_a_convolution_is_images(posterior: str) -> None:
    """At the data its values are what the next layer sees, and in every draw they are linear in the images."""
    model, x = convolutions(posterior), torch.randn(6, 1, 5, 5)
    a, b = torch.randn(2, 2, 5, 5)
    found = model.layer_functions(x, 3, grids={"0": x, "1": torch.stack([a, b, a + b, torch.zeros_like(a)])})
    assert torch.equal(found["0"].inputs, x.expand(3, -1, -1, -1, -1))
    assert found["0"].draws.shape == (3, 6, 2, 5, 5)
    f = found["1"].draws
    assert f.shape == (3, 4, 3, 4, 4)
    assert found["1"].mean.shape == (4, 3, 4, 4)
    torch.testing.assert_close(f[:, 0] + f[:, 1], f[:, 2] + f[:, 3])
    assert float((f[0] - f[1]).abs().min()) > 0
    alone = model.layer_functions(x, 3, grids={"0": x})
    torch.testing.assert_close(alone["0"].draws, alone["1"].inputs)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_a_grid_of_a_convolution_has_the_shape_of_its_images(posterior: str) -> None:
    model, x = convolutions(posterior), torch.randn(6, 1, 5, 5)
    for shape in ([3, 8], [3, 2, 7, 7], [3, 1, 5, 5]):
        message = rf"layer '1' must hold rows as they come in, \[G, 2, 5, 5\]; got \[{', '.join(map(str, shape))}\]"
        with pytest.raises(vb.ShapeError, match=message):
            model.layer_functions(x, 2, grids={"1": torch.zeros(shape)})
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.network)


class Halves(nn.Module):
    """Both halves of a row through one layer, and their mean through another."""

    def __init__(self, last: vb.posteriors.Posterior) -> None:
        super().__init__()
        self.each = vb.Linear(3, 4, posterior=vb.MeanField())
        self.last = vb.Linear(4, 1, posterior=last)

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(self.each(rows.reshape(-1, 3)).reshape(len(rows), 2, 4).mean(1))


def test_rows_cut_into_pieces() -> None:
    x, grid = torch.randn(5, 6), torch.randn(7, 3)
    model = vb.Model(Halves(vb.MeanField()), vb.Gaussian(0.1))
    inside = model.layer_functions(x, 3)["each"]
    assert torch.equal(inside.inputs[0], x.reshape(10, 3))
    found = model.layer_functions(x, 3, grids={"each": grid})
    assert found["each"].draws.shape == (3, 7, 4)
    assert found["last"].draws.shape == (3, 5, 1)
    # which pieces are inducing rows' is unknown
    model = vb.Model(Halves(vb.GlobalInducing()), vb.Gaussian(0.1), inducing=x[:2])
    for grids in (None, {"each": grid}):
        with pytest.raises(vb.ShapeError, match="'each' got 14 rows where the pass has 7"):
            model.layer_functions(x, 3, grids=grids)


def test_what_cannot_be_shown_is_refused() -> None:
    model = deep_gp()
    with pytest.raises(vb.ConfigurationError, match="no layer '2'; the layers are '0', '1'"):
        model.layer_functions(X, 2, grids={"2": X})
    with pytest.raises(vb.ShapeError, match=r"\[G, 1\]"):
        model.layer_functions(X, 2, grids={"1": torch.zeros(3, 2)})
    with pytest.raises(vb.VibayesError, match="n must be"):
        model.layer_functions(X, 0)


def test_no_grid_is_laid_through_features_that_are_known_up_to_a_rotation() -> None:
    hidden = vb.GP(2, kernel=vb.SquaredExponential(3), posterior=vb.GeneralizedWishart())
    network = nn.Sequential(
        hidden, vb.GP(2, kernel=vb.SquaredExponential(2)), vb.GP(1, kernel=vb.SquaredExponential(2))
    )
    model = vb.Model(network, vb.Gaussian(0.1), inducing=torch.randn(5, 3))
    for grids in ({"1": torch.eye(2)}, {"0": torch.eye(3), "1": torch.eye(2)}):
        with pytest.raises(vb.ConfigurationError, match="'1' takes imagined features"):
            model.layer_functions(torch.randn(4, 3), 3, grids=grids)
    inside = model.layer_functions(torch.randn(4, 3), 3, grids={"0": torch.eye(3), "2": torch.eye(2)})
    assert inside["2"].draws.shape == (3, 2, 1)
