"""The figures of chapters 1 and 2: numbers that the thesis prints, and what it says of the rest."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vibayes import experiments
from vibayes.errors import ConfigurationError
from vibayes.experiments import intro, symmetric
from vibayes.experiments.__main__ import main
from vibayes.experiments.record import one_thread

SNELSON = Path(os.environ.get("VIBAYES_DATA", ".")) / "toy" / "snelson.npz"
needs_snelson = pytest.mark.skipif(not SNELSON.exists(), reason="set VIBAYES_DATA to a folder with toy/snelson.npz")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def numbers(result: Any) -> dict[str, float]:
    assert all(statement.holds for statement in result.statements), result.statements
    return {number.name: number.ours for number in result.numbers}


@pytest.mark.parametrize(
    ("c", "kl", "m", "s"), [(0.4, 0.0031, 0.0, 0.637), (1.2, 0.4218, 0.0, 1.161), (1.5, 0.6888, 1.492, 0.512)]
)
def test_best_gaussian_for_two_modes(c: float, kl: float, m: float, s: float) -> None:
    found = symmetric.best_gaussian(c)
    assert found.kl == pytest.approx(kl, abs=6e-5)
    assert found.m == pytest.approx(m, abs=6e-4)
    assert found.s == pytest.approx(s, abs=6e-4)
    # no Gaussian of a fine grid is nearer
    a, b = torch.meshgrid(torch.linspace(0, 2, 41), torch.linspace(0.3, 1.5, 41), indexing="ij")
    kls = torch.func.vmap(lambda m, s: symmetric.kl_to_mixture(m, s, c, 0.5))(a.flatten(), b.flatten())
    assert found.kl <= float(kls.min()) < found.kl + 1e-3


def test_kl_against_a_riemann_sum() -> None:
    m, s, c, std = 0.3, 0.8, 1.2, 0.5
    w = np.linspace(-12, 12, 200_001)
    q = np.exp(-0.5 * ((w - m) / s) ** 2) / (s * math.sqrt(2 * math.pi))
    modes = [np.exp(-0.5 * ((w - a) / std) ** 2) / (std * math.sqrt(2 * math.pi)) for a in (c, -c)]
    log_q = -0.5 * ((w - m) / s) ** 2 - math.log(s * math.sqrt(2 * math.pi))
    expected = np.sum(np.where(q > 1e-300, q * (log_q - np.log(0.5 * sum(modes) + 1e-320)), 0.0)) * (w[1] - w[0])
    assert float(symmetric.kl_to_mixture(torch.tensor(m), torch.tensor(s), c, std)) == pytest.approx(expected, abs=1e-9)


def test_quantiles_of_the_absolute_value() -> None:
    draws = np.abs(np.random.RandomState(0).normal(0.7, 0.5, 1_000_000))
    levels = [0.025, 0.5, 0.975]
    found = symmetric.FoldedNormal(0.7, 0.5).quantile(torch.tensor(levels))
    np.testing.assert_allclose(found.numpy(), np.quantile(draws, levels), atol=3e-3)


def test_symm_vi_statements() -> None:
    found = numbers(intro.symm_vi())
    assert found["KL, c=1.5"] < math.log(2)
    assert found["largest error of the quantiles of |w|, c=1.2"] > 0.4


def test_linear_regression_figures_show_what_the_thesis_says() -> None:
    fitted = numbers(intro.max_likelihood())
    assert fitted["training RMSE, W=12"] < 0.1 < fitted["training RMSE, W=3"]  # 0.1 is the noise
    evidence = numbers(intro.exact_blr())
    assert evidence["LML, W=5"] > max(evidence["LML, W=3"], evidence["LML, W=12"]) + 1
    bounds = numbers(intro.blr_vi())
    assert bounds["ELBO, full covariance"] == pytest.approx(bounds["LML of the exact posterior"], abs=1e-4)
    assert bounds["LML of the exact posterior"] == pytest.approx(evidence["LML, W=12"], abs=1e-9)
    assert bounds["alpha, mean field"] < 0.8 * bounds["alpha, full covariance"]


@needs_snelson
def test_exact_gp_has_the_numbers_of_the_thesis() -> None:
    found = numbers(intro.exact_gpr())
    assert found["LML, trained"] == pytest.approx(-14.215, abs=1e-3)
    assert found["lengthscale, trained"] == pytest.approx(0.415, abs=5e-4)
    assert found["lengthscale, initial"] == 1.0
    # unit kernel, unit noise, zero mean, by hand
    with np.load(SNELSON) as stored:
        x, y = stored["x"].reshape(-1)[::10], stored["y"].reshape(-1)[::10]
    K = np.exp(-0.5 * (x[:, None] - x) ** 2) + np.eye(20)
    by_hand = -0.5 * (y @ np.linalg.solve(K, y) + np.linalg.slogdet(K)[1] + 20 * math.log(2 * math.pi))
    assert found["LML, initial"] == pytest.approx(by_hand, abs=1e-8)


@needs_snelson
def test_sparse_gp_has_the_numbers_of_the_thesis() -> None:
    found = numbers(intro.sgpr())
    assert found["bound, M=2"] == pytest.approx(-24.461, abs=2e-3)
    assert found["bound, M=10"] == pytest.approx(-14.742, abs=2e-3)
    assert found["lengthscale, M=2"] == pytest.approx(1.100, abs=2e-3)
    assert found["lengthscale, M=10"] == pytest.approx(0.526, abs=1e-3)


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("VIBAYES_DATA", "VIBAYES_DATA_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VIBAYES_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("without_data")
def test_run_writes_figures_and_numbers_and_skips_what_lacks_data(tmp_path: Path) -> None:
    reported = []
    before = torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state()
    chosen = ["fig:intro:sgpr", "symm_vi", "exact_blr"]
    found = experiments.run("intro", tmp_path / "new", figures=chosen, report=lambda name, _: reported.append(name))
    assert reported == ["exact_blr", "sgpr", "symm_vi"]
    written = json.loads((tmp_path / "new" / "intro.json").read_text())
    assert {key: value for key, value in found.items() if key != "file"} == written
    assert set(written) >= {"version", "commit", "command", "hardware", "seed", "seconds", "figures"}
    assert "snelson" in written["figures"]["sgpr"]["skipped"]
    assert written["figures"]["sgpr"]["file"] is None
    for name in ("exact_blr", "symm_vi"):
        file = tmp_path / "new" / written["figures"][name]["file"]
        assert file.read_bytes().startswith(b"\x89PNG")
        assert {"name", "ours", "thesis", "reference", "note"} == set(written["figures"][name]["numbers"][0])
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["exact_blr.png", "intro.json", "symm_vi.png"]
    assert (torch.get_default_dtype(), torch.get_num_threads()) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no experiment 'intri'.*'intro'"):
        experiments.run("intri", tmp_path)
    with pytest.raises(ConfigurationError, match=r"no figure 'sgrp'.*'sgpr'"):
        experiments.run("intro", tmp_path, figures=["sgrp"])
    assert not list(tmp_path.iterdir())


def test_module_command_fails_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["run", "intro", "--figures", "symm_vi", "--out", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert main(["list"]) == 0
    assert "intro" in capsys.readouterr().out
    with pytest.raises(SystemExit) as usage:
        main(["run"])
    assert usage.value.code == 2


def test_module_command_runs_without_typer_and_rich(tmp_path: Path) -> None:
    program = (
        "import sys, runpy; sys.modules.update(typer=None, rich=None);"
        "sys.argv = ['x', 'run', 'intro', '--figures', 'symm_vi', '--out', sys.argv[1]];"
        "runpy.run_module('vibayes.experiments', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "KL, c=1.5" in done.stdout
    command = json.loads((tmp_path / "intro" / "intro.json").read_text())["command"]
    assert command.startswith("python -m vibayes.experiments run intro")
