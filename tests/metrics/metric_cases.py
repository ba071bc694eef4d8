"""Predictions that are scored."""

import torch
from torch import Tensor

from vibayes.likelihoods import Gaussian
from vibayes.prediction import Prediction


def gaussian(mean: Tensor, noise: float, **options: object) -> Prediction:
    """N(mean, noise) from draws `[S, N]` or `[S, N, P]` of the mean."""
    draws = mean if mean.ndim == 3 else mean[:, :, None]
    return Prediction(Gaussian(noise).predictive(draws), squeeze=mean.ndim == 2, **options)


def classes(n: int = 500, c: int = 4, temperature: float = 2.0) -> tuple[Tensor, Tensor]:
    logits = 3 * torch.randn(n, c)
    return logits.softmax(-1), torch.distributions.Categorical(logits=logits / temperature).sample()
