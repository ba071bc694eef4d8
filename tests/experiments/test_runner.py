"""A sweep: results, resuming, groups, and what goes wrong."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vibayes as vb
from vibayes.errors import ConfigurationError
from vibayes.experiments import runner, training
from vibayes.experiments.executors import Processes, make_executor
from vibayes.experiments.experiment import Experiment, ModelSpec
from vibayes.experiments.models import MODELS, build
from vibayes.experiments.results import MAX_BYTES, finished
from vibayes.experiments.runner import Settings, check_device, run_sweep
from vibayes.experiments.sweep import Selection, expand, plan


def metrics_in(out: Path) -> dict[str, str]:
    """The metrics of all results as they are written."""
    found = {}
    for path in sorted(out.glob("*/*/*/split-*.json")):
        found[str(path.relative_to(out))] = json.dumps(json.loads(path.read_text())["metrics"])
    return found


def test_a_sweep_writes_one_file_per_run_that_tells_everything(tiny: Experiment, settings: Settings) -> None:
    units = expand(tiny, Selection(splits="0-1"))
    summary = run_sweep(units, replace(settings, command="vibayes bench run tiny"))
    assert (summary.wanted, summary.trained, summary.left, summary.ok) == (2, 2, 0, True)
    result = finished(settings.out, units[1])
    assert result is not None
    assert set(result["metrics"]) == set(tiny.metrics)
    assert result["options"] == units[1].options
    assert result["metrics"]["loss"] == -result["metrics"]["elbo_per_datapoint"]
    assert (result["steps"], result["n_train"], result["split"], result["status"]) == (60, 40, 1, "finished")
    assert result["command"] == "vibayes bench run tiny"
    assert result["hardware"]["device"] == "cpu"
    assert result["hardware"]["threads"] == torch.get_num_threads()
    assert result["software"]["torch"] == torch.__version__
    assert result["code"]["version"] == vb.__version__
    assert len(result["code"]["sources"]) == 12
    assert result["group"] == {"splits": [0, 1], "chunk": 2, "executor": "process", "compile": False}
    assert result["curve"]["step"] == list(range(5, 61, 5))
    assert (settings.out / units[1].path).stat().st_size < MAX_BYTES
    assert [p.name for p in (settings.out / ".work").iterdir()] == ["guard"]  # nothing is left behind


def test_metrics_are_those_of_the_model_trained_alone(tiny: Experiment, settings: Settings) -> None:
    unit = expand(tiny)[2]
    run_sweep([unit], settings)
    split = vb.datasets.load("diabetes", "random", seed=2, standardize="both", n_train=40, n_test=20)
    gp = vb.GP(1, kernel=vb.SquaredExponential(10, ard=True), posterior=vb.LocalInducing(5))
    model = vb.Model(gp, vb.Gaussian(1.0))
    schedule = vb.schedules.piecewise([30], [1.0, 0.1])
    vb.fit(
        model, (split.x_train, split.y_train), steps=60, batch_size=10, lr=0.01, lr_schedule=schedule, seed=2,
        log_every=5, progress=False,
    )  # fmt: skip
    expected = {
        "elbo_per_datapoint": model.elbo(split.x_train, split.y_train).per_datapoint.item(),
        "train_rmse": vb.metrics.rmse(model.predict(split.x_train), split.y_train),
        "test_rmse": vb.metrics.rmse(model.predict(split.x_test), split.y_test),
        "test_ll": vb.metrics.log_likelihood(model.predict(split.x_test), split.y_test),
        "noise": model.likelihood.noise.value.item(),  # type: ignore[union-attr,operator]
    }
    result = finished(settings.out, unit)
    assert result is not None
    for name, value in expected.items():
        assert result["metrics"][name] == pytest.approx(value, rel=1e-9), name


def test_original_units(tiny: Experiment, settings: Settings) -> None:
    standardised, original = expand(tiny, Selection(splits="0"))[0], None
    options = {**standardised.options, "data": {**standardised.options["data"], "units": "original"}}
    original = replace(standardised, options=options)
    run_sweep([standardised, original], settings)
    a, b = finished(settings.out, standardised), finished(settings.out, original)
    assert a is not None
    assert b is not None
    std = float(training.load_split(standardised).y_std)
    assert b["metrics"]["test_rmse"] == pytest.approx(a["metrics"]["test_rmse"] * std)
    assert b["metrics"]["test_ll"] == pytest.approx(a["metrics"]["test_ll"] - torch.tensor(std).log().item())
    assert b["metrics"]["elbo_per_datapoint"] == a["metrics"]["elbo_per_datapoint"]


def test_how_many_rows_are_measured_at_once_does_not_matter(tiny: Experiment) -> None:
    """40 rows are measured in one part, or in four of which the last has fewer: the divergence counts once."""
    unit = expand(tiny, Selection(splits="0"))[0]
    split = training.load_split(unit)
    model, options = build(unit.builder, split, unit.options, seed=0)
    vb.fit(model, (split.x_train, split.y_train), **options, progress=False)
    found = []
    for rows in (100, 12):
        chosen = replace(unit, options={**unit.options, "measure": {"rows": rows}}, metrics=(*unit.metrics, "loss"))
        found.append(training.measure(model, split, chosen))
    assert found[0] == pytest.approx(found[1], nan_ok=True)
    with torch.no_grad():
        bound = model.elbo(split.x_train, split.y_train)
    assert found[1]["elbo_per_datapoint"] == pytest.approx(float(bound.per_datapoint))


def test_finished_runs_are_not_repeated_and_other_options_are_other_runs(
    tiny: Experiment, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = expand(tiny)
    run_sweep(units[:2], settings)
    trained: list[int] = []
    real = training.train_group

    def counting(units: Any, *args: Any, **kwargs: Any) -> Any:
        trained.extend(unit.split for unit in units)
        return real(units, *args, **kwargs)

    monkeypatch.setattr(runner, "train_group", counting)
    before = metrics_in(settings.out)
    assert run_sweep(units, settings).before == 2
    assert trained == [2, 3]
    assert {k: v for k, v in metrics_in(settings.out).items() if k in before} == before
    assert run_sweep(units, settings).trained == 0
    changed = expand(tiny, Selection(splits="0", steps=61))
    assert run_sweep(changed, settings).trained == 1
    assert finished(settings.out, units[0]) is not None
    assert len(metrics_in(settings.out)) == 5


def test_how_runs_are_grouped_changes_rounding_at_most(tiny: Experiment, tmp_path: Path) -> None:
    units = expand(tiny)
    for name, group, chunk in (("alone", 1, None), ("together", 4, 2)):
        run_sweep(units, Settings(tmp_path / name, "cpu", group=group, chunk=chunk, show=False))
    alone, together = (metrics_in(tmp_path / name) for name in ("alone", "together"))
    assert alone.keys() == together.keys()
    for key, text in alone.items():
        assert json.loads(text) == pytest.approx(json.loads(together[key]), rel=1e-6)
    result = finished(tmp_path / "together", units[3])
    assert result is not None
    assert result["group"] == {"splits": [0, 1, 2, 3], "chunk": 2, "executor": "process", "compile": False}


def test_compiled_steps_are_asked_for_and_noted(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: asked.append(function) or function)
    (unit, *_) = expand(tiny)
    for compile in (False, True):
        settings = Settings(out=tmp_path / str(compile), device="cpu", show=False, compile=compile)
        assert run_sweep([unit], settings).ok
        assert bool(asked) is compile
        assert json.loads((settings.out / unit.path).read_text())["group"]["compile"] is compile


def test_a_corrupt_result_is_named_and_trained_again(
    tiny: Experiment, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    units = expand(tiny, Selection(splits="0-2"))
    run_sweep(units, replace(settings, group=3))
    before = metrics_in(settings.out)
    path = settings.out / units[1].path
    path.write_text(path.read_text()[:200])
    with caplog.at_level(logging.WARNING):
        summary = run_sweep(units, settings)
    assert str(path) in caplog.text
    assert (summary.before, summary.trained) == (2, 1)
    after = metrics_in(settings.out)
    for key, text in before.items():  # trained alone now, and not with the others
        assert json.loads(after[key]) == pytest.approx(json.loads(text), rel=1e-9)


def test_files_written_aside_are_never_results(tiny: Experiment, settings: Settings) -> None:
    units = expand(tiny, Selection(splits="0"))
    run_sweep(units, settings)
    path = settings.out / units[0].path
    path.rename(path.with_name(f".{path.name}.0123.part"))
    assert finished(settings.out, units[0]) is None
    assert run_sweep(units, settings).trained == 1


def test_a_failed_group_does_not_stop_the_others(
    tiny: Experiment, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training.train_group

    def failing(units: Any, *args: Any, **kwargs: Any) -> Any:
        if units[0].split == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")
        return real(units, *args, **kwargs)

    monkeypatch.setattr(runner, "train_group", failing)
    settings = replace(settings, group=1)
    summary = run_sweep(expand(tiny), settings)
    assert (summary.trained, summary.left, summary.ok) == (3, 1, False)
    assert "diabetes SVGP split 1: out of memory" in summary.failed[0]
    assert "--chunk" in summary.failed[0]
    monkeypatch.undo()
    assert run_sweep(expand(tiny), settings).trained == 1  # the claim was given back


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="this torch has no such error")
def test_a_gpu_that_failed_is_named(tiny: Experiment, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **kwargs: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nSearch for ...")

    monkeypatch.setattr(runner, "train_group", failing)
    summary = run_sweep(expand(tiny), settings)
    assert "the GPU failed (CUDA error: an illegal memory access was encountered)" in summary.failed[0]
    assert "Run the command again" in summary.failed[0]


def test_a_mistake_in_a_builder_does_not_stop_the_others(
    tiny: Experiment, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken(split: Any, options: Any) -> Any:
        raise KeyError("width")

    monkeypatch.setitem(MODELS, "mistaken", mistaken)
    both = replace(tiny, models={"wrong": ModelSpec("mistaken"), "SVGP": tiny.models["SVGP"]})
    summary = run_sweep(expand(both), replace(settings, group=4))
    assert (summary.trained, summary.left) == (4, 4)
    assert summary.failed == ["diabetes wrong splits 0-3: KeyError: 'width'"]
    assert "in mistaken" in caplog.text  # where it was


def test_an_interrupt_keeps_the_state_and_the_rest_is_done_later(
    tiny: Experiment, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = expand(tiny)
    whole = replace(settings, out=tmp_path / "whole", group=4, chunk=4)
    run_sweep(units, whole)
    part = replace(settings, group=4, chunk=4, checkpoint_seconds=0.0)
    real = training._watched

    def stopping(schedule: Any, watch: Any) -> Any:
        inner = real(schedule, watch)

        def value(step: int) -> float:
            if step == 33:
                raise KeyboardInterrupt
            return inner(step)

        return value

    monkeypatch.setattr(training, "_watched", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(units, part)
    monkeypatch.undo()
    assert metrics_in(part.out) == {}
    groups = plan(part.out.resolve(), units, size=1, how={})
    assert [[u.split for u in g.units] for g in groups] == [[0, 1, 2, 3]]  # the group keeps its composition
    assert list(groups[0].folder.glob("checkpoint*"))
    # another size is asked for, and yet the group goes on as it began
    assert run_sweep(units, replace(part, group=1, chunk=None)).trained == 4
    assert metrics_in(part.out) == metrics_in(whole.out)
    result = finished(part.out, units[0])
    assert result is not None
    assert result["group"]["chunk"] == 4


def test_only_runs_that_were_asked_for_are_counted(
    tiny: Experiment, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    units = expand(tiny)
    plan(settings.out.resolve(), units, size=4, how={})  # an earlier sweep of all splits, killed in its first step
    shown = replace(settings, show=True)
    summary = run_sweep(units[:1], shown)
    assert (summary.wanted, summary.before, summary.trained, summary.elsewhere, summary.left) == (1, 0, 1, 0, 0)
    assert "[1/1] diabetes SVGP splits 0-3: done" in capsys.readouterr().err
    assert run_sweep(units, settings).before == 4


def test_a_damaged_checkpoint_starts_the_group_over(tiny: Experiment, settings: Settings, tmp_path: Path) -> None:
    units = expand(tiny, Selection(splits="0"))
    run_sweep(units, replace(settings, out=tmp_path / "whole"))
    group = plan((tmp_path / "out").resolve(), units, size=1, how={})[0]
    group.folder.mkdir()
    (group.folder / "checkpoint").write_bytes(b"damaged")
    summary = run_sweep(units, settings)
    assert summary.ok
    assert metrics_in(settings.out) == metrics_in(tmp_path / "whole")


def test_a_diverged_run_is_marked(tiny: Experiment, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    real = training.train_group

    def diverging(*args: Any, **kwargs: Any) -> Any:
        models, histories = real(*args, **kwargs)
        histories[0].stopped = "gave up: the bound was not finite"
        histories[0].events = ["Step 10: the bound was not finite."]
        return models, histories

    monkeypatch.setattr(runner, "train_group", diverging)
    units = expand(tiny, Selection(splits="0"))
    run_sweep(units, settings)
    result = finished(settings.out, units[0])
    assert result is not None
    assert result["status"] == "diverged"
    assert result["events"] == ["Step 10: the bound was not finite."]


def test_no_gpu_is_said_before_anything_starts(tiny: Experiment, settings: Settings) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigurationError, match="0 usable CUDA GPUs"):
        run_sweep(expand(tiny), replace(settings, device="cuda"))
    assert not list(settings.out.glob("tiny"))
    assert check_device(None) == "cpu"
    with pytest.raises(ConfigurationError, match="Unknown device"):
        check_device("gpu7")


def test_worker_processes_give_the_same_results(tiny: Experiment, tmp_path: Path) -> None:
    units = expand(tiny, Selection(splits="0-2"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run_sweep(units, Settings(tmp_path / "here", "cpu", group=1, show=False))
    torch.set_num_threads(threads)
    summary = run_sweep(units, Settings(tmp_path / "there", "cpu", group=1, show=False), Processes(2))
    assert summary.trained == 3
    assert metrics_in(tmp_path / "there") == metrics_in(tmp_path / "here")


def test_ray_gives_the_same_results(tiny: Experiment, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    units = expand(tiny, Selection(splits="0-1"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run_sweep(units, Settings(tmp_path / "here", "cpu", group=1, show=False))
    torch.set_num_threads(threads)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        summary = run_sweep(
            units, Settings(tmp_path / "there", "cpu", group=1, show=False), make_executor("ray", workers=2)
        )
    finally:
        ray.shutdown()
    assert summary.trained == 2
    assert metrics_in(tmp_path / "there") == metrics_in(tmp_path / "here")


def test_bad_executors() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'processes'"):
        make_executor("proceses")
    with pytest.raises(ConfigurationError, match="--address belongs"):
        make_executor("process", address="auto")
    with pytest.raises(ConfigurationError, match="positive whole number"):
        make_executor("processes", workers=0)
