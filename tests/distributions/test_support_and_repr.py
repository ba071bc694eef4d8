"""What a distribution shows of itself, and which matrices it takes for its own."""

import pytest
import torch
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from vibayes.distributions import GeneralizedSingularWishart, InverseWishart, LowerUpper, MatrixNormal, Wishart


def generalized(nu: int, batch: tuple[int, ...] = ()) -> GeneralizedSingularWishart:
    nt = min(nu, 3)
    alpha, below = torch.ones(*batch, nt), torch.ones(*batch, 3, nt)
    A = LowerUpper(torch.eye(3))
    return GeneralizedSingularWishart(torch.eye(3), nu, alpha, alpha, 0.0 * below, below, A=A)


def test_every_distribution_shows_its_parameters() -> None:
    mean = torch.zeros(3, 2)
    shown: list[tuple[Distribution, str]] = [
        (Wishart(torch.eye(3), 5), "Wishart(scale_tril: (3, 3), nu: 5)"),
        (Wishart(torch.eye(3), torch.tensor([5.0, 6.0])), "Wishart(scale_tril: (3, 3), nu: (2,))"),
        (InverseWishart(torch.eye(3), 7.0), "InverseWishart(scale_tril: (3, 3), nu: 7.0)"),
        (generalized(2), "A: (3, 3)"),
        (MatrixNormal(mean, torch.eye(3), torch.eye(2)), "MatrixNormal("),
    ]
    for distribution, text in shown:
        assert text in repr(distribution)


@pytest.mark.parametrize("nu", [1, 2, 3, 5])
def test_draws_are_in_the_support(nu: int) -> None:
    for distribution in (Wishart(torch.eye(3), nu), generalized(nu)):
        G = distribution.sample((50,))
        assert distribution.support.check(G).all()
        assert not distribution.support.check(-G).any()
        assert not distribution.support.check(G + torch.ones(3, 3).triu(1)).any()


def test_what_is_no_draw_is_refused_with_the_support() -> None:
    mixture = MixtureSameFamily(Categorical(torch.ones(2)), generalized(2, (2,)), validate_args=True)
    with pytest.raises(ValueError, match=r"within the support .*\(GramMatrices\(rank=2\)\)"):
        mixture.log_prob(-torch.eye(3))


def test_a_mixture_of_singular_ones_takes_its_own_draws() -> None:
    mixture = MixtureSameFamily(Categorical(torch.ones(2)), generalized(2, (2,)), validate_args=True)
    assert mixture.log_prob(mixture.sample((20,))).shape == (20,)
