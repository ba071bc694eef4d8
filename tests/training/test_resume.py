"""Identity 18: a run killed at any step and resumed ends in the same parameters, bit for bit, on CPU."""

import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import vibayes as vb
from vibayes.training.checkpoint import load_state, save_state

SCRIPT = """
import sys, torch, vibayes as vb
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(60, 2)
y = (x[:, 0].sin() > 0).long() + (x[:, 1] > 0.5).long()
gp = vb.GP(3, kernel=vb.SquaredExponential(2, ard=True), posterior=vb.LocalInducing(8))
model = vb.Model(gp, vb.Categorical(), standardize="inputs")
checkpoint = sys.argv[2] if len(sys.argv) > 2 else None
vb.fit(model, (x, y), steps=1500, batch_size=16, log_every=10, progress=False,
       checkpoint=checkpoint, checkpoint_seconds=0.0)
torch.save(model.state_dict(), sys.argv[1])
"""


def run(script: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(script), *arguments])


def test_killed_and_resumed_equals_undisturbed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    whole, resumed, checkpoint = tmp_path / "whole.pt", tmp_path / "resumed.pt", tmp_path / "state"
    undisturbed = run(script, str(whole))
    kills = 0
    steps_seen = []
    while not resumed.exists():
        process = run(script, str(resumed), str(checkpoint))
        if kills < 3:
            before = load_state(checkpoint)["run"]["step"] if checkpoint.exists() else 0
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and process.poll() is None:
                if checkpoint.exists() and load_state(checkpoint)["run"]["step"] > before + 100 * (kills + 1):
                    break
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            steps_seen.append(load_state(checkpoint)["run"]["step"])
            kills += 1
        assert process.wait(120) in (0, -signal.SIGKILL)
    assert undisturbed.wait(120) == 0
    assert 0 < steps_seen[0] < 1500  # it really was killed on the way
    expected, found = torch.load(whole), torch.load(resumed)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name


class StopError(Exception):
    """Stands for a kill inside one process."""


def model_and_data() -> tuple[vb.Model, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    x = torch.randn(40, 1)
    gp = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(6))
    return vb.Model(gp, vb.Gaussian(0.1)), (x, x[:, 0].sin())


def stopping_at(step: int) -> vb.schedules.Schedule:
    def weight(now: int) -> float:
        if now == step:
            raise StopError
        return 1.0

    return weight


