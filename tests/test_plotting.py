"""Figures: what is drawn is the data, it renders, and nothing of the user's matplotlib changes."""

import math
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

import vibayes as vb
from vibayes import metrics, plotting
from vibayes.errors import ConfigurationError, DataError, ShapeError
from vibayes.likelihoods import Gaussian
from vibayes.prediction import Prediction

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture
def grid() -> Tensor:
    return torch.linspace(-2, 2, 41)


@pytest.fixture
def prediction(grid) -> Prediction:
    draws = torch.stack([torch.sin(grid), torch.sin(grid) + 0.5])[:, :, None]
    return Prediction(Gaussian(0.09).predictive(draws), squeeze=True)


def pixels(figure: object, tmp_path: Path) -> np.ndarray:
    path = plotting.save(figure, tmp_path / "figure.png", dpi=100)
    return matplotlib.image.imread(path)[..., :3]


def has_colour(image: np.ndarray, colour: str, atleast: int = 20) -> bool:
    wanted = np.array(matplotlib.colors.to_rgb(colour))
    return int((np.abs(image - wanted).max(-1) < 0.03).sum()) >= atleast


def texts(ax: object) -> list[str]:
    return [t.get_text() for t in ax.get_legend().get_texts()] if ax.get_legend() else []


def band(collection: object) -> np.ndarray:
    return collection.get_paths()[0].vertices


# ---- posterior_1d


def test_posterior_draws_the_mean_bands_data_and_draws(prediction, grid, tmp_path):
    x, y = torch.tensor([-1.0, 0.0, 1.5]), torch.tensor([-0.8, 0.1, 1.0])
    samples = torch.randn(3, 41)
    ax = plotting.posterior_1d(
        prediction,
        grid[:, None],
        data=(x[:, None], y),
        samples=samples,
        inducing=torch.tensor([[-1.5], [0.5]]),
        title="A model",
        xlabel="time (s)",
        ylabel="height (m)",
    )
    lines = {line.get_label(): line for line in ax.lines}
    assert np.allclose(lines["mean"].get_ydata(), prediction.mean)
    assert np.allclose(lines["inducing inputs"].get_xdata(), [-1.5, 0.5])
    assert np.allclose([line.get_ydata() for line in ax.lines[:3]], samples)
    outer, inner, points = ax.collections
    for collection, k in ((outer, 2), (inner, 1)):
        vertices = band(collection)
        assert vertices[:, 1].max() == pytest.approx(float((prediction.mean + k * prediction.std).max()))
        assert vertices[:, 1].min() == pytest.approx(float((prediction.mean - k * prediction.std).min()))
    assert np.allclose(points.get_offsets(), torch.stack([x, y], -1))
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == ("A model", "time (s)", "height (m)")
    assert texts(ax) == ["function draws", "mean ± 2 sd", "mean ± 1 sd", "mean", "data", "inducing inputs"]
    image = pixels(ax, tmp_path)
    assert has_colour(image, plotting.COLOURS["blue"])
    assert has_colour(image, plotting.COLOURS["vermilion"])
    assert (image == 1).all(-1).mean() > 0.3  # mostly white paper, but not only


def test_posterior_sorts_an_unordered_grid(prediction, grid):
    order = torch.randperm(41)
    ax = plotting.posterior_1d((prediction.mean[order], prediction.std[order]), grid[order])
    assert np.allclose(ax.lines[0].get_xdata(), grid)
    assert np.allclose(ax.lines[0].get_ydata(), prediction.mean)


@pytest.mark.parametrize("pair", [True, False])
def test_posterior_level(prediction, grid, pair):
    given = (prediction.mean, prediction.std) if pair else prediction
    ax = plotting.posterior_1d(given, grid, level=0.9)
    upper = prediction.mean + 1.6448536269514722 * prediction.std if pair else prediction.interval(0.9)[1]
    assert len(ax.collections) == 1
    assert band(ax.collections[0])[:, 1].max() == pytest.approx(float(upper.max()), rel=1e-6)
    assert "90% interval" in texts(ax)


@pytest.mark.parametrize(("likelihood", "least", "most"), [(vb.Bernoulli(), 0, 1), (vb.Poisson(), 0, math.inf)])
def test_bands_end_where_targets_do(likelihood, least, most, grid):
    draws = torch.stack([torch.sin(grid), torch.sin(grid) + 0.5])[:, :, None]
    ax = plotting.posterior_1d(Prediction(likelihood.predictive(draws), squeeze=True), grid)
    ends = np.concatenate([band.get_paths()[0].vertices[:, 1] for band in ax.collections])
    assert ends.min() >= least
    assert ends.max() <= most


