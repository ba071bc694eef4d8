"""Modes of plain modules inside models: predictions in evaluation mode, averages of batch normalisation."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.errors import ShapeError
from vibayes.modes import averages, default_dtype, evaluating, keeping_averages


def normed(posterior: vb.MeanField | vb.Point | None = None) -> vb.Model:
    last = vb.Linear(8, 1, posterior=vb.MeanField() if posterior is None else posterior)
    return vb.Model(nn.Sequential(nn.Linear(5, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), last), vb.Gaussian(0.1))


def data() -> tuple[Tensor, Tensor]:
    x = 1.0 + torch.randn(60, 5)
    return x, torch.sin(x.sum(1))


def test_modes_come_back_as_they_were() -> None:
    network = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2), nn.ReLU()))
    network[1][0].eval()
    with evaluating(network):
        assert not any(module.training for module in network.modules())
    assert [module.training for module in network.modules()] == [True, True, True, False, True]


def test_averages_are_put_back() -> None:
    network = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False))
    assert set(averages(network)) == {"0.running_mean", "0.running_var", "0.num_batches_tracked"}
    with keeping_averages(network):
        network(torch.randn(5, 2))
        assert int(network[0].num_batches_tracked) == 1
    assert int(network[0].num_batches_tracked) == 0
    assert network[0].running_mean.tolist() == [0.0, 0.0]


def test_predictions_depend_on_no_other_row_and_change_nothing() -> None:
    x, y = data()
    model = normed()
    vb.fit(model, (x, y), steps=5, progress=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.testing.assert_close(model.predict(x).mean[:3], model.predict(x[:3]).mean)
    model.predict(x[:1])
    model.sample_functions(x, 3)
    model.log_weights(x, y, 3)
    model.layer_functions(x, 3)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name])
    assert all(module.training for module in model.modules())


def test_dropout_is_off_in_predictions() -> None:
    x, _ = data()
    model = vb.Model(nn.Sequential(nn.Dropout(0.5), vb.Linear(5, 1, posterior=vb.Point())), vb.Gaussian())
    torch.testing.assert_close(model.predict(x).mean, model.predict(x).mean)


def test_starting_and_training_together_count_no_batch_but_those_of_steps() -> None:
    x, y = data()
    for chunk in (1, 2, None):
        torch.manual_seed(1)
        together = [normed(vb.Point()), normed(vb.Point())]
        torch.manual_seed(1)
        alone = [normed(vb.Point()), normed(vb.Point())]
        sets = [(x, y), (x.flip(0) + 1.0, -y)]
        vb.fit_many(together, sets, steps=20, progress=False, chunk=chunk)
        for number, (mine, other) in enumerate(zip(together, alone, strict=True)):
            vb.fit(other, sets[number], steps=20, seed=number, progress=False)
            assert int(other.network[1].num_batches_tracked) == 20
            for name, value in averages(mine).items():
                torch.testing.assert_close(value, averages(other)[name])


@pytest.mark.parametrize("replicas", [1, 2])
def test_going_back_to_a_good_state_takes_averages_along(replicas: int) -> None:
    x, y = data()

    class Once:
        calls = 0

        def __call__(self, rows: Tensor) -> Tensor:
            Once.calls += 1
            return rows * float("nan") if Once.calls == 120 else rows

    models = [normed() for _ in range(replicas)]
    options = {"steps": 200, "n_samples": 2, "progress": False}
    histories = vb.fit_many(models, [(x, y)] * replicas, augment=Once(), chunk=replicas, **options)
    for model, history in zip(models, histories, strict=True):
        assert any("last good state" in event for event in history.events)
        assert torch.isfinite(model.predict(x).mean).all()


def test_a_state_whose_averages_are_not_finite_is_no_good_one() -> None:
    """As those of float32 may become, when the bound still is: training does not read them, predictions do."""
    x, y = data()
    model, calls = normed(), []

    def overflow(step: int) -> float:
        calls.append(step)
        if calls.count(15) == 1 and step == 15:
            model.network[1].running_var.fill_(torch.inf)
        return 1.0

    history = vb.fit(model, (x, y), steps=40, log_every=10, lr_schedule=overflow, progress=False)
    assert len(history.events) == 1
    assert torch.isfinite(model.network[1].running_var).all()


def test_a_model_with_batch_normalisation_is_saved(tmp_path: Path) -> None:
    x, y = data()
    model = normed()
    vb.fit(model, (x, y), steps=3, progress=False)
    model.save(tmp_path / "model")
    torch.testing.assert_close(vb.load(tmp_path / "model").predict(x).mean, model.predict(x).mean)


def test_a_model_that_could_not_be_built_leaves_its_layers_as_they_were() -> None:
    flat = vb.Linear(4 * 8 * 8, 3)
    network = nn.Sequential(vb.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), flat)
    with pytest.raises(ShapeError):
        vb.Model(network, vb.Categorical(), inducing=torch.randn(5, 3, 16, 16))
    model = vb.Model(network, vb.Categorical(), inducing=torch.randn(5, 3, 8, 8))
    assert model.predict(torch.randn(2, 3, 8, 8)).probs.shape == (2, 3)


def test_data_that_do_not_fit_leave_a_model_as_it_was() -> None:
    x, y = data()
    network = nn.Sequential(nn.Linear(5, 8), vb.Linear(8, 1, posterior=vb.MeanField()))
    model = vb.Model(network, vb.Gaussian(), standardize="both")
    with pytest.raises(RuntimeError, match="shapes"):
        vb.fit(model, (x[:, :4], y[:, None]), steps=2, progress=False)
    vb.fit(model, (x, y), steps=2, progress=False)
    assert model.predict(x).mean.shape == (60,)


def test_averages_of_a_replica_that_stopped_stay() -> None:
    x, y = data()
    for chunk in (1, 2):
        torch.manual_seed(1)
        models = [normed(vb.Point()), normed(vb.Point())]
        vb.fit_many(
            models,
            [(x, y), (x, -y)],
            steps=40,
            log_every=10,
            chunk=chunk,
            progress=False,
            callback=lambda logged: logged.replica == 0,
        )
        assert [int(model.network[1].num_batches_tracked) for model in models] == [10, 40]


def test_the_default_dtype_comes_back_after_an_error() -> None:
    before, other = torch.get_default_dtype(), torch.float32

    def fail() -> None:
        with default_dtype(other):
            raise ValueError(f"stop at {torch.zeros(()).dtype}")

    assert before != other
    with pytest.raises(ValueError, match=f"stop at {other}"):
        fail()
    assert torch.get_default_dtype() == before
