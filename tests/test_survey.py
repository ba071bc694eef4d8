"""What models find out about a network: its last layer, averages behind Bayesian layers, changes in place."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vibayes as vb
from vibayes.errors import ConfigurationError, ShapeError
from vibayes.survey import Survey, survey


class Custom(nn.Module):
    """A network that does something with what its layer gives."""

    def __init__(self, layer: nn.Module, after: str) -> None:
        super().__init__()
        self.layer, self.after = layer, after

    def forward(self, rows: Tensor) -> Tensor:
        rows = self.layer(rows)
        if self.after == "times ten":
            rows = 10.0 * rows
        elif self.after == "times ten in place":
            rows *= 10.0
        return rows


def linear(width: int = 3) -> vb.Linear:
    return vb.Linear(width, 1, posterior=vb.MeanField(variance=0.1))


def test_the_layer_whose_rows_are_the_output_is_found_whatever_holds_it() -> None:
    rows = torch.randn(4, 3)
    for network, output in (
        (linear(), "network"),
        (nn.Sequential(nn.Tanh(), linear()), "1"),
        (Custom(linear(), "nothing"), "layer"),
        (Custom(nn.Sequential(nn.Tanh(), linear()), "nothing"), "layer.1"),
        (Custom(linear(), "times ten"), None),
        (Custom(linear(), "times ten in place"), None),
        (nn.Sequential(linear(), nn.ReLU(inplace=True)), None),
        (nn.Sequential(linear(), nn.Identity()), "0"),
    ):
        layers = {name or "network": m for name, m in network.named_modules() if isinstance(m, vb.Linear)}
        found = survey(network, layers, rows)
        assert found is not None
        assert found.output == output
        assert network.training


def test_a_network_that_cannot_run_is_left_to_a_pass_with_real_values() -> None:
    layer = linear()
    assert survey(nn.Sequential(nn.Linear(2, 3), layer), {"1": layer}, torch.randn(4, 5)) is None


@pytest.mark.parametrize("posterior", [vb.MeanField(variance=0.1), vb.GlobalInducing(), vb.LocalInducing(5)])
def test_what_is_done_to_the_rows_in_place_counts(posterior: vb.MeanField) -> None:
    """Moments of the last layer's rows are not the output's when something is done to them afterwards."""
    x, y = torch.randn(20, 3), torch.randn(20)
    inducing = x[:6] if isinstance(posterior, vb.GlobalInducing) else None
    models = [
        vb.Model(Custom(vb.Linear(3, 1, posterior=posterior), after), vb.Gaussian(0.1), inducing=inducing)
        for after in ("times ten", "times ten in place")
    ]
    models[1].load_state_dict(models[0].state_dict())
    for n_samples in (1, 7):
        values = []
        for model in models:
            torch.manual_seed(3)
            values.append((model.predict(x, n_samples).mean, model.elbo(x, y, n_samples).value))
        torch.testing.assert_close(*values)


def test_a_custom_network_starts_and_integrates_as_a_sequential_one() -> None:
    x, labels = torch.randn(30, 4), torch.randint(0, 3, (30,))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, rows: Tensor) -> Tensor:
            out: Tensor = self.last(torch.relu(self.hidden(rows)))
            return out

    model = vb.Model(vb.bayesianize(Network(), posterior=vb.GlobalInducing()), vb.Categorical(), inducing=x[:6])
    model.initialize(x, labels)
    last = model.layers["last"]
    assert [layer.is_output for layer in model.layers.values()] == [False, True]
    assert last.posterior.precision.value.tolist() == [1.0] * 6
    torch.testing.assert_close(last.posterior.pseudo_outputs, nn.functional.one_hot(labels[:6], 3).double())
    assert math.exp(-4.0) == pytest.approx(model.layers["hidden"].posterior.precision.value[0].item())

    gp = vb.GP(1, kernel=vb.SquaredExponential(4), posterior=vb.LocalInducing(5))
    wrapped = vb.Model(Custom(gp, "nothing"), vb.Gaussian(0.1))
    wrapped.initialize(x, torch.randn(30))
    assert not wrapped.draws_differ  # all of it is closed-form


def test_natural_gradients_move_the_last_layer_of_a_custom_network() -> None:
    x = torch.randn(30, 2)
    gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.GlobalInducing("natural"))
    model = vb.Model(Custom(gp, "nothing"), vb.Gaussian(0.1), inducing=x[:10])
    history = vb.fit(model, (x, x[:, 0].sin()), steps=60, log_every=20, progress=False)
    assert history.elbo[-1] > history.elbo[0]
    gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.GlobalInducing("natural"))
    with pytest.raises(ConfigurationError, match="last"):
        vb.Model(Custom(gp, "times ten"), vb.Gaussian(0.1), inducing=x[:10])


@pytest.mark.parametrize("n_samples", [1, 3])
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_running_averages_behind_a_bayesian_layer_are_refused_for_any_number_of_draws(
    n_samples: int, kind: type[nn.Module]
) -> None:
    x, y = torch.randn(20, 3), torch.randn(20)
    norm, images = kind(4, track_running_stats=True), nn.Unflatten(1, (4, 1))
    last = vb.Linear(4, 1, posterior=vb.MeanField())
    network = nn.Sequential(vb.Linear(3, 4, posterior=vb.MeanField()), images, norm, nn.Flatten(), last)
    model = vb.Model(network, vb.Gaussian(0.1))
    for act in (lambda: model.elbo(x, y, n_samples), lambda: vb.fit(model, (x, y), steps=2, n_samples=n_samples)):
        with pytest.raises(ConfigurationError, match="'2' stands behind a Bayesian layer"):
            act()
    norm.eval()
    vb.fit(model, (x, y), steps=2, n_samples=n_samples, progress=False)
    assert int(norm.num_batches_tracked) == 0


class ByName(nn.Module):
    """Calls a module between two layers by the name of its argument."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = vb.Linear(3, 4), middle, vb.Linear(4, 1)

    def forward(self, rows: Tensor) -> Tensor:
        found = self.middle(input=self.first(rows))
        return self.last(found[0] if isinstance(found, tuple) else found)


