"""Models in words."""

import torch
from torch import nn

import vibayes as vb
from vibayes.conjugate import GaussianBumps
from vibayes.describe import describe_part
from vibayes.parameters import Positive


def test_describe_names_layers_values_and_sizes() -> None:
    hidden = vb.GP(2, kernel=vb.SquaredExponential(2, ard=True), mean=vb.IdentityMean(), noise=0.01)
    last = vb.GP(1, kernel=vb.Matern52(2, lengthscale=0.3), mean=vb.ConstantMean(1.5))
    last.kernel.variance.fix(2.0)
    model = vb.Model(nn.Sequential(hidden, last), vb.Gaussian(0.25), inducing=torch.randn(7, 2), standardize="both")
    text = model.describe()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert f"2 Bayesian layers, {trained:,} parameters to train, float64" in text
    assert "7 inducing inputs of shape [2]" in text
    assert "0: GP 2 -> 2, posterior GlobalInducing(precision='diagonal'), " in text
    assert "  mean: IdentityMean\n" in text
    assert "kernel: Matern52, lengthscale 0.3; variance 2 (fixed)" in text
    assert "mean: ConstantMean, value 1.5" in text
    assert "noise: variance 0.01" in text
    assert "likelihood: Gaussian, noise 0.25" in text
    assert text.endswith("standardises inputs and targets")


def test_describe_names_priors_and_options_of_posteriors() -> None:
    layers = [vb.Linear(2, 4), nn.ReLU(), vb.Linear(4, 1, prior=vb.ScalePrior(), posterior=vb.LocalInducing(6))]
    text = vb.Model(nn.Sequential(*layers), vb.Gaussian(), inducing=torch.randn(5, 2)).describe()
    assert "  prior: NealPrior\n" in text
    assert "  prior: ScalePrior, alpha 100; beta 100\n" in text
    assert "posterior LocalInducing(6, form='pseudo', precision='diagonal')" in text
    natural = vb.GP(2, kernel=vb.SquaredExponential(1), posterior=vb.GlobalInducing("natural"))
    model = vb.Model(natural, vb.Gaussian(), inducing=torch.randn(5, 1))
    assert "posterior GlobalInducing(precision='natural'), 62 parameters" in model.describe()  # 2 (25 + 5) and a kernel


def test_convolutions_are_told_with_their_channels() -> None:
    network = nn.Sequential(vb.Conv2d(3, 8, 5), nn.Flatten(), vb.Linear(8 * 4, 2))
    text = vb.Model(network, vb.Categorical(), inducing=torch.randn(4, 3, 6, 6)).describe()
    assert "0: Conv2d 3 -> 8, posterior" in text
    assert "2: Linear 32 -> 2, posterior" in text


def test_shared_kernels_and_priors_of_hyperparameters_are_told() -> None:
    lengthscale = Positive(0.5, prior=torch.distributions.Gamma(2.0, 1.0))
    kernel = vb.SquaredExponential(1, lengthscale=lengthscale)
    kernel.variance = Positive(1.0, learn=False, prior=torch.distributions.LogNormal(0.0, 2.0))
    layers = [vb.GP(1, kernel=kernel), vb.GP(1, kernel=vb.Matern32(1)), vb.GP(1, kernel=kernel)]
    text = vb.Model(nn.Sequential(*layers), vb.Gaussian(), inducing=torch.randn(5, 1)).describe()
    told = (
        "kernel: SquaredExponential, lengthscale 0.5 (prior Gamma(concentration 2, rate 1)); "
        "variance 1 (fixed, prior LogNormal(loc 0, scale 2))"
    )
    lines = [line.strip() for line in text.splitlines() if "kernel:" in line]
    matern = "kernel: Matern32, lengthscale 1; variance 1"
    assert lines == [f"{told}; shared with layer '2'", matern, f"{told}; shared with layer '0'"]


def test_kernels_are_told_with_those_they_are_made_of() -> None:
    chosen = vb.ActiveDimensions(vb.Periodic(1, period=2.0), [1], in_features=3)
    kernel = 2.0 * (vb.Matern32(3, lengthscale=0.5) + chosen)
    assert describe_part(kernel) == (
        "Scaled, variance 2, of (Sum of (Matern32, lengthscale 0.5; variance 1) and "
        "(ActiveDimensions [1] of (Periodic, lengthscale 1; variance 1; period 2)))"
    )
    deep = vb.DeepKernel(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), vb.SquaredExponential(2), in_features=3)
    assert describe_part(deep) == "DeepKernel of (SquaredExponential, lengthscale 1; variance 1)"
    layer = vb.GP(1, kernel=kernel, posterior=vb.LocalInducing(4))
    assert f"  kernel: {describe_part(kernel)}\n" in vb.Model(layer, vb.Gaussian(0.1)).describe()


def test_closed_form_models_describe_themselves() -> None:
    x = torch.randn(9, 2)
    gp = vb.ExactGP(vb.SquaredExponential(2), vb.Gaussian(0.1), mean=vb.ConstantMean(0.5), standardize="inputs")
    assert gp.describe().endswith("mean: ConstantMean, value 0.5\nlikelihood: Gaussian, noise 0.1\nstandardises inputs")
    gp.condition(x, x[:, 0])
    assert gp.describe().endswith("\nhas seen 9 rows")
    sparse = vb.SGPR(vb.SquaredExponential(2), vb.Gaussian(0.1), x[:4])
    assert "SGPR, 11 parameters to train, float64\n4 inducing inputs of shape [2]\nkernel: Squ" in sparse.describe()
    regression = vb.LinearRegression(GaussianBumps(x[:3], 1.0), noise=0.2, prior_variance=2.0)
    lines = regression.describe().splitlines()
    assert lines[1:] == [
        "features: GaussianBumps, lengthscale 1 (fixed)",
        "prior variance: 2",
        "likelihood: Gaussian, noise 0.2",
    ]
