"""Worker processes train what one process trains."""

import os
import pickle
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from test_replicas import assert_alike, data, regression_model
from torch import nn

import vibayes as vb
from vibayes.training import schedules, workers

R = 3
OPTIONS = {
    "steps": 20,
    "log_every": 10,
    "chunk": 2,
    "progress": False,
    "lr_schedule": schedules.piecewise([10], [1, 0.1]),
}


def models() -> list[vb.Model]:
    return [regression_model(r) for r in range(R)]


def test_workers_equal_one_process(tmp_path: Path) -> None:
    alone, trained = models(), models()
    expected = vb.fit_many(alone, [data(r) for r in range(R)], workers=1, **OPTIONS)
    checkpoint = tmp_path / "run"
    histories = vb.fit_many(trained, [data(r) for r in range(R)], workers=2, checkpoint=checkpoint, **OPTIONS)
    for r in range(R):
        assert_alike(trained[r], alone[r], rtol=1e-12)
        assert histories[r].elbo == pytest.approx(expected[r].elbo, rel=1e-12)
    assert (tmp_path / "run.chunk").read_text() == "2 2"
    again = models()  # a finished run with checkpoints has nothing left to train
    vb.fit_many(again, [data(r) for r in range(R)], checkpoint=checkpoint, **{**OPTIONS, "chunk": None})
    for r in range(R):
        assert_alike(again[r], trained[r], rtol=0)


class Script(nn.Module):
    """A module that cannot be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.function = lambda x: x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def test_what_cannot_be_sent_trains_here(caplog: pytest.LogCaptureFixture) -> None:
    gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(3))
    lonely = [vb.Model(nn.Sequential(Script(), gp), vb.Gaussian(0.1))]
    history = vb.fit_many(lonely, [data(0)], workers=2, steps=2, chunk=1, progress=False)
    assert history[0].step == [2]
    assert "train in this process" in caplog.text


def test_classes_of_a_script_are_not_sent() -> None:
    Script.__module__ = "__main__"
    try:
        assert workers.pack(Script) is None
    finally:
        Script.__module__ = __name__
    assert pickle.loads(workers.pack({"a": 1}) or b"") == {"a": 1}


def test_an_error_in_a_worker_is_raised_here() -> None:
    job = workers.pack({"models": [regression_model(0)], "datasets": [], "options": {}})
    assert job is not None
    with pytest.raises(vb.ConfigurationError, match="one data set per model"):
        workers.run_jobs([job], 1, lambda number: None)


def test_a_worker_that_dies_is_reported() -> None:
    worker = workers._Worker()
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()  # now writing to it fails, and so does closing what could not be written
    with pytest.raises(vb.TrainingError, match="worker process died"):
        worker.run(b"anything")
    worker.close()


def test_an_interruption_ends_the_workers_and_begins_no_more_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bytes] = []

    class Busy:
        def __init__(self) -> None:
            self.told = threading.Event()

        def run(self, job: bytes) -> None:
            begun.append(job)
            time.sleep(0.2)  # until all jobs are handed out
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # as a terminal does
            assert self.told.wait(60), "the job ran on"

        def interrupt(self) -> None:
            self.told.set()

        def close(self) -> None:
            assert self.told.is_set()

    monkeypatch.setattr(workers, "_Worker", Busy)
    with pytest.raises(KeyboardInterrupt):
        workers.run_jobs([b"1", b"2", b"3"], 1, lambda number: None)
    assert begun == [b"1"]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_wrong_number_of_workers(wrong: object) -> None:
    with pytest.raises(vb.ConfigurationError, match="workers must be a positive whole number"):
        vb.fit_many(models(), [data(r) for r in range(R)], steps=1, workers=wrong, progress=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.constant(0.3),
        schedules.linear(0.0, 1.0, 10),
        schedules.exponential(1.0, 0.1, 10),
        schedules.piecewise([5], [1.0, 0.1]),
        schedules.staircase(0.0, 0.1, 3, 1.0),
    ],
)
def test_schedules_can_be_sent(schedule: schedules.Schedule) -> None:
    again = pickle.loads(pickle.dumps(schedule))
    assert [again(step) for step in range(20)] == [schedule(step) for step in range(20)]
