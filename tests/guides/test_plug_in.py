"""Students that begin as the network of their teacher: read off what it computes."""

from __future__ import annotations

import copy
import gc
import itertools
import math
import weakref
from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch
from flat import distill_flat
from posteriors import averages
from pyro.infer import Predictive
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn
from torch.nn import functional as F
from widest import Held, Widest

import pyro_opu
from pyro_opu import OnePassPredictive, as_teacher
from pyro_opu.distributions.base import soft_clamp
from pyro_opu.distributions.dirichlet import LOG_CONCENTRATION_RANGE
from pyro_opu.guides import PredictiveGuide, beginning, guide_at, plug_in
from pyro_opu.guides.beginning import NoBeginning, find_beginning
from pyro_opu.guides.fused import fused
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.metrics.ranks import spearman
from pyro_opu.metrics.uncertainty import epistemic_uncertainty
from pyro_opu.models.neural_network import bayesian_network, convolutional_network, perceptron
from pyro_opu.programs.cost import metered
from pyro_opu.programs.sites import normalised
from pyro_opu.training import tuned
from pyro_opu.training.batches import READ, AfterMoments, Pool, read_once

pytestmark = pytest.mark.usefixtures("coarse")

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(20, 8, 8, generator=torch.Generator().manual_seed(1))


class Functional(nn.Module):
    """Dropout that is always on, and log-probabilities, both by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(torch.tanh(self.first(x)), 0.3, training=True)
        return F.log_softmax(self.last(hidden), -1)


class Normalised(nn.Module):
    """Both normalisations, a constant of the inputs' scale, and probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((6,), 2.0))
        self.layers = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.LayerNorm(8), nn.Dropout(0.2)
        )
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x * self.scale)).softmax(-1)


class Attention(nn.Module):
    """Six tokens of one number each, a learnt place, and a layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(1, 8), nn.Parameter(torch.randn(6, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.dropout, self.last = nn.Dropout(0.2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.reshape(len(x), 6, 1)) + self.place
        return self.last(self.dropout(self.layer(tokens).mean(1)))


class Recurrent(nn.Module):
    """Six steps of one number each, the last of which says the class."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.encode, self.dropout = kind(1, 5, batch_first=True), nn.Dropout(0.2)
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        encoded, _ = self.encode(x.reshape(len(x), 6, 1))
        return self.last(self.dropout(encoded[:, -1]))


def posterior(model, x: Tensor) -> Predictive:
    latents = {
        name: value.squeeze(1) if value.ndim > 1 and value.shape[1] == 1 else value
        for name, value in Predictive(model, num_samples=6)(x[:2]).items()
        if name != "obs"
    }
    return Predictive(model, latents)


