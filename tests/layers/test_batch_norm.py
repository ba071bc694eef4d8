"""BatchNorm by the statistics of inducing rows."""

import pytest
import torch
from torch import nn

import vibayes as vb
from vibayes.draw import Draw
from vibayes.errors import ConfigurationError, ShapeError


@pytest.mark.parametrize("shape", [(3,), (3, 4, 5), (3, 7)])
def test_inducing_rows_are_normalised_and_data_rows_alike(shape: tuple[int, ...]) -> None:
    rows = 2.0 + 3.0 * torch.randn(20, *shape)
    norm = vb.BatchNorm(3)
    with Draw(n_inducing=8):
        found = norm(rows)
    axes = (0, *range(2, rows.ndim))
    torch.testing.assert_close(found[:8].mean(axes), torch.zeros(3), atol=1e-10, rtol=0)
    torch.testing.assert_close(found[:8].var(axes, correction=0), torch.ones(3), atol=1e-4, rtol=0)
    plain = nn.functional.batch_norm(
        rows, rows[:8].mean(axes), rows[:8].var(axes, correction=0), norm.weight, norm.bias, eps=norm.eps
    )
    torch.testing.assert_close(found, plain)


def test_a_rows_output_depends_on_no_other_data_row() -> None:
    rows = torch.randn(10, 3, 4, 4)
    norm = vb.BatchNorm(3)
    with Draw(n_inducing=4):
        whole = norm(rows)
    changed = rows.clone()
    changed[5:] = 1e6
    with Draw(n_inducing=4):
        torch.testing.assert_close(norm(changed)[:5], whole[:5])
    norm.eval()
    with Draw(n_inducing=4):
        torch.testing.assert_close(norm(rows[:6]), whole[:6])


def test_it_learns_and_has_no_buffers() -> None:
    x = torch.randn(30, 1, 6, 6)
    net = nn.Sequential(vb.Conv2d(1, 4, 3, padding=1), vb.BatchNorm(4), nn.ReLU(), nn.Flatten(), vb.Linear(144, 1))
    model = vb.Model(net, vb.Gaussian(0.1), inducing=x[:5])
    assert not list(net[1].buffers())
    vb.fit(model, (x, x.mean((1, 2, 3))), steps=3, n_samples=2, progress=False)
    assert not torch.equal(net[1].weight, torch.ones(4))
    torch.manual_seed(1)
    together = model.predict(x, n_samples=4).mean
    torch.manual_seed(1)
    torch.testing.assert_close(model.predict(x[:3], n_samples=4).mean, together[:3])
    assert vb.BatchNorm(4, affine=False).weight is None


def test_bad_input() -> None:
    with pytest.raises(ConfigurationError, match="outside a Model"):
        vb.BatchNorm(3)(torch.randn(4, 3))
    with pytest.raises(ConfigurationError, match="num_features"):
        vb.BatchNorm(0)
    with pytest.raises(ConfigurationError, match="eps"):
        vb.BatchNorm(3, eps=0.0)
    with Draw(n_inducing=2), pytest.raises(ShapeError, match="channels"):
        vb.BatchNorm(3)(torch.randn(4, 2))
    with Draw(), pytest.raises(ConfigurationError, match="has none"):
        vb.BatchNorm(3)(torch.randn(4, 3))
    network = nn.Sequential(vb.Linear(2, 3), vb.BatchNorm(3), vb.Linear(3, 1))
    with pytest.raises(ConfigurationError, match="at least two inducing rows"):
        vb.Model(network, vb.Gaussian(), inducing=torch.randn(1, 2))
    network = nn.Sequential(vb.Conv2d(2, 3, 3), vb.BatchNorm(3), nn.Flatten(), vb.Linear(12, 1))
    vb.Model(network, vb.Gaussian(), inducing=torch.randn(1, 2, 4, 4))  # many places
    draw = Draw(n_inducing=2)
    draw.n_rows = 8
    with draw, pytest.raises(ShapeError, match="first axis"):
        vb.BatchNorm(3)(torch.randn(4, 3))