@pytest.mark.parametrize("stop", [1, 37, 120])
def test_every_interruption_point_resumes_exactly(tmp_path: Path, stop: int) -> None:
    whole, data = model_and_data()
    vb.fit(whole, data, steps=150, batch_size=7, log_every=10, progress=False)
    part, data = model_and_data()
    file = tmp_path / "state"
    with pytest.raises(StopError):
        vb.fit(
            part,
            data,
            steps=150,
            batch_size=7,
            log_every=10,
            progress=False,
            checkpoint=file,
            kl_weight=stopping_at(stop),
        )
    again, data = model_and_data()
    history = vb.fit(again, data, steps=150, batch_size=7, log_every=10, progress=False, checkpoint=file)
    for (name, a), b in zip(whole.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert history.step == list(range(10, 151, 10))


def test_a_finished_run_goes_on_when_more_steps_are_asked_for(tmp_path: Path) -> None:
    whole, data = model_and_data()
    vb.fit(whole, data, steps=60, log_every=10, progress=False)
    part, data = model_and_data()
    vb.fit(part, data, steps=20, log_every=10, progress=False, checkpoint=tmp_path / "state")
    again, data = model_and_data()
    vb.fit(again, data, steps=60, log_every=10, progress=False, checkpoint=tmp_path / "state")
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("first", [{"steps": 20}, {"max_steps": 20}])
@pytest.mark.parametrize("then", [{"steps": 60}, {"max_steps": 60}])
def test_a_run_that_had_no_more_steps_goes_on_when_it_gets_some(
    tmp_path: Path, first: dict[str, int], then: dict[str, int]
) -> None:
    for options in (first, then):
        model, data = model_and_data()
        history = vb.fit(model, data, **options, log_every=10, progress=False, checkpoint=tmp_path / "state")
    assert history.step == [10, 20, 30, 40, 50, 60]
    assert history.stopped == ("ran the 60 steps asked for" if "steps" in then else "reached max_steps=60")
    fewer = vb.fit(model_and_data()[0], data, steps=40, log_every=10, progress=False, checkpoint=tmp_path / "state")
    assert fewer.stopped == "ran the 60 steps asked for"


@pytest.mark.parametrize("limit", ["steps", "max_steps"])
def test_a_run_that_its_callback_ended_stays_as_it_is(tmp_path: Path, limit: str) -> None:
    """Run once more, as a script does that was killed later on, it must not train past its early stop."""
    options: dict[str, Any] = {"log_every": 10, "progress": False, "checkpoint": tmp_path / "state"}
    model, data = model_and_data()
    vb.fit(model, data, **{limit: 60}, **options, callback=lambda entry: entry.step == 20)
    for callback in (None, lambda entry: entry.step == 20):
        again, data = model_and_data()
        history = vb.fit(again, data, **{limit: 60}, **options, callback=callback)
        assert history.step == [10, 20]
        assert history.stopped == "the callback asked to stop"
        for a, b in zip(model.parameters(), again.parameters(), strict=True):
            assert torch.equal(a, b)
    assert vb.fit(model_and_data()[0], data, steps=70, **options).step[-1] == 70  # more steps than before


def test_a_model_that_stopped_stays_where_it_is_when_the_others_resume(tmp_path: Path) -> None:
    def trained(checkpoint: Path | None, stop: int = 10**6) -> list[torch.Tensor]:
        models, data = [model_and_data()[0] for _ in range(2)], model_and_data()[1]
        options: dict[str, Any] = {"steps": 60, "log_every": 10, "progress": False, "chunk": 2}
        vb.fit_many(
            models,
            [data, data],
            **options,
            kl_weight=stopping_at(stop),
            callback=lambda entry: entry.replica == 0 and entry.step == 20,
            checkpoint=checkpoint,
        )
        return [p.detach() for model in models for p in model.parameters()]

    whole = trained(None)
    with pytest.raises(StopError):
        trained(tmp_path / "state", stop=45)
    for a, b in zip(whole, trained(tmp_path / "state"), strict=True):
        assert torch.equal(a, b)


def _lbfgs(checkpoint: Path | None, stop: int | None = None, **options: Any) -> tuple[vb.ExactGP, vb.History]:
    """Trained by L-BFGS, with an error at one of the evaluations of the bound."""
    torch.manual_seed(0)
    x = torch.randn(30, 2)
    model = vb.ExactGP(vb.SquaredExponential(2, ard=True), vb.Gaussian(0.5))
    evaluations = 0

    def count(*_: object) -> None:
        nonlocal evaluations
        evaluations += 1
        if evaluations == stop:
            raise StopError

    model.register_forward_pre_hook(count)
    y = (x[:, 0] * 2).sin() + 0.1 * torch.randn(30)
    history = vb.fit(model, (x, y), restarts=2, progress=False, checkpoint=checkpoint, **options)
    return model, history


@pytest.mark.parametrize("seconds", [0.0, 1e6])
@pytest.mark.parametrize("stop", [3, 40])
@pytest.mark.parametrize("kl_weight", [1.0, vb.schedules.linear(0.0, 1.0, 30)])
def test_lbfgs_resumes(tmp_path: Path, seconds: float, stop: int, kl_weight: Any) -> None:
    whole, history = _lbfgs(None, kl_weight=kl_weight)
    options = {"checkpoint_seconds": seconds, "kl_weight": kl_weight}
    with pytest.raises(StopError):
        _lbfgs(tmp_path / "state", stop, **options)
    assert (tmp_path / "state").exists()  # kept when interrupted, however seldom it is written
    again, resumed = _lbfgs(tmp_path / "state", **options)
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert resumed.step == history.step
    finished, _ = _lbfgs(tmp_path / "state", stop=2, **options)  # which evaluates no bound again
    for a, b in zip(whole.parameters(), finished.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize("more", [{"steps": 500}, {}])
def test_lbfgs_goes_on_when_it_gets_more_iterations(tmp_path: Path, restarts: int, more: dict[str, int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 2)
    y = (x[:, 0] * 2).sin() + 0.1 * torch.randn(30)

    def trained(checkpoint: Path | None = None, **options: int) -> vb.History:
        model = vb.ExactGP(vb.SquaredExponential(2, ard=True), vb.Gaussian(0.5))
        return vb.fit(model, (x, y), restarts=restarts, progress=False, checkpoint=checkpoint, **options)

    first = trained(tmp_path / "state", steps=3)
    assert first.stopped.startswith("used up 3 iterations")
    assert trained(tmp_path / "state", steps=2).step == first.step  # fewer are no reason to do anything
    whole, gone_on = trained(**more), trained(tmp_path / "state", **more)
    assert gone_on.stopped == whole.stopped
    assert gone_on.elbo[-1] == pytest.approx(whole.elbo[-1], abs=1e-4)
    assert (gone_on.step[0] == 3) == (restarts == 1)  # one start goes on from there, several begin anew
    assert trained(tmp_path / "state", **more).elbo == gone_on.elbo


def test_data_loader_resumes(tmp_path: Path) -> None:
    def fitted(checkpoint: Path | None, weight: vb.schedules.Schedule | float) -> vb.Model:
        model, (x, y) = model_and_data()
        loader = DataLoader(TensorDataset(x, y), batch_size=9, shuffle=True)
        vb.fit(model, loader, steps=40, log_every=4, progress=False, checkpoint=checkpoint, kl_weight=weight)
        return model

    whole = fitted(None, 1.0)
    with pytest.raises(StopError):
        fitted(tmp_path / "state", stopping_at(27))
    again = fitted(tmp_path / "state", 1.0)
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    model, data = model_and_data()
    vb.fit(model, data, steps=10, progress=False, checkpoint=tmp_path / "state")
    model, data = model_and_data()
    with pytest.raises(vb.ConfigurationError, match=r"lr was 0\.01 and is 0\.02"):
        vb.fit(model, data, steps=10, lr=0.02, progress=False, checkpoint=tmp_path / "state")
    other = (data[0], data[1] + 1)
    with pytest.raises(vb.ConfigurationError, match="data was"):
        vb.fit(model_and_data()[0], other, steps=10, progress=False, checkpoint=tmp_path / "state")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all", b"\x10" + b"\x00" * 30])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "state"
    file.write_bytes(content)
    model, data = model_and_data()
    with pytest.raises(vb.DataError, match="delete it to start over"):
        vb.fit(model, data, steps=10, progress=False, checkpoint=file)
    assert file.read_bytes() == content  # nothing was overwritten


@pytest.mark.parametrize("state", [[1, 2], {"a": 1}, {"fingerprint": {}}])
def test_another_state_is_no_checkpoint(tmp_path: Path, state: Any) -> None:
    save_state(tmp_path / "state", state)
    model, data = model_and_data()
    with pytest.raises(vb.DataError, match="state is not the checkpoint of a run"):
        vb.fit(model, data, steps=2, progress=False, checkpoint=tmp_path / "state")


def test_a_truncated_checkpoint_is_named(tmp_path: Path) -> None:
    model, data = model_and_data()
    file = tmp_path / "state"
    vb.fit(model, data, steps=10, progress=False, checkpoint=file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(vb.DataError, match="damaged"):
        vb.fit(model_and_data()[0], data, steps=20, progress=False, checkpoint=file)


def test_a_resumed_run_clears_away_what_killed_ones_left(tmp_path: Path) -> None:
    left = tmp_path / ".state.0f.part"
    left.touch()
    os.utime(left, (0.0, 0.0))
    x = torch.randn(20, 1)
    gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian(0.1))
    vb.fit(gp, (x, x[:, 0]), steps=2, checkpoint=tmp_path / "state", progress=False)
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_an_unwritable_place_is_refused_before_training(tmp_path: Path) -> None:
    model, data = model_and_data()
    (tmp_path / "file").write_text("")
    with pytest.raises(vb.ConfigurationError, match="cannot be written"):
        vb.fit(model, data, steps=10, progress=False, checkpoint=tmp_path / "file" / "state")
    with pytest.raises(vb.ConfigurationError, match="is a folder"):
        vb.fit(model, data, steps=10, progress=False, checkpoint=tmp_path)


def test_a_full_disk_does_not_cost_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    model, data = model_and_data()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))  # no file may become larger than this
        history = vb.fit(model, data, steps=10, progress=False, checkpoint=tmp_path / "state")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert history.stopped == "ran the 10 steps asked for"
    assert "could not be written" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"kernel": vb.Matern52}),
        ({}, {"learn": False}),
        ({"learn": False}, {"learn": False, "noise": 0.5}),
        ({}, {"kl_weight": 0.01}),
        ({"kl_weight": vb.schedules.linear(0.0, 1.0, 5)}, {}),
        ({}, {"lr_schedule": vb.schedules.piecewise([3], [1.0, 0.1])}),
        ({"weight_decay": 0.1}, {}),
        ({"natural_rate": 0.5}, {}),
        ({}, {"lr_factors": {"*kernel*": 0.5}}),
        ({"augment": torch.nn.Identity()}, {}),
    ],
)
def test_a_checkpoint_of_another_model_or_other_options_is_refused(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    x = torch.randn(20, 2)

    def train(
        kernel: type[vb.Kernel] = vb.SquaredExponential, learn: bool = True, noise: float = 0.1, **options: Any
    ) -> None:
        gp = vb.GP(1, kernel=kernel(2), posterior=vb.LocalInducing(5))
        model = vb.Model(gp, vb.Gaussian(noise, learn=learn))
        vb.fit(model, (x, x[:, 0]), steps=3, checkpoint=tmp_path / "state", progress=False, **options)

    train(**first)
    train(**first)
    with pytest.raises(vb.ConfigurationError, match="belongs to another run"):
        train(**second)


def test_other_values_of_what_is_fixed_are_another_run_and_other_starts_are_not(tmp_path: Path) -> None:
    def train(noises: list[float], lengthscale: float) -> None:
        models = [
            vb.ExactGP(vb.SquaredExponential(1, lengthscale=lengthscale), vb.Gaussian(noise, learn=False))
            for noise in noises
        ]
        x = torch.linspace(-1.0, 1.0, 10)[:, None]
        vb.fit_many(models, [(x, x[:, 0])] * 2, steps=3, chunk=2, checkpoint=tmp_path / "state", progress=False)

    train([0.1, 0.2], 1.0)
    train([0.1, 0.2], 3.0)
    with pytest.raises(
        vb.ConfigurationError, match=r"fixed likelihood.noise was \[\[0.1\], \[0.2\]\] and is \[\[0.1\], \[0.3"
    ):
        train([0.1, 0.3], 1.0)


@pytest.mark.parametrize("changed", [{"stride": 2}, {"padding": 0}, {"kernel_size": (3, 1), "padding": (1, 0)}])
def test_a_checkpoint_of_a_convolution_that_looks_elsewhere_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    x, y = torch.randn(6, 1, 4, 4), torch.arange(6) % 2

    def train(**options: Any) -> None:
        how: dict[str, Any] = {"kernel_size": (1, 3), "padding": (0, 1)} if "kernel_size" in changed else {}
        layer = vb.Conv2d(1, 2, **{"kernel_size": 3, "padding": 1, **how, **options}, posterior=vb.Point())
        layers = (layer, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), vb.Linear(2, 2, posterior=vb.Point()))
        model = vb.Model(torch.nn.Sequential(*layers), vb.Categorical())
        vb.fit(model, (x, y), steps=3, checkpoint=tmp_path / "state", progress=False)

    train()
    train()
    with pytest.raises(vb.ConfigurationError, match=r"belongs to another run: .*geometry"):
        train(**changed)