class Weighted(PyroModule):
    """A Bayesian network in Pyro's own words."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = PyroModule[nn.Linear](6, 9), PyroModule[nn.Linear](9, 3)
        for layer in (self.first, self.last):
            shape = layer.weight.shape
            layer.weight = PyroSample(dist.Normal(0.0, 1.0).expand(shape).to_event(2))

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        logits = self.last(torch.relu(self.first(x)))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Categorical(logits=logits), obs=y)


def by_hand(x: Tensor, y: Tensor | None = None) -> None:
    """Products written out, a scale on the logits, and two classes by one of them."""
    w = pyro.sample("w", dist.Normal(torch.zeros(6, 7), 1.0).to_event(2))
    v = pyro.sample("v", dist.Normal(torch.zeros(7), 1.0).to_event(1))
    hidden = torch.cat([torch.sin(x @ w), torch.ones(len(x), 1)], -1)
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=(hidden[:, :7] @ v + 0.5) / 3), obs=y)


SOURCES = {
    "perceptron": lambda: (posterior(bayesian_network(perceptron((6, 8, 3))), X), X),
    "PyroModule": lambda: (posterior(Weighted(), X), X),
    "products": lambda: (posterior(by_hand, X), X),
    "convolutions": lambda: (
        posterior(bayesian_network(convolutional_network((8, 8), 4)), IMAGES),
        IMAGES,
    ),
    "dropout": lambda: (
        nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Dropout(0.2), nn.Linear(9, 3)),
        X,
    ),
    "functional": lambda: (Functional(), X),
    "normalised": lambda: (Normalised().eval(), X),
    "attention": lambda: (Attention().eval(), X),
    "LSTM": lambda: (Recurrent(nn.LSTM), X),
    "GRU": lambda: (Recurrent(nn.GRU), X),
    "RNN": lambda: (Recurrent(nn.RNN), X),
    "ensemble": lambda: ([perceptron((6, 8, 3)) for _ in range(3)], X),
}


@pytest.fixture(params=SOURCES)
def source(request):
    torch.manual_seed(0)
    return SOURCES[request.param]()


def begun(source, x):
    teacher = as_teacher(source)
    plug_ins = teacher.plug_ins(x)
    return plug_ins, find_beginning(plug_ins, x, teacher.probs(x))


def test_a_student_begins_as_the_network_of_its_teacher(source):
    (_, x), (plug_ins, start) = source, begun(*source)
    guide = guide_at(PredictiveGuide, start, x)
    assert isinstance(guide.trunk, NetworkTrunk)
    mean = as_teacher(source[0]).probs(x).mean(0)
    answers = [plug_ins[0].log_probs(weights, x).detach() for weights in plug_ins[0].candidates]
    nearest = max(answers, key=lambda answer: float((mean * answer).sum()))
    for rows in (1, 2, 5, 19):
        if start.draws is None:
            found = guide(x[:rows]).log_mean
        else:  # dropout before the head, whose draws of logits have a mean and a variance
            found = guide.trunk.moments_of(x[:rows])[1].log_softmax(-1)
        # The head is found by probes: rounding of their logits remains.
        torch.testing.assert_close(found, nearest[:rows], rtol=1e-4, atol=2e-5)


class Thinned(nn.Module):
    """Dropout before the head, and where it is deeper between its layers, too."""

    def __init__(self, classes: int = 3, deeper: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 40), nn.Linear(40, 150)
        self.last, self.deeper = nn.Linear(150, classes), deeper

    def features(self, x: Tensor) -> Tensor:
        first = torch.relu(self.first(x))
        return torch.relu(self.second(F.dropout(first, 0.3, self.deeper and self.training)))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(self.features(x), 0.3, self.training))


@pytest.mark.parametrize("classes", [2, 3])
def test_dropout_before_the_head_is_told_by_moments_of_its_logits(classes):
    r"""Var z_k = sum_f W_kf^2 phi_f^2 p / (1 - p), and all but the head stays."""
    torch.manual_seed(0)
    network = Thinned(classes).eval()
    plug_ins, start = begun(as_teacher(network, output="classes"), X)
    assert start.independent and plug_ins[0].of_noise
    guide = guide_at(PredictiveGuide, start, X)
    assert guide.trunk.stays and guide.trunk.kind == "independent"
    with torch.no_grad():
        phi, weight, logits = network.features(X), network.last.weight, network(X)
        _, mean, variance = guide.trunk.moments_of(X)
    if classes == 2:
        weight, logits = weight.diff(dim=0), logits.diff(dim=1)
    else:
        weight, logits = weight - weight.mean(0), logits - logits.mean(1, keepdim=True)
    expected = 0.3 / 0.7 * phi.square() @ weight.square().mT
    torch.testing.assert_close(mean, logits, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(variance, expected, rtol=0.03, atol=0)  # 8,000 draws
    again = PredictiveGuide.from_config(copy.deepcopy(guide.config))
    again.load_state_dict(guide.state_dict())
    assert torch.equal(again(X).log_alpha, guide(X).log_alpha)


def test_a_pass_over_recorded_steps_leaves_nothing_behind():
    """Neither its inputs nor its results wait for the garbage collector, which comes late."""
    x = X.clone()
    members = as_teacher([perceptron((6, 9, 3)) for _ in range(2)])
    found = beginning.recorded(members.plug_ins(x)[0], x)
    gone = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        found.run(x)
        del x
        assert gone() is None
    finally:
        gc.enable()


def test_heads_of_a_thousand_classes_are_few_and_read_some_at_a_time(monkeypatch):
    """All 10,000 of them would be 6 GB, and 256 at once half a gigabyte."""
    monkeypatch.setattr(beginning, "MOST_HEADS", 2**20)
    torch.manual_seed(0)
    with Widest() as widest:
        _, start = begun(Thinned(1000).eval(), X[:8])
    assert start.draws.shape == (2**20 // 151_000, 1000, 151)
    assert widest.bytes <= 4 * 2**23


def test_heads_under_noise_of_many_features_are_read_some_at_a_time(monkeypatch):
    """Noise of each of 400 features asked about, for each draw: 256 at once would be 105 MB."""
    monkeypatch.setattr(beginning, "MOST_HEADS", 2**19)
    network = nn.Sequential(nn.Linear(6, 400), nn.ReLU(), nn.Dropout(), nn.Linear(400, 3)).eval()
    with Widest() as widest:
        _, start = begun(network, X[:8])
    assert len(start.draws) == 2**19 // 1203 and widest.bytes <= 4 * 2**22


def test_dropout_that_reaches_the_features_is_learnt():
    torch.manual_seed(0)
    _, start = begun(Thinned(deeper=True), X)
    assert start.draws is None and not guide_at(PredictiveGuide, start, X).trunk.stays


def test_noise_of_one_member_of_a_mixture_is_not_that_of_all():
    members = as_teacher([as_teacher(Thinned()), as_teacher(Thinned())])
    assert not any(plug_in.of_noise for plug_in in members.plug_ins(X))


@pytest.mark.parametrize("rank", [1, 150])
def test_coefficients_that_vary_together_do_not_count_as_independent(rank):
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(6, 150), nn.ReLU())
    draws = torch.randn(1000, rank) @ torch.randn(rank, 150) if rank < 150 else None
    draws = torch.randn(1000, 150) if draws is None else draws

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(150), 1.0).to_event(1))
        logit = trunk(x) @ w
        with pyro.plate("data", len(x)):
            logits = torch.stack([logit, -logit, 0.5 * logit], -1)
            pyro.sample("obs", dist.Categorical(logits=logits), obs=y)

    _, start = begun(Predictive(model, {"w": draws}), X)
    assert start.independent == (rank == 150)


def test_weights_too_small_for_a_processor_are_zero_in_a_student():
    """A convolution takes three times as long with a few subnormal numbers."""
    torch.manual_seed(0)
    network = Thinned()
    with torch.no_grad():
        network.first.weight[0] = 1e-40
    guide = guide_at(PredictiveGuide, begun(network, X)[1], X)
    weights = torch.cat([each.flatten() for each in guide.trunk.network.buffers()])
    assert float(weights[weights != 0].abs().min()) > 1e-37


def test_a_network_keeps_its_activations():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))
    others = [copy.deepcopy(network) for _ in range(3)]
    with torch.no_grad():
        for each in others:
            each[2].weight.add_(0.5 * torch.randn(3, 40))
    answers = [each(X).log_softmax(-1) for each in [network, *others]]
    mine = guide_at(PredictiveGuide, begun([network, *others], X)[1], X)(X).log_mean
    assert min(float((mine - answer).abs().max()) for answer in answers) < 1e-4  # rounding


def logistic(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(6), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)


def test_a_linear_model_has_a_wide_network_beside_it():
    predictive = Predictive(logistic, {"w": torch.randn(20, 6)})
    config = NetworkTrunk.describe(begun(predictive, X)[1], X)
    assert config["hidden"] == [128, 128]


def test_features_of_a_posterior_over_the_head_alone_stay_as_they_are():
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(6, 6), nn.ReLU()).requires_grad_(False)
    predictive = Predictive(lambda x: logistic(trunk(x)), {"w": torch.randn(20, 6)})
    guide = guide_at(PredictiveGuide, begun(predictive, X)[1], X)
    torch.testing.assert_close(guide.trunk.shaped(X), trunk(X))


def linear(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(6, 3), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Categorical(logits=x @ w), obs=y)


def test_a_temperature_is_learnt_where_moments_are_too_many_to_be_told(monkeypatch):
    monkeypatch.setattr(beginning, "MOST_TOLD", 0)
    monkeypatch.setattr(beginning, "DEPENDENT", 0.0)
    torch.manual_seed(0)
    draws = torch.randn(6, 3) + 0.5 * torch.randn(50, 6, 3)
    _, start = begun(Predictive(linear, {"w": draws}), X)
    guide = guide_at(PredictiveGuide, start, X)
    plain = X @ draws.mean(0)
    torch.testing.assert_close(guide(X).log_mean, plain.log_softmax(-1), rtol=1e-4, atol=1e-5)
    guide(X).log_mean[:, 0].sum().backward()
    assert float(guide.trunk.temperature.weight.grad.abs().max()) > 0
    with torch.no_grad():
        guide.trunk.temperature.bias.fill_(0.3)
    t = math.exp(2.0 * math.tanh(0.3))
    expected = (t * plain).log_softmax(-1)
    torch.testing.assert_close(guide(X).log_mean, expected, rtol=1e-4, atol=1e-5)
    again = PredictiveGuide.from_config(copy.deepcopy(guide.config))
    again.load_state_dict(guide.state_dict())
    assert torch.equal(again(X).log_alpha, guide(X).log_alpha)


def many_classes() -> tuple[Predictive, Tensor]:
    """A posterior over linear logits of 400 classes, and inputs of unlike lengths."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(20, 400), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Categorical(logits=x @ w), obs=y)

    torch.manual_seed(0)
    draws = 0.5 * torch.randn(20, 400) + 0.2 * torch.randn(200, 20, 400)
    lengths = torch.linspace(0.3, 2.0, 60)[:, None]
    return Predictive(model, {"w": draws}), lengths * torch.randn(60, 20)


