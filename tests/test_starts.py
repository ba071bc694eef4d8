"""Starting values: which rows they look at."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import vibayes as vb
from vibayes import starts
from vibayes.starts import latent_targets, nearest_rows


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 1, 4, 4), torch.arange(n) % 3


def network(posterior: vb.posteriors.Posterior) -> nn.Sequential:
    return nn.Sequential(
        vb.Conv2d(1, 2, 3, padding=1, posterior=posterior), nn.Flatten(), vb.Linear(32, 3, posterior=posterior)
    )


def test_nearest_rows_are_found_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    z, x = torch.randn(7, 3), torch.randn(50, 3)
    wanted = torch.cdist(z, x).argmin(1)
    assert torch.equal(nearest_rows(z, x), wanted)
    monkeypatch.setattr(starts, "_START_ROWS", 8)
    assert torch.equal(nearest_rows(z, x), wanted)


def test_few_images_show_the_shapes_and_all_of_them_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_START_NUMBERS", 80)  # five images
    x, y = images(40)
    seen: list[int] = []
    model = vb.Model(network(vb.GlobalInducing()), vb.Categorical(), inducing=x[::4])
    model.network.register_forward_pre_hook(lambda _, rows: seen.append(len(rows[0])))
    model.initialize(x, y)
    assert max(seen) == 10 + 5
    assert torch.equal(model.network[2].posterior.pseudo_outputs.argmax(1), y[::4])


def test_inducing_inputs_of_a_gp_on_images_see_as_many_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_START_NUMBERS", 80)
    x, y = images(40)
    seen: list[int] = []
    gp = vb.GP(3, kernel=vb.SquaredExponential(16), posterior=vb.LocalInducing(20))
    model = vb.Model(nn.Sequential(nn.Flatten(), gp), vb.Categorical())
    model.network.register_forward_pre_hook(lambda _, rows: seen.append(len(rows[0])))
    model.initialize(x, y)
    assert max(seen) == 40


@pytest.mark.parametrize(
    ("kind", "targets", "values"),
    [
        ("regression", [[0.5], [-2.0]], [[0.5], [-2.0]]),
        ("counts", [[0.0], [3.0]], [[math.log(0.5)], [math.log(3.5)]]),
        ("binary", [[0.0], [1.0]], [[-1.0], [1.0]]),
        ("classes", [2, 0], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]),
    ],
)
def test_last_layers_start_at_values_that_fit_the_targets(kind: str, targets: list[Any], values: list[Any]) -> None:
    wanted = torch.tensor(values)
    mean = torch.full_like(wanted, 0.25)
    torch.testing.assert_close(latent_targets(torch.tensor(targets), kind, mean), wanted - mean)
    if kind == "regression":  # log variances have no targets of their own
        wide = latent_targets(torch.tensor(targets), kind, mean.expand(-1, 2))
        torch.testing.assert_close(wide, torch.cat([wanted - mean, torch.zeros_like(wanted)], 1))


def test_pseudo_outputs_start_at_what_the_mean_function_leaves_of_the_targets() -> None:
    x = torch.randn(12, 1)
    gp = vb.GP(1, kernel=vb.SquaredExponential(1), mean=vb.LinearMean(1, 1, weight=torch.tensor([[3.0]])))
    model = vb.Model(gp, vb.Gaussian(), inducing=x[:4])
    model.initialize(x, x[:, 0].sin())
    torch.testing.assert_close(gp.posterior.pseudo_outputs.detach(), x[:4].sin() - 3.0 * x[:4])
