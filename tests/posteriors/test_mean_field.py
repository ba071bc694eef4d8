"""Where posteriors of single weights start."""

import math

import pytest
import torch

import vibayes as vb
from vibayes.draw import Draw
from vibayes.posteriors.base import Diagonal, Site


@pytest.mark.parametrize("posterior", [vb.MeanField(0.04), vb.Point()])
def test_weights_start_as_draws_from_neals_prior(posterior: vb.posteriors.Posterior) -> None:
    """With the standard deviations that the variance times the fan-in gives."""
    layer = vb.Linear(99, 50, posterior=posterior)
    vb.Model(layer, vb.Gaussian())
    site = Site("network", None, 50, root=layer.prior.root(layer, Draw()))
    q = layer.posterior.marginal(site)
    assert isinstance(q, Diagonal)
    mean, n = q.mean.detach(), 100 * 50
    assert mean.shape == (100, 50)
    assert abs(float(mean.std()) - 0.1) < 5 * 0.1 / math.sqrt(2 * n)
    assert abs(float(mean.mean())) < 5 * 0.1 / math.sqrt(n)
    if q.std is not None:
        torch.testing.assert_close(q.std.detach(), torch.full((100, 50), 0.02))