def test_modules_that_are_called_by_the_name_of_their_argument_are_seen() -> None:
    x, y = torch.randn(20, 3), torch.randn(20)
    model = vb.Model(ByName(nn.BatchNorm1d(4)), vb.Gaussian(0.1), inducing=x[:5])
    with pytest.raises(ConfigurationError, match="'middle' stands behind a Bayesian layer"):
        vb.fit(model, (x, y), steps=2, n_samples=1, progress=False)
    recurrent = vb.Model(ByName(nn.GRU(4, 4)), vb.Gaussian(0.1), inducing=x[:5])
    assert recurrent._survey.apart == (False, True)


def test_statistics_of_the_batch_behind_a_bayesian_layer_are_refused_in_every_mode() -> None:
    """Without running averages they are those of the batch in evaluation, too, and a prediction sees its neighbours."""
    norm, last = nn.BatchNorm1d(4, track_running_stats=False), vb.Linear(4, 1, posterior=vb.MeanField())
    network = nn.Sequential(vb.Linear(3, 4, posterior=vb.MeanField()), norm, last)
    model = vb.Model(network, vb.Gaussian(0.1))
    for rows in (torch.randn(20, 3), torch.randn(1, 3)):
        with pytest.raises(ConfigurationError, match=r"'1' stands behind a Bayesian layer.*inducing rows\.$"):
            model.predict(rows)
    plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), linear(4))
    vb.Model(plain, vb.Gaussian(0.1)).predict(torch.randn(20, 3))


@pytest.mark.parametrize("prior", [vb.NealPrior(), vb.ScalePrior(), vb.SpatialIWPrior()])
def test_running_averages_behind_plain_or_point_layers_are_fine(prior: vb.priors.Prior) -> None:
    """Such layers have the same values in every draw, even where their prior is drawn."""
    x, y = torch.randn(20, 3), torch.randn(20)
    point = vb.Linear(3, 4, prior=prior, posterior=vb.Point())
    model = vb.Model(nn.Sequential(point, nn.BatchNorm1d(4), vb.Linear(4, 1, posterior=vb.MeanField())), vb.Gaussian())
    vb.fit(model, (x, y), steps=3, n_samples=2, progress=False)
    assert torch.isfinite(model.predict(x).mean).all()


