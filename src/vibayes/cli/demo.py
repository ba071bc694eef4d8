"""`vibayes demo`: four Gaussian processes on one data set, their evidence, their scores, and a picture."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

import vibayes as vb
from vibayes import plotting
from vibayes.experiments.record import double_precision, one_thread
from vibayes.experiments.results import writable_folder
from vibayes.prediction import Prediction
from vibayes.trainable import TrainableModel

__all__ = ["run"]

NOISE = 0.25  # standard deviation
GAP = (0.2, 1.8)  # no training inputs here
N_INDUCING = 12

NEXT = """\
import vibayes as vb
gp = vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian()); vb.fit(gp, (x, y))
lower, upper = gp.predict(x_new).interval(0.95)
"""


@dataclass
class Candidate:
    """A model of the comparison, how it is trained, and what came out."""

    name: str
    model: TrainableModel
    training: dict[str, Any]
    bound: float = math.nan
    seconds: float = math.nan
    scores: dict[str, float] | None = None

    @property
    def inducing(self) -> Tensor | None:
        """Its inducing inputs, where it has any."""
        if isinstance(self.model, vb.SGPR):
            return self.model.inducing.detach()
        for name, parameter in self.model.named_parameters():
            if name.endswith("posterior.inputs"):
                return parameter.detach()
        return None


def wave(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The function behind the data."""
    return torch.sin(2.5 * x) + 0.3 * x


def make_data(n: int, n_test: int = 200, seed: int = 0) -> vb.datasets.Split:
    """Noisy values of the wave on [-4, 4]; no training input lies in the gap, test inputs lie everywhere."""
    random = np.random.RandomState(seed)
    width = GAP[1] - GAP[0]
    without_gap = random.uniform(-4.0, 4.0 - width, n)
    x = torch.as_tensor(np.where(without_gap > GAP[0], without_gap + width, without_gap))
    x_test = torch.as_tensor(random.uniform(-4.0, 4.0, n_test))
    noise = torch.as_tensor(NOISE * random.standard_normal(n + n_test))
    return vb.datasets.Split(
        x_train=x[:, None],
        y_train=wave(x) + noise[:n],
        x_test=x_test[:, None],
        y_test=wave(x_test) + noise[n:],
        name="wave",
        seed=seed,
    )


