"""What sampling gives: chains of parameters, how good they are, and what they predict."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vibayes.data import check_count
from vibayes.errors import ConfigurationError
from vibayes.mcmc.diagnostics import ess_bulk, ess_tail, rhat
from vibayes.mcmc.target import ModelTarget, Target
from vibayes.prediction import Prediction
from vibayes.trainable import TrainableModel

__all__ = ["Chains", "Summary", "SummaryRow"]

# Above this R-hat, chains have not converged.
RHAT_LIMIT = 1.05


@dataclass(frozen=True)
class SummaryRow:
    """One number's posterior: mean, standard deviation, 5% and 95% quantiles, R-hat, effective sample sizes."""

    name: str
    mean: float
    std: float
    lower: float
    upper: float
    rhat: float
    ess_bulk: float
    ess_tail: float


@dataclass(frozen=True)
class Summary:
    """A table of what was sampled; `print` shows it.

    Attributes:
        rows: one per number.
        notes: what to know about the chains: acceptance, divergences, those that have not converged.
    """

    rows: list[SummaryRow]
    notes: list[str]

    def __str__(self) -> str:
        head = ("", "mean", "std", "5%", "95%", "R-hat", "ESS bulk", "ESS tail")
        body = [
            (r.name, *(f"{v:.4g}" for v in (r.mean, r.std, r.lower, r.upper)), f"{r.rhat:.3f}",
             *(f"{v:.0f}" for v in (r.ess_bulk, r.ess_tail)))
            for r in self.rows
        ]  # fmt: skip
        widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in [head, *body]
        ]
        return "\n".join([line.rstrip() for line in lines] + self.notes)