class Counting(torch.nn.Module):
    """A module of one's own, whose attributes may be anything."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.functions = 0, (lambda rows: rows.tanh(),)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        found: torch.Tensor = self.functions[0](rows)
        return found


class Augment:
    """Without a name of its own."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


def test_the_same_run_is_never_refused(tmp_path: Path) -> None:
    x = torch.randn(20, 3)

    def network() -> torch.nn.Module:
        gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(5))
        return torch.nn.Sequential(torch.nn.Linear(3, 2), Counting(), gp)

    def train(model: vb.Model, steps: int) -> None:
        options: dict[str, Any] = {"lr_schedule": lambda step: (1.0 - step / 200.0) ** 0.9 if step < 200 else math.nan}
        vb.fit(
            model, (x, x[:, 0]), steps=steps, checkpoint=tmp_path / "c", progress=False, augment=Augment(), **options
        )

    model = vb.Model(network(), vb.Gaussian(0.1))
    train(model, 10)
    train(model, 20)
    train(vb.Model(network(), vb.Gaussian(0.1)).eval(), 30)


def test_a_model_from_disk_goes_on_with_the_run_of_a_built_one(tmp_path: Path) -> None:
    x = torch.randn(20, 3)
    gp = vb.GP(1, kernel=vb.SquaredExponential(3), posterior=vb.LocalInducing(5))
    model = vb.Model(gp, vb.Gaussian(0.1))
    model.save(tmp_path / "model")
    vb.fit(model, (x, x[:, 0]), steps=5, checkpoint=tmp_path / "c", progress=False)
    vb.fit(vb.load(tmp_path / "model"), (x, x[:, 0]), steps=10, checkpoint=tmp_path / "c", progress=False)


def test_state_round_trip(tmp_path: Path) -> None:
    shared = torch.randn(3)
    state = {"a": [shared, shared], 0: (None, True, 2, 0.1, float("inf")), "empty": {}, "s": "text"}
    save_state(tmp_path / "f", state)
    found = load_state(tmp_path / "f")
    assert torch.equal(found["a"][0], shared)
    assert torch.equal(found["a"][1], shared)
    assert found[0] == (None, True, 2, 0.1, float("inf"))
    assert (found["empty"], found["s"]) == ({}, "text")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