def test_given_axes_are_used(prediction, grid):
    ax = plotting.posterior_1d(prediction, grid)
    assert plotting.posterior_1d(prediction, grid, ax=ax, colour=plotting.COLOURS["orange"]) is ax
    assert [line.get_color() for line in ax.lines] == [plotting.COLOURS["blue"], plotting.COLOURS["orange"]]


def test_posterior_refuses(prediction, grid):
    with pytest.raises(ShapeError, match="41 rows, but x_grid has 40"):
        plotting.posterior_1d(prediction, grid[:40])
    with pytest.raises(ShapeError, match="x_grid"):
        plotting.posterior_1d(prediction, grid.expand(2, 41).T)
    with pytest.raises(ShapeError, match="the prediction"):
        plotting.posterior_1d((torch.zeros(41, 2), torch.ones(41, 2)), grid)
    with pytest.raises(ShapeError, match=r"\[S, 41\]"):
        plotting.posterior_1d(prediction, grid, samples=torch.zeros(41))
    with pytest.raises(ShapeError, match="2 inputs and 3 targets"):
        plotting.posterior_1d(prediction, grid, data=(torch.zeros(2), torch.zeros(3)))
    with pytest.raises(ConfigurationError, match="level"):
        plotting.posterior_1d(prediction, grid, level=95)


@pytest.mark.parametrize("df", [0.5, 2.0])
def test_an_infinite_standard_deviation_is_refused_but_has_intervals(df, grid):
    """It would be left out without a word, with its mark in the legend."""
    heavy = Prediction(vb.StudentT(df).predictive(torch.sin(grid)[None, :, None]), squeeze=True)
    with pytest.raises(DataError, match=r"in 41 of 41 rows.*df <= 2.*level=0\.95"):
        plotting.posterior_1d(heavy, grid)
    ax = plotting.posterior_1d(heavy, grid, level=0.9)
    assert band(ax.collections[0])[:, 1].max() == pytest.approx(float(heavy.interval(0.9)[1].max()))
    line = torch.linspace(-1, 1, 5)
    with pytest.raises(DataError, match="in 25 of 25 rows"):
        plotting.posterior_2d((torch.zeros(25), torch.full((25,), math.inf)), torch.cartesian_prod(line, line))


def test_compare_shares_axes_and_explains_once(prediction, grid, tmp_path):
    panels = [(name, prediction) for name in ("a", "b", "c")] + [("d", (prediction.mean, 5 * prediction.std))]
    figure = plotting.compare_1d(panels, grid, samples=[None, torch.zeros(2, 41), None, None])
    axes = figure.axes
    assert [ax.get_title() for ax in axes] == ["a", "b", "c", "d"]
    assert len({ax.get_ylim() for ax in axes}) == 1
    assert axes[0].get_ylim()[1] > float((prediction.mean + 10 * prediction.std).max()) - 1e-9
    assert [ax.get_ylabel() for ax in axes] == ["y", "", "y", ""]
    assert [ax.get_xlabel() for ax in axes] == ["", "", "x", "x"]
    assert "function draws" in [t.get_text() for t in figure.legends[0].get_texts()]
    assert all(ax.get_legend() is None for ax in axes)
    assert has_colour(pixels(figure, tmp_path), plotting.COLOURS["blue"])


def test_compare_removes_unused_panels_and_refuses(prediction, grid):
    assert len(plotting.compare_1d([("m", prediction)] * 5, grid, columns=3).axes) == 5
    with pytest.raises(DataError, match="at least one"):
        plotting.compare_1d([], grid)
    with pytest.raises(ShapeError, match="1 entries for 2"):
        plotting.compare_1d([("m", prediction)] * 2, grid, samples=[None])


# ---- two inputs, kernels, layers


