"""Which models `fit_many` takes together."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, Gamma, LogNormal

import vibayes as vb


def data(r: int, n: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(r)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return x, x[:, 0].sin()


def regression_model(n_inducing: int = 6) -> vb.Model:
    gp = vb.GP(1, kernel=vb.SquaredExponential(2, ard=True), posterior=vb.LocalInducing(n_inducing))
    return vb.Model(gp, vb.Gaussian(0.2), standardize="both")


def test_models_that_differ_are_refused() -> None:
    sets = [data(0), data(1)]
    other = vb.Model(vb.GP(1, kernel=vb.Matern32(2), posterior=vb.LocalInducing(6)), vb.Gaussian(0.2))
    with pytest.raises(vb.ConfigurationError, match="Model 1"):
        vb.fit_many([regression_model(), other], sets, steps=1, progress=False)
    with pytest.raises(vb.ConfigurationError, match="n_inducing"):
        vb.fit_many([regression_model(), regression_model(7)], sets, steps=1, progress=False)
    model = regression_model()
    with pytest.raises(vb.ConfigurationError, match="same object"):
        vb.fit_many([model, model], sets, steps=1, progress=False)
    with pytest.raises(vb.ConfigurationError, match="one data set per model"):
        vb.fit_many([model], sets, steps=1, progress=False)
    with pytest.raises(vb.ConfigurationError, match="one for each of 2 models"):
        vb.fit_many([regression_model(), regression_model()], sets, lr=[0.1], steps=1, progress=False)
    with pytest.raises(vb.ConfigurationError, match="at least batch_size rows"):
        vb.fit_many(
            [regression_model(), regression_model()], [data(0), data(1, 9)], batch_size=20, steps=1, progress=False
        )


class _Activated(torch.nn.Module):
    """A network that is told its activation."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.activation = vb.Linear(2, 1, posterior=vb.MeanField()), activation

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.activation(self.layer(x))
        return found


@pytest.mark.parametrize("prior", [LogNormal(5.0, 1.0), Gamma(2.0, 1.0), None])
def test_priors_that_differ_are_refused(prior: Distribution | None) -> None:
    def model(prior: Distribution | None) -> vb.Model:
        kernel = vb.SquaredExponential(2, lengthscale=vb.Positive(1.0, prior=prior))
        return vb.Model(vb.GP(1, kernel=kernel, posterior=vb.LocalInducing(6)), vb.Gaussian(0.2))

    sets = [data(0), data(1)]
    with pytest.raises(vb.ConfigurationError, match=r"Model 1 differs from model 0 in 'network.kernel.lengthscale'"):
        vb.fit_many([model(LogNormal(0.0, 1.0)), model(prior)], sets, steps=1, progress=False)
    vb.fit_many([model(LogNormal(0.0, 1.0)), model(LogNormal(0.0, 1.0))], sets, steps=1, progress=False)


@pytest.mark.parametrize("other", [torch.sin, lambda x: x.sin(), functools.partial(torch.clamp, min=0.0)])
def test_functions_that_differ_are_refused(other: Callable[[Tensor], Tensor]) -> None:
    sets = [data(0), data(1)]
    first, second = (vb.Model(_Activated(f), vb.Gaussian()) for f in (torch.tanh, other))
    with pytest.raises(
        vb.ConfigurationError, match=r"Model 1 differs from model 0 in 'network': another activation\.$"
    ):
        vb.fit_many([first, second], sets, steps=1, progress=False)
    alike = [vb.Model(_Activated(lambda x: x.tanh()), vb.Gaussian()) for _ in range(2)]
    vb.fit_many(alike, sets, steps=1, progress=False)


@dataclasses.dataclass
class _Twice:
    """A function that holds another."""

    inner: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x))


def _times(factor: object) -> Callable[[Tensor], Tensor]:
    return lambda x: x * factor


def _power(n: int) -> Callable[[Tensor], Tensor]:
    def power(x: Tensor, m: int = n) -> Tensor:
        return x if m == 0 else x * power(x, m - 1)  # which is in its own closure

    return power


