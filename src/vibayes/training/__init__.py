"""Training: `fit`, `fit_many`, schedules, checkpoints and histories."""

from vibayes.training import schedules
from vibayes.training.fit import fit
from vibayes.training.history import History
from vibayes.training.replicas import fit_many

__all__ = ["History", "fit", "fit_many", "schedules"]
