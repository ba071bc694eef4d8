"""Posteriors of a last layer whose parameters move by natural gradients instead of Adam."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vibayes import linalg
from vibayes.draw import Output
from vibayes.errors import ConfigurationError
from vibayes.posteriors.base import Gaussian, Site

if TYPE_CHECKING:
    from vibayes.layers.base import Layer

__all__ = ["NaturalSites", "natural_targets"]


class NaturalSites(nn.Module):
    r"""Pseudo-observations of inducing values by their natural parameters.

    `q(u_p) ∝ N(u_p; 0, K) exp(h_p^T u_p - u_p^T Lambda_p u_p / 2)`, for each output p: `Lambda` is the precision of
    pseudo-outputs `Lambda^-1 h`. With `A = K^-1 K_ut` a data row has mean `A^T E[u]`, and its expected log likelihood
    `l` has slopes `dl/dmean` and `dl/dvariance`. A natural-gradient step of rate `r` on the bound moves the parameters
    towards targets that depend on the likelihood alone (Khan & Lin 2017),

    `Lambda <- (1 - r) Lambda + r A diag(b) A^T`, `h <- (1 - r) h + r A (dl/dmean + b mean)`, `b = -2 dl/dvariance`,

    so that one step of rate 1 is Titsias's optimum where the likelihood is Gaussian. Where training weighs the KL,
    targets are divided by the weight that it ends with; one that rises to 1 changes nothing here. In a deep model `K`
    and `A` differ between draws, and the targets are averaged over them. Inducing inputs that move take their
    pseudo-observations along, which Adam does not manage (docs/decisions/natural-last-layer.md).

    They are buffers, in float64 whatever the model's dtype: targets come with `K^-1` on both sides. `fit` moves them, a
    training loop of your own does not. Beside them stands a parameter without numbers, which has a part in the bound
    as they do: where it asks for no gradient, as after `posterior.requires_grad_(False)`, they stay where they are.

    Args:
        layer: the layer, a GP and the model's last.
        outputs: pseudo-outputs to start at, `[M, P]`.
        log_precision: the log of their precision.
    """

    precision: Tensor  # [P, M, M]
    shift: Tensor  # [M, P]

    def __init__(self, layer: "Layer", outputs: Float[Tensor, "m p"], log_precision: float | Tensor) -> None:
        super().__init__()
        if hasattr(layer, "fan_in"):
            raise ConfigurationError(
                f'precision="natural" is for GP layers; {layer.name!r} is a layer of weights. Use "per_output".'
            )
        if not layer.is_output:
            raise ConfigurationError(
                f'precision="natural" is for a model\'s last layer, where rows have a Gaussian distribution in each '
                f'draw; layer {layer.name!r} is not the last. Use precision="full" there.'
            )
        M, P = outputs.shape
        value = torch.as_tensor(log_precision, dtype=torch.float64).exp().expand(M)
        self.register_buffer("precision", torch.diag_embed(value).expand(P, M, M).clone())
        self.register_buffer("shift", value[:, None] * outputs.detach().double())
        self.mark = nn.Parameter(torch.empty(0))

    @property
    def learn(self) -> bool:
        """Whether training moves them; of those saved before they could be fixed, it does."""
        mark = self._parameters.get("mark")
        return mark is None or mark.requires_grad

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Go along to another device, and stay in float64."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.precision, self.shift = self.precision.double(), self.shift.double()
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if "mark" in self._parameters:  # which states from before do not have
            state_dict.setdefault(f"{prefix}mark", self.mark.detach())
        super()._load_from_state_dict(state_dict, prefix, *args)

    @torch.no_grad()
    def start_at(self, outputs: Float[Tensor, "m p"]) -> None:
        """Take other pseudo-outputs, with the precision there is."""
        self.shift.copy_((self.precision @ outputs.to(self.shift).mT[..., None])[..., 0].mT)

    def gaussian(self, site: Site) -> Gaussian:
        """`q(v)` of the whitened values, `u = L v`: `N(B^-1 L^T h, B^-1)` with `B = I + L^T Lambda L`."""
        assert site.design is not None
        L = site.design.to(self.shift.dtype)
        B = L.mT @ self.precision @ L  # [P, M, M]
        eye = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
        # symmetric up to rounding, and positive definite
        C, _ = linalg.factor(0.5 * (B + B.mT) + eye)
        R = C.solve_transposed(eye.expand_as(B)) if C.inverse is None else C.inverse.mT  # R R^T = B^-1
        shift = self.shift + sum(mark.sum() for mark in self.parameters())  # plus zero
        mean = (R @ (R.mT @ (L.mT @ shift).mT[..., None]))[..., 0].mT  # [M, P]
        dtype = site.design.dtype
        return Gaussian(mean.to(dtype), R.to(dtype), -C.log_det.to(dtype))


def natural_targets(output: Output | None, expected: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
    """What the parameters of the last layer's `NaturalSites` move towards in one draw; nothing where it has none.

    Args:
        output: the last layer's, with the projection `K^-1 K_ut`.
        expected: the expected log likelihood by mean and variance of the latent rows, weights of rows included.
    """
    if output is None or output.projection is None:
        return {}
    mean, variance = output.mean.detach(), output.variance.detach()
    by_mean, by_variance = (t.detach().double() for t in torch.func.grad(expected, (0, 1))(mean, variance))
    A = output.projection.double()
    # a likelihood that is not log-concave may have rows that would make the posterior wider than the prior
    b = (-2.0 * by_variance).clamp_min(0.0)  # [N, P]
    explained = (mean - output.offset).detach().double()  # A^T E[u]
    return {"precision": (A * b.mT[:, None, :]) @ A.mT, "shift": A @ (by_mean + b * explained)}