class AlwaysDropout(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return nn.functional.dropout(rows, 0.5, training=True)


@pytest.mark.parametrize("noise", [nn.Dropout(0.5), nn.Dropout(0.5, inplace=True), AlwaysDropout()])
def test_what_plain_modules_draw_differs_between_draws(noise: nn.Module) -> None:
    """One draw stood for all, and its bound was said to be exact."""
    x, y = torch.randn(20, 3), torch.randn(20)
    layers = (vb.Linear(3, 30, posterior=vb.Point()), noise, vb.Linear(30, 1, posterior=vb.Point()))
    model = vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1))
    assert not model.draws_differ  # of the layers
    one = [model.elbo(x, y, n_samples=1).value.detach() for _ in range(200)]
    several = model.elbo(x, y, n_samples=200)
    assert 0.5 < several.stderr / (torch.stack(one).std() / 200**0.5) < 2.0
    always = isinstance(noise, AlwaysDropout)
    assert model.predict(x, n_samples=7).n_draws == (7 if always else 1)
    model.eval()
    assert (float(model.elbo(x, y).stderr) > 0.0) == always


@pytest.mark.parametrize("posterior", [vb.Point(), vb.MeanField(), vb.GlobalInducing()])
def test_running_averages_of_rows_with_noise(posterior: vb.Point) -> None:
    """Dropout in front of torch's BatchNorm: averages change with every draw, as with every pass."""
    x, y = torch.randn(20, 3), torch.randn(20)
    norm = nn.BatchNorm1d(5)
    layers = (nn.Linear(3, 5), nn.Dropout(0.5), norm, vb.Linear(5, 1, posterior=posterior))
    inducing = x[:4] if isinstance(posterior, vb.GlobalInducing) else None
    model = vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1), inducing=inducing)
    bound = model.elbo(x, y, n_samples=3)
    assert float(bound.stderr) > 0.0
    assert int(norm.num_batches_tracked) == 3
    vb.fit(model, (x, y), steps=2, n_samples=4, progress=False)
    vb.fit_many([model], [(x, y)], steps=2, n_samples=4, progress=False)
    assert torch.isfinite(model.predict(x).mean).all()


def test_noise_in_place_of_rows_without_draws() -> None:
    x, y = torch.randn(20, 3), torch.randn(20)
    noise = nn.Dropout(0.5, inplace=True)
    model = vb.Model(nn.Sequential(nn.Linear(3, 5), noise, vb.Linear(5, 1, posterior=vb.MeanField())), vb.Gaussian(0.1))
    vb.fit(model, (x, y), steps=2, n_samples=4, progress=False)
    model.network[2].posterior.std.set(1e-12)
    assert float(model.elbo(x, y, n_samples=20).stderr) > 0.0  # every draw has a mask of its own


class Probe(nn.Module):
    """Notes whether rows come draw by draw."""

    together = False

    def forward(self, rows: Tensor) -> Tensor:
        self.together = torch._C._functorch.is_batchedtensor(rows)
        return rows


@pytest.mark.parametrize("inplace", [False, True])
def test_what_stands_before_noise_runs_once_for_all_draws(inplace: bool) -> None:
    """But where noise is put in place of its rows, which then must be of a draw."""
    x, y = torch.randn(20, 3), torch.randn(20)
    before, after = Probe(), Probe()
    layers = (nn.Linear(3, 5), before, nn.Dropout(0.5, inplace=inplace), after, linear(5))
    model = vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1))
    assert float(model.elbo(x, y, n_samples=4).stderr) > 0.0
    assert (before.together, after.together) == (inplace, True)
    assert len(model.predict(x)) == 20
    assert (before.together, after.together) == (False, False)  # no noise in evaluation mode


@pytest.mark.parametrize("inplace", [False, True])
def test_running_averages_in_front_of_noise(inplace: bool) -> None:
    """They must not see the draws; where they do, as rows must be of a draw, these go one after another."""
    x, y = torch.randn(20, 3), torch.randn(20)
    norm = nn.BatchNorm1d(5)
    layers = (nn.Linear(3, 5), norm, nn.Dropout(0.5, inplace=inplace), linear(5))
    model = vb.Model(nn.Sequential(*layers), vb.Gaussian(0.1))
    assert float(model.elbo(x, y, n_samples=4).stderr) > 0.0
    assert int(norm.num_batches_tracked) == (4 if inplace else 1)
    vb.fit(model, (x, y), steps=2, n_samples=4, progress=False)
    assert torch.isfinite(model.predict(x).mean).all()


