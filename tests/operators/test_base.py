"""How batches reach our operators, and how `torch.func` differentiates them."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, vmap

import vibayes as vb
from vibayes.operators.base import batch_first, flat
from vibayes.operators.correlations import correlations
from vibayes.operators.data_rows import data_rows
from vibayes.operators.factor_products import factor_product, gram
from vibayes.operators.factorization import factorize
from vibayes.operators.precision_draw import precision_draw
from vibayes.operators.weighted_grams import weighted_grams

B = torch.tensor([[1.0, -0.5], [0.3, 2.0], [-1.0, 0.7]], dtype=torch.float64)


def spd(v: Tensor) -> Tensor:
    K = v.view(3, 3)
    return K @ K.mT + torch.eye(3, dtype=v.dtype)


def rows(v: Tensor) -> Tensor:
    _, inverse, _, _, change = factorize(spd(v))
    mean, loss = data_rows(inverse, change, B * (1.0 + v[:2]), B.flip(0) * (1.0 + v[2:4]))
    return mean.sin().sum() + loss.sin().sum()


def product(v: Tensor) -> Tensor:
    _, inverse, _, _, change = factorize(spd(v))
    return factor_product(inverse, change, B * (1.0 + v[:2]), inverse=True, transposed=False).sin().sum()


OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "factorize": lambda v: sum(t.sin().sum() for t in factorize(spd(v))[:3]),  # type: ignore[misc]
    "factor_product": product,
    "gram": lambda v: gram(v.view(3, 3)).sin().sum(),
    "weighted_grams": lambda v: weighted_grams(v.view(3, 3), v[:6].view(2, 3)).sin().sum(),
    "precision_draw": lambda v: sum(t.sin().sum() for t in precision_draw(spd(v), B * v[0], B * v[1])[:2]),  # type: ignore[misc]
    "data_rows": rows,
    "correlations": lambda v: correlations(v.view(3, 1, 1, 3), 1.0 + v[:3], 1, (1, 3)).sin().sum(),
}


def test_batches_come_first_and_what_has_none_is_repeated() -> None:
    a, b = torch.arange(6.0).view(2, 3), torch.arange(2.0)
    moved = batch_first(SimpleNamespace(batch_size=3), (1, None, None), a, b, None)
    assert moved[0].tolist() == a.mT.tolist()
    assert moved[1].tolist() == [[0.0, 1.0]] * 3
    assert moved[2] is None


def test_a_batch_is_one_axis() -> None:
    assert [t.shape for t in flat(torch.zeros(2, 3, 4, 5), torch.zeros(4, 5))] == [(6, 4, 5), (1, 4, 5)]
    assert flat(torch.zeros(2, 3, 4), axes=1)[0].shape == (6, 4)
    assert flat(torch.zeros(0, 3, 4))[0].shape == (0, 3, 4)


@pytest.mark.parametrize("name", OPERATORS)
def test_torch_func_differentiates_as_autograd_does(name: str) -> None:
    f = OPERATORS[name]
    v = torch.randn(9, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(f(v), v, create_graph=True)
    curvature = torch.stack([torch.autograd.grad(s, v, retain_graph=True)[0] for s in slope])
    slope, v = slope.detach(), v.detach()
    torch.testing.assert_close(grad(f)(v), slope)
    torch.testing.assert_close(jacrev(jacrev(f))(v), curvature)
    torch.testing.assert_close(vmap(grad(f))(v.expand(2, -1))[1], slope)
    torch.testing.assert_close(grad(lambda many: vmap(f)(many).sum())(v.expand(2, -1))[1], slope)
    with torch.no_grad():
        assert not f(v.requires_grad_()).requires_grad


@pytest.mark.filterwarnings("ignore:.*is deprecated")  # what torch itself uses in jvp; the category varies
@pytest.mark.parametrize("name", OPERATORS)
def test_forward_mode_is_refused_and_not_taken_for_zero(name: str) -> None:
    v = torch.randn(9, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="jacrev"):
        jvp(OPERATORS[name], (v,), (torch.ones_like(v),))
    assert jvp(lambda t: OPERATORS[name](v) * t, (v[0],), (v[1],))[1] == OPERATORS[name](v) * v[1]


def test_torch_func_differentiates_the_bound() -> None:
    x = torch.randn(8, 2)
    layers = [vb.GP(2, kernel=vb.SquaredExponential(2)), vb.GP(1, kernel=vb.SquaredExponential(2))]
    model = vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1), inducing=x[:4].clone())
    model.initialize(x, x[:, 0].sin())
    parameters = dict(model.named_parameters())

    def bound(parameters: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(0)
        found: Tensor = functional_call(model, parameters, (x, x[:, :1].sin()), {"n_samples": 2}).objective()
        return found

    expected = torch.autograd.grad(bound(parameters), list(parameters.values()))
    found = grad(bound)({name: p.detach() for name, p in parameters.items()})
    for name, value in zip(parameters, expected, strict=True):
        torch.testing.assert_close(found[name], value)
