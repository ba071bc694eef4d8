"""Identity 19 for layers of weights: every posterior x prior pair, and closed forms against samples."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from test_evidence_oracle import log_mean_exp
from torch import nn

import vibayes as vb

X3 = torch.tensor([[-0.8, 0.3], [0.2, -1.1], [1.4, 0.6]], dtype=torch.float64)
Y3 = torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64)
PRIORS: dict[str, Callable[[], vb.NealPrior | vb.StandardPrior | vb.ScalePrior]] = {
    "neal": vb.NealPrior,
    "standard": vb.StandardPrior,
    "scale": vb.ScalePrior,
    "root scale": lambda: vb.ScalePrior("sqrt(s)"),
}


POSTERIORS: dict[str, Callable[[], vb.posteriors.Posterior]] = {
    "global": lambda: vb.GlobalInducing(log_precision=-3.0),
    "global per output": lambda: vb.GlobalInducing("per_output", log_precision=-3.0),
    "global full": lambda: vb.GlobalInducing("full", log_precision=-3.0),
    "local": lambda: vb.LocalInducing(6),
    "local per output": lambda: vb.LocalInducing(6, precision="per_output"),
    "local full": lambda: vb.LocalInducing(6, precision="full"),
    "local full, wide": lambda: vb.LocalInducing(2, precision="full"),
    "local wide": lambda: vb.LocalInducing(2),
    "mean field": lambda: vb.MeanField(variance=0.6),
    "from prior": vb.FromPrior,
}


def prior_evidence(sizes: list[int], prior: str, bias: bool, n: int = 1_000_000) -> tuple[float, float]:
    """Evidence of a ReLU network from draws of its weights."""
    parts = []
    for _ in range(10):
        count = n // 10
        f = X3.expand(count, -1, -1)
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            if i > 0:
                f = torch.relu(f)
            if bias:
                f = torch.cat([f, torch.ones(count, 3, 1)], 2)
            s = torch.distributions.Gamma(2.0, 2.0).sample((count, 1, 1)).to(f)
            power = {"neal": 0.0, "standard": 0.0, "scale": -0.5, "root scale": 0.25}[prior]
            std = s**power / (1.0 if prior == "standard" else math.sqrt(a + bias))
            f = f @ (std * torch.randn(count, a + bias, b))
        parts.append((-0.5 * (Y3 - f[..., 0]).square() / 0.3 - 0.5 * math.log(2 * math.pi * 0.3)).sum(1))
    return log_mean_exp(torch.cat(parts))


EVIDENCE: dict[tuple[str, bool], tuple[float, float]] = {}


@pytest.mark.parametrize(("prior", "bias"), [*((name, True) for name in PRIORS), ("neal", False)])
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_importance_weights_average_to_the_evidence(posterior: str, prior: str, bias: bool) -> None:
    """Identity 19: every posterior x prior pair in a network of two layers."""

    def layer(n: int, m: int) -> vb.Linear:
        return vb.Linear(n, m, bias, prior=PRIORS[prior](), posterior=POSTERIORS[posterior]())

    network = nn.Sequential(layer(2, 3), nn.ReLU(), layer(3, 1))
    needs = posterior.startswith("global")
    model = vb.Model(network, vb.Gaussian(0.3), inducing=torch.randn(4, 2) if needs else None)
    with torch.no_grad():
        for one in model.layers.values():
            for name, parameter in one.posterior.named_parameters():
                if name in ("pseudo_outputs", "mean"):
                    parameter.mul_(0.4)
                if name == "precision.raw":
                    parameter.fill_(-1.0)
                if name == "raw_factor":
                    parameter.fill_diagonal_(-1.5)
                parameter.add_(0.05 * torch.randn_like(parameter))
            if prior.endswith("scale"):
                one.prior.alpha.set(1.0)
                one.prior.beta.set(1.5)
            if posterior == "mean field":  # wide enough for importance weights of finite variance
                wide = {"standard": 1.2 * one.fan_in, "scale": 1.8}.get(prior, 1.2)
                one.posterior.std.set(math.sqrt(wide))
                one.posterior.mean.mul_(0.5)
        if (prior, bias) not in EVIDENCE:
            EVIDENCE[prior, bias] = prior_evidence([2, 3, 1], prior, bias)
        evidence, evidence_error = EVIDENCE[prior, bias]
        estimate, error = log_mean_exp(model.log_weights(X3, Y3, n_samples=50_000))
        bound = model.elbo(X3, Y3, n_samples=3_000)
    assert error < (0.06 if posterior == "mean field" else 0.03)
    assert abs(estimate - evidence) < 3.5 * math.hypot(error, evidence_error)
    assert float(bound.value) + 4 * float(bound.stderr) < evidence


@pytest.mark.parametrize("prior", ["neal", "scale"])
@pytest.mark.parametrize("posterior", ["global", "local", "local wide", "mean field"])
def test_closed_forms_have_the_expectation_of_samples(posterior: str, prior: str) -> None:
    """`elbo` (closed-form KL, local reparameterisation, integrated output) against the mean of `log_weights`."""

    def layer(n: int, m: int, posterior: str) -> vb.Linear:
        return vb.Linear(n, m, prior=PRIORS[prior](), posterior=POSTERIORS[posterior]())

    # with a last layer of its own, the inducing rows of "global" travel through the first
    network = nn.Sequential(layer(2, 3, posterior), nn.ReLU(), layer(3, 1, posterior))
    mixed = nn.Sequential(layer(2, 3, posterior), nn.ReLU(), layer(3, 1, "global"))
    for net, inducing in ((network, posterior == "global"), (mixed, True)):
        model = vb.Model(net, vb.Gaussian(0.3), inducing=torch.randn(4, 2) if inducing else None)
        with torch.no_grad():
            bound = model.elbo(X3, Y3, n_samples=20_000)
            weights = model.log_weights(X3, Y3, n_samples=20_000)
        error = math.hypot(float(bound.stderr), float(weights.std()) / math.sqrt(len(weights)))
        assert abs(float(bound.value) - float(weights.mean())) < 4 * error
