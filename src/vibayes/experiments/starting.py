"""The models of the experiments as they start, for whoever wants to train one by hand."""

from typing import Any

from vibayes.datasets import Split
from vibayes.errors import ConfigurationError
from vibayes.experiments.catalogue import get
from vibayes.experiments.experiment import override
from vibayes.experiments.models import AnyModel, build
from vibayes.experiments.names import check_name
from vibayes.experiments.sweep import check_preset

__all__ = ["start"]


def start(
    experiment: str,
    model: str,
    split: Split,
    *,
    depth: int | None = None,
    prior: str | None = None,
    preset: str | None = None,
    seed: int = 0,
    **changes: Any,
) -> tuple[AnyModel, dict[str, Any]]:
    """A model of an experiment at its starting values, and how the experiment trains it.

    Names, presets and options are those that `vibayes bench show` lists. Where an experiment tries several rates or
    batch sizes, the arguments for training have the one that stands in its options; what it does after training, the
    noise of plain networks (`vibayes.pretraining.fit_noise`), is left to the caller.

    Args:
        experiment: its name, such as `"dgp-uci"`.
        model: the model's name there, such as `"global inducing"`.
        split: training rows, standardised as the experiment has them (`Split.standardized("both")`); of one of its
            data sets, or of any other, for which the options are those of its first.
        depth: how many layers, of models that come in several depths.
        prior: the name of the weights' prior, of models that come with several.
        preset: the name of a start or schedule; None for the experiment's own.
        seed: of what starts at random.
        changes: other options by name, such as `n_inducing=50`.

    Returns:
        The model, in the dtype of the experiment, and keyword arguments of `fit`.

    >>> import vibayes as vb
    >>> from vibayes import experiments
    >>> split = vb.datasets.cubic(seed=0).standardized("both")
    >>> model, training = experiments.start("dgp-uci", "global inducing", split, depth=2, preset="appendix")
    >>> training["lr"], training["n_samples"]
    (0.01, 1)
    >>> history = vb.fit(model, (split.x_train, split.y_train), **{**training, "steps": 5}, progress=False)
    """
    chosen = get(experiment)
    if not chosen.models:
        raise ConfigurationError(f"{chosen.name} is a script that draws figures; it has no models by name.")
    name = check_name(model, chosen.models, f"model of {chosen.name}")
    spec = chosen.models[name]
    for what, value, known in (("depth", depth, spec.depths), ("prior", prior, spec.priors)):
        if known and value is None:
            raise ConfigurationError(f"{name} of {chosen.name} needs {what}=, such as {known[0]!r}.")
        if not known and value is not None:
            raise ConfigurationError(f"{name} of {chosen.name} has no {what}; leave it out.")
    prior = None if prior is None else check_name(prior, spec.priors, "prior")
    if preset is not None:
        preset = check_preset(chosen, preset)
        if preset not in spec.presets:
            raise ConfigurationError(f"{name} of {chosen.name} has no preset {preset!r}.")
    dataset = split.name if split.name in chosen.datasets else (spec.datasets or chosen.datasets)[0]
    options = chosen.options_of(name, dataset, depth=depth, prior=prior, preset=preset)
    for key, value in changes.items():
        options = override(options, key, value)
    built, training = build(spec.builder, split, options, seed)
    kept = {key: value for key, value in training.items() if key not in ("choices", "after")}
    return built, {"optimizer": "adam", **kept}  # sweeps have no other, `fit` has for closed-form models