class Recurrent(nn.Module):
    """Rows as sequences of pairs, with a Bayesian layer before a recurrent one or not."""

    def __init__(self, posterior: vb.posteriors.Posterior, *, before: bool, packed: bool = False) -> None:
        super().__init__()
        self.first = vb.Linear(6, 6, posterior=posterior) if before else nn.Linear(6, 6)
        self.middle = nn.GRU(2, 4, batch_first=True)
        self.last = vb.Linear(4, 1, posterior=posterior)
        self.packed = packed

    def forward(self, rows: Tensor) -> Tensor:
        steps = self.first(rows).reshape(len(rows), 3, 2)
        if self.packed:
            lengths = torch.full((len(rows),), 3)
            steps = nn.utils.rnn.pack_padded_sequence(steps, lengths, batch_first=True)
        return self.last(self.middle(steps)[1][0])


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_draws_go_through_recurrent_layers_one_after_another(before: bool, packed: bool) -> None:
    """What `vmap` cannot batch."""
    x, y = torch.randn(8, 6), torch.randn(8)
    model = vb.Model(Recurrent(vb.GlobalInducing(), before=before, packed=packed), vb.Gaussian(0.1), inducing=x[:4])
    assert model._survey.apart == ((False, True) if before else ())
    vb.fit(model, (x, y), steps=2, n_samples=3, progress=False)
    batch = model.prepare(x, y)
    # weights of an output and its bias, and as many numbers as there are inducing rows
    noise = {"first.inducing": torch.randn(3, 7 + 4, 6), "last.inducing": torch.randn(3, 5 + 4, 1)}
    together = model(batch.x, batch.y, n_samples=3, noise=noise)
    for s in range(3):
        alone = model(batch.x, batch.y, n_samples=1, noise={name: value[s : s + 1] for name, value in noise.items()})
        torch.testing.assert_close(together.log_likelihood[s], alone.log_likelihood[0])
    assert model.sample_functions(x, 3).shape == (3, 8)
    assert model.predict(x, n_samples=5).n_draws == 5


class Cells(nn.Module):
    """A recurrent module of torch's, called by its argument's name, then noise."""

    def __init__(self, kind: type[nn.Module], noise: nn.Module, *, before: bool) -> None:
        super().__init__()
        self.first = vb.Linear(3, 2, posterior=vb.MeanField()) if before else nn.Linear(3, 2)
        self.middle, self.noise, self.last = kind(2, 4), noise, linear(4)

    def forward(self, rows: Tensor) -> Tensor:
        states = self.middle(input=self.first(rows))
        return self.last(self.noise(states[0] if isinstance(states, tuple) else states))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.RNN, nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_recurrent_modules_in_front_of_noise(kind: type[nn.Module], before: bool, inplace: bool) -> None:
    x, y = torch.randn(8, 3), torch.randn(8)
    model = vb.Model(Cells(kind, nn.Dropout(0.5, inplace=inplace), before=before), vb.Gaussian(0.1))
    assert model._survey.apart == ((False, True) if before else (True,) if inplace else ())
    vb.fit(model, (x, y), steps=2, n_samples=3, progress=False)
    assert model.predict(x, n_samples=5).mean.shape == (8,)


