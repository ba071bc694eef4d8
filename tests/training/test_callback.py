"""The callback of `fit` and `fit_many`: what loggers see, and how it ends training."""

from pathlib import Path

import pytest
import torch

import vibayes as vb
from vibayes.training.history import Logged


def _data(n: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-2, 2, n)[:, None]
    return x, torch.sin(2 * x[:, 0])


def _sparse() -> vb.Model:
    return vb.Model(vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(5)), vb.Gaussian(0.1))


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_every_entry_of_the_history_is_handed_on(optimizer: str) -> None:
    seen: list[Logged] = []
    model = _sparse() if optimizer == "adam" else vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    steps = 60 if optimizer == "adam" else None
    history = vb.fit(model, _data(), steps=steps, log_every=20, progress=False, callback=seen.append)
    assert [entry.step for entry in seen] == history.step
    assert [entry.elbo for entry in seen] == history.elbo
    assert [entry.numbers()["per_datapoint"] for entry in seen] == history.per_datapoint
    assert "step" not in seen[0].numbers()


def test_a_true_answer_ends_training_and_the_model_keeps_its_state() -> None:
    model = _sparse()
    history = vb.fit(
        model, _data(), steps=1000, log_every=10, progress=False, callback=lambda logged: logged.step >= 30
    )
    assert history.step == [10, 20, 30]
    assert history.stopped == "the callback asked to stop"
    same = _sparse()
    vb.fit(same, _data(), steps=30, log_every=10, progress=False)
    for mine, theirs in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_ending_lbfgs_skips_the_remaining_starts() -> None:
    calls: list[int] = []
    model = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    history = vb.fit(
        model, _data(), restarts=3, progress=False, callback=lambda logged: calls.append(logged.step) or True
    )
    assert len(calls) == 1
    assert history.stopped == "the callback asked to stop"
    assert model.predict(_data()[0]).mean.isfinite().all()


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_fit_many_says_which_model_and_stops_only_that_one(chunk: int) -> None:
    seen: list[tuple[int, int]] = []

    def callback(logged: Logged) -> bool:
        seen.append((logged.replica, logged.step))
        return logged.replica == 1 and logged.step >= 20

    models = [_sparse() for _ in range(3)]
    histories = vb.fit_many(
        models, [_data()] * 3, steps=40, log_every=10, chunk=chunk, progress=False, callback=callback
    )
    assert [h.step[-1] for h in histories] == [40, 20, 40]
    assert sorted(seen) == sorted((r, s) for r, h in enumerate(histories) for s in h.step)


def test_what_a_callback_draws_does_not_change_the_run(tmp_path: Path) -> None:
    x, y = _data()

    def trained(watch: bool, stop: int | None = None, checkpoint: Path | None = None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = (vb.GP(2, kernel=vb.SquaredExponential(1)), vb.GP(1, kernel=vb.SquaredExponential(2)))
        model = vb.Model(torch.nn.Sequential(*layers), vb.Gaussian(0.1), inducing=x[::5])

        def callback(logged: Logged) -> None:
            if watch:
                model.elbo(x, y, n_samples=3)
            if logged.step == stop:
                raise RuntimeError("stop")

        vb.fit(model, (x, y), steps=12, log_every=3, progress=False, checkpoint=checkpoint, callback=callback)
        return list(model.parameters())

    whole = trained(watch=True)
    with pytest.raises(RuntimeError, match="stop"):
        trained(watch=True, stop=6, checkpoint=tmp_path / "c")
    resumed, alone = trained(watch=True, checkpoint=tmp_path / "c"), trained(watch=False)
    for a, b, c in zip(whole, resumed, alone, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_an_error_in_the_callback_leaves_the_model_usable() -> None:
    def broken(logged: Logged) -> None:
        raise RuntimeError("disk full")

    model = _sparse()
    with pytest.raises(RuntimeError, match="disk full"):
        vb.fit(model, _data(), steps=40, log_every=10, progress=False, callback=broken)
    assert model.predict(_data()[0]).mean.isfinite().all()
    with pytest.raises(vb.ConfigurationError, match="callback must be a function"):
        vb.fit(model, _data(), steps=40, progress=False, callback="tensorboard")  # type: ignore[arg-type]