def candidates(steps: int, lr: float) -> list[Candidate]:
    """The four models."""

    def kernel() -> vb.SquaredExponential:
        return vb.SquaredExponential(1)

    layer = vb.GP(1, kernel=kernel(), posterior=vb.LocalInducing(N_INDUCING))
    by_minibatches = {
        "steps": steps,
        "batch_size": 100,
        "lr": lr,
        "lr_schedule": vb.schedules.piecewise([steps // 2, 3 * steps // 4], [1.0, 0.3, 0.1]),
    }
    return [
        Candidate("exact GP, linear", vb.ExactGP(vb.LinearKernel(1, bias=1.0), vb.Gaussian(0.1)), {}),
        Candidate("exact GP, SE", vb.ExactGP(kernel(), vb.Gaussian(0.1)), {}),
        Candidate(f"SGPR, SE, M={N_INDUCING}", vb.SGPR(kernel(), vb.Gaussian(0.1), N_INDUCING), {}),
        Candidate(f"SVGP, SE, M={N_INDUCING}", vb.Model(layer, vb.Gaussian(0.1)), by_minibatches),
    ]


def run(console: Console, out: Path, *, quick: bool = False) -> Path:
    """Train the models, print the comparison and save the picture, whose path is returned."""
    with plotting.style():  # without matplotlib, say so before any work
        folder = writable_folder(out)
    with double_precision(), one_thread():
        data = make_data(100 if quick else 200)
        n = len(data.x_train)
        console.print(
            f"Data: {n} noisy values of a wave with a gap, {len(data.x_test)} test points with none.", highlight=False
        )
        models = candidates(400 if quick else 2000, lr=0.1 if quick else 0.05)
        _warm_up(data)
        for i, candidate in enumerate(models, 1):
            console.print(f"Training {i}/{len(models)}: {candidate.name}", style="dim", highlight=False)
            _train(candidate, data)
        console.print(_table(models, n))
        console.print(_lesson(models), highlight=False)
        path = _draw(models, data, folder / "demo.png")
    console.print(f"\nPicture: {escape(str(path))}", soft_wrap=True, highlight=False)
    console.print("\nNext, with your own x [N, 1] and y [N]:", highlight=False)
    console.print(NEXT.rstrip(), style="cyan", markup=False, highlight=False, soft_wrap=True)
    return path


def _warm_up(data: vb.datasets.Split) -> None:
    """One step of training loads what torch loads late, which would count as the first model's time."""
    vb.fit(vb.ExactGP(vb.SquaredExponential(1), vb.Gaussian()), (data.x_train, data.y_train), steps=1, progress=False)


def _train(candidate: Candidate, data: vb.datasets.Split) -> None:
    start = time.monotonic()
    # L-BFGS is done in an instant; a bar is for the many steps of Adam
    vb.fit(candidate.model, (data.x_train, data.y_train), progress="steps" in candidate.training, **candidate.training)
    candidate.seconds = time.monotonic() - start
    candidate.bound = float(candidate.model.elbo(data.x_train, data.y_train).value.detach())
    candidate.scores = vb.metrics.evaluate(_predict(candidate, data.x_test), data.y_test)


def _predict(candidate: Candidate, x: Tensor) -> Prediction:
    model: Any = candidate.model
    prediction: Prediction = model.predict(x)
    return prediction


def _table(models: list[Candidate], n: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for header in ("evidence", "per point", "RMSE", "log lik.", "coverage", "time"):
        table.add_column(header, justify="right", no_wrap=True)
    best = max(models, key=lambda candidate: candidate.bound)
    for candidate in models:
        assert candidate.scores is not None
        exact = isinstance(candidate.model, vb.ExactGP)
        table.add_row(
            candidate.name,
            f"{'' if exact else '≥ '}{candidate.bound:.1f}",
            f"{candidate.bound / n:.3f}",
            f"{candidate.scores['rmse']:.3f}",
            f"{candidate.scores['log_likelihood']:.3f}",
            f"{100 * candidate.scores['coverage_95']:.1f}%",
            f"{candidate.seconds:.1f} s",
            style="bold" if candidate is best else None,
        )
    return table


def _lesson(models: list[Candidate]) -> str:
    """What to see, said of the numbers that came out."""
    linear, exact, *sparse = models
    better, gap = exact.bound - linear.bound, max(exact.bound - candidate.bound for candidate in sparse)
    return (
        "[bold]Evidence[/] (nats): how well a model predicts the training data before it sees them. Without any test "
        f"set it prefers the squared exponential (SE) kernel to the linear one by {better:.0f} nats. RMSE and log "
        "likelihood on the test set agree. Coverage, the share of test points in the 95% interval, would not tell: "
        "wide bands cover, too.\n"
        f"[bold]Bounds[/] (≥): the sparse models summarise the data in M={N_INDUCING} inducing points and so bound the "
        f"evidence from below; they lose {gap:.1f} nats at most.\n"
        "[bold]Honesty[/]: in the gap and beyond the data the bands widen, and about 95% of the test points lie inside."
    )


def _draw(models: list[Candidate], data: vb.datasets.Split, path: Path) -> Path:
    grid = torch.linspace(-5.0, 5.0, 300)[:, None]
    figure = plotting.compare_1d(
        [(_title(candidate), _predict(candidate, grid)) for candidate in models],
        grid,
        data=(data.x_train, data.y_train),
        inducing=[candidate.inducing for candidate in models],
        truth=wave(grid[:, 0]),
        columns=2,
    )
    return plotting.save(figure, path)


def _title(candidate: Candidate) -> str:
    relation = "=" if isinstance(candidate.model, vb.ExactGP) else "≥"
    value = f"{candidate.bound:.1f}".replace("-", "\N{MINUS SIGN}")
    return f"{candidate.name}\nevidence {relation} {value} nats"
