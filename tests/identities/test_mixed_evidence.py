"""Identity 19 where layers differ: mixtures of posteriors, branches, and convolutions in their fast form."""

import math
from collections.abc import Callable

import pytest
import torch
from test_evidence_oracle import log_mean_exp
from torch import Tensor, nn

import vibayes as vb

Y3 = torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64)
POSTERIORS: dict[str, Callable[[], vb.posteriors.Posterior]] = {
    "global": lambda: vb.GlobalInducing(log_precision=-3.0),
    "global per output": lambda: vb.GlobalInducing("per_output", log_precision=-3.0),
    "global full per output": lambda: vb.GlobalInducing("full_per_output", log_precision=-3.0),
    "local": lambda: vb.LocalInducing(12, log_precision=-3.0),
    "local wide": lambda: vb.LocalInducing(2, log_precision=-3.0),
    "local full per output": lambda: vb.LocalInducing(2, precision="full_per_output", log_precision=-3.0),
    "mean field": lambda: vb.MeanField(variance=1.2),
    "prior": vb.FromPrior,
}


class Branches(nn.Module):
    """A skip connection around the second layer, and another layer beside both."""

    def __init__(self, one: Callable[..., vb.Linear]) -> None:
        super().__init__()
        self.first, self.second = one(2, 3), one(3, 3, bias=False)
        self.beside, self.last = one(2, 2), one(5, 1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.first(x))
        h = h + self.act(self.second(h))
        return self.last(torch.cat([h, self.beside(x)], 1))


def network(kind: str, posteriors: list[str], prior: vb.priors.Prior) -> nn.Module:
    of = iter(posteriors)

    def linear(n: int, m: int, bias: bool = True) -> vb.Linear:
        return vb.Linear(n, m, bias, prior=prior, posterior=POSTERIORS[next(of)]())

    if kind == "branches":
        return Branches(linear)
    if kind == "linear":
        return nn.Sequential(linear(2, 3), nn.ReLU(), linear(3, 3), nn.Tanh(), linear(3, 1))
    # boundaries are circular in the posterior of this convolution, and zero in the network
    first = vb.Conv2d(2, 2, 3, padding=1, prior=prior, posterior=POSTERIORS[next(of)]())
    norm = vb.BatchNorm(2) if kind == "normalised images" else nn.Identity()
    second = vb.Conv2d(2, 2, 2, 2, bias=False, prior=prior, posterior=POSTERIORS[next(of)]())
    return nn.Sequential(first, norm, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), linear(8, 1))


def shrink(model: vb.Model) -> None:
    """Parameters by chance, near enough to the prior for importance weights of finite variance."""
    for name, parameter in model.network.named_parameters():
        if name.endswith(("pseudo_outputs", "posterior.mean")):
            parameter.mul_(0.4)
        if ".prior." in name:
            parameter.mul_(0.05) if name.endswith("raw_factor") else parameter.fill_(-1.0)
        parameter.add_(0.05 * torch.randn_like(parameter))


@pytest.mark.parametrize(
    ("kind", "prior", "posteriors"),
    [
        ("linear", vb.NealPrior, ["mean field", "global", "local"]),
        ("linear", vb.NealPrior, ["global full per output", "prior", "local full per output"]),
        ("linear", vb.NealPrior, ["local wide", "global per output", "mean field"]),
        ("linear", vb.SpatialIWPrior, ["global", "local", "global full per output"]),
        ("branches", vb.NealPrior, ["global", "mean field", "local", "global full per output"]),
        ("branches", vb.ScalePrior, ["local", "global", "prior", "global per output"]),
        ("images", vb.NealPrior, ["global", "global", "global"]),
        ("images", vb.SpatialIWPrior, ["global per output", "global per output", "local"]),
        ("images", vb.ScalePrior, ["local", "global", "prior"]),
        ("normalised images", vb.NealPrior, ["global", "local", "mean field"]),
    ],
)
def test_importance_weights_average_to_the_evidence(
    kind: str, prior: type[vb.priors.Prior], posteriors: list[str]
) -> None:
    shape = (2, 4, 4) if kind.endswith("images") else (2,)
    x, z = torch.randn(3, *shape), torch.randn(4, *shape)

    def model(names: list[str], inducing: bool) -> vb.Model:
        return vb.Model(network(kind, names, prior()), vb.Gaussian(0.3), inducing=z if inducing else None)

    with torch.no_grad():
        likelihoods = model(["prior"] * len(posteriors), kind == "normalised images").log_weights(x, Y3, 100_000)
        evidence, evidence_error = log_mean_exp(likelihoods)
        mixed = model(posteriors, True)
        shrink(mixed)
        weights = mixed.log_weights(x, Y3, n_samples=30_000)
        estimate, error = log_mean_exp(weights)
        bound = mixed.elbo(x, Y3, n_samples=3_000)
    assert error < 0.06
    assert abs(estimate - evidence) < 3.5 * math.hypot(error, evidence_error)
    spread = math.hypot(float(bound.stderr), float(weights.std()) / math.sqrt(len(weights)))
    assert abs(float(bound.value) - float(weights.mean())) < 4 * spread
    assert float(bound.value) + 4 * float(bound.stderr) < evidence
