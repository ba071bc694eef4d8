"""Identity 19: one oracle for every layer x posterior pair.

With three observations, the log of the mean importance weight over many draws equals the evidence estimated from a
million prior draws, and the bound stays below it. A wrong density, Jacobian or missing factor breaks it.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb

X = torch.tensor([[-0.8, 0.3], [0.2, -1.1], [1.4, 0.6]], dtype=torch.float64)
TARGETS: dict[str, tuple[Callable[[], vb.Likelihood], Tensor]] = {
    "gaussian": (lambda: vb.Gaussian(0.3), torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64)),
    "student_t": (lambda: vb.StudentT(4.0, 0.5), torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64)),
    "bernoulli": (lambda: vb.Bernoulli(), torch.tensor([1, 0, 1])),
    "poisson": (lambda: vb.Poisson(), torch.tensor([2, 0, 1])),
}
POSTERIORS = {
    "whitened": lambda: vb.LocalInducing(4),
    "pseudo": lambda: vb.LocalInducing(4, form="pseudo"),
    "pseudo, full": lambda: vb.LocalInducing(4, form="pseudo", precision="full"),
    "pseudo, full per output": lambda: vb.LocalInducing(4, form="pseudo", precision="full_per_output"),
}


def randomized(model: vb.Model, scale: float = 0.25) -> vb.Model:
    """Move every variational parameter away from its start, to a posterior wide enough for importance weights."""
    with torch.no_grad():
        for layer in model.layers.values():
            if layer.posterior.form == "pseudo":
                layer.posterior.pseudo_outputs.mul_(0.4)
                if layer.posterior.kind.startswith("full"):
                    layer.posterior.raw_factor.diagonal(dim1=-2, dim2=-1).fill_(0.5 * math.log(0.4))
                else:
                    layer.posterior.precision.set(0.4)
            for parameter in layer.posterior.parameters():
                parameter.add_(scale * torch.randn_like(parameter))
    model.jitter.fill_(1e-10)
    return model


def log_mean_exp(log_weights: Tensor) -> tuple[float, float]:
    """The log of the mean of the weights and its standard error."""
    top = log_weights.max()
    weights = (log_weights - top).exp()
    mean = weights.mean()
    return float(mean.log() + top), float(weights.std() / math.sqrt(len(weights)) / mean)


def gp_evidence(likelihood: vb.Likelihood, kernel: vb.Kernel, y: Tensor, n: int = 1_000_000) -> tuple[float, float]:
    """Evidence of a one-output GP from prior draws of the function at the data."""
    L = torch.linalg.cholesky(kernel(X) + 1e-12 * torch.eye(3))
    f = torch.randn(n, 3) @ L.T
    targets = likelihood.check_targets(y)
    log_likelihood = torch.func.vmap(lambda row: likelihood.log_prob(row[:, None], targets).sum())(f)
    return log_mean_exp(log_likelihood)


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_importance_weights_average_to_the_evidence(posterior: str, targets: str) -> None:
    make, y = TARGETS[targets]
    kernel = vb.SquaredExponential(2, lengthscale=1.3, variance=1.2)
    model = randomized(vb.Model(vb.GP(1, kernel=kernel, posterior=POSTERIORS[posterior]()), make()))
    with torch.no_grad():
        evidence, evidence_error = gp_evidence(model.likelihood, kernel, y)
        estimate, error = log_mean_exp(model.log_weights(X, y, n_samples=200_000))
        bound = float(model.elbo(X, y).value)
    assert error < 0.03
    assert abs(estimate - evidence) < 3 * math.hypot(error, evidence_error)
    assert bound < evidence


def test_two_outputs() -> None:
    y = torch.tensor([[0.7, 0.1], [-0.4, 0.9], [1.1, -0.2]])
    kernel = vb.Matern52(2, lengthscale=0.9)
    model = randomized(vb.Model(vb.GP(2, kernel=kernel, posterior=vb.LocalInducing(3)), vb.Gaussian(0.4)))
    exact = vb.ExactGP(kernel, vb.Gaussian(0.4))
    with torch.no_grad():
        estimate, error = log_mean_exp(model.log_weights(X, y, n_samples=200_000))
        evidence = float(exact.log_marginal_likelihood(X, y))
        bound = float(model.elbo(X, y).value)
    assert error < 0.02
    assert abs(estimate - evidence) < 3 * error
    assert bound < evidence


def test_two_layers_with_noise_and_skip() -> None:
    """A two-layer deep GP: hidden layer noise, an identity mean, another posterior in each layer."""
    y = torch.tensor([0.7, -0.4, 1.1])
    first = vb.GP(
        2,
        kernel=vb.SquaredExponential(2, lengthscale=1.5),
        mean=vb.IdentityMean(),
        noise=0.05,
        posterior=vb.LocalInducing(3),
    )
    second = vb.GP(1, kernel=vb.Matern32(2), posterior=vb.LocalInducing(3, form="pseudo"))
    model = randomized(vb.Model(nn.Sequential(first, second), vb.Gaussian(0.3)), scale=0.15)
    n = 1_000_000
    with torch.no_grad():
        L1 = torch.linalg.cholesky(first.kernel(X) + 0.05 * torch.eye(3))
        hidden = X + torch.einsum("ij,njp->nip", L1, torch.randn(n, 3, 2))  # [n, 3, 2]
        K2 = torch.func.vmap(lambda rows: second.kernel(rows))(hidden)
        K2 = K2 + 0.3 * torch.eye(3)
        normal = torch.distributions.MultivariateNormal(torch.zeros(3), K2)
        evidence, evidence_error = log_mean_exp(normal.log_prob(y))
        estimate, error = log_mean_exp(model.log_weights(X, y, n_samples=400_000))
        bound = model.elbo(X, y, n_samples=20_000)
    assert error < 0.03
    assert abs(estimate - evidence) < 3 * math.hypot(error, evidence_error)
    assert float(bound.value) + 4 * float(bound.stderr) < evidence