class Unbatchable(nn.Module):
    """A network as users write them, with something between its layers that `vmap` refuses."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(3, 4), nn.Linear(4, 1), kind

    def forward(self, rows: Tensor) -> Tensor:
        hidden: Tensor = self.first(rows)
        if self.kind == "mask":
            hidden[hidden < 0] = 0.0
        elif self.kind == "branch" and hidden.abs().max() > 1e6:
            raise ValueError("values out of bounds")
        elif self.kind == "filled":
            filled = rows.new_zeros(len(rows), 4)
            filled[:, :2] = hidden[:, :2]
            hidden = filled
        elif self.kind == "number":
            hidden = hidden / max(1.0, hidden.std().item())
        out: Tensor = self.last(hidden)
        return out


@pytest.mark.parametrize("kind", ["mask", "branch", "filled", "number"])
@pytest.mark.parametrize("posterior", [vb.MeanField(), vb.GlobalInducing()])
def test_draws_go_one_after_another_where_vmap_refuses_what_is_done_to_them(
    kind: str, posterior: vb.posteriors.Posterior
) -> None:
    x, y = torch.randn(12, 3), torch.randn(12)
    inducing = x[:4] if isinstance(posterior, vb.GlobalInducing) else None
    model = vb.Model(vb.bayesianize(Unbatchable(kind), posterior=posterior), vb.Gaussian(0.1), inducing=inducing)
    vb.fit(model, (x, y), steps=2, n_samples=3, progress=False)
    assert model._survey.apart == (False, True)
    assert model.predict(x, n_samples=5).n_draws == 5
    assert model.sample_functions(x, 3).std(0).min() > 0.0


@pytest.mark.parametrize("point", [False, True])
def test_draws_go_together_where_what_vmap_refuses_is_done_to_rows_that_all_share(point: bool) -> None:
    x = torch.randn(12, 3)
    network = vb.bayesianize(
        Unbatchable("mask"), posterior=vb.Point(), last=vb.MeanField(), skip=None if point else "first"
    )
    model = vb.Model(network, vb.Gaussian(0.1))
    model.elbo(x, x[:, 0], n_samples=3)
    assert model._survey.apart == ()


def test_batch_norm_of_inducing_rows_serves_networks_whose_layers_need_none() -> None:
    x, y = torch.randn(20, 3), torch.randn(20)
    layers = (vb.Linear(3, 4, posterior=vb.MeanField()), vb.BatchNorm(4), nn.ReLU(), linear(4))
    model = vb.Model(nn.Sequential(*layers), vb.Gaussian(), inducing=x[:8])
    vb.fit(model, (x, y), steps=3, progress=False)
    assert torch.isfinite(model.elbo(x, y).value)


def test_a_network_that_works_in_place_leaves_the_data_alone() -> None:
    x, y = torch.randn(20, 3), torch.randn(20)
    kept = x.clone()
    model = vb.Model(nn.Sequential(nn.ReLU(inplace=True), linear()), vb.Gaussian())
    model.predict(x)
    vb.fit(model, (x, y), steps=3, progress=False)
    torch.testing.assert_close(x, kept)


def test_a_network_must_return_one_tensor() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = linear()

        def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(rows), rows

    with pytest.raises(ShapeError, match="returned a tuple"):
        vb.Model(Two(), vb.Gaussian()).predict(torch.randn(4, 3))


def test_an_output_that_is_not_what_it_was_is_refused() -> None:
    model = vb.Model(nn.Sequential(linear()), vb.Gaussian())
    model.predict(torch.randn(4, 3))
    model.network.register_forward_hook(lambda module, rows, out: 2.0 * out)
    with pytest.raises(ConfigurationError, match="hooks"):
        model.predict(torch.randn(4, 3))


def test_what_a_network_does_in_one_mode_only_counts() -> None:
    """Dropout returns its input in evaluation mode, and changes it in place in the other."""
    x, y = torch.randn(20, 3), torch.randn(20)
    kept = x.clone()
    for inplace in (False, True):
        model = vb.Model(nn.Sequential(linear(), nn.Dropout(0.5, inplace=inplace)), vb.Gaussian(0.1))
        vb.fit(model, (x, y), steps=3, progress=False)
        assert model.output_layer is None
        assert model.draws_differ
    gp = vb.GP(1, kernel=vb.SquaredExponential(3), posterior=vb.LocalInducing(5))
    vb.fit(vb.Model(nn.Sequential(nn.Dropout(0.5, inplace=True), gp), vb.Gaussian()), (x, y), steps=3, progress=False)
    torch.testing.assert_close(x, kept)


def test_surveys_draw_nothing_and_leave_averages() -> None:
    network = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3), linear())
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    survey(network, {"2": network[2]}, torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.rand(3), expected)
    assert int(network[1].num_batches_tracked) == 0


def test_a_custom_network_without_inducing_inputs_has_a_last_layer_from_the_start() -> None:
    local = vb.LocalInducing(5, form="pseudo", precision="natural")
    gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=local)
    model = vb.Model(Custom(nn.Sequential(nn.Linear(3, 2), gp), "nothing"), vb.Gaussian(0.1))
    assert gp.is_output
    assert not model.draws_differ
    weights = Custom(nn.Sequential(vb.Linear(3, 1, posterior=vb.LocalInducing(5))), "nothing")
    vb.Model(weights, vb.Gaussian(0.1))
    assert weights.layer[0].posterior.precision.value.tolist() == [1.0] * 5


def test_predictions_from_threads_agree() -> None:
    x = torch.randn(5, 3)
    for _ in range(5):
        gp = vb.GP(1, kernel=vb.SquaredExponential(2), posterior=vb.LocalInducing(5))
        model = vb.Model(Custom(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), gp), "nothing"), vb.Gaussian(0.1))
        with torch.no_grad():
            gp.posterior.mean.normal_()
        with ThreadPoolExecutor(4) as pool:
            found = [future.result() for future in [pool.submit(model.predict, x) for _ in range(12)]]
        assert model.network.training
        for prediction in found:
            torch.testing.assert_close(prediction.mean, model.predict(x).mean)


def test_threads_that_come_together_leave_the_survey_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one would run modules in training mode while the first thread predicts."""
    model = vb.Model(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), linear(4)), vb.Gaussian(0.1)).eval()
    x, surveys, came, meet = torch.randn(5, 3), [], threading.Event(), model._meet

    def second() -> vb.Prediction:
        monkeypatch.setattr(model, "_meet", lambda rows: (came.set(), meet(rows)))
        return model.predict(x)

    with ThreadPoolExecutor(1) as pool:

        def watched(*given: Any) -> Survey | None:
            surveys.append(given)
            if len(surveys) == 1:
                later.append(pool.submit(second))
                came.wait()
            return survey(*given)

        later: list[Any] = []
        monkeypatch.setattr("vibayes.model.survey", watched)
        first = model.predict(x)
        assert torch.equal(later[0].result().mean, first.mean)
    assert len(surveys) == 1


