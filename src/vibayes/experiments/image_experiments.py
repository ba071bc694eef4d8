"""The experiments of chapter 4 on images."""

from dataclasses import replace

from vibayes.experiments.experiment import Experiment, ModelSpec
from vibayes.experiments.images import POSTERIORS

__all__ = ["IMAGE_EXPERIMENTS"]

_METRICS = (
    "elbo_per_datapoint",
    "kl_per_datapoint",
    "test_ll",
    "accuracy_percent",
    "ece",
    "calibration",
    "entropy_ratio",
    "misclassified_ll",
)
_PRIORS = ("SpatialIWPrior", "ScalePrior")
_TRAINING = {
    "steps": None,
    "epochs": 1000,
    "batch_size": 500,
    "lr": 1e-2,
    "kl_weight": 1.0,
    "kl_rise": 0.1,
    "kl_epochs": 10,
    "n_samples": 1,
    "log_every": 100,
    "augment": None,
}
_MODEL = {"network": "small_resnet", "channels": 32, "n_inducing": 500, "log_precision": -4.0, "normalize": False}


def _resnet(posterior: str, *, normalize: bool) -> ModelSpec:
    """ResNet-18, tempered and with augmentation: the second block of the table."""
    return ModelSpec(
        f"image {posterior}",
        {
            "model": {"network": "resnet18", "channels": 64, "normalize": normalize},
            "training": {"kl_weight": 0.05, "kl_rise": None, "augment": "flip and crop"},
        },
        priors=("SpatialIWPrior",),
        columns={"model": posterior, "augmentation": "yes"},
    )


_FALLING = {"epochs": 300, "kl_epochs": 3, "lr_end": 0.01, "lr_hold": 0.5}
_SMALL = {
    posterior: ModelSpec(
        f"image {posterior}", priors=_PRIORS, columns={"augmentation": "no"}, presets={"falling": _FALLING}
    )
    for posterior in POSTERIORS
}

_CIFAR10 = Experiment(
    name="gi-cifar10",
    title="Bayesian convolutional networks on CIFAR-10",
    labels=("tab:gi:cifar10",),
    datasets=("cifar10",),
    splits={"cifar10": (0,)},
    models={
        **_SMALL,
        "factorised ResNet-18": _resnet("factorised", normalize=False),
        "fac->gi ResNet-18": _resnet("fac->gi", normalize=True),
        "global inducing ResNet-18": _resnet("global inducing", normalize=True),
    },
    options={
        "data": {"standardize": "inputs", "n_train": None, "n_test": None},
        "model": _MODEL,
        "training": _TRAINING,
        "measure": {"draws": 10, "rows": 500},
        "dtype": "float32",
    },
    metrics=_METRICS,
    tables=("tab_gi_cifar10",),
    presets={
        "falling": "300 epochs instead of 1,000: the KL weight rises to 1 over 30 of them instead of 100, and the rate "
        "of 0.01 falls to a hundredth of itself in the second half. Not for ResNet-18."
    },
    note=(
        "Images standardised per channel. The KL weight rises from 0 by 0.1 every 10 epochs, and is 1 from epoch 100. "
        "ELBOs are untempered. ResNet-18: KL weight 1/20 throughout, flips and crops; its ELBO is that of the data "
        "without augmentation. Full global inducing points in ResNet-18 are ours: the thesis could not train them. "
        "Factorised networks use Flipout for convolutions (noise of its own in every row)."
    ),
)

_MNIST = Experiment(
    name="gi-mnist500",
    title="Bayesian convolutional networks on 500 MNIST images",
    labels=("fig:gi:mnist_500",),
    datasets=("mnist",),
    splits={"mnist": (0,)},
    models={
        posterior: ModelSpec(
            f"image {posterior}", priors=("StandardPrior", "NealPrior", "ScalePrior", "SpatialIWPrior")
        )
        for posterior in POSTERIORS
    },
    options={
        "data": {"standardize": "inputs", "n_train": 500, "n_test": None, "full_statistics": True},
        "model": {**_MODEL, "network": "lenet", "channels": 64},
        "training": {**_TRAINING, "epochs": 5_000, "lr": 1e-3, "kl_rise": None},
        "measure": {"draws": 10, "rows": 500},
        "dtype": "float32",
    },
    metrics=tuple(metric for metric in _METRICS if metric != "entropy_ratio"),  # of CIFAR-10 over SVHN
    note=(
        "The first 500 images, standardised with statistics of all training images; all 500 are one batch, and the "
        "inducing images. -2.30 nats is the log likelihood of uniform predictions. Chosen, as the thesis leaves it "
        "open: 5,000 steps, one draw in training and ten in testing, no annealing, padding that keeps the size; local "
        "inducing points as many as weights per output, but no more than 500."
    ),
)

_UNCERTAINTY = replace(
    _CIFAR10,
    name="gi-uncertainty",
    title="Calibration and entropy on CIFAR-10 and SVHN",
    labels=("fig:gi:calibration", "tab:gi:ece-table", "tab:gi:entropy-table"),
    models=_SMALL,
    tables=("tab_gi_ece_table", "tab_gi_entropy_table"),
    note="The runs of gi-cifar10. Errors of calibration with 20 bins; entropies over those of SVHN's first 949 images.",
    runs_of="gi-cifar10",
)

_RUNTIME = Experiment(
    name="gi-runtime",
    title="Time per epoch of Bayesian convolutional networks",
    labels=("tab:gi:cifar10",),
    datasets=("mnist",),
    tables=("tab_gi_cifar10",),
    script="vibayes.experiments.image_runtime",
    note=(
        "The last column of the table: seconds per epoch of MNIST with ScalePrior, batches of 500 and 500 inducing "
        "images. Needs a GPU. Seconds of this machine: only their ratios compare."
    ),
)

IMAGE_EXPERIMENTS = (_CIFAR10, _MNIST, _UNCERTAINTY, _RUNTIME)