def test_the_concentration_of_many_classes_begins_where_the_spread_of_logits_says():
    """One for all inputs ranks them the other way: -0.1."""
    predictive, x = many_classes()
    draws = as_teacher(predictive).probs(x)
    guide = guide_at(
        PredictiveGuide, find_beginning(as_teacher(predictive).plug_ins(x), x, draws), x
    )
    mine, theirs = (epistemic_uncertainty(each) for each in (guide(x), draws))
    assert spearman(mine, theirs) > 0.9
    assert float(mine.mean()) == pytest.approx(float(theirs.mean()), rel=0.2)


@pytest.mark.slow
def test_it_stays_there_where_one_dirichlet_cannot_have_the_moments_too():
    predictive, x = many_classes()
    fast = distill_flat(predictive, x, num_steps=100, seed=0, recalibrate=False, progress=False)
    assert fast.report["misfit"] > 0.04
    history = fast.report["history"]
    assert history[-1]["kl"] < history[0]["kl"]
    with torch.no_grad():
        spread = fast.guide.trunk._read(x)[0][1]
        powers = torch.cat([spread, spread.square(), torch.ones_like(spread)], 1).double()
        g = fast.guide.log_concentration(x).double()
    # A soft clamp apart, which moves what is within a few units of its ends.
    assert float((g - powers @ torch.linalg.lstsq(powers, g).solution).abs().max()) < 1e-2