def test_a_model_saved_before_there_were_surveys_knows_its_last_layer() -> None:
    model = vb.Model(nn.Sequential(nn.Tanh(), linear()), vb.Gaussian())
    del model._survey
    assert model.output_layer is model.network[1]
    assert not model.draws_differ
    model.predict(torch.randn(4, 3))
    assert model.output_layer is model.network[1]


@pytest.mark.parametrize("inducing", [True, False])
def test_a_network_first_seen_in_evaluation_mode_is_known_in_training_mode(inducing: bool) -> None:
    """As a pretrained one is that comes in evaluation mode, or a model that predicts before it is trained."""
    x, y = torch.randn(12, 6), torch.randn(12)
    posterior = vb.GlobalInducing() if inducing else vb.Point()

    def model(training: bool) -> vb.Model:
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU(), vb.Linear(8, 1, posterior=posterior)
        ).train(training)
        found = vb.Model(network, vb.Gaussian(0.1), inducing=x[:4] if inducing else None).train(training)
        found.initialize(x, y)
        return found.train()

    bounds = []
    for training in (True, False):
        found = model(training)
        assert not found.exact
        averages = found.network[2].running_mean.clone()
        assert torch.equal(averages, torch.zeros(8))  # what surveys and starts do leaves them
        torch.manual_seed(1)
        bound = found.elbo(x, y, n_samples=50)
        assert bound.stderr > 0.0
        bounds.append(float(bound.value.detach()))
        vb.fit(found, (x, y), steps=2, progress=False)
    assert bounds[0] == pytest.approx(bounds[1])


def test_a_module_behind_the_last_layer_that_acts_in_training_only() -> None:
    layers = (vb.Linear(6, 8, posterior=vb.MeanField()), nn.ReLU(), vb.Linear(8, 1, posterior=vb.MeanField()))
    model = vb.Model(nn.Sequential(*layers, nn.Dropout(0.1)), vb.Gaussian()).eval()
    x, y = torch.randn(12, 6), torch.randn(12)
    model.predict(x, n_samples=2)
    vb.fit(model.train(), (x, y), steps=2, progress=False)


def test_surveys_leave_modes_and_what_spectral_normalisation_keeps() -> None:
    plain = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).eval()
    before = {name: value.clone() for name, value in plain.named_buffers()}
    model = vb.Model(nn.Sequential(plain, linear()).eval(), vb.Gaussian()).eval()
    model.predict(torch.randn(5, 3), n_samples=2)
    assert not any(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in plain.named_buffers())


class Convolutional(nn.Module):
    """A convolutional network with a forward of its own."""

    def __init__(self, size: int | None) -> None:
        super().__init__()
        self.conv = vb.Conv2d(3, 4, 3, padding=1, posterior=vb.LocalInducing(28))
        width = 4 if size is None else 4 * size**2
        self.last = vb.Linear(width, 2, posterior=vb.LocalInducing(5))
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x).relu()
        return self.last(h.mean((2, 3)) if self.size is None else h.flatten(1))


@pytest.mark.parametrize("size", [None, 8, 32])
def test_a_custom_convolutional_network_has_a_last_layer_from_the_start(size: int | None) -> None:
    model = vb.Model(Convolutional(size), vb.Categorical())
    assert model.output_layer is model.network.last
    assert model.network.last.is_output
    torch.testing.assert_close(model.network.last.posterior.precision.value, torch.ones(5))  # log precision 0


