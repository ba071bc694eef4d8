"""Gradients of the bound against finite differences, over draws with prepared noise, for every layer and posterior.

An operation with a backward pass of its own may be right alone and wrong under `vmap`, where some of its inputs belong
to the draw and others do not: the first layer's kernel does not depend on the draw, that of the second does.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.draw import Draw

D, N, M, S = 2, 7, 5, 3


def gp(posterior: nn.Module, width: int = D, **options: object) -> vb.GP:
    kernel = vb.SquaredExponential(D, lengthscale=1.3, variance=0.8)
    return vb.GP(width, kernel=kernel, posterior=posterior, **options)  # type: ignore[arg-type]


def deep(posterior: Callable[[], nn.Module], **options: object) -> nn.Sequential:
    return nn.Sequential(
        gp(posterior(), **options), gp(posterior(), **options), gp(vb.GlobalInducing("full", log_precision=1.0), 1)
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "global diagonal": lambda: deep(lambda: vb.GlobalInducing("diagonal", log_precision=0.5)),
    "global per output": lambda: deep(lambda: vb.GlobalInducing("per_output", log_precision=0.5)),
    "global full, skip and noise": lambda: deep(
        lambda: vb.GlobalInducing("full", log_precision=0.5), mean=vb.IdentityMean(), noise=0.1
    ),
    "local pseudo": lambda: deep(lambda: vb.LocalInducing(4, form="pseudo"), noise=0.1),
    "local pseudo, full": lambda: deep(lambda: vb.LocalInducing(4, form="pseudo", precision="full"), noise=0.1),
    "global, full per output": lambda: deep(
        lambda: vb.GlobalInducing("full_per_output", log_precision=0.5), mean=vb.IdentityMean(), noise=0.1
    ),
    "local whitened": lambda: deep(lambda: vb.LocalInducing(4), noise=0.1),
    "wishart": lambda: deep(lambda: vb.GeneralizedWishart("plain"), noise=0.1),
    "wishart AB": lambda: deep(lambda: vb.GeneralizedWishart("AB"), noise=0.1),
    "weights, global": lambda: nn.Sequential(vb.Linear(D, 3), nn.Tanh(), vb.Linear(3, 2), nn.Tanh(), vb.Linear(2, 1)),
    "weights, mean field below global": lambda: nn.Sequential(
        vb.Linear(D, 3, posterior=vb.MeanField()), nn.Tanh(), vb.Linear(3, 1)
    ),
    "weights, local": lambda: nn.Sequential(
        vb.Linear(D, 3, posterior=vb.LocalInducing(4, form="pseudo")), nn.Tanh(), vb.Linear(3, 1)
    ),
}

# Their gradients leave out a term whose expectation is zero ("sticking the landing").
STUCK = ("alpha", "beta", ".mu", "sigma")


def prepared_noise(model: vb.Model, x: Tensor) -> dict[str, Tensor]:
    draw = Draw(n_inducing=M, jitter=model.jitter, output=str(len(model.network) - 1))
    with torch.no_grad():
        model._pass(x, draw)
    return {site: torch.randn(S, *shape) for site, shape in draw.requests.items()}


def model_and_bound(name: str) -> tuple[vb.Model, Callable[[], Tensor]]:
    """A model, and its bound with the same noise every time."""
    torch.manual_seed(3)
    x = torch.randn(N, D)
    y = x[:, 0].sin()
    model = vb.Model(NETWORKS[name](), vb.Gaussian(0.3), inducing=torch.randn(M, D))
    model.initialize(x, y)
    noise = prepared_noise(model, x)

    def bound() -> Tensor:
        terms = model(x, y[:, None], n_samples=S, noise=noise)
        return terms.log_likelihood.sum() + terms.log_ratio.sum()

    return model, bound


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_the_bound(name: str) -> None:
    model, bound = model_and_bound(name)
    parameters = {n: p for n, p in model.named_parameters() if not any(s in n for s in STUCK)}
    gradients = torch.autograd.grad(bound(), list(parameters.values()), allow_unused=True)
    step = 1e-6
    for (parameter_name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        direction = torch.randn_like(parameter)
        with torch.no_grad():
            parameter.add_(step * direction)
            above = bound()
            parameter.sub_(2 * step * direction)
            below = bound()
            parameter.add_(step * direction)
        expected = (above - below) / (2 * step)
        found = torch.zeros(()) if gradient is None else (gradient * direction).sum()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=lambda m, n=parameter_name: f"{n}: {m}")


@pytest.mark.parametrize("name", ["local whitened", "wishart AB"])
def test_second_derivatives_are_those_of_the_gradients(name: str) -> None:
    """Also where these leave something out. Shapes of gammas take no part: theirs are refused."""
    model, bound = model_and_bound(name)
    parameters = [p for n, p in model.named_parameters() if ".alpha" not in n]
    weights, direction = ([torch.randn_like(p) for p in parameters] for _ in range(2))

    def slope(step: float, again: bool = False) -> Tensor:
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=step)
        gradients = torch.autograd.grad(bound(), parameters, create_graph=again)
        return torch.stack([(g * w).sum() for g, w in zip(gradients, weights, strict=True)]).sum()

    curvatures = torch.autograd.grad(slope(0.0, again=True), parameters)
    found = torch.stack([(c * d).sum() for c, d in zip(curvatures, direction, strict=True)]).sum()
    above, below = slope(1e-5), slope(-2e-5)
    torch.testing.assert_close(found, (above - below) / 2e-5, rtol=1e-5, atol=1e-5)


def _model(name: str, z: Tensor) -> vb.Model | vb.ExactGP:
    if name == "exact":
        return vb.ExactGP(vb.SquaredExponential(D), vb.Gaussian(0.1), standardize="both")
    if name == "deep":
        network = nn.Sequential(gp(vb.GlobalInducing()), gp(vb.GlobalInducing(), 1))
        return vb.Model(network, vb.Gaussian(0.1), inducing=z, standardize="both")
    layers = [vb.Linear(D, 5), nn.Tanh(), vb.Linear(5, 1, posterior=vb.MeanField())]
    return vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1), inducing=z)


@pytest.mark.parametrize("name", ["exact", "deep", "network"])
def test_bounds_have_gradients_with_respect_to_inputs(name: str) -> None:
    """Where they ask for them, as features of an encoder outside of the model do, and by `torch.func`."""
    torch.manual_seed(0)
    x, y = 3.0 + 2.0 * torch.randn(N, D), torch.randn(N)
    model = _model(name, x[:M])
    model.initialize(x, y)

    def bound(rows: Tensor) -> Tensor:
        torch.manual_seed(1)
        return model.elbo(rows, y, n_samples=S).value

    asking = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(bound(asking), asking)
    assert torch.allclose(torch.func.grad(bound)(x), found, rtol=1e-10, atol=1e-12)
    for row, column in ((0, 0), (3, 1), (N - 1, 0)):
        step = torch.zeros_like(x)
        step[row, column] = 1e-5
        slope = (bound(x + step) - bound(x - step)) / 2e-5
        assert float(found[row, column]) == pytest.approx(slope.item(), rel=1e-5, abs=1e-6)