@pytest.mark.parametrize("directions", [2, 8])
def test_the_variance_averaged_over_classes_is_that_of_the_draws(directions, monkeypatch):
    """At any input in all directions; with few, at a feature and its opposite together."""
    monkeypatch.setattr(beginning, "MOST_TOLD", 0)
    monkeypatch.setattr(beginning, "DEPENDENT", 0.0)
    monkeypatch.setattr(plug_in, "DIRECTIONS", directions)
    torch.manual_seed(0)
    draws = torch.randn(6, 3) + torch.randn(400, 6, 3) @ torch.randn(3, 3)
    trunk = guide_at(PredictiveGuide, begun(Predictive(linear, {"w": draws}), X)[1], X).trunk

    def variances(z: Tensor) -> tuple[Tensor, Tensor]:
        logits = trunk.standardize.inverse(z).double() @ draws.double()
        return trunk.average(z).squeeze(-1), (logits - logits.mean(-1, True)).var(0).mean(-1)

    pairs = zip(variances(torch.eye(6)), variances(-torch.eye(6)), strict=True)
    found, expected = (one + opposite for one, opposite in pairs)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0)
    if directions == 8:
        found, expected = variances(trunk.standardize(X))
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("loss", "steps"), [(None, 0), ("moments", 1000)])
def test_a_student_that_begins_at_what_is_attainable_takes_few_steps(loss, steps):
    """A logistic regression takes no step, and some where a loss is asked for."""
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    predictive = Predictive(logistic, {"w": torch.ones(6) + 0.3 * torch.randn(400, 6)})
    fast = pyro_opu.distill(predictive, x, loss=loss, seed=0, progress=False)
    assert fast.report["history"][0]["kl_ratio"] < 1.1 and fast.report["draws"] > 500
    assert fast.report["spent"]["num_steps"] == steps


