"""Deep GPs and deep Wishart processes at the edge: what must train, and what is refused with a reason."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.distributions import GeneralizedSingularWishart, InverseWishart, Wishart

Hidden = Callable[[int, int], nn.Module]


def gp(posterior: Callable[[], vb.posteriors.Posterior]) -> Hidden:
    return lambda d, width: vb.GP(width, kernel=vb.SquaredExponential(d), posterior=posterior())


FAMILIES: dict[str, Hidden] = {
    "global": gp(vb.GlobalInducing),
    "full": gp(lambda: vb.GlobalInducing("full")),
    "plain": gp(vb.GeneralizedWishart),
    "A": gp(lambda: vb.GeneralizedWishart("A")),
    "AB": gp(lambda: vb.GeneralizedWishart("AB")),
    "inverse": lambda d, width: vb.InverseWishartProcess(kernel=vb.SquaredExponential(d), dof=5.0, out_features=width),
}


def deep(family: str, inducing: Tensor, width: int = 2) -> vb.Model:
    hidden = [FAMILIES[family](inducing.shape[1] if i == 0 else width, width) for i in range(2)]
    last = vb.GP(1, kernel=vb.SquaredExponential(width))
    return vb.Model(nn.Sequential(*hidden, last), vb.Gaussian(0.1), inducing=inducing, standardize="both")


def trains(model: vb.Model, x: Tensor, y: Tensor) -> None:
    history = vb.fit(model, (x, y), steps=4, n_samples=2, log_every=2, progress=False)
    assert not history.events
    assert all(math.isfinite(value) for value in history.elbo)
    assert bool(torch.isfinite(model.predict(x, n_samples=3).mean).all())


def data(n: int = 14, d: int = 2) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, d)
    return x, x[:, 0].sin() + 0.1 * torch.randn(n)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("family", FAMILIES)
def test_duplicates_among_the_inducing_inputs_train(family: str, dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        x, y = data()
        trains(deep(family, torch.cat([x[:4], x[:3], x[:1]])), x, y)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_inducing_input_and_one_feature_train(family: str) -> None:
    x, y = data()
    trains(deep(family, x[:1]), x, y)
    trains(deep(family, x[:5, :1], width=1), x[:, :1], y)


@pytest.mark.parametrize("family", FAMILIES)
def test_inducing_inputs_of_another_width_are_refused(family: str) -> None:
    hidden = FAMILIES[family](3, 2)
    network = nn.Sequential(hidden, vb.GP(1, kernel=vb.SquaredExponential(2)))
    with pytest.raises(vb.ShapeError, match="rows of width 3"):
        vb.Model(network, vb.Gaussian(), inducing=torch.randn(5, 2))


def test_degrees_of_freedom_that_make_no_distribution_are_refused() -> None:
    S = torch.eye(3)
    for nu in (0, -1, 0.5, 1.5, 2.0 - 1e-9, math.nan, math.inf, "two", True):
        with pytest.raises(vb.ConfigurationError, match="nu must be"):
            Wishart(S, nu)
    for nu in (0, 1.5):
        with pytest.raises(vb.ConfigurationError, match="nu must be"):
            GeneralizedSingularWishart(S, nu, torch.ones(1), torch.ones(1), torch.zeros(3, 1), torch.ones(3, 1))
    for nu in (1, 2, 2.0):
        with pytest.raises(vb.ConfigurationError, match="N - 1 = 2"):
            InverseWishart(S, nu)
    for width in (0, -1, 1.5, True):
        with pytest.raises(vb.ConfigurationError, match="out_features must be at least 1"):
            vb.GP(width, kernel=vb.SquaredExponential(2), posterior=vb.GeneralizedWishart())


@pytest.mark.parametrize("mean", [vb.IdentityMean(), vb.ConstantMean(1.0), vb.LinearMean(2, 2)])
def test_a_mean_under_a_wishart_posterior_is_refused(mean: vb.means.Mean) -> None:
    with pytest.raises(vb.ConfigurationError, match="must have a zero mean: its Gram matrix is"):
        vb.GP(2, kernel=vb.SquaredExponential(2), mean=mean, posterior=vb.GeneralizedWishart())


@pytest.mark.parametrize(
    "kernel",
    [
        lambda: vb.SquaredExponential(2, ard=True),
        lambda: vb.Periodic(2),
        lambda: vb.SquaredExponential(2) + vb.Matern32(2, ard=True),
        lambda: vb.ActiveDimensions(vb.SquaredExponential(1), [0], in_features=2),
    ],
)
@pytest.mark.parametrize("family", ["plain", "inverse"])
def test_kernels_that_notice_rotations_are_refused_behind_a_wishart_layer(
    family: str, kernel: Callable[[], vb.Kernel]
) -> None:
    network = nn.Sequential(FAMILIES[family](2, 2), vb.GP(1, kernel=kernel()))
    with pytest.raises(vb.ConfigurationError, match="known only up to a rotation"):
        vb.Model(network, vb.Gaussian(), inducing=torch.randn(5, 2))


@pytest.mark.parametrize(
    "kernel",
    [
        lambda: vb.Matern52(2),
        lambda: vb.RationalQuadratic(2),
        lambda: vb.LinearKernel(2, bias=0.1),
        lambda: vb.ArcCosine(2),
        lambda: vb.Polynomial(2, 2),
        lambda: 2.0 * (vb.SquaredExponential(2) + vb.LinearKernel(2) * vb.Matern12(2)),
    ],
)
@pytest.mark.parametrize("family", ["plain", "inverse"])
def test_kernels_of_distances_and_inner_products_are_taken(family: str, kernel: Callable[[], vb.Kernel]) -> None:
    x, y = data()
    network = nn.Sequential(FAMILIES[family](2, 2), vb.GP(1, kernel=kernel()))
    model = vb.Model(network, vb.Gaussian(0.1), inducing=x[:5])
    value = model.elbo(x, y, n_samples=2).value
    assert all(bool(torch.isfinite(g).all()) for g in torch.autograd.grad(value, list(model.parameters())))
    assert model.sample_functions(x, 2).shape == (2, 14)


@pytest.mark.parametrize("columns", [2, 7])  # fewer than there are imagined features, and more
def test_all_columns_of_imagined_features_are_all_of_them(columns: int) -> None:
    """An inverse Wishart layer gives other widths than it declares; a kernel of all its columns sees every one."""
    x, y = data()

    def bound(kernel: vb.Kernel) -> Tensor:
        torch.manual_seed(0)
        network = nn.Sequential(FAMILIES["inverse"](2, columns), vb.GP(1, kernel=kernel))
        return vb.Model(network, vb.Gaussian(0.1), inducing=x[:4]).elbo(x, y, n_samples=2).value

    one = vb.SquaredExponential(columns)
    some = vb.ActiveDimensions(vb.SquaredExponential(columns), list(range(columns))[::-1], in_features=columns)
    torch.testing.assert_close(bound(some), bound(one))


def test_an_identity_mean_between_other_widths_is_refused() -> None:
    with pytest.raises(vb.ConfigurationError, match="LinearMean"):
        vb.GP(3, kernel=vb.SquaredExponential(2), mean=vb.IdentityMean())
