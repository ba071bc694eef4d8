"""What a trained model says about the table: which columns matter, and which rows it is least sure of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vibayes.compare.scores import Predicted, predict
from vibayes.conjugate.base import ConjugateModel
from vibayes.modes import evaluating
from vibayes.tables import Encoder
from vibayes.trainable import TrainableModel

__all__ = ["Sensitivity", "least_sure", "sensitivity"]

_ROWS = 400
_SHUFFLES = 3
_MOST_SHUFFLES = 12  # where rows are few
# Rows that are predicted for all columns together: of tables with many columns, fewer for each of them.
_PREDICTED = 40_000
_LEAST_ROWS = 100

Function = Callable[[torch.Tensor], NDArray[np.float64]]


@dataclass(frozen=True)
class Sensitivity:
    """How much the prediction depends on one column.

    Attributes:
        column: its name.
        share: the share of the prediction's variance that is lost when the column is not known.
    """

    column: str
    share: float


def sensitivity(model: TrainableModel, encoder: Encoder, x: torch.Tensor, seed: int = 0) -> list[Sensitivity]:
    r"""How much of the prediction's variance each column is behind, the most important first.

    The total effect index of Sobol, by Jansen's estimator: `E[(f(x) - f(x'))^2] / (2 Var f)`, where `x'` has the
    column's value taken from another row, and `f` is the predictive mean (class probabilities, added over classes).
    Columns act together, so shares may add up to more than one; where columns depend on each other, shuffling one
    makes rows that cannot occur, and the share says what the model would do with them.

    Args:
        model: a trained model.
        encoder: which numbers belong to which column.
        x: encoded rows; 400 of them are used three times for every column, fewer where columns are many, and more often
            where rows are few.
        seed: which rows, and how they are shuffled.
    """
    random = np.random.RandomState(seed)
    slices = encoder.slices()
    most = max(_PREDICTED // len(slices), _LEAST_ROWS)
    size = min(_ROWS, most, len(x))
    shuffles = min(_SHUFFLES * _ROWS // size, _MOST_SHUFFLES, most // size)
    rows = x[torch.as_tensor(np.sort(random.permutation(len(x))[:size]))]
    function = _function(model)
    original = function(rows)
    variance = float(original.var(0).sum())
    found = []
    for name, where in slices.items():
        total = 0.0
        for _ in range(shuffles):
            changed = rows.clone()
            changed[:, where] = rows[torch.as_tensor(random.permutation(len(rows)))][:, where]
            total += float(np.square(original - function(changed)).mean(0).sum()) / shuffles
        found.append(Sensitivity(name, 0.5 * total / variance if variance > 0 else 0.0))
    return sorted(found, key=lambda entry: entry.share, reverse=True)


def _function(model: TrainableModel) -> Function:
    """Predictive means `[N, P]` in units of the targets' spread (up to a constant), or probabilities `[N, C]`."""
    if isinstance(model, ConjugateModel):
        with torch.no_grad(), evaluating(model):
            moments = model._posterior()  # factorised once for all columns

        def mean(x: torch.Tensor) -> NDArray[np.float64]:
            with torch.no_grad(), evaluating(model):
                return _array(moments(model.prepare_inputs(x), False)[0])

        return mean

    def sampled(x: torch.Tensor) -> NDArray[np.float64]:
        prediction = predict(model, x, 50)
        if prediction.kind == "regression":
            return _array(prediction.mean.reshape(len(x), -1) / model.units.y_scale)
        return _array(prediction.probs.reshape(len(x), -1))

    return sampled


def _array(values: torch.Tensor) -> NDArray[np.float64]:
    made: NDArray[np.float64] = values.double().cpu().numpy()
    return made


def least_sure(predicted: Predicted, n: int = 10) -> NDArray[Any]:
    """Numbers of the rows whose predictions are widest (or whose class is most open), the worst first."""
    epistemic, aleatoric = predicted.uncertainty
    return np.argsort(-(epistemic + aleatoric), kind="stable")[:n]