@pytest.mark.parametrize(("modes", "most"), [(False, 5), (True, 15)])
def test_a_student_told_its_logit_takes_few_steps_however_far_it_begins(modes, most, monkeypatch):
    """Of a logit with long tails; of two modes one is not the answer, but a mixture."""
    for effort, steps in (("quick", 5), ("default", 15)):
        monkeypatch.setitem(tuned.EFFORTS, effort, (steps, 2**14))
    torch.manual_seed(0)
    x, sides, tails = torch.randn(200, 6), torch.randn(400, 1).sign(), torch.randn(400, 1).exp()
    w = 1 + (sides if modes else tails * torch.randn(400, 6)) * torch.ones(6)
    fast = pyro_opu.distill(Predictive(logistic, {"w": w}), x, seed=0, progress=False)
    assert isinstance(fast.guide, PredictiveGuide) != modes
    assert fast.report["history"][0]["kl_ratio"] > 10
    assert fast.report["spent"]["num_steps"] == most


def test_all_of_it_is_trained_but_for_constants(source):
    _, start = begun(*source)
    guide = guide_at(PredictiveGuide, start, source[1])
    guide(source[1]).log_mean[:, 0].sum().backward()
    for name, parameter in guide.trunk.network.named_parameters():
        assert parameter.grad is not None, name
    buffers = {value.shape for value in guide.trunk.network.buffers() if value.is_floating_point()}
    if isinstance(source[0], Normalised):
        assert (8,) in buffers and (6,) in buffers  # running statistics, and the scale


def test_its_description_builds_it_again(source):
    guide = guide_at(PredictiveGuide, begun(*source)[1], source[1])
    again = PredictiveGuide.from_config(copy.deepcopy(guide.config))
    again.load_state_dict(guide.state_dict())
    assert torch.equal(again(source[1]).log_alpha, guide(source[1]).log_alpha)
    assert torch.equal(copy.deepcopy(guide)(source[1]).log_alpha, guide(source[1]).log_alpha)


def test_a_file_of_it_needs_no_code_of_the_model(source, tmp_path):
    fast = pyro_opu.distill(source[0], source[1], num_steps=4, seed=0, progress=False)
    assert isinstance(fast.guide.trunk, NetworkTrunk)
    fast.save(tmp_path / "student")
    again = OnePassPredictive.load(tmp_path / "student")
    x = source[1]
    assert torch.equal(again.dirichlet(x).concentration, fast.dirichlet(x).concentration)


def test_an_operation_that_is_not_known_is_refused_in_a_file(source):
    config = copy.deepcopy(guide_at(PredictiveGuide, begun(*source)[1], source[1]).config)
    for name in ("rand.default", "from_file.default", "os.system", "add.__init__", "relu_.default"):
        config["trunk"]["network"]["steps"][0][0] = name
        with pytest.raises(ValueError, match="not an operation"):
            PredictiveGuide.from_config(config)


def control_flow(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(6, 3), 1.0).to_event(2))
    logits = torch.tanh(x @ w) @ torch.eye(3)
    if float(logits.sum()) > 1e9:
        logits = logits * 2
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Categorical(logits=logits), obs=y)


@pytest.mark.filterwarnings("ignore:the model is evaluated draw by draw")
def test_what_has_no_hidden_layer_or_depends_on_values_is_not_read():
    with pytest.raises(NoBeginning, match="cannot be read"):
        begun(posterior(control_flow, X), X)
    with pytest.raises(NoBeginning, match="no network"):
        begun(lambda x: torch.rand(5, len(x), 3).softmax(-1), X)


def test_a_network_of_this_package_is_had_by_name():
    source, x = SOURCES["dropout"]()
    fast = pyro_opu.distill(source, x, guide="network", num_steps=4, seed=0, progress=False)
    assert not isinstance(fast.guide.trunk, NetworkTrunk)


