"""One small model of every family that can be saved, with data to train it on."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.conjugate import GaussianBumps, PolynomialFeatures
from vibayes.kernels import spectral_normalize
from vibayes.posteriors import Posterior
from vibayes.priors import Prior
from vibayes.trainable import TrainableModel

Family = Callable[[Tensor], TrainableModel]


def rows(name: str = "") -> Tensor:
    """Inputs of a family: images where its name says so."""
    shape = (12, 1, 6, 6) if "images" in name else (24, 2)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return drawn.to(torch.get_default_dtype())


def targets(model: TrainableModel, x: Tensor) -> Tensor:
    """Targets that the model's likelihood can explain."""
    x = x.flatten(1)
    wave = torch.sin(2.0 * x[:, 0]) + 0.3 * x[:, 1]
    kind = model.likelihood.kind
    if kind == "binary":
        return (wave > 0).to(x)
    if kind == "classes":
        return (wave > 0).long() + (x[:, 1] > 0).long()
    return wave.exp().round() if kind == "counts" else 5.0 + 3.0 * wave


def _deep(posterior: Posterior) -> Family:
    def family(x: Tensor) -> TrainableModel:
        noise = None if posterior.rotates else 1e-3
        hidden = vb.GP(3, kernel=vb.SquaredExponential(2, ard=True), noise=noise, posterior=posterior)
        last = vb.GP(1, kernel=vb.SquaredExponential(3), posterior=vb.GlobalInducing("full"))
        return vb.Model(nn.Sequential(hidden, last), vb.Gaussian(0.1), inducing=x[:6], standardize="both")

    return family


def _network(posterior: Posterior | None = None, prior: Prior | None = None) -> Family:
    def family(x: Tensor) -> TrainableModel:
        layers = [vb.Linear(d, p, posterior=posterior, prior=prior) for d, p in ((2, 8), (8, 1))]
        network = nn.Sequential(layers[0], nn.ReLU(), layers[1])
        inducing = x[:6] if posterior is None else None
        return vb.Model(network, vb.Gaussian(0.1), inducing=inducing, standardize="both")

    return family


def _sparse(
    likelihood: Callable[[], vb.Likelihood], outputs: int = 1, kernel: Callable[[], vb.Kernel] | None = None
) -> Family:
    def family(x: Tensor) -> TrainableModel:
        chosen = vb.SquaredExponential(2, ard=True) if kernel is None else kernel()
        layer = vb.GP(outputs, kernel=chosen, posterior=vb.LocalInducing(6), mean=vb.ConstantMean())
        return vb.Model(layer, likelihood())

    return family


def _kernel() -> vb.Kernel:
    """A kernel with a bit of everything, one hyperparameter shared and one with a prior."""
    prior = torch.distributions.LogNormal(0.0, 1.0)
    shared = vb.Positive(0.7, prior=prior, scale=2.0)
    one = vb.Matern32(1, lengthscale=shared)
    two = vb.Periodic(1, period=2.0, lengthscale=shared)
    whole = vb.Polynomial(2, 2) + vb.Scaled(vb.RationalQuadratic(2), 0.5) * vb.ArcCosine(2, 1, bias=0.1)
    return vb.ActiveDimensions(one, [1], 2) + vb.ActiveDimensions(two, [0], 2) + whole + vb.Constant(2) + vb.White(2)


def exact(x: Tensor) -> TrainableModel:
    return vb.ExactGP(vb.SquaredExponential(2, ard=True), vb.Gaussian(0.1), standardize="both")


def sgpr(x: Tensor) -> TrainableModel:
    return vb.SGPR(vb.Matern52(2), vb.Gaussian(0.1), 6, mean=vb.LinearMean(2, 1), standardize="both")


def _regression(posterior: str) -> Family:
    def family(x: Tensor) -> TrainableModel:
        features = GaussianBumps(x[:5]) if posterior in ("exact", "full") else PolynomialFeatures(2, 2)
        return vb.LinearRegression(features, posterior=posterior, noise=0.1, standardize="both")

    return family


def deep_kernel(x: Tensor) -> TrainableModel:
    network = spectral_normalize(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), 0.9)
    layer = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(6))
    return vb.Model(nn.Sequential(network, layer), vb.Gaussian(0.1), standardize="both")


def kernel_of_network(x: Tensor) -> TrainableModel:
    kernel = vb.DeepKernel(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), vb.SquaredExponential(2))
    return vb.ExactGP(kernel, vb.Gaussian(0.1), standardize="both")


def inverse_wishart(x: Tensor) -> TrainableModel:
    hidden = vb.InverseWishartProcess(kernel=vb.SquaredExponential(2, ard=True), dof=5.0)
    last = vb.GP(1, kernel=vb.SquaredExponential(1))
    return vb.Model(nn.Sequential(hidden, last), vb.Gaussian(0.1), inducing=x[:6], standardize="both")


def convolutional(x: Tensor) -> TrainableModel:
    first = vb.Conv2d(1, 3, 3, padding=1, prior=vb.SpatialIWPrior())
    network = nn.Sequential(first, vb.BatchNorm(3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), vb.Linear(27, 3))
    return vb.Model(network, vb.Categorical(), inducing=x[:5])


def made_bayesian(x: Tensor) -> TrainableModel:
    plain = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.BatchNorm2d(3), nn.ELU(), nn.Flatten(), nn.Linear(12, 1))
    network = vb.bayesianize(plain, posterior=vb.MeanField(), last=vb.GlobalInducing())
    return vb.Model(network, vb.Gaussian(0.1), inducing=x[:5], standardize="targets")


FAMILIES: dict[str, Family] = {
    "exact GP": exact,
    "SGPR": sgpr,
    **{f"linear regression, {q}": _regression(q) for q in ("exact", "full", "mean_field", "point")},
    "SVGP": _sparse(lambda: vb.Gaussian(0.1)),
    "SVGP, every kernel": _sparse(lambda: vb.Gaussian(0.1), 1, _kernel),
    "SVGP, Student t": _sparse(vb.StudentT),
    "SVGP, heteroscedastic": _sparse(vb.HeteroscedasticGaussian, 2),
    "SVGP, yes or no": _sparse(vb.Bernoulli),
    "SVGP, classes": _sparse(vb.Categorical, 3),
    "SVGP, counts": _sparse(vb.Poisson),
    "deep GP": _deep(vb.GlobalInducing("per_output")),
    "deep GP, local": _deep(vb.LocalInducing(5, form="pseudo")),
    "deep GP, local, full": _deep(vb.LocalInducing(5, form="pseudo", precision="full")),
    "deep GP, global, full per output": _deep(vb.GlobalInducing("full_per_output")),
    "deep GP, prior": _deep(vb.FromPrior()),
    **{f"deep Wishart, {m}": _deep(vb.GeneralizedWishart(m)) for m in ("plain", "A", "AB")},
    "deep inverse Wishart": inverse_wishart,
    "BNN, global inducing": _network(),
    "BNN, mean-field": _network(vb.MeanField()),
    "BNN, point": _network(vb.Point()),
    **{
        f"BNN, {type(p).__name__}": _network(vb.MeanField(), p)
        for p in (vb.NealPrior(), vb.StandardPrior(), vb.ScalePrior())
    },
    "BNN, images": convolutional,
    "BNN, images, from a torch network": made_bayesian,
    "deep kernel, spectral norm": deep_kernel,
    "deep kernel in a kernel": kernel_of_network,
}