def test_posterior_2d_puts_every_value_in_its_place(tmp_path):
    a, b = torch.linspace(-1, 1, 4), torch.linspace(0, 3, 6)
    grid = torch.cartesian_prod(a, b)
    mean, std = grid[:, 0] + 10 * grid[:, 1], 1 + grid[:, 1]
    order = torch.randperm(len(grid))  # any order of the grid is fine
    x, y = torch.tensor([[0.0, 1.0], [0.5, 2.0]]), torch.tensor([10.0, 20.5])
    inducing = torch.tensor([[0.1, 0.2]])
    figure = plotting.posterior_2d(
        (mean[order], std[order]), grid[order], data=(x, y), inducing=inducing, xlabel="width (m)", zlabel="yield (t)"
    )
    left, right = figure.axes[:2]
    expected = (a[None, :] + 10 * b[:, None], (1 + b[:, None]).expand(6, 4))
    for ax, values in zip((left, right), expected, strict=True):
        assert np.allclose(ax.collections[0].get_array().reshape(6, 4), values)
        assert np.allclose(ax.collections[1].get_offsets(), x)
        assert np.allclose(ax.collections[2].get_offsets(), inducing)
    assert np.allclose(left.collections[1].get_array(), y)  # points have the colour of their target
    assert left.collections[1].get_clim() == left.collections[0].get_clim()
    assert right.collections[0].get_clim()[0] == 0.0
    assert left.get_xlabel() == "width (m)"
    assert [ax.get_ylabel() for ax in figure.axes[2:]] == ["yield (t)", "yield (t)"]
    assert has_colour(pixels(figure, tmp_path), matplotlib.colormaps["viridis"](0.0))


def test_posterior_2d_refuses():
    grid = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0))
    values = (torch.zeros(9), torch.ones(9))
    with pytest.raises(ShapeError, match="rectangular"):
        plotting.posterior_2d((torch.zeros(8), torch.ones(8)), grid[:8])
    with pytest.raises(ShapeError, match="rectangular"):  # nine rows, but one twice and one missing
        plotting.posterior_2d(values, torch.cat([grid[:8], grid[:1]]))
    with pytest.raises(ShapeError, match=r"\[N, 2\]"):
        plotting.posterior_2d(values, torch.zeros(9, 3))
    with pytest.raises(ShapeError, match="8 rows, but x_grid has 9"):
        plotting.posterior_2d((torch.zeros(8), torch.ones(8)), grid)
    with pytest.raises(ShapeError, match="2 inputs and 3 targets"):
        plotting.posterior_2d(values, grid, data=(torch.zeros(2, 2), torch.zeros(3)))


def test_correlation_functions_of_kernels_and_values(tmp_path):
    grid, reference = torch.linspace(-3, 3, 31), torch.tensor([-1.0, 2.0])
    kernel = vb.SquaredExponential(1, lengthscale=0.5, variance=4.0)
    ax = plotting.correlation_functions(kernel, grid, reference, data=torch.tensor([[0.5], [0.7]]), xlabel="time (s)")
    curves = [line for line in ax.lines if line.get_label().startswith("x'")]
    for line, place in zip(curves, reference, strict=True):
        assert np.allclose(line.get_ydata(), torch.exp(-2 * (grid - place) ** 2))
    assert texts(ax) == ["x' = -1", "x' = 2", "data"]
    assert ax.get_xlabel() == "time (s)"
    values = -torch.ones(2, 31)
    values[:, 0] = 1.0
    shuffled = torch.randperm(31)
    ax = plotting.correlation_functions(values[:, shuffled], grid[shuffled], reference)
    assert np.allclose(ax.lines[0].get_ydata(), values[0])
    assert ax.get_ylim()[0] < -1
    assert has_colour(pixels(ax, tmp_path), plotting.COLOURS["blue"])
    with pytest.raises(ShapeError, match=r"\[2, 31\]"):
        plotting.correlation_functions(values.T, grid, reference)


def test_correlation_of_a_linear_kernel_has_no_variance_in_it():
    kernel = vb.LinearKernel(1, variance=3.0, bias=0.5)
    ax = plotting.correlation_functions(kernel, torch.tensor([-2.0, 1.0]), torch.tensor([5.0]))
    expected = [(3 * 5 * x + 0.5) / math.sqrt((3 * 25 + 0.5) * (3 * x * x + 0.5)) for x in (-2.0, 1.0)]
    assert ax.lines[0].get_ydata() == pytest.approx(expected)


