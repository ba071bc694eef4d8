"""Batch normalisation by the statistics of the inducing rows."""

import torch
from torch import Tensor, nn

from vibayes.data import check_count
from vibayes.draw import current_draw
from vibayes.errors import ConfigurationError, ShapeError

__all__ = ["BatchNorm"]


class BatchNorm(nn.Module):
    r"""Normalises each channel by its mean and variance over the *inducing* rows of the draw.

    `y = weight (x - mean_i) / sqrt(var_i + eps) + bias`, for rows `[N, C, ...]`, with statistics over the inducing rows
    and all places of theirs (thesis, appendix on CIFAR-10). Data rows never enter, whether padded or real, so a row's
    output depends on no other row and training and prediction agree: the model is a proper one. There are no running
    averages, and `train()` and `eval()` make no difference.

    Args:
        num_features: number of channels C.
        eps: added to the variance.
        affine: whether to learn `weight` and `bias`, as plain parameters.

    >>> import vibayes as vb
    >>> network = nn.Sequential(vb.Linear(2, 8), BatchNorm(8), nn.ReLU(), vb.Linear(8, 1))
    >>> model = vb.Model(network, vb.Gaussian(0.1), inducing=torch.randn(10, 2))
    >>> model.predict(torch.zeros(1, 2), n_samples=3).mean.shape
    torch.Size([1])
    """

    def __init__(self, num_features: int, eps: float = 1e-5, *, affine: bool = True) -> None:
        super().__init__()
        self.num_features = check_count(num_features, "num_features")
        if not eps > 0:
            raise ConfigurationError(f"eps must be positive, got {eps!r}.")
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine else None

    def forward(self, input: Tensor) -> Tensor:
        """Normalise all rows alike."""
        rows, draw = input, current_draw("BatchNorm")  # torch's modules call it input, and so may networks
        if rows.ndim < 2 or rows.shape[1] != self.num_features:
            raise ShapeError(
                f"BatchNorm expects rows with {self.num_features} channels, [N, {self.num_features}, ...]; got "
                f"{list(rows.shape)}. Change num_features."
            )
        if draw.n_inducing == 0:
            raise ConfigurationError(
                "BatchNorm takes its statistics from the inducing rows, and this model has none. Give "
                "Model(..., inducing=images[:500]), or leave it out."
            )
        if draw.n_rows is not None and rows.shape[0] != draw.n_rows:
            raise ShapeError(
                f"BatchNorm got {rows.shape[0]} rows where the pass has {draw.n_rows}, so it cannot tell which are "
                "inducing rows. Keep the first axis as it is."
            )
        if draw.n_inducing * rows[0, 0].numel() == 1 and draw.placeholder is None:  # a survey has one row
            raise ConfigurationError(
                "BatchNorm needs at least two inducing rows to take a variance of, and this model has one. Give "
                "Model(..., inducing=...) more of them."
            )
        axes = (0, *range(2, rows.ndim))
        places = (-1, *[1] * (rows.ndim - 2))  # broadcasts over places
        variance, mean = torch.var_mean(rows[: draw.n_inducing], axes, correction=0)
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        return rows * scale.reshape(places) + shift.reshape(places)

    def extra_repr(self) -> str:
        """Sizes, for `print(model)`."""
        return f"{self.num_features}, eps={self.eps}, affine={self.weight is not None}"
