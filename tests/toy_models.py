"""Data of two inputs, and models of them."""

import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.trainable import Batch


def data(n: int = 24, p: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(n, 2, generator=generator) * 4 - 2
    noise = 0.2 * torch.randn(n, p or 1, generator=generator)
    y = torch.sin(2 * x[:, :1]) * torch.arange(1, (p or 1) + 1) + noise
    return x, y[:, 0] if p is None else y


def svgp(
    likelihood: vb.Likelihood | None = None,
    outputs: int = 1,
    *,
    m: int = 5,
    form: str = "whitened",
    standardize: str | None = None,
) -> vb.Model:
    """A model with variational parameters away from their start."""
    gp = vb.GP(outputs, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(m, form=form))
    model = vb.Model(gp, likelihood or vb.Gaussian(0.1), standardize=standardize)
    with torch.no_grad():
        for parameter in gp.posterior.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def deep(outputs: int = 1, likelihood: vb.Likelihood | None = None) -> vb.Model:
    """Two layers of GPs."""
    first = vb.GP(2, kernel=vb.SquaredExponential(2), mean=vb.IdentityMean(), posterior=vb.LocalInducing(4))
    second = vb.GP(outputs, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(4, form="pseudo"))
    return vb.Model(nn.Sequential(first, second), likelihood or vb.Gaussian(0.1))


def bound(model: vb.Model, batch: Batch, scale: float = 1.0) -> float:
    return float(model(*batch, scale=scale).objective().detach())
