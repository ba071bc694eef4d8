"""Deep kernel learning on UTKFace and CIFAR-10 (thesis, Tables "batch", "batch_da", "fd_age", "fd_cifar").

Every "figure" is one pipeline of stages on one fixed split, whose numbers stand in rows of the thesis's tables. It
needs a GPU: a pipeline trains ResNet-18 for up to 400 epochs.
"""

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vibayes import datasets, plotting
from vibayes._figures import label_axes, new_figure
from vibayes.augment import Compose, RandomCrop, RandomFlip
from vibayes.datasets import Split
from vibayes.experiments.dkl_pipeline import Pipeline, Stage, measure
from vibayes.experiments.drawing import Drawing
from vibayes.experiments.names import pick
from vibayes.experiments.networks import Plain, resnet18
from vibayes.experiments.record import Number, Result, Statement
from vibayes.experiments.results import write_file
from vibayes.model import Model

__all__ = ["FIGURES", "images", "run"]

# Epochs of each stage at batch size 100; other batch sizes take the same number of steps.
EPOCHS = {"network": 160, "again": 160, "scratch": 160, "frozen": 80, "joint": 80}
BASE_BATCH = 100
N_INDUCING = 1000
LARGE = {"cifar10": 500, "utkface": 200}
DIMENSIONS = (2, 5, 20, 50)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _load(name: str) -> Split:
    split = datasets.load(name, dtype=torch.float32)
    return split.standardized("targets") if name == "utkface" else split


def _features(split: Split, q: int, width: int) -> nn.Module:
    """ResNet-18 with batch normalisation, then a fully connected layer to Q features and a ReLU."""
    return nn.Sequential(resnet18(Plain(normalize=True), split.x_train.shape[1], width, q), nn.ReLU())


def images(
    seed: int = 0,
    *,
    dataset: str,
    q: int = 10,
    augmented: bool = False,
    large: bool = False,
    scratch: bool = True,
    split: Split | None = None,
    width: int = 64,
    epochs: float = 1.0,
    n_inducing: int = N_INDUCING,
) -> Result:
    """One pipeline: NN, then pNN, fSVDKL and pSVDKL from it, and SVDKL from scratch.

    Args:
        seed: of starts and batches.
        dataset: `"cifar10"` or `"utkface"`.
        q: feature dimension.
        augmented: random flips and crops.
        large: stages behind the network take the larger batch size.
        scratch: whether SVDKL is trained from scratch, too.
        split: the data, in place of the whole set.
        width: channels of the first block.
        epochs: factor of the thesis's epochs, for shorter runs; such results are marked as reduced.
        n_inducing: inducing points.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        data = _load(dataset) if split is None else split
        per_epoch = -(-len(data.x_train) // BASE_BATCH)
        padding = data.x_train.shape[-1] // (8 if dataset == "cifar10" else 10)  # 32 from 40, 200 from 240
        pipeline = Pipeline(
            data,
            partial(_features, data, q, width),
            q,
            n_inducing,
            {name: Stage(max(1, round(epochs * count * per_epoch))) for name, count in EPOCHS.items()},
            weight_decay=2e-4 if dataset == "utkface" else 0.0,  # 1e-4 |w|^2
            augment=Compose(RandomCrop(padding), RandomFlip()) if augmented else None,
            device=_device(),
            seed=seed,
        )
        batch = LARGE[dataset] if large else BASE_BATCH
        found: dict[str, dict[str, float]] = {}
        trained = pipeline.plain(BASE_BATCH)
        if not large:
            found["NN"] = measure(trained, data)
        found["pNN"] = measure(pipeline.again(trained, batch), data)
        if scratch and not augmented and not large:
            found["SVDKL"] = measure(pipeline.scratch(batch), data)
        model: Model = pipeline.frozen(trained, batch)
        found["fSVDKL"] = measure(model, data)
        found["pSVDKL"] = measure(pipeline.joint(model, batch), data)
    finally:
        torch.set_default_dtype(before)
    columns = {"dataset": dataset, "augmentation": "yes" if augmented else "no", "feature_dim": str(q)}
    reduced = "" if epochs == 1.0 and split is None and width == 64 and n_inducing == N_INDUCING else "reduced run"
    numbers = [
        Number(
            f"{metric}, {method}",
            value,
            note=reduced,
            row=None if reduced else {**columns, "model": method, "batch_size": str(batch), "metric": metric},
        )
        for method, values in found.items()
        for metric, value in values.items()
    ]
    f, p = found["fSVDKL"], found["pSVDKL"]
    statements = [
        Statement("joint training raises the ELBO", p["elbo_per_datapoint"] > f["elbo_per_datapoint"]),
        Statement("at the larger batch size fSVDKL has the better test log likelihood", f["test_ll"] > p["test_ll"])
        if large
        else Statement("at batch size 100 pSVDKL has the best test log likelihood",
                       p["test_ll"] >= max(v["test_ll"] for v in found.values())),
    ]  # fmt: skip
    with plotting.style():
        figure = new_figure(4.6, 3.0)
        ax = figure.subplots()
        for method, histories in pipeline.histories.items():
            done = 0
            for history in histories:
                ax.plot([done + s for s in history.step], history.per_datapoint, label=method, linewidth=0.9)
                done += history.step[-1]
        ax.set_ylim(bottom=-3.0)
        ax.legend(loc="lower right", fontsize=7)
        label_axes(ax, f"{dataset}, Q = {q}, batch size {batch}", "step of the stage", "bound per row", False)
    setup = {"device": pipeline.device, "batch_size": batch, "epochs": {k: v * epochs for k, v in EPOCHS.items()}}
    return Result(figure, numbers, statements, {**columns, **setup})


def _figures() -> dict[str, tuple[str, Callable[[int], Result]]]:
    found: dict[str, tuple[str, Callable[[int], Result]]] = {}
    for dataset in ("utkface", "cifar10"):
        for large in (False, True):
            batch = LARGE[dataset] if large else BASE_BATCH
            found[f"{dataset}-{batch}"] = ("tab:dkl:batch", partial(images, dataset=dataset, large=large))
            found[f"{dataset}-{batch}-augmented"] = (
                "tab:dkl:batch_da",
                partial(images, dataset=dataset, large=large, augmented=True),
            )
        table = "tab:dkl:fd_age" if dataset == "utkface" else "tab:dkl:fd_cifar"
        for q in DIMENSIONS:
            found[f"{dataset}-q{q}"] = (table, partial(images, dataset=dataset, q=q))
    return found


FIGURES: dict[str, Callable[[int], Result]] = {name: function for name, (_, function) in _figures().items()}
_DRAWING = Drawing(
    "dkl-images",
    FIGURES,
    {name: label for name, (label, _) in _figures().items()},
    {name: name.split("-")[0] for name in FIGURES},
)


def run(
    out: str | os.PathLike[str],
    *,
    figures: Sequence[str] | None = None,
    seed: int = 0,
    report: Callable[[str, dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run pipelines one after another; results are written after each, beside those of earlier calls.

    Args:
        out: the folder.
        figures: names such as `cifar10-500`; all of them, many hours, when None.
        seed: of starts and batches.
        report: called after every pipeline.
    """
    file = Path(out) / "dkl-images.json"
    found: dict[str, Any] = {}
    for name in pick(figures, FIGURES, "figure"):
        kept = json.loads(file.read_text(encoding="utf-8"))["figures"] if file.exists() else {}
        found = _DRAWING.run(out, figures=[name], seed=seed, report=report)
        found["figures"] = {**kept, **found["figures"]}
        content = {key: value for key, value in found.items() if key != "file"}
        write_file(file, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return found
