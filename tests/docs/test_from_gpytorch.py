"""What the page for users of GPyTorch says of both packages is so."""

import pytest
import torch

import vibayes as vb

gpytorch = pytest.importorskip("gpytorch")

D = 3


def kernels() -> dict[str, tuple[torch.nn.Module, vb.Kernel]]:
    """Kernels of GPyTorch, and what the page says are the same."""
    found = {
        "scaled RBF": (
            gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=D)),
            vb.SquaredExponential(D, ard=True, lengthscale=torch.tensor([0.5, 1.0, 2.0]), variance=1.7),
        ),
        "Matern": (gpytorch.kernels.MaternKernel(nu=2.5), vb.Matern52(D, lengthscale=0.7)),
        "periodic": (gpytorch.kernels.PeriodicKernel(), vb.Periodic(D, lengthscale=0.7**0.5, period=1.3)),
        "linear": (gpytorch.kernels.LinearKernel(), vb.LinearKernel(D, variance=D * 2.0)),
        "polynomial": (gpytorch.kernels.PolynomialKernel(power=3), vb.Polynomial(D, 3, offset=1.5 / D, variance=D**3)),
    }
    found["scaled RBF"][0].outputscale = 1.7
    found["scaled RBF"][0].base_kernel.lengthscale = torch.tensor([0.5, 1.0, 2.0])
    found["Matern"][0].lengthscale = 0.7
    found["periodic"][0].lengthscale, found["periodic"][0].period_length = 0.7, 1.3
    found["linear"][0].variance = 2.0
    found["polynomial"][0].offset = 1.5
    return found


@pytest.mark.parametrize("name", kernels())
def test_kernels_are_those_that_the_page_names(name: str) -> None:
    theirs, ours = kernels()[name]
    x, z = torch.randn(6, D), torch.randn(4, D)
    torch.testing.assert_close(ours(x, z), theirs(x, z).to_dense())


def test_their_objective_is_per_row() -> None:
    class Exact(gpytorch.models.ExactGP):  # type: ignore[misc,name-defined]
        def forward(self, x: torch.Tensor) -> object:
            return gpytorch.distributions.MultivariateNormal(torch.zeros(len(x)), gpytorch.kernels.RBFKernel()(x))

    x = torch.randn(7, D)
    y = torch.sin(x[:, 0])
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = 0.1
    model = Exact(x, y, likelihood).train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(x), y)
    ours = vb.ExactGP(vb.SquaredExponential(D, lengthscale=torch.log(torch.tensor(2.0)).item()), vb.Gaussian(0.1))
    torch.testing.assert_close(ours.elbo(x, y).per_datapoint, objective)  # softplus(0) = log 2
