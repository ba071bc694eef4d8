"""Data and models that train in no time, and how tests train and compare them."""

import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.trainable import TrainableModel


def data(n: int = 24, p: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(n, 1, generator=generator) * 4 - 2
    y = torch.sin(2 * x) + 0.2 * torch.randn(n, p or 1, generator=generator)
    return x, y[:, 0] if p is None else y


def svgp(likelihood: vb.Likelihood | None = None, kernel: vb.Kernel | None = None, m: int = 5) -> vb.Model:
    torch.manual_seed(0)
    gp = vb.GP(1, kernel=kernel or vb.SquaredExponential(1), posterior=vb.LocalInducing(m))
    return vb.Model(nn.Sequential(nn.Identity(), gp), likelihood or vb.Gaussian(0.1))


def deep() -> vb.Model:
    torch.manual_seed(0)
    first = vb.GP(1, kernel=vb.SquaredExponential(1), mean=vb.IdentityMean(), posterior=vb.LocalInducing(4))
    return vb.Model(
        nn.Sequential(first, vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(4))), vb.Gaussian(0.1)
    )


def fit(model: TrainableModel, steps: int | None, *, log_every: int = 10, **options: object) -> vb.History:
    return vb.fit(model, options.pop("data", data()), steps=steps, log_every=log_every, progress=False, **options)


def parameters(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
