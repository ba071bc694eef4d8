"""Deep kernel learning on UTKFace and CIFAR-10 (thesis, Tables "batch", "batch_da", "fd_age", "fd_cifar").

Every "figure" is one pipeline of stages on one fixed split, whose numbers stand in rows of the thesis's tables. It
needs a GPU: a pipeline trains ResNet-18 for hundreds of epochs. Each has a short version, of minutes: `cifar10-short`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from vibayes import datasets, plotting
from vibayes._figures import label_axes, new_figure
from vibayes.augment import Compose, RandomCrop, RandomFlip
from vibayes.datasets import Split
from vibayes.experiments.dkl_pipeline import METHODS, Pipeline, Stage, measure
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.networks import Plain, resnet18
from vibayes.experiments.record import Number, Result, Statement
from vibayes.model import Model
from vibayes.modes import default_dtype

__all__ = ["DRAWING", "FIGURES", "images", "run"]

# Epochs of each stage at batch size 100; other batch sizes take the same number of steps.
EPOCHS = {"network": 160, "again": 160, "scratch": 160, "frozen": 80, "joint": 80}
BASE_BATCH = 100
N_INDUCING = 1000
LARGE = {"cifar10": 500, "utkface": 200}
DIMENSIONS = (2, 5, 20, 50)
# Of short runs: the factor of all epochs, and the methods that the claim about batch sizes needs.
SHORT = 0.125
SHORT_METHODS = ("NN", "fSVDKL", "pSVDKL")


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _load(name: str) -> Split:
    split = datasets.load(name, dtype=torch.float32)
    return split.standardized("targets") if name == "utkface" else split


def _features(split: Split, q: int, width: int) -> nn.Module:
    """ResNet-18 with batch normalisation, then a fully connected layer to Q features and a ReLU."""
    return nn.Sequential(resnet18(Plain(normalize=True), split.x_train.shape[1], width, q), nn.ReLU())


def stages(data: Split, factor: float) -> dict[str, Stage]:
    """The stages of a pipeline, with so many times their epochs."""
    per_epoch = -(-len(data.x_train) // BASE_BATCH)
    return {name: Stage(max(1, round(factor * count * per_epoch))) for name, count in EPOCHS.items()}


def images(
    seed: int = 0,
    *,
    dataset: str,
    q: int = 10,
    augmented: bool = False,
    batches: Sequence[int] | None = None,
    methods: Sequence[str] = METHODS,
    split: Split | None = None,
    width: int = 64,
    epochs: float = 1.0,
    n_inducing: int = N_INDUCING,
    checkpoint: Path | None = None,
) -> Result:
    """One pipeline: NN, then pNN, fSVDKL and pSVDKL from it at every batch size, and SVDKL from scratch.

    Args:
        seed: of starts and batches.
        dataset: `"cifar10"` or `"utkface"`.
        q: feature dimension.
        augmented: random flips and crops.
        batches: batch sizes of the stages behind the network; 100 and the larger one of `LARGE` when None.
        methods: which of `METHODS` are trained and measured; SVDKL only at the first batch size, without augmentation.
        split: the data, in place of the whole set.
        width: channels of the first block.
        epochs: factor of the thesis's epochs, for shorter runs; such results are marked as reduced.
        n_inducing: inducing points.
        checkpoint: beginning of the files' names from which a killed run goes on.
    """
    batches = (BASE_BATCH, LARGE[dataset]) if batches is None else batches
    with default_dtype(torch.float32):
        data = _load(dataset) if split is None else split
        padding = data.x_train.shape[-1] // (8 if dataset == "cifar10" else 10)  # 32 from 40, 200 from 240
        pipeline = Pipeline(
            data,
            partial(_features, data, q, width),
            q,
            n_inducing,
            stages(data, epochs),
            weight_decay=2e-4 if dataset == "utkface" else 0.0,  # 1e-4 |w|^2
            augment=Compose(RandomCrop(padding), RandomFlip()) if augmented else None,
            device=_device(),
            seed=seed,
            checkpoint=checkpoint,
            progress=True,
        )
        found: dict[tuple[str, int], dict[str, float]] = {}
        trained = pipeline.plain(BASE_BATCH)
        if "NN" in methods:
            found["NN", BASE_BATCH] = measure(trained, data)
        if "SVDKL" in methods and not augmented:
            found["SVDKL", batches[0]] = measure(pipeline.scratch(batches[0]), data)
        for batch in batches:
            if "pNN" in methods:
                found["pNN", batch] = measure(pipeline.again(trained, batch), data)
            if "fSVDKL" in methods:
                model: Model = pipeline.frozen(trained, batch)
                found["fSVDKL", batch] = measure(model, data)
                if "pSVDKL" in methods:
                    found["pSVDKL", batch] = measure(pipeline.joint(model, batch), data)
    columns = {"dataset": dataset, "augmentation": "yes" if augmented else "no", "feature_dim": str(q)}
    reduced = "" if epochs == 1.0 and split is None and width == 64 and n_inducing == N_INDUCING else "reduced run"
    numbers = [
        Number(
            f"{metric}, {method}, batch size {batch}",
            value,
            note=reduced,
            row=None if reduced else {**columns, "model": method, "batch_size": str(batch), "metric": metric},
        )
        for (method, batch), values in found.items()
        for metric, value in values.items()
    ]
    with plotting.style():
        figure = new_figure(4.6, 3.0)
        ax = figure.subplots()
        for stage, history in pipeline.histories.items():
            ax.plot(history.step, history.per_datapoint, label=stage, linewidth=0.9)
        ax.set_ylim(bottom=-3.0)
        ax.legend(loc="lower right", fontsize=7)
        label_axes(ax, f"{dataset}, Q = {q}", "step of the stage", "bound per row")
    setup = {
        "device": pipeline.device,
        "batch_sizes": list(batches),
        "epochs": {k: v * epochs for k, v in EPOCHS.items()},
        "seconds": {name: round(history.seconds[-1], 1) for name, history in pipeline.histories.items()},
    }
    return Result(figure, numbers, _statements(found, batches), {**columns, **setup})


def _statements(found: Mapping[tuple[str, int], Mapping[str, float]], batches: Sequence[int]) -> list[Statement]:
    """What the thesis claims of joint training, where its parts were run."""
    statements = []
    for batch in batches:
        f, p = found.get(("fSVDKL", batch)), found.get(("pSVDKL", batch))
        if f is None or p is None:
            continue
        others = [v["test_ll"] for v in found.values()]
        statements.append(
            Statement(f"joint training raises the ELBO, batch size {batch}",
                      p["elbo_per_datapoint"] > f["elbo_per_datapoint"])
        )  # fmt: skip
        statements.append(
            Statement(f"at batch size {batch} pSVDKL has the best test log likelihood", p["test_ll"] >= max(others))
            if batch == BASE_BATCH
            else Statement(f"at batch size {batch} fSVDKL has the better test log likelihood",
                           f["test_ll"] > p["test_ll"])
        )  # fmt: skip
    return statements


def _figures() -> dict[str, tuple[str, Callable[..., Result]]]:
    found: dict[str, tuple[str, Callable[..., Result]]] = {}
    for dataset in ("utkface", "cifar10"):
        found[dataset] = ("tab:dkl:batch", partial(images, dataset=dataset))
        found[f"{dataset}-augmented"] = ("tab:dkl:batch_da", partial(images, dataset=dataset, augmented=True))
        table = "tab:dkl:fd_age" if dataset == "utkface" else "tab:dkl:fd_cifar"
        for q in DIMENSIONS:
            found[f"{dataset}-q{q}"] = (table, partial(images, dataset=dataset, q=q, batches=(BASE_BATCH,)))
    for name, (label, function) in list(found.items()):
        found[f"{name}-short"] = (label, partial(function, epochs=SHORT, methods=SHORT_METHODS))
    return found


FIGURES: dict[str, Callable[..., Result]] = {name: function for name, (_, function) in _figures().items()}
DRAWING = Drawing(
    "dkl-images",
    FIGURES,
    {name: label for name, (label, _) in _figures().items()},
    {name: name.split("-")[0] for name in FIGURES},
    resumable=tuple(FIGURES),
    on_request=tuple(name for name in FIGURES if name.endswith("-short")),
    on_gpu=tuple(FIGURES),
)


run = DRAWING.run
