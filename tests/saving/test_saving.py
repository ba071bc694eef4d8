"""Saving and loading: every family comes back as it was, and what cannot be trusted is refused."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, rows, targets
from torch import Tensor, nn

import vibayes as vb
from vibayes.saving import load, save
from vibayes.saving.files import _checksum
from vibayes.trainable import TrainableModel


def _trained(name: str) -> tuple[TrainableModel, Tensor, Tensor]:
    x = rows(name)
    model = FAMILIES[name](x)
    y = targets(model, x)
    vb.fit(model, (x, y), steps=3, progress=False, n_samples=2)
    return model, x, y


def _seeded(model: TrainableModel, x: Tensor, y: Tensor) -> list[Tensor]:
    """What can be asked of a model, from the same random numbers."""
    torch.manual_seed(3)
    prediction = model.predict(x, n_samples=3)
    functions = model.sample_functions(x[:4], 2)
    return [prediction.log_prob(y), functions, model.elbo(x, y, n_samples=2).value.detach()]


@pytest.mark.parametrize("name", FAMILIES)
def test_round_trip_to_the_last_bit(name: str, tmp_path: Path) -> None:
    model, x, y = _trained(name)
    model.save(tmp_path / "model")
    again = vb.load(tmp_path / "model")
    assert type(again) is type(model)
    assert str(again) == str(model)
    again.save(tmp_path / "again")  # the same bytes
    assert (tmp_path / "again" / "model.json").read_bytes() == (tmp_path / "model" / "model.json").read_bytes()
    for mine, theirs in zip(_seeded(model, x, y), _seeded(again, x, y), strict=True):
        assert torch.equal(mine, theirs)
    before, after = model.state_dict(), again.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    learned = {key: p.requires_grad for key, p in model.named_parameters()}
    assert learned == {key: p.requires_grad for key, p in again.named_parameters()}
    # it trains on as the saved one would
    for each in (model, again):
        vb.fit(each, (x, y), steps=2, progress=False, n_samples=2)
    for mine, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", ["exact GP", "SVGP", "deep Wishart, AB", "BNN, global inducing"])
def test_another_dtype(name: str, tmp_path: Path) -> None:
    model, x, _ = _trained(name)
    model.save(tmp_path)
    single = vb.load(tmp_path, dtype=torch.float32)
    assert single.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in single.parameters())
    if not model.draws_differ:
        assert torch.allclose(single.predict(x).mean.double(), model.predict(x).mean, atol=1e-2)
    else:
        assert single.predict(x, n_samples=2).mean.isfinite().all()
    with pytest.raises(vb.ConfigurationError, match="floating"):
        vb.load(tmp_path, dtype=torch.int64)


@pytest.mark.cuda
def test_another_device(tmp_path: Path) -> None:
    model, x, _ = _trained("deep GP")
    model.to("cuda").save(tmp_path)
    assert vb.load(tmp_path).device.type == "cpu"
    assert vb.load(tmp_path, device="cuda").predict(x, n_samples=2).mean.device.type == "cuda"


def test_a_missing_device_is_named(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    _trained("exact GP")[0].save(tmp_path)
    with pytest.raises(vb.ConfigurationError, match="no CUDA GPU"):
        vb.load(tmp_path, device="cuda")


def test_what_is_shared_stays_shared(tmp_path: Path) -> None:
    kernel = vb.SquaredExponential(2)
    layers = [vb.GP(2, kernel=kernel, posterior=vb.LocalInducing(4)) for _ in range(2)]
    model = vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1))
    model.save(tmp_path)
    again = vb.load(tmp_path)
    assert again.network[0].kernel is again.network[1].kernel
    assert len(list(again.parameters())) == len(list(model.parameters()))
    assert len(list(again.layers)) == 2

    x = rows()
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    layer = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(4))
    model = vb.Model(nn.Sequential(tied, layer), vb.Gaussian(0.1))
    model.save(tmp_path)
    again = vb.load(tmp_path)
    assert again.network[0][0].weight is again.network[0][1].weight
    assert torch.equal(again.predict(x).mean, model.predict(x).mean)


def test_fixed_values_priors_and_jitter_are_kept(tmp_path: Path) -> None:
    priors = [
        torch.distributions.Gamma(2.0, 1.0),
        torch.distributions.LogNormal(0.1, 0.5),
        torch.distributions.HalfNormal(2.0),
        torch.distributions.HalfCauchy(1.0),
        torch.distributions.InverseGamma(3.0, 1.0),
        torch.distributions.Exponential(2.0),
        torch.distributions.Uniform(0.0, 9.0),
        torch.distributions.Weibull(1.0, 2.0),
        torch.distributions.Independent(torch.distributions.Normal(torch.zeros(1), torch.ones(1)), 1),
        torch.distributions.MultivariateNormal(torch.zeros(1), torch.eye(1)),
        torch.distributions.StudentT(3.0),
    ]
    for prior in priors:
        kernel = vb.SquaredExponential(1, ard=True, lengthscale=vb.Positive(torch.full((1,), 0.5), prior=prior))
        kernel.variance.fix(2.0)
        model = vb.ExactGP(kernel, vb.Gaussian(0.1))
        model.jitter.fill_(1e-3)
        model.save(tmp_path)
        again = vb.load(tmp_path)
        assert torch.equal(again.log_prior(), model.log_prior())
        assert float(model.log_prior().detach()) != 0.0
        assert not again.kernel.variance.raw.requires_grad
        assert float(again.jitter) == 1e-3


# -- a user's own modules -----------------------------------------------------------------------------------------


def wiggle(x: Tensor) -> Tensor:
    return torch.cat([x, torch.sin(x)], 1)


class Skip(nn.Module):
    """A user's network with settings, a function, a list and a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.settings = {"scales": (0.5, float("inf")), "names": ["a", "b"], "size": torch.Size([2])}
        self.activation = torch.nn.functional.gelu
        self.register_buffer("shift", torch.full((width,), 0.1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.settings["scales"][0] * self.activation(self.inner(x)) + self.shift


def _own() -> vb.Model:
    layer = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(4))
    return vb.Model(nn.Sequential(Skip(2), layer), vb.Gaussian(0.1))


def test_a_users_network_is_named_and_handed_in(tmp_path: Path) -> None:
    model = _own()
    model.save(tmp_path)
    with pytest.raises(vb.ConfigurationError, match=r"'Skip'.*classes=\{'Skip': Skip\}"):
        vb.load(tmp_path)
    with pytest.raises(vb.ConfigurationError, match="'Skip'"):
        vb.load(tmp_path, classes={"Skip": dict})
    again = vb.load(tmp_path, classes={"Skip": Skip})
    assert torch.equal(again.predict(rows()).mean, model.predict(rows()).mean)
    assert again.network[0].settings == model.network[0].settings
    assert "shift" not in again.network[0].state_dict()


class Twice(nn.Module):
    """A user's network of parts that are the user's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = Skip(2), Skip(2), vb.Linear(2, 1, posterior=vb.MeanField())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x)))


def test_all_of_a_users_classes_are_named_at_once(tmp_path: Path) -> None:
    vb.Model(Twice(), vb.Gaussian(0.1)).save(tmp_path)
    with pytest.raises(vb.ConfigurationError, match=r"'Skip', 'Twice'.*classes=\{'Skip': Skip, 'Twice': Twice\}"):
        vb.load(tmp_path)
    with pytest.raises(vb.ConfigurationError, match=r"classes=\{'Skip': Skip, 'Twice': Twice\}"):
        vb.load(tmp_path, classes={"Twice": Twice})
    vb.load(tmp_path, classes={"Skip": Skip, "Twice": Twice})


def test_a_users_function_is_named_and_handed_in(tmp_path: Path) -> None:
    model = vb.LinearRegression(wiggle, noise=0.1)
    x = rows()
    vb.fit(model, (x, targets(model, x)), steps=2, progress=False)
    model.save(tmp_path)
    with pytest.raises(vb.ConfigurationError, match="'wiggle'"):
        vb.load(tmp_path)
    again = vb.load(tmp_path, classes={"wiggle": wiggle})
    assert torch.equal(again.predict(x).mean, model.predict(x).mean)


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    model = _own()
    model.network[0].log = open  # a builtin function that nobody may look up
    model.save(tmp_path)
    with pytest.raises(vb.ConfigurationError, match="'open'"):
        vb.load(tmp_path, classes={"Skip": Skip})
    model.network[0].log = lambda x: x
    with pytest.raises(vb.ConfigurationError, match=r"network\.0\.log.*lambda"):
        model.save(tmp_path)
    model.network[0].log = object()
    with pytest.raises(vb.ConfigurationError, match=r"network\.0\.log is a object"):
        model.save(tmp_path)
    # as a forward leaves behind that keeps what it made of several draws
    torch.func.vmap(lambda rows: setattr(model.network[0], "log", rows) or rows)(torch.zeros(2))
    with pytest.raises(vb.ConfigurationError, match=r"network\.0\.log holds a tensor of a pass.*Set it to None first"):
        model.save(tmp_path)
    model.network[0].log = [model]
    with pytest.raises(vb.ConfigurationError, match="refers back"):
        model.save(tmp_path)
    del model.network[0].log
    model.network[0].inner.register_forward_hook(lambda *_: None)
    with pytest.raises(vb.ConfigurationError, match=r"network\.0\.inner.*hooks"):
        model.save(tmp_path)


# -- files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _trained("SVGP")[0].save(tmp_path / "saved")
    return tmp_path / "saved"


def _edit(folder: Path, change: dict[str, object], *, sign: bool = True) -> None:
    path = folder / "model.json"
    description = {**json.loads(path.read_text()), **change}
    if sign:
        description["checksum"] = _checksum(description)
    path.write_text(json.dumps(description))


def test_a_newer_format_says_so(folder: Path) -> None:
    _edit(folder, {"version": 2, "vibayes": "9.0"})
    with pytest.raises(vb.DataError, match=r"vibayes 9\.0 in format 2.*Upgrade"):
        vb.load(folder)


def test_edited_and_truncated_files_are_refused(folder: Path) -> None:
    body = next(folder.glob("*.safetensors"))
    content = body.read_bytes()
    body.write_bytes(content[:-1])
    with pytest.raises(vb.DataError, match="truncated"):
        vb.load(folder)
    body.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(vb.DataError, match="hash"):
        vb.load(folder)
    body.write_bytes(content)
    vb.load(folder)
    _edit(folder, {"vibayes": "0.1.1"}, sign=False)
    with pytest.raises(vb.DataError, match="checksum"):
        vb.load(folder)
    (folder / "model.json").write_text((folder / "model.json").read_text()[:-20])
    with pytest.raises(vb.DataError, match="cannot be read"):
        vb.load(folder)
    (folder / "model.json").write_text("{}")
    with pytest.raises(vb.DataError, match="not the description"):
        vb.load(folder)
    (folder / "model.json").unlink()
    with pytest.raises(vb.DataError, match="no saved model"):
        vb.load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.eval",
        "torch.load",
        "torch.nn.os",
        "torch.nn.Module.__init__",
        "vibayes.experiments.__main__.main",
        "vibayes.experiments.runner.Runner",
        "vibayes.fit",
        "vibayes.data.np",
        "vibayes.nothing.There",
    ],
)
def test_a_file_cannot_name_anything_else(folder: Path, name: str) -> None:
    modules = json.loads((folder / "model.json").read_text())["modules"]
    _edit(folder, {"modules": [{**modules[0], "class": name}, *modules[1:]]})
    with pytest.raises(vb.VibayesError, match="does not have"):
        vb.load(folder)
    _edit(folder, {"modules": modules, "root": {"function": name}})
    with pytest.raises(vb.VibayesError, match="function"):
        vb.load(folder)
    _edit(folder, {"modules": modules, "root": {"object": {"class": name, "attributes": {}}}})
    with pytest.raises(vb.VibayesError, match="does not have"):
        vb.load(folder)


def test_malformed_descriptions_with_a_right_checksum_are_refused(folder: Path) -> None:
    modules = json.loads((folder / "model.json").read_text())["modules"]
    last = len(modules) - 1
    for change in (
        {"root": {"module": last + 7}},
        {"root": {"module": -1}},
        {"root": {"surprise": 1}},
        {"root": {}},
        {"modules": [{}]},
        {"modules": None},
        {"tensors": {"file": "../../etc/passwd", "sha256": ""}},
        {"modules": [{**modules[0], "attributes": {"__class__": 1}}]},
        {"modules": [{**modules[0], "attributes": {"_forward_hooks": {"dict": []}}}]},
        {"modules": [{**modules[0], "modules": {"self": 0}}]},  # a module within itself
    ):
        good = (folder / "model.json").read_bytes()
        _edit(folder, change)
        with pytest.raises(vb.DataError):
            vb.load(folder)
        (folder / "model.json").write_bytes(good)
    vb.load(folder)


def test_saving_replaces_in_one_moment_and_leaves_other_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "report.html").write_text("mine")
    old, x, _ = load(folder), rows(), None
    new, _, _ = _trained("exact GP")
    import vibayes.saving.files as files

    real = files.written_whole

    def killed(path: Path) -> Any:
        if path.name == "model.json":
            raise KeyboardInterrupt
        return real(path)

    monkeypatch.setattr(files, "written_whole", killed)
    with pytest.raises(KeyboardInterrupt):
        new.save(folder)
    assert torch.equal(vb.load(folder).predict(x).mean, old.predict(x).mean)  # still the old one
    monkeypatch.undo()
    new.save(folder)
    assert isinstance(vb.load(folder), vb.ExactGP)
    names = sorted(p.name for p in folder.iterdir())
    assert len(names) == 3
    assert "report.html" in names
    digest = json.loads((folder / "model.json").read_text())["tensors"]["sha256"]
    assert hashlib.sha256(next(folder.glob("*.safetensors")).read_bytes()).hexdigest() == digest


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(vb.ConfigurationError, match="is a file"):
        save(_own(), tmp_path / "file")


def test_only_models_that_are_their_data_hold_them(tmp_path: Path) -> None:
    for name, holds in (("exact GP", True), ("SVGP", False)):
        model, x, _ = _trained(name)
        model.save(tmp_path / name)
        tensors = [t for t in vb.load(tmp_path / name).state_dict().values() if t.ndim == 2]
        assert any(t.shape == x.shape for t in tensors) == holds


# -- files of earlier versions ---------------------------------------------------------------------------------------

KEPT = Path(__file__).parent / "kept"


@pytest.mark.parametrize("folder", sorted(p.name for p in KEPT.iterdir()))
def test_files_that_were_kept_still_load(folder: str) -> None:
    """Attribute names are part of the format; see docs/decisions/saving.md before changing these files."""
    model = vb.load(KEPT / folder)
    wanted = json.loads((KEPT / folder / "predictions.json").read_text())
    torch.manual_seed(0)
    prediction = model.predict(torch.tensor(wanted["x"]), n_samples=5)
    # the exact GP had data without noise: at its rows means have six digits, and deviations of 1e-5 are rounding
    torch.testing.assert_close(prediction.mean, torch.tensor(wanted["mean"]), rtol=1e-5, atol=0)
    torch.testing.assert_close(prediction.std, torch.tensor(wanted["std"]), rtol=1e-6, atol=1e-5)