def test_layer_features_draws_layers_below_each_other(tmp_path):
    grid = torch.linspace(0, 1, 11)
    wide, narrow = SimpleNamespace(draws=torch.randn(20, 11, 3)), SimpleNamespace(draws=torch.randn(20, 11, 1))
    figure = plotting.layer_features({"0": wide, "1": narrow}, grid, n_features=2, n_draws=5)
    titles = ["layer 0, output 1", "layer 0, output 2", "layer 1, output 1"]
    assert [ax.get_title() for ax in figure.axes] == titles
    assert [ax.get_xlabel() for ax in figure.axes] == ["", "x", "x"]
    for ax, draws in zip(figure.axes, (wide.draws[..., 0], wide.draws[..., 1], narrow.draws[..., 0]), strict=True):
        assert np.allclose([line.get_ydata() for line in ax.lines[:5]], draws[:5])
        assert np.allclose(ax.lines[5].get_ydata(), draws.mean(0))
    assert has_colour(pixels(figure, tmp_path), plotting.COLOURS["blue"])
    with pytest.raises(DataError, match="at least one layer"):
        plotting.layer_features({}, grid)
    with pytest.raises(ShapeError, match=r"\[n, 10, P\]"):
        plotting.layer_features({"0": wide}, grid[:10])
    with pytest.raises(ConfigurationError, match="n_features"):
        plotting.layer_features({"0": wide}, grid, n_features=0)


# ---- learning_curve


def history(values: list[float], n_data: int = 10) -> SimpleNamespace:
    return SimpleNamespace(step=list(range(1, len(values) + 1)), elbo=values, n_data=n_data)


def test_learning_curve_shows_the_late_part(tmp_path):
    values = [-1e6] * 5 + [-100.0 + k for k in range(95)]
    ax = plotting.learning_curve(history(values))
    assert np.allclose(ax.lines[0].get_ydata(), values)
    low, high = ax.get_ylim()
    assert -120 < low < -95
    assert -6 < high < 10
    assert ax.get_ylabel() == "ELBO (nats)"
    assert has_colour(pixels(ax, tmp_path), plotting.COLOURS["blue"])


def test_learning_curves_by_name_per_datapoint_with_gaps():
    ax = plotting.learning_curve({"a": history([-3.0, math.nan, -1.0]), "b": history([-5.0])}, per_datapoint=True)
    assert np.allclose(ax.lines[0].get_ydata(), [-0.3, math.nan, -0.1], equal_nan=True)
    assert texts(ax) == ["a", "b"]
    assert "per data point" in ax.get_ylabel()


def test_learning_curve_refuses():
    with pytest.raises(DataError, match="empty"):
        plotting.learning_curve(history([]))
    with pytest.raises(DataError, match="n_data"):
        plotting.learning_curve(history([1.0], n_data=0), per_datapoint=True)


def test_history_plots_itself():
    from vibayes.training.history import History

    run = History(n_data=3, step=[1, 2], elbo=[-2.0, -1.0])
    assert np.allclose(run.plot().lines[0].get_ydata(), [-2.0, -1.0])


# ---- calibration, coverage, ranking


def test_calibration_curve_draws_filled_bins(tmp_path):
    logits = 2 * torch.randn(300, 3)
    probs, y = logits.softmax(-1), torch.randint(3, (300,))
    curve = metrics.calibration_curve(probs, y, 10)
    ax = plotting.calibration_curve(probs, y, 10, title="Test set")
    filled = curve.count > 0
    assert 0 < int(filled.sum()) < 10
    expected = torch.stack([curve.confidence[filled], curve.accuracy[filled]], -1)
    assert np.allclose(ax.collections[-1].get_offsets(), expected)
    assert ax.texts[0].get_text() == f"ECE {metrics.ece(probs, y, 10):.3f}"
    assert np.allclose(plotting.calibration_curve(curve).collections[-1].get_offsets(), expected)
    assert has_colour(pixels(ax, tmp_path), plotting.COLOURS["blue"])
    with pytest.raises(DataError, match="labels"):
        plotting.calibration_curve(probs)


