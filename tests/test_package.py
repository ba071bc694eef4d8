"""The package as a user meets it: names, signatures, docstrings, and what importing it costs."""

import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import vibayes as vb

CONTRACT = {
    "Bernoulli": "link",
    "Categorical": "n_latent_noise",
    "ConstantMean": "value learn",
    "ExactGP": "kernel likelihood mean",
    "GP": "out_features kernel mean noise posterior",
    "Gaussian": "noise learn",
    "HeteroscedasticGaussian": "",
    "IdentityMean": "",
    "LinearKernel": "in_features",
    "LinearMean": "in_features out_features",
    "LinearRegression": "features posterior",
    "LocalInducing": "n_inducing form inputs",
    "Matern12": "in_features ard lengthscale variance",
    "Matern32": "in_features ard lengthscale variance",
    "Matern52": "in_features ard lengthscale variance",
    "Model": "network likelihood inducing standardize",
    "Periodic": "in_features",
    "Poisson": "",
    "Polynomial": "in_features",
    "RationalQuadratic": "in_features ard lengthscale variance",
    "SGPR": "kernel likelihood inducing mean",
    "SquaredExponential": "in_features ard lengthscale variance",
    "StudentT": "df scale",
    "White": "in_features variance",
    "ZeroMean": "",
    "choose_inducing": "x n method kernel",
    "fit": "model data steps",
}
METHODS = {
    "Model.elbo": "x y n_samples n_data kl_weight",
    "Model.initialize": "x y",
    "Model.predict": "x n_samples batch_size",
    "Model.sample_functions": "x n",
    "ExactGP.log_marginal_likelihood": "x y",
    "ExactGP.predict": "x",
    "SGPR.elbo": "x y",
    "SGPR.predict": "x",
}
ATTRIBUTES = {
    vb.Elbo: "value log_likelihood kl per_datapoint stderr in_user_units objective",
    vb.Prediction: "mean std variance epistemic aleatoric quantile interval log_prob sample",
    vb.History: "step elbo plot per_datapoint stopped events",
}
MODULES = sorted(m.name for m in pkgutil.walk_packages(vb.__path__, "vibayes.") if "._" not in m.name)


def follows(function: object, names: str) -> None:
    parameters = list(inspect.signature(function).parameters)
    if parameters and parameters[0] == "self":
        parameters = parameters[1:]
    wanted = names.split()
    assert [p for p in parameters if p in wanted] == wanted, parameters


@pytest.mark.parametrize("name", CONTRACT)
def test_public_names_and_their_arguments(name: str) -> None:
    found = getattr(vb, name)
    follows(found.__init__ if inspect.isclass(found) else found, CONTRACT[name])


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str) -> None:
    kind, method = name.split(".")
    follows(getattr(getattr(vb, kind), method), METHODS[name])


@pytest.mark.parametrize("kind", ATTRIBUTES, ids=lambda kind: kind.__name__)
def test_attributes(kind: type) -> None:
    fields = set(getattr(kind, "__dataclass_fields__", {}))
    for name in ATTRIBUTES[kind].split():
        assert hasattr(kind, name) or name in fields, name


def test_defaults_of_the_contract() -> None:
    elbo = inspect.signature(vb.Model.elbo).parameters
    assert (elbo["n_samples"].default, elbo["n_data"].default, elbo["kl_weight"].default) == (10, None, 1.0)
    predict = inspect.signature(vb.Model.predict).parameters
    assert (predict["n_samples"].default, predict["batch_size"].default) == (100, None)
    assert inspect.signature(vb.fit).parameters["steps"].default is None
    local = inspect.signature(vb.LocalInducing.__init__).parameters
    assert (local["n_inducing"].default, local["form"].default, local["inputs"].default) == (100, None, None)
    gp = vb.GP(1, kernel=vb.SquaredExponential(1), posterior=vb.LocalInducing(2))
    vb.Model(gp, vb.Gaussian())
    assert gp.posterior.form == "whitened"  # layers of weights know the other form only
    assert inspect.signature(vb.Gaussian.__init__).parameters["noise"].default == 1.0


def test_errors_have_one_root() -> None:
    kinds = [vb.ShapeError, vb.DataError, vb.ConfigurationError, vb.TrainingError, vb.NotFittedError]
    for kind in [*kinds, vb.NotPositiveDefiniteError]:
        assert issubclass(kind, vb.VibayesError)
        assert kind.__doc__


def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", vb.__version__)
    assert importlib.metadata.version("vibayes") == vb.__version__


def test_it_is_typed() -> None:
    assert (Path(inspect.getfile(vb)).parent / "py.typed").exists()


def test_all_is_what_there_is() -> None:
    for name in vb.__all__:
        assert hasattr(vb, name), name
    assert len(set(vb.__all__)) == len(vb.__all__)
    missing = {
        name
        for name, value in vars(vb).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in vb.__all__
    }
    assert not missing


@pytest.mark.parametrize("name", MODULES)
def test_every_module_imports_and_everything_public_is_documented(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    assert module.__doc__
    assert all(hasattr(module, public) for public in getattr(module, "__all__", []))
    for public in getattr(module, "__all__", []):
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{name}.{public}"
        if inspect.isclass(value) and value.__module__ == name:
            for attribute, member in vars(value).items():
                documented = inspect.isfunction(member) or isinstance(member, property | classmethod)
                if documented and not attribute.startswith("_"):
                    found = getattr(value, attribute)
                    assert inspect.getdoc(found), f"{name}.{public}.{attribute}"


HEAVY = ("matplotlib", "sklearn", "scipy", "torchmetrics", "pandas", "typer", "rich", "pooch", "gpytorch")
SCRIPT = f"""
import sys, time, torch
already = set(sys.modules)
begin = time.perf_counter()
import vibayes
seconds = time.perf_counter() - begin
roots = {{name.partition(".")[0] for name in set(sys.modules) - already}}
print(sorted(roots & set({HEAVY})))
print(torch.get_default_dtype(), torch.get_num_threads() > 0, torch.is_grad_enabled())
print(f"{{seconds:.2f}}", file=sys.stderr)
"""


def test_importing_is_light_and_changes_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True)
    heavy, state = done.stdout.splitlines()
    assert heavy == "[]"
    assert state == "torch.float32 True True"


def test_reading_an_extra_that_is_missing_names_it() -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import vibayes as vb\n"
        "history = vb.History(); history.log(step=1, log_likelihood=0., kl=0., noise=.1, lr=.1, seconds=0.)\n"
        "try:\n    history.plot()\n"
        "except vb.ConfigurationError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert 'pip install "vibayes[plots]"' in done.stdout