def test_the_nearest_candidate_is_taken():
    torch.manual_seed(0)
    members = [perceptron((6, 8, 3)) for _ in range(4)]
    mean = normalised(members[2](X), probs=False).exp().detach()
    start = find_beginning(as_teacher(members).plug_ins(X), X, mean[None])
    torch.testing.assert_close(guide_at(PredictiveGuide, start, X)(X).mean, mean, rtol=0, atol=1e-5)


@pytest.mark.parametrize("spread", [1 / 3, 0.1])
def test_moments_of_logits_are_those_of_the_draws(spread):
    """Two classes: the mean and variance over draws of the logit, by the slow sum."""
    torch.manual_seed(0)
    mean, factor = torch.randn(7), spread * torch.randn(7, 7)
    draws = mean + torch.randn(300, 7) @ factor
    x = 3 + 2 * torch.randn(50, 6)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(7), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=x @ w[:6] + w[6]), obs=y)

    teacher = as_teacher(Predictive(model, {"w": draws}))
    start = find_beginning(teacher.plug_ins(x), x, teacher.probs(x))
    guide = guide_at(PredictiveGuide, start, x)
    logits = torch.cat([x, torch.ones(50, 1)], 1).double() @ draws.double().mT
    found = guide.trunk.moments_of(x)[1:]
    # Rounding of weights of standardised inputs, and of logits up to 30.
    torch.testing.assert_close(found[0][:, 0].double(), logits.mean(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[1][:, 0].double(), logits.var(1), rtol=1e-3, atol=1e-5)
    # The averages of a normal logit, before the first step.
    deviation = logits.var(1).sqrt()
    mean, concentration = averages(logits.mean(1), deviation)
    near = deviation < 3  # up to which the rule is good to 1e-4
    assert near.sum() > 30 or spread > 0.1
    torch.testing.assert_close(guide(x).mean[near, 1].double(), mean[near], rtol=0, atol=1e-4)
    # The soft clamp moves large ones; surer inputs need the tail that the rule leaves out.
    found, g = guide(x).log_concentration.double(), concentration.log()
    near &= (g < 6) & (mean.logit().abs() < 10)
    assert near.sum() > 20 or spread > 0.1
    torch.testing.assert_close(found[near], g[near], rtol=0, atol=4e-3)


def test_what_is_told_is_read_once():
    """The guide after it has the guide's own weights, answers and gradients."""
    torch.manual_seed(0)
    predictive = Predictive(logistic, {"w": torch.ones(6) + 0.3 * torch.randn(50, 6)})
    guide = guide_at(PredictiveGuide, begun(predictive, X)[1], X)
    rest, pool = read_once(guide, Pool(X, {"mean": torch.zeros(40)}))
    assert isinstance(rest.trunk, AfterMoments) and torch.equal(pool.x, X)
    assert {id(p) for p in rest.parameters()} == {id(p) for p in guide.parameters()}
    gradients = []
    for each, x in ((guide, X), (rest, pool.statistics[READ])):
        guide.zero_grad()
        answer = each(x)
        (answer.log_mean[:, 0].sum() + answer.log_concentration.sum()).backward()
        gradients.append([p.grad.clone() for p in guide.parameters()])
    assert torch.equal(guide(X).log_alpha, rest(pool.statistics[READ]).log_alpha)
    for mine, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, expected)


