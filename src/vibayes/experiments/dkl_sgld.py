"""Deep kernel learning and networks with sampled weights on images (thesis, Table "sgld").

Every "figure" is one data set: a network is trained, a GP is fitted on its frozen features, and then the network's
weights are sampled by SGLD, under the network's own output and under the GP. One fixed split serves all stages.
Each has a short version with an eighth of the epochs: `utkface-short`.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributions import Distribution, Normal

from vibayes import metrics, plotting
from vibayes._figures import label_axes, new_figure
from vibayes.datasets import Split
from vibayes.experiments.dkl_images import BASE_BATCH, N_INDUCING, SHORT, _device, _features, _load, stages
from vibayes.experiments.dkl_pipeline import Pipeline, how_sure, measure
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.record import Number, Result, Statement
from vibayes.likelihoods import Gaussian
from vibayes.mcmc import Chains, sample_minibatch
from vibayes.model import Model
from vibayes.modes import default_dtype
from vibayes.prediction import Prediction
from vibayes.stages import unfreeze

__all__ = ["DRAWING", "FIGURES", "run", "sgld"]

LR = {"cifar10": 1e-3, "utkface": 1e-5}
DECAY = {"cifar10": 0.0, "utkface": 2e-4}  # of the loss per row: 1e-4 |w|^2 for UTKFace
LOG_NOISE = -4.0
BURN_IN, SAMPLING, EVERY = 100, 100, 2  # epochs
_ROWS = 500


def sgld(
    seed: int = 0,
    *,
    dataset: str,
    q: int = 10,
    split: Split | None = None,
    width: int = 64,
    epochs: float = 1.0,
    n_inducing: int = N_INDUCING,
    checkpoint: Path | None = None,
) -> Result:
    """One data set: NN and SVDKL before and after their network's weights were sampled.

    Args:
        seed: of starts, batches and noise.
        dataset: `"cifar10"` or `"utkface"`.
        q: feature dimension.
        split: the data, in place of the whole set.
        width: channels of the first block.
        epochs: factor of the thesis's epochs, for shorter runs; such results are marked as reduced.
        n_inducing: inducing points.
        checkpoint: beginning of the files' names from which a run goes on that was killed before it sampled.
    """
    with default_dtype(torch.float32):
        data = _load(dataset) if split is None else split
        pipeline = Pipeline(
            data,
            partial(_features, data, q, width),
            q,
            n_inducing,
            stages(data, epochs),
            weight_decay=DECAY[dataset],
            device=_device(),
            seed=seed,
            checkpoint=checkpoint,
            progress=True,
        )
        network = pipeline.plain(BASE_BATCH)
        deep = pipeline.frozen(network, BASE_BATCH)
        found = {"NN, trained": measure(network, data), "fSVDKL, trained": measure(deep, data)}
        _sampled_only(deep)
        if isinstance(network.likelihood, Gaussian):
            network.likelihood.noise.set(math.exp(LOG_NOISE)).free()
        chains = {
            name: _sample(model, data, dataset, epochs, seed) for name, model in (("NN", network), ("SVDKL", deep))
        }
        found |= {name: _measure(chain, data) for name, chain in chains.items()}
    whole = epochs == 1.0 and split is None and width == 64 and n_inducing == N_INDUCING
    columns = {"dataset": dataset, "augmentation": "no", "feature_dim": str(q), "batch_size": str(BASE_BATCH)}
    note = "the thesis's values are suspect (leakage between splits)" if dataset == "utkface" else ""
    numbers = [
        Number(
            f"{metric}, {method}",
            value,
            note=note if whole else "reduced run",
            row={**columns, "model": method, "metric": metric} if whole and method in chains else None,
        )
        for method, values in found.items()
        for metric, value in values.items()
    ]
    statements = [
        Statement(
            "sampling the weights improves the network's test log likelihood",
            found["NN"]["test_ll"] > found["NN, trained"]["test_ll"],
        ),
        Statement(
            "with sampled weights SVDKL has the better test log likelihood",
            found["SVDKL"]["test_ll"] > found["NN"]["test_ll"],
        ),
    ]
    with plotting.style():
        figure = new_figure(4.6, 3.0)
        ax = figure.subplots()
        for name, chain in chains.items():
            ax.plot(chain.log_density[0].cpu() / len(data.x_train), label=name, linewidth=0.9)
        ax.legend(loc="best", fontsize=7)
        label_axes(ax, f"SGLD, {dataset}", "draw", "log density per row")
    setup = {
        "device": pipeline.device,
        "lr": f"{LR[dataset]:g} / N / (1 + 0.4 epoch)",
        "epochs": {"burn-in": BURN_IN * epochs, "sampling": SAMPLING * epochs},
        "draws": chains["NN"].n_samples,
    }
    return Result(figure, numbers, statements, {**columns, **setup})


def _sampled_only(model: Model) -> None:
    """Everything but the network in front of the GP stays as it was fitted."""
    unfreeze(model)
    network = model.network
    assert isinstance(network, torch.nn.Sequential)
    model.likelihood.requires_grad_(False)
    network[1].requires_grad_(False)


def _sample(model: Model, data: Split, dataset: str, epochs: float, seed: int) -> Chains:
    """SGLD from where the model is, on the loss it was trained with as potential (a flat prior without decay)."""
    decay = DECAY[dataset]
    prior: Distribution | None = Normal(0.0, (decay * len(data.x_train)) ** -0.5) if decay else None
    flat: dict[str, Any] = {}
    if any(p.requires_grad for p in model.likelihood.parameters()):
        flat["likelihood.*"] = None
    every = max(1, round(EVERY * min(1.0, epochs)))
    return sample_minibatch(
        model.train(),
        (data.x_train, data.y_train),
        batch_size=min(BASE_BATCH, len(data.x_train)),
        lr=LR[dataset],
        burn_in=max(1, round(BURN_IN * epochs)),
        epochs=max(every, round(SAMPLING * epochs)),
        every=every,
        priors={"network.*": prior, **flat},
        seed=seed,
        progress=True,
    )


def _measure(chains: Chains, data: Split) -> dict[str, float]:
    """Test metrics of the mixture over draws."""
    torch.manual_seed(0)
    prediction: Prediction = chains.predict(data.x_test, batch_size=_ROWS)
    y = data.y_test.to(chains.model.device)
    found = {"test_ll": metrics.log_likelihood(prediction, y)}
    if prediction.kind != "classes":
        return found | {"test_rmse": metrics.rmse(prediction, y)}
    return found | {"accuracy": metrics.accuracy(prediction, y), **how_sure(prediction, y)}


_SHORT = {f"{name}-short": partial(sgld, dataset=name, epochs=SHORT) for name in LR}
FIGURES = {name: partial(sgld, dataset=name) for name in LR} | _SHORT
DRAWING = Drawing(
    "dkl-sgld",
    FIGURES,
    {name: "tab:dkl:sgld" for name in FIGURES},
    {name: name.split("-")[0] for name in FIGURES},
    resumable=tuple(FIGURES),
    on_request=tuple(_SHORT),
    on_gpu=tuple(FIGURES),
)
run = DRAWING.run
