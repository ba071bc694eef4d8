"""The staged training of chapter 3: a network, a GP on its frozen features, and both trained jointly.

All stages of one pipeline share one split: features that saw a row in training must not meet it as a test row later.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vibayes import metrics
from vibayes.augment import Augment
from vibayes.datasets import Split
from vibayes.inducing import choose_inducing
from vibayes.kernels import SquaredExponential
from vibayes.layers import GP, Linear
from vibayes.likelihoods import Categorical, Gaussian, Likelihood
from vibayes.model import Model
from vibayes.posteriors import LocalInducing, Point
from vibayes.prediction import Prediction
from vibayes.pretraining import fit_noise
from vibayes.stages import freeze, take_over, unfreeze
from vibayes.training import History, fit, schedules

__all__ = ["METHODS", "Pipeline", "Stage", "how_sure", "measure"]

METHODS = ("NN", "pNN", "SVDKL", "fSVDKL", "pSVDKL")
_ROWS = 500  # rows that go through an image network at once, outside of training


@dataclass(frozen=True)
class Stage:
    """How long one stage trains, and where its learning rate falls tenfold, as fractions of it."""

    steps: int
    drops: tuple[float, ...] = (0.5, 0.75)
    lr: float = 1e-3

    @property
    def schedule(self) -> schedules.Schedule:
        """The factor of the learning rate."""
        factors = [0.1**k for k in range(len(self.drops) + 1)]
        return schedules.piecewise([round(d * self.steps) for d in self.drops], factors)


Watcher = Callable[[str, Model], Callable[[Any], object] | None]


@dataclass
class Pipeline:
    """One network architecture on one split, trained in all the ways of the thesis.

    Args:
        split: the data, in the units that models train on.
        features: makes a new feature network, from inputs to `[N, Q]`.
        n_features: Q.
        n_inducing: inducing points of the GP, in feature space.
        stages: by name: `"network"` (NN), `"again"` (pNN), `"scratch"` (SVDKL), `"frozen"` (fSVDKL) and `"joint"`
            (pSVDKL).
        start: how inducing points are chosen: `"kmeans"` or `"greedy"`.
        weight_decay: of network weights.
        log_noise: start of the GP's log noise variance, for regression.
        augment: changes of training inputs.
        device: where to train.
        seed: of starts and batches.
        watch: called with a method's name and model before it trains; gives a callback for `fit`, or None.
        checkpoint: beginning of the names of files, one for each stage, from which a killed run goes on.
        progress: whether to show the progress of every stage.

    `histories` holds the history of each stage: by method and, where stages have batches, their size.
    """

    split: Split
    features: Callable[[], nn.Module]
    n_features: int
    n_inducing: int
    stages: Mapping[str, Stage]
    start: str = "kmeans"
    weight_decay: float = 0.0
    log_noise: float = -4.0
    augment: Augment | None = None
    device: str = "cpu"
    seed: int = 0
    watch: Watcher | None = None
    checkpoint: Path | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        self.histories: dict[str, History] = {}

    @property
    def classes(self) -> int:
        """Number of classes; 0 for regression."""
        y = self.split.y_train
        return 0 if y.is_floating_point() else int(y.max()) + 1

    @property
    def _outputs(self) -> int:
        return self.classes or 1

    # -- models -------------------------------------------------------------------------------------------------

    def network(self) -> Model:
        """The plain network with a linear output: cross-entropy, or squared errors."""
        torch.manual_seed(self.seed)
        head = Linear(self.n_features, self._outputs, posterior=Point(prior=False))
        likelihood: Likelihood = Categorical() if self.classes else Gaussian(0.5, learn=False)
        return Model(nn.Sequential(self.features(), head), likelihood).to(self.device)

    def svdkl(self, trained: Model | None = None) -> Model:
        """The same network with a GP in place of its output; `trained` gives the features to start from."""
        torch.manual_seed(self.seed)
        features = self.features().to(self.device)
        if trained is not None:
            take_over(features, _features_of(trained))
        kernel = SquaredExponential(self.n_features, ard=True).to(self.device)
        posterior = LocalInducing(self.n_inducing)
        if self.start == "greedy":
            rows = _apply(features, self.split.x_train[:20_000], self.device)
            posterior = LocalInducing(self.n_inducing, inputs=choose_inducing(rows, self.n_inducing, "greedy", kernel))
        likelihood: Likelihood = Categorical() if self.classes else Gaussian(math.exp(self.log_noise))
        layer = GP(self._outputs, kernel=kernel, posterior=posterior)
        return Model(nn.Sequential(features, layer), likelihood).to(self.device)

    # -- stages -------------------------------------------------------------------------------------------------

    def train(self, method: str, model: Model, stage: str, batch_size: int | None, *, x: Tensor | None = None) -> None:
        """Train one stage; `x` are inputs in place of the split's (features of a frozen network)."""
        chosen = self.stages[stage]
        callback = None if self.watch is None else self.watch(method, model)
        name = method if batch_size is None else f"{method}, batch size {batch_size}"
        checkpoint = self.checkpoint
        if checkpoint is not None:
            checkpoint = checkpoint.with_name(f"{checkpoint.name}.{method}-{batch_size or 'all'}")
        history = fit(
            model,
            (self.split.x_train if x is None else x, self.split.y_train),
            steps=chosen.steps,
            lr=chosen.lr,
            lr_schedule=chosen.schedule,
            batch_size=batch_size,
            n_samples=1,  # the likelihood draws ten latent values of its own
            weight_decay=self.weight_decay,
            augment=None if x is not None else self.augment,
            seed=self.seed,
            device=self.device,
            log_every=max(1, chosen.steps // 200),
            callback=callback,
            progress=self.progress,
            checkpoint=checkpoint,
            checkpoint_seconds=60.0,
        )
        self.histories[name] = history

    def plain(self, batch_size: int | None) -> Model:
        """NN: the network by itself."""
        model = self.network().train()
        self.train("NN", model, "network", batch_size)
        return self._finish(model)

    def again(self, trained: Model, batch_size: int | None) -> Model:
        """pNN: the trained network, trained once more."""
        model = self.network()
        take_over(model.network, trained.network)
        model.initialize(self.split.x_train[:_ROWS], self.split.y_train[:_ROWS])
        self.train("pNN", model.train(), "again", batch_size)
        return self._finish(model)

    def scratch(self, batch_size: int | None) -> Model:
        """SVDKL: everything at once, from the beginning."""
        model = self.svdkl().train()
        self.train("SVDKL", model, "scratch", batch_size)
        return model.eval()

    def frozen(self, trained: Model, batch_size: int | None) -> Model:
        """fSVDKL: a GP on the trained network's frozen features.

        Without augmentation the features never change, and are computed once.
        """
        model = self.svdkl(trained).eval()
        if self.augment is not None:
            freeze(model)
            self.train("fSVDKL", model, "frozen", batch_size)
            return model.eval()
        (layer,) = model.layers.values()
        assert isinstance(layer.posterior, LocalInducing)
        rows = _apply(_features_of(model), self.split.x_train, self.device)
        posterior = LocalInducing(self.n_inducing, inputs=layer.posterior.given_inputs)
        kernel = SquaredExponential(self.n_features, ard=True)
        likelihood: Likelihood = Categorical() if self.classes else Gaussian(math.exp(self.log_noise))
        head = Model(GP(self._outputs, kernel=kernel, posterior=posterior), likelihood).to(self.device)
        self.train("fSVDKL", head, "frozen", batch_size, x=rows)
        model.initialize(self.split.x_train[:_ROWS], self.split.y_train[:_ROWS])  # sizes; values come from the head
        take_over(layer, head.network)
        take_over(model.likelihood, head.likelihood)
        freeze(model)
        return model.eval()

    def joint(self, frozen: Model, batch_size: int | None) -> Model:
        """pSVDKL: features and GP together, from where the frozen stage ended; changes the model in place."""
        unfreeze(frozen)
        self.train("pSVDKL", frozen.train(), "joint", batch_size)
        return frozen.eval()

    def _finish(self, model: Model) -> Model:
        model.eval()
        if not self.classes:
            fit_noise(model, self.split.x_train, self.split.y_train, batch_size=_ROWS)
        return model


def _features_of(model: Model) -> nn.Module:
    network = model.network
    assert isinstance(network, nn.Sequential)
    return network[0]


@torch.no_grad()
def _apply(network: nn.Module, x: Tensor, device: str) -> Tensor:
    """Features of many rows, in evaluation mode."""
    was = network.training
    network.eval()
    parts = [network(part.to(device)) for part in torch.split(x, _ROWS)]
    network.train(was)
    return torch.cat(parts)


@torch.no_grad()
def measure(model: Model, split: Split, *, n_samples: int = 100) -> dict[str, float]:
    """The columns of the thesis's image tables; a bound only where there is one."""
    model.eval()
    torch.manual_seed(0)
    found: dict[str, float] = {}
    if not all(layer.deterministic for layer in model.layers.values()):
        found["elbo_per_datapoint"] = float(model.elbo(split.x_train, split.y_train, n_samples=1).per_datapoint)
    for part, x, y in (("train", split.x_train, split.y_train), ("test", split.x_test, split.y_test)):
        prediction, y = model.predict(x, n_samples=n_samples, batch_size=_ROWS), y.to(model.device)
        found[f"{part}_ll"] = metrics.log_likelihood(prediction, y)
        if model.likelihood.kind != "classes":
            found[f"{part}_rmse"] = metrics.rmse(prediction, y)
        else:
            found["train_accuracy" if part == "train" else "accuracy"] = metrics.accuracy(prediction, y)
            if part == "test":
                found |= how_sure(prediction, y)
    return found


def how_sure(prediction: Prediction, y: Tensor) -> dict[str, float]:
    """Whether a classifier is as sure as it should be of test rows."""
    return {
        "incorrect_test_ll": metrics.misclassified_log_likelihood(prediction, y),
        "ece": metrics.ece(prediction, y, bins=20),
    }
