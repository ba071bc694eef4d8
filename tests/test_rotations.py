"""What notices a rotation of imagined features is refused, whatever the network looks like."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.rotations import check_rotations


class Net(nn.Module):
    """A Wishart layer, something in between, and two GP layers of which the outputs are added."""

    def __init__(self, between: nn.Module | str = "nothing", *, ard: bool = False, width: int = 2, **last: Any) -> None:
        super().__init__()
        self.hidden = vb.GP(width, kernel=vb.SquaredExponential(2, ard=True), posterior=vb.GeneralizedWishart("AB"))
        self.between = between if isinstance(between, nn.Module) else None
        self.how = between if isinstance(between, str) else ""
        self.one = vb.GP(1, kernel=vb.SquaredExponential(width, ard=ard), **last)
        self.two = vb.GP(1, kernel=vb.ArcCosine(width) + vb.LinearKernel(width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(x)
        if self.between is not None:
            h = self.between(h)
        if self.how == "scaled":
            h = 0.5 * h
        if self.how == "turned":
            h = h.flip(-1)
        if self.how == "skip":
            h = h + x
        if self.how == "first column":
            return self.one(h) + 0.1 * h[:, :1]
        return self.one(h) + self.two(h)


class Dropped(nn.Module):
    """Randomness of its own, in front of the layer: the same in both passes of the check."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(nn.functional.dropout(x, 0.2, self.training))


def build(network: nn.Module, m: int = 6) -> vb.Model:
    return vb.Model(network, vb.Gaussian(0.1), inducing=torch.randn(m, 2))


@pytest.mark.parametrize("how", ["nothing", "scaled", "turned"])
@pytest.mark.parametrize("width", [2, 1])
def test_sums_of_layers_that_see_distances_pass(how: str, width: int) -> None:
    model = build(Net(how, width=width))
    assert torch.isfinite(model.elbo(torch.randn(4, 2), torch.randn(4)).value)


def test_a_module_with_dropout_passes() -> None:
    build(Dropped())


def test_the_check_leaves_random_numbers_and_parameters_alone() -> None:
    model = build(Net())
    rows = torch.randn(6, 2)
    state, values = torch.get_rng_state(), [p.clone() for p in model.parameters()]
    check_rotations(model.network, rows)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), values, strict=True))


def test_models_are_built_where_gradients_are_off() -> None:
    with torch.no_grad():
        build(Net())
        with pytest.raises(vb.ConfigurationError, match="known only up to a rotation"):
            build(Net(ard=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_verdict_does_not_depend_on_the_dtype_or_on_units(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        rows = 2000.0 + 1e-3 * torch.randn(8, 2)
        vb.Model(Net(), vb.Gaussian(0.1), inducing=rows)
        with pytest.raises(vb.ConfigurationError, match="known only up to a rotation"):
            vb.Model(Net(ard=True), vb.Gaussian(0.1), inducing=rows)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("network", "culprit"),
    [
        (lambda: Net(nn.ReLU()), r"'between' \(ReLU\)"),
        (lambda: Net(nn.ReLU(), width=1), r"'between' \(ReLU\)"),  # of one feature, the sign can turn
        (lambda: Net(nn.Linear(2, 2)), r"'between' \(Linear\)"),
        (lambda: Net("skip"), r"'one' \(GP with SquaredExponential\), or what is done before it"),
        (lambda: Net("first column"), "the network's output"),
        (lambda: Net(ard=True), r"'one' \(GP with SquaredExponential\)"),
        (lambda: Net(mean=vb.LinearMean(2, 1)), r"'one' \(GP with SquaredExponential and LinearMean\)"),
    ],
)
def test_what_notices_is_named(network: Any, culprit: str) -> None:
    with pytest.raises(vb.ConfigurationError, match="known only up to a rotation") as raised:
        build(network())
    raised.match(culprit)


def test_a_refused_network_can_be_used_again() -> None:
    network = Net(nn.ReLU())
    with pytest.raises(vb.ConfigurationError):
        build(network)
    network.between = None
    build(network)


def test_a_sequential_inside_a_module_is_tested_too() -> None:
    """The module may use the parts of its nn.Sequential as it likes."""

    class Twist(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hidden = vb.GP(2, kernel=vb.SquaredExponential(2), posterior=vb.GeneralizedWishart())
            self.chain = nn.Sequential(hidden, vb.GP(1, kernel=vb.SquaredExponential(2)))

        def forward(self, x: Tensor) -> Tensor:
            return self.chain[1](self.chain[0](x).relu())

    with pytest.raises(vb.ConfigurationError, match="known only up to a rotation"):
        build(Twist())


def test_a_network_that_cannot_be_judged_is_refused() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.nan

    with pytest.raises(vb.VibayesError, match="cannot be told"):
        build(Net(Broken()))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("M", "p"), [(5, 0.05), (5, 0.1), (8, 0.05)])
def test_dropout_of_features_is_refused_whatever_one_mask_drops(M: int, p: float, training: bool) -> None:
    hidden = vb.GP(2, kernel=vb.SquaredExponential(2), posterior=vb.GeneralizedWishart())
    network = nn.Sequential(hidden, nn.Dropout(p), vb.GP(1, kernel=vb.SquaredExponential(2))).train(training)
    with pytest.raises(vb.ConfigurationError, match="known only up to a rotation"):
        vb.Model(network, vb.Gaussian(0.1), inducing=torch.randn(M, 2))