def test_coverage_draws_the_curve_and_several_on_one(tmp_path):
    y = torch.randn(100)
    narrow, right = (Prediction(Gaussian(v).predictive(torch.zeros(1, 100, 1)), squeeze=True) for v in (0.2, 1.0))
    ax = plotting.coverage(narrow, y, [0.5, 0.9], title="two models", label="narrow")
    plotting.coverage(right, y, [0.5, 0.9], ax=ax, label="right")
    assert ax.get_title() == "two models"
    curves = [line for line in ax.lines if line.get_label() in ("narrow", "right")]
    for line, p in zip(curves, (narrow, right), strict=True):
        assert np.allclose(line.get_ydata(), [metrics.coverage(p, y, level) for level in (0.5, 0.9)])
    assert curves[0].get_color() != curves[1].get_color()
    assert len(ax.collections) == 1  # the band is drawn once
    spread = band(ax.collections[0])
    half = np.isclose(spread[:, 0], 0.5)
    assert spread[half, 1].max() == pytest.approx(0.5 + 1.96 * math.sqrt(0.25 / 100))
    assert has_colour(pixels(ax, tmp_path), plotting.COLOURS["blue"])


@pytest.mark.parametrize("higher", [True, False])
def test_ranking_puts_the_best_on_top(higher, tmp_path):
    ax = plotting.ranking(
        ["a", "b", "c"],
        [1.0, 3.0, 2.0],
        torch.tensor([0.1, 0.2, 0.3]),
        higher_is_better=higher,
        xlabel="nats",
    )
    order = ["a", "c", "b"] if higher else ["b", "c", "a"]
    assert [t.get_text() for t in ax.get_yticklabels()] == order
    assert np.allclose(ax.collections[-1].get_offsets()[:, 0], [1, 2, 3] if higher else [3, 2, 1])
    bars = [segment[:, 0].tolist() for segment in ax.collections[0].get_segments()]
    assert bars[1] == pytest.approx([1.7, 2.3])
    assert ("higher" if higher else "lower") in ax.get_xlabel()
    assert has_colour(pixels(ax, tmp_path), plotting.COLOURS["vermilion"])


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_ranking_puts_broken_models_at_the_bottom(higher, bad):
    ax = plotting.ranking(["a", "broken", "c"], [1.0, bad, 2.0], higher_is_better=higher)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["broken", *(["a", "c"] if higher else ["c", "a"])]


def test_ranking_refuses():
    with pytest.raises(ShapeError, match="2 names, 1 values"):
        plotting.ranking(["a", "b"], [1.0])
    with pytest.raises(ShapeError, match="3 errors"):
        plotting.ranking(["a", "b"], [1.0, 2.0], [1.0] * 3)
    with pytest.raises(DataError, match="empty"):
        plotting.ranking([], [])


# ---- save and style


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_save_makes_folders_and_leaves_no_scraps(suffix, tmp_path):
    ax = plotting.ranking(["a"], [1.0])
    path = plotting.save(ax, tmp_path / "new" / "deep" / f"f.{suffix}")
    assert path.stat().st_size > 500
    assert [p.name for p in path.parent.iterdir()] == [f"f.{suffix}"]
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    ax = plotting.ranking(["a"], [1.0])
    path = tmp_path / "f.png"
    path.write_bytes(b"old")

    def full(self: object, name: Path, **options: object) -> None:
        Path(name).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(ax.figure), "savefig", full)
    with pytest.raises(DataError, match="No space left"):
        plotting.save(ax.figure, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_save_refuses_clearly(tmp_path):
    figure = plotting.ranking(["a"], [1.0]).figure
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="Cannot write the figure"):
        plotting.save(figure, tmp_path / "file" / "f.png")
    for name in ("f", "f.xyz"):
        with pytest.raises(ConfigurationError, match="suffix"):
            plotting.save(figure, tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_style_ends(prediction, grid):
    before = dict(matplotlib.rcParams)
    plotting.posterior_1d(prediction, grid)
    with plotting.style():
        assert matplotlib.rcParams["axes.spines.top"] is False
    assert dict(matplotlib.rcParams) == before


def test_matplotlib_loads_late_and_pyplot_never(tmp_path):
    code = f"""
import sys
import vibayes.metrics, vibayes.plotting as p
assert "matplotlib" not in sys.modules and "torchmetrics" not in sys.modules
p.save(p.ranking(["a"], [1.0]), {str(tmp_path / "f.png")!r})
assert "matplotlib.pyplot" not in sys.modules
sys.modules["matplotlib"] = None
from vibayes.errors import ConfigurationError
try:
    p.ranking(["a"], [1.0])
except ConfigurationError as error:
    assert "vibayes[plots]" in str(error)
else:
    raise AssertionError("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert (tmp_path / "f.png").exists()
