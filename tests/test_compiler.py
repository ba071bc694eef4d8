"""`torch.compile` around us."""

import warnings

import pytest
import torch

from vibayes.compiler import can_compile, compiler_options, quiet_compiler


def warn(module: str, category: type[Warning]) -> None:
    warnings.warn_explicit("old", category, "file.py", 1, module=module)


def test_only_torchs_own_deprecations_are_passed_over() -> None:
    with quiet_compiler():
        warn("torch._inductor.lowering", FutureWarning)
        warn("torch", DeprecationWarning)
        for module, category in [("mine", FutureWarning), ("torchmetrics", FutureWarning), ("torch.nn", UserWarning)]:
            with pytest.raises(category, match="old"):
                warn(module, category)
    with pytest.raises(FutureWarning, match="old"):
        warn("torch", FutureWarning)


def test_a_compiler_is_one_that_is_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/bin/mine" if name == "mine" else None)
    monkeypatch.delenv("CXX", raising=False)
    assert not can_compile()
    monkeypatch.setenv("CXX", "mine")
    assert can_compile()


@pytest.mark.parametrize("sound", [True, False])
def test_the_compiler_is_told_of_cpus_only(sound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vibayes.compiler._VECTORS_ARE_SOUND", sound)
    assert compiler_options(torch.device("cuda")) is None
    expected = {"fallback_random": True} if sound else {"fallback_random": True, "cpp.simdlen": 1}
    assert compiler_options(torch.device("cpu")) == expected
