"""Training: `fit`, schedules, checkpoints and histories."""

from vibayes.training import schedules
from vibayes.training.fit import fit
from vibayes.training.history import History

__all__ = ["History", "fit", "schedules"]