def _scaled(scales: list[float]) -> Callable[[Tensor], Tensor]:
    return functools.partial(lambda held, x: held[0] * x, scales)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: 2.0 * x, lambda x: 3.0 * x),
        (lambda x: (lambda z: 2.0 * z)(x), lambda x: (lambda z: 3.0 * z)(x)),
        (_times(2.0), _times(3.0)),
        (_times(torch.tensor([2.0])), _times(torch.tensor([3.0]))),
        (_times(torch.tensor(2.0)), _times(torch.tensor(3.0, dtype=torch.bfloat16))),
        (_times(np.array([2.0])), _times(np.array([3.0]))),
        (_power(2), _power(3)),
        (_scaled([2.0]), _scaled([3.0])),
        (_Twice(_times(2.0)), _Twice(_times(3.0))),
        (torch.tensor([2.0]).mul, torch.tensor([3.0]).mul),
    ],
)
def test_functions_that_differ_in_what_they_hold_are_refused(one: object, other: object) -> None:
    """The second model was trained with the function of the first."""
    sets = [data(0), data(1)]
    models = [vb.Model(_Activated(f), vb.Gaussian()) for f in (one, other)]  # type: ignore[arg-type]
    with pytest.raises(vb.ConfigurationError, match="Model 1 differs from model 0 in 'network'"):
        vb.fit_many(models, sets, steps=1, progress=False)


@pytest.mark.parametrize(
    "make",
    [lambda: _times(torch.ones(1)), lambda: _Twice(lambda x: 2.0 * x), lambda: _power(2), lambda: _scaled([2.0])],
)
def test_functions_that_are_made_alike_are_taken(make: Callable[[], Callable[[Tensor], Tensor]]) -> None:
    """Where they are in memory says nothing."""
    models = [vb.Model(_Activated(make()), vb.Gaussian()) for _ in range(2)]
    vb.fit_many(models, [data(0), data(1)], steps=1, progress=False)


def test_rows_that_fill_up_do_not_enter_batch_normalisation() -> None:
    def model() -> vb.Model:
        torch.manual_seed(0)
        layers = (torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), vb.Linear(4, 1, posterior=vb.MeanField()))
        return vb.Model(torch.nn.Sequential(*layers), vb.Gaussian())

    sets = [data(0, 12), data(1, 20)]
    with pytest.raises(vb.ConfigurationError, match=r"data sets of \[12, 20\] rows.*Leave out chunk="):
        vb.fit_many([model(), model()], sets, chunk=2, steps=1, progress=False)
    models, alone = [model(), model()], model()
    vb.fit_many(models, sets, steps=5, seed=[0, 0], progress=False)
    vb.fit(alone, sets[0], steps=5, progress=False)
    assert torch.equal(models[0].network[1].running_mean, alone.network[1].running_mean)
    evaluated = [model(), model()]
    for each in evaluated:
        each.eval()
    vb.fit_many(evaluated, sets, chunk=2, steps=1, progress=False)


def test_conditional_evidence_of_data_of_different_sizes() -> None:
    def model() -> vb.ExactGP:
        return vb.ExactGP(vb.SquaredExponential(2), vb.Gaussian(0.1), conditional=0.8)

    sets = [data(0, 12), data(1, 20)]
    with pytest.raises(vb.ConfigurationError, match=r"'_given_rows' in different shapes.*Leave out chunk="):
        vb.fit_many([model(), model()], sets, chunk=2, steps=1, progress=False)
    assert len(vb.fit_many([model(), model()], sets, steps=1, progress=False)) == 2


class Recurrent(torch.nn.Module):
    """Rows as sequences of single numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.GRU(1, 3, batch_first=True)
        self.last = vb.Linear(3, 1, posterior=vb.MeanField())

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(self.inner(rows[..., None])[0][:, -1])


def test_recurrent_models_train_one_after_another() -> None:
    sets = [data(r) for r in range(2)]

    def models() -> list[vb.Model]:
        torch.manual_seed(0)
        return [vb.Model(Recurrent(), vb.Gaussian(0.1)) for _ in range(2)]

    together, alone = models(), models()
    vb.fit_many(together, sets, seed=3, steps=4, progress=False)
    for r in range(2):
        vb.fit(alone[r], sets[r], seed=3 + r, steps=4, progress=False)
        for mine, theirs in zip(together[r].parameters(), alone[r].parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=0.0)
    with pytest.raises(vb.ConfigurationError, match=r"cannot train together.*such as GRU.* Leave out chunk="):
        vb.fit_many(models(), sets, steps=4, chunk=2, progress=False)
