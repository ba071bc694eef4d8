"""Identity 19 for convolutions: importance weights average to the evidence, for every prior and posterior."""

import math

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.convolution import Geometry, patches
from vibayes.layers.weights import with_ones

PRIORS = {"neal": vb.NealPrior, "scale": vb.ScalePrior, "spatial": vb.SpatialIWPrior}
# widths for which importance weights are not heavy-tailed
POSTERIORS = {
    "global": lambda: vb.GlobalInducing(),
    "local": lambda: vb.LocalInducing(30),
    "mean field": lambda: vb.MeanField(variance=1.3),
    "prior": lambda: vb.FromPrior(),
}


def log_mean_exp(values: Tensor) -> tuple[float, float]:
    top = values.max()
    weights = (values - top).exp()
    return float(weights.mean().log() + top), float(weights.std() / weights.mean() / math.sqrt(len(weights)))


def prior_evidence(prior: str, x: Tensor, y: Tensor, n: int) -> tuple[float, float]:
    """From draws of the weights by hand: a convolution of 4 taps, ReLU, mean over places, a linear layer."""
    K = 5
    kernels = torch.randn(n, 2, K) / math.sqrt(K)  # [draws, outputs, taps and bias]
    out = torch.randn(n, 3) / math.sqrt(3)
    if prior == "scale":
        gamma = torch.distributions.Gamma(2.0, 2.0)
        kernels = kernels / gamma.sample((n, 1, 1)).sqrt()
        out = out / gamma.sample((n, 1)).sqrt()
    elif prior == "spatial":  # L^-1 is Wishart with p + 1 degrees of freedom and mean I
        factor = torch.randn(n, 4, 5) / math.sqrt(5)
        W = factor @ factor.mT
        taps = torch.linalg.cholesky(W) @ kernels[..., :4].mT  # [n, 4, 2]
        kernels = torch.cat([taps.mT, kernels[..., 4:]], -1)
        out = out * torch.distributions.Gamma(1.0, 1.0).sample((n, 1)).sqrt()
    D = with_ones(patches(x, Geometry((2, 2))).flatten(0, 1), True)  # [3 * 4, 5]
    hidden = torch.relu(torch.einsum("rk,npk->nrp", D, kernels)).reshape(n, 3, 4, 2).mean(2)
    f = (hidden * out[:, None, :2]).sum(-1) + out[:, None, 2]  # [n, 3]
    log_likelihood = torch.distributions.Normal(f, math.sqrt(0.3)).log_prob(y).sum(-1)
    return log_mean_exp(log_likelihood)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_importance_weights_average_to_the_evidence(posterior: str, prior: str) -> None:
    if (posterior, prior) == ("mean field", "spatial"):
        pytest.skip("weights without correlations are no proposal for kernels with any; tests/test_spatial_prior.py")
    x, y = torch.randn(3, 1, 3, 3), torch.tensor([0.7, -0.4, 0.9])
    options = {"prior": PRIORS[prior](), "posterior": POSTERIORS[posterior]()}
    net = nn.Sequential(
        vb.Conv2d(1, 2, 2, **options), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), vb.Linear(2, 1, **options)
    )
    inducing = torch.randn(4, 1, 3, 3) if posterior == "global" else None
    model = vb.Model(net, vb.Gaussian(0.3), inducing=inducing)
    with torch.no_grad():
        for name, p in model.network.named_parameters():
            if "prior" in name:  # a posterior of hyperparameters as wide as their prior, and not the same
                p.mul_(0.05).add_(0.2 * torch.randn_like(p)) if name.endswith("raw_factor") else p.fill_(-1.5)
            elif name.endswith(("pseudo_outputs", "mean")):
                p.mul_(0.3)
            elif name.endswith("precision.raw"):
                p.fill_(-0.8)
        estimate, error = log_mean_exp(model.log_weights(x, y, n_samples=50_000))
        evidence, evidence_error = prior_evidence(prior, x, y, 200_000)
        bound = model.elbo(x, y, n_samples=4000)
    assert error < 0.1
    assert abs(estimate - evidence) < 3.5 * math.hypot(error, evidence_error)
    assert float(bound.value) - 4 * float(bound.stderr) < evidence