def test_images_are_read_a_block_at_a_time():
    """A thousand at once would make ten times as many numbers."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(),
        nn.Linear(32, 3),
    ).eval()  # fmt: skip
    x = torch.rand(1000, 3, 16, 16)
    guide = guide_at(PredictiveGuide, begun(network, x[:40])[1], x[:40])
    with torch.no_grad(), Held() as held:
        _, pool = read_once(guide, Pool(x, {}))
    expected = guide.trunk.moments_at(x)
    torch.testing.assert_close(pool.statistics[READ], expected)
    assert held.bytes < 2.5 * 256 * 8 * 14 * 14 * 4 + expected.nbytes


def test_what_training_changes_is_read_at_every_step(source):
    start, pool = begun(*source)[1], Pool(source[1], {})
    guide = guide_at(PredictiveGuide, start, source[1])
    is_read = read_once(guide, pool) != (guide, pool)
    assert is_read == (start.draws is not None)  # dropout before the head: its trunk stays


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("widths", "least"), [((6, 64, 64, 3), 64), ((64, 1024, 1024, 10), 32)])
def test_the_small_network_is_wide_enough_and_a_few_hundredths_of_a_large_one(
    widths, least, several
):
    x = torch.randn(20, widths[0])
    start = begun([perceptron(widths) for _ in range(2)], x)[1]
    assert start.several
    config = NetworkTrunk.describe(replace(start, several=several), x)
    width, size = config["hidden"][0], config["size"]
    teachers = sum(before * after for before, after in itertools.pairwise(widths))
    assert size == widths[-2] and width >= (
        least if teachers > plug_in.ALONE or not several else 128
    )
    assert (size + width + widths[-1]) * width < max(0.05 * teachers, 50_000)


@pytest.mark.parametrize("rows", [1, 5, plug_in.MANY, 700])
def test_a_temperature_divides_the_logits_of_the_network(rows):
    torch.manual_seed(0)
    x, start = torch.randn(rows, 6), begun([perceptron((6, 8, 3)) for _ in range(3)], X)[1]
    guide = guide_at(PredictiveGuide, start, X)
    trunk, width = guide.trunk, guide.trunk.layers[0].out_features
    with torch.no_grad():
        trunk.temperature.weight.normal_()
        trunk.temperature.bias.fill_(-0.4)
        guide.mean_head.weight[:, :width].normal_(std=0.1)
        guide.concentration_head.weight.normal_(std=0.1)
        features = trunk.network(x)
        small = trunk.layers(trunk.standardize(features))
        t = (2.0 * (small @ trunk.temperature.weight.T - 0.4).tanh()).exp()
        assert 0.1 < float(t.min()) <= float(t.max()) < 7.4
        for head, name in ((guide.mean_head, "log_mean"), (guide.concentration_head, "g")):
            own, plain = head.weight[:, :width], head.weight[:, width:]
            expected = small @ own.T + t * (features @ plain.T) + head.bias
            for each in (guide, fused(guide)):
                answer = each(x)
                if name == "log_mean":
                    torch.testing.assert_close(answer.log_mean, expected.log_softmax(-1))
                else:
                    g = soft_clamp(expected.squeeze(-1), *LOG_CONCENTRATION_RANGE)
                    torch.testing.assert_close(answer.log_concentration, g)


def test_what_is_nearly_linear_is_no_linear_head():
    class Bent(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return z + 0.02 * torch.sin(3 * z)

    plain = [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)]
    assert begun([nn.Sequential(*plain), nn.Sequential(*plain)], X)[1] is not None
    with pytest.raises(NoBeginning, match="determines the logits linearly"):
        begun([nn.Sequential(*plain, Bent()), nn.Sequential(*plain, Bent())], X)


def test_moments_are_told_of_a_few_classes_and_not_of_hundreds():
    for classes, told in ((3, True), (2, True), (400, False)):
        size = 21
        start = beginning.Beginning(None, torch.randn(classes, size))
        assert start.has_few_moments() is told


def test_several_classes_begin_at_logits_moderated_by_their_variance():
    """By MacKay's factor."""
    torch.manual_seed(0)
    draws = torch.randn(6, 3) + 0.6 * torch.randn(50, 6, 3)
    logits = (X @ draws).double()
    logits = logits - logits.mean(-1, keepdim=True)
    expected = logits.mean(0) / (1 + math.pi / 8 * logits.var(0)).sqrt()
    guide = guide_at(PredictiveGuide, begun(Predictive(linear, {"w": draws}), X)[1], X)
    found = guide(X).log_mean.double()
    torch.testing.assert_close(found, expected.log_softmax(-1), rtol=1e-4, atol=1e-4)


def test_a_pass_stores_a_small_share_of_what_the_draws_do():
    """No pass of ten classes averages over points, which costs about as much as 500 draws."""
    draws = {"w": torch.randn(6, 10) + 0.6 * torch.randn(500, 6, 10)}

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(6, 10), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Categorical(logits=x @ w))

    source = Predictive(model, draws)
    guide = guide_at(PredictiveGuide, begun(source, X)[1], X)
    with torch.no_grad(), metered() as one:
        guide(X)
    with metered() as all_draws:
        as_teacher(source).probs(X, 500)
    assert sum(one.sizes) < sum(all_draws.sizes) / 20