class Lazy(Convolutional):
    """One whose last layers take their width from the first images that they see."""

    def __init__(self) -> None:
        super().__init__(8)
        self.before, self.between = nn.LazyBatchNorm2d(), nn.LazyLinear(4 * 8**2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.conv(self.before(x)).relu().flatten(1)))


def test_lazy_modules_take_no_size_from_images_that_are_tried() -> None:
    model = vb.Model(Lazy(), vb.Categorical())
    assert model.network.last.is_output
    vb.fit(model, (torch.randn(9, 3, 12, 12), torch.arange(9) % 2), steps=2, progress=False)
    assert model.network.between.in_features == 4 * 12**2


@pytest.mark.parametrize("inducing", [None, torch.randn(5, 3)])
def test_lazy_batch_normalisation_keeps_its_first_averages_in_a_survey(inducing: Tensor | None) -> None:
    posterior = vb.MeanField() if inducing is None else vb.GlobalInducing()
    network = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), vb.Linear(4, 1, posterior=posterior))
    model = vb.Model(network, vb.Gaussian(), inducing=inducing)
    model.predict(torch.randn(9, 3), n_samples=2)
    assert torch.equal(network[1].running_mean, torch.zeros(4))
    vb.fit(model, (torch.randn(9, 3), torch.randn(9)), steps=2, progress=False)
    assert not torch.equal(network[1].running_mean, torch.zeros(4))


def test_weights_that_lazy_modules_draw_for_themselves_are_no_noise() -> None:
    gp = vb.GP(1, kernel=vb.SquaredExponential(4), posterior=vb.LocalInducing(5))
    model = vb.Model(nn.Sequential(nn.LazyLinear(4), nn.Tanh(), gp), vb.Gaussian(0.1))
    x = torch.randn(9, 3)
    model.initialize(x, x[:, 0])
    assert model.exact
    assert model.eval().exact
    assert model.predict(x).n_draws == 1


def deep_kernel(middle: nn.Module, *, first: bool) -> vb.Model:
    """A module inside the network of a deep kernel, in a model's only layer or behind another one."""
    kernel = vb.DeepKernel(nn.Sequential(nn.Linear(3, 4), middle, nn.Linear(4, 2)), vb.SquaredExponential(2))
    last = vb.GP(1, kernel=kernel, posterior=vb.LocalInducing(5))
    before = [] if first else [vb.GP(3, kernel=vb.SquaredExponential(3), posterior=vb.LocalInducing(5))]
    return vb.Model(nn.Sequential(*before, last), vb.Gaussian(0.1))


class Steps(nn.Module):
    """An LSTM over the numbers of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 4, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.lstm(rows[:, :, None])[0][:, -1]
        return out


class Trend(vb.means.Mean):
    """A mean function that is a network."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.network(rows)
        return out


def test_what_networks_of_means_do_is_seen() -> None:
    gp = vb.GP(1, kernel=vb.SquaredExponential(3), mean=Trend(), posterior=vb.LocalInducing(5))
    model = vb.Model(gp, vb.Gaussian(0.1))
    x = torch.randn(9, 3)
    model.initialize(x, x[:, 0])
    assert model.elbo(x, x[:, 0], n_samples=10).stderr > 0


def test_what_networks_of_deep_kernels_do_is_seen() -> None:
    x, y = torch.randn(9, 3), torch.randn(9)
    noisy = deep_kernel(nn.Dropout(0.5), first=True)
    noisy.initialize(x, y)
    with torch.no_grad():
        noisy.network[0].posterior.mean.add_(1.0)
    assert not noisy.exact
    assert noisy.elbo(x, y, n_samples=10).stderr > 0
    assert noisy.predict(x).n_draws == 1  # made in evaluation mode
    vb.fit(deep_kernel(nn.BatchNorm1d(4), first=True), (x, y), steps=2, progress=False)
    for draws in (1, 3):
        with pytest.raises(vb.ConfigurationError, match=r"BatchNorm1d '1\.kernel\.network\.1' stands behind"):
            deep_kernel(nn.BatchNorm1d(4), first=False).elbo(x, y, n_samples=draws)
    history = vb.fit(deep_kernel(Steps(), first=False), (x, y), steps=2, n_samples=3, progress=False)
    assert not history.events