class Chains:
    """Draws of C chains, S from each.

    Attributes:
        target: what was sampled.
        draws: the vectors `[C, S, D]`; of a model, its stored numbers one after the other.
        log_density: `[C, S]`.
        accept: acceptance rates `[C, S]`.
        diverging: `[C, S]`, transitions whose trajectory diverged.
        n_leapfrog: `[C, S]`.
        step_size: `[C]`.
        scale: `[D]`, the standard deviations that warm-up found.
        seconds: how long it took, warm-up included.
        buffers: of models whose networks keep running averages, those of every draw.
    """

    def __init__(
        self,
        target: Target,
        draws: Float[Tensor, "c s d"],
        log_density: Float[Tensor, "c s"],
        *,
        accept: Float[Tensor, "c s"] | None = None,
        diverging: Bool[Tensor, "c s"] | None = None,
        n_leapfrog: Int[Tensor, "c s"] | None = None,
        step_size: Float[Tensor, " c"] | None = None,
        scale: Float[Tensor, " d"] | None = None,
        seconds: float = math.nan,
        buffers: dict[str, Tensor] | None = None,
    ) -> None:
        self.target, self.draws, self.log_density = target, draws, log_density
        self.accept = torch.ones_like(log_density) if accept is None else accept
        self.diverging = torch.zeros_like(log_density, dtype=torch.bool) if diverging is None else diverging
        self.n_leapfrog = torch.ones_like(log_density, dtype=torch.long) if n_leapfrog is None else n_leapfrog
        self.step_size, self.scale, self.seconds = step_size, scale, seconds
        self.buffers = buffers or {}

    @property
    def n_chains(self) -> int:
        """C."""
        return self.draws.shape[0]

    @property
    def n_samples(self) -> int:
        """S, the draws of one chain."""
        return self.draws.shape[1]

    def __repr__(self) -> str:
        return f"Chains({self.n_chains} chains, {self.n_samples} draws each, {self.target.size} numbers)"

    # -- parameters ------------------------------------------------------------------------------------------------

    def _model_target(self) -> ModelTarget:
        if not isinstance(self.target, ModelTarget):
            raise ConfigurationError("These chains are of a plain Target, which has no model; use .draws.")
        return self.target

    @property
    def model(self) -> TrainableModel:
        """The model whose parameters were sampled."""
        return self._model_target().model

    @property
    def values(self) -> dict[str, Tensor]:
        """Every parameter by name, `[C, S, *shape]`; hyperparameters as they are used."""
        target = self._model_target()
        both = zip(target.parts, target.pieces(self.draws), strict=True)
        return {part.name: part.value(raw) for part, raw in both}

    def use(self, chain: int, draw: int) -> TrainableModel:
        """Write one draw into the model, and return it."""
        self._model_target().put(self.draws[chain, draw])
        return self.model

    # -- functions -------------------------------------------------------------------------------------------------

    def _each(self, function: Callable[[Any], Any], n_samples: int | None) -> list[Any]:
        """A function of the model at draws that are evenly spaced over all chains."""
        target = self._model_target()
        caller = _Caller(target.model, function)
        flat = self.draws.flatten(0, 1)
        wanted = len(flat) if n_samples is None else min(check_count(n_samples, "n_samples"), len(flat))
        chosen = torch.linspace(0, len(flat) - 1, wanted).round().long().tolist()
        found = []
        modes = [(module, module.training) for module in target.model.modules()]
        target.model.eval()  # batch normalisation by the averages kept with the draw
        try:
            for number in chosen:
                state = {**target.parameters(flat[number]), **self._buffers_at(number)}
                with torch.no_grad():
                    found.append(torch.func.functional_call(caller, {f"model.{k}": v for k, v in state.items()}, ()))
        finally:
            for module, training in modes:
                module.training = training
        return found

    def _buffers_at(self, number: int) -> dict[str, Tensor]:
        return {name: values.flatten(0, 1)[number] for name, values in self.buffers.items()}

    def predict(self, x: Any, n_samples: int | None = None, batch_size: int | None = None) -> Prediction:
        """The predictive distribution: a mixture over draws of the parameters, in user units.

        Args:
            x: inputs `[N, ...]`.
            n_samples: how many draws to use, evenly spaced over the chains; all when None.
            batch_size: how many rows go through the model at once.
        """
        parts = self._each(lambda model: model.predict(x, n_samples=1, batch_size=batch_size), n_samples)
        return Prediction.mixture_of(parts)

    def functions(self, x: Any, n_samples: int | None = None) -> Float[Tensor, "s n ..."]:
        """The mean function of every draw, `[S, N]` or `[S, N, P]`, in user units, without noise.

        For a network these are function draws; for a GP, the mean given the draw's hyperparameters. All draws, chain
        after chain, when `n_samples` is None: reshaped to `[n_chains, n_samples, ...]` they are what `rhat` takes.
        """
        found = self._each(lambda model: _mean_function(model.predict(x, n_samples=1)), n_samples)
        return torch.stack(found)

    # -- how good they are -----------------------------------------------------------------------------------------

    def summary(self, x: Any = None, *, max_rows: int = 20) -> Summary:
        """Posterior of every number with R-hat and effective sample sizes, and what is wrong with the chains, if any.

        Weights of networks are left out where they are many: they permute, and never agree between chains. What must
        agree is the function; give inputs `x` to have its worst R-hat and smallest effective sample size noted.

        Args:
            x: inputs at which to check the function.
            max_rows: leave out parameters with more entries than this.
        """
        rows = [_row("log density", self.log_density)]
        left_out: list[str] = []
        if isinstance(self.target, ModelTarget):
            for name, values in self.values.items():
                if math.prod(values.shape[2:]) > max_rows:
                    left_out.append(name)
                else:
                    rows += _rows(name, values)
        else:
            shown = min(self.target.size, max_rows)
            rows += [_row(f"theta[{i}]", self.draws[..., i]) for i in range(shown)]
        notes = self._notes(rows)
        if left_out:
            notes.append(f"Not shown for their size: {', '.join(left_out)}.")
        if x is not None:
            f = self.functions(x)
            f = f.reshape(self.n_chains, self.n_samples, *f.shape[1:])
            worst, fewest = float(rhat(f).max()), float(ess_bulk(f).min())
            notes.append(f"Function at {f.shape[2]} inputs: largest R-hat {worst:.3f}, smallest ESS {fewest:.0f}.")
        return Summary(rows, notes)

    def _notes(self, rows: list[SummaryRow]) -> list[str]:
        notes = [
            f"{self.n_chains} chains of {self.n_samples} draws, mean acceptance {float(self.accept.mean()):.2f}, "
            f"{float(self.n_leapfrog.double().mean()):.1f} leapfrog steps per draw."
        ]
        if int(self.diverging.sum()):
            notes.append(
                f"{int(self.diverging.sum())} transitions diverged: the chains may have missed narrow regions. Raise "
                "target_accept, or use tighter priors."
            )
        apart = [row.name for row in rows if row.rhat > RHAT_LIMIT]
        if apart:
            names = ", ".join(apart[:5]) + (", ..." if len(apart) > 5 else "")
            notes.append(f"Not converged (R-hat above {RHAT_LIMIT}): {names}. Run longer chains.")
        return notes


class _Caller(nn.Module):
    """A module whose forward pass is any function of a model, since `functional_call` reaches no other method."""

    def __init__(self, model: TrainableModel, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self) -> Any:
        return self.function(self.model)


def _mean_function(prediction: Prediction) -> Tensor:
    return prediction.probs if prediction.kind == "classes" else prediction.mean


def _rows(name: str, values: Tensor) -> list[SummaryRow]:
    entries = values.flatten(2) if values.ndim > 2 else values[..., None]
    if values.ndim == 2:
        return [_row(name, values)]
    return [_row(f"{name}[{i}]", entries[..., i]) for i in range(entries.shape[-1])]


def _row(name: str, draws: Float[Tensor, "c s"]) -> SummaryRow:
    draws = draws.detach().double().cpu()
    lower, upper = draws.flatten().quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist()
    enough = draws.shape[1] >= 4
    return SummaryRow(
        name,
        float(draws.mean()),
        float(draws.std()),
        lower,
        upper,
        float(rhat(draws)) if enough else math.nan,
        float(ess_bulk(draws)) if enough else math.nan,
        float(ess_tail(draws)) if enough else math.nan,
    )
