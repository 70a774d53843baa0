"""All that a network draws at random in training mode: sampled with the right law, or refused."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_opu.programs.sites import log_probs_of_output
from pyro_opu.teachers import as_teacher
from pyro_opu.teachers.networks import COMPARED
from pyro_opu.teachers.shared import Call, attention, of_one_row
from pyro_opu.teachers.training_mode import ERRORS, RandomCalls, _score_sums, training

X = torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(0))
COUNT = 6000


class StochasticDepth(nn.Module):
    """As torchvision's and timm's write it, row by row or for the whole batch."""

    def __init__(self, p: float, mode: str = "row") -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        rows = len(x) if self.mode == "row" else 1
        noise = torch.empty((rows, *(1 for _ in x.shape[1:])), dtype=x.dtype).bernoulli_(1 - self.p)
        return x * noise.div_(1 - self.p)


class Residual(nn.Module):
    """A branch that is left out at random."""

    def __init__(self, drop: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), drop

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return h + self.drop(self.second(h).relu())


class Attention(nn.Module):
    """As nanoGPT, timm and Hugging Face write it: the rate is given in training mode alone."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 24), nn.Linear(8, 8)
        self.p, self.causal = 0.4, causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.inner(x).chunk(3, -1))
        p = self.p if self.training else 0.0
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)
        return self.outer(found.transpose(1, 2).flatten(2))


class Heads(nn.Module):
    """Torch's own attention, with rows first or second, with weights or without."""

    def __init__(self, first: bool, weights: bool) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=first)
        self.first, self.weights = first, weights

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.first else x.transpose(0, 1)
        found = self.layer(x, x, x, need_weights=self.weights)[0]
        return found if self.first else found.transpose(0, 1)


class Second(nn.Module):
    """A layer that takes its rows second."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


class Of(nn.Module):
    """A function of a hidden layer and of the mode."""

    def __init__(self, function: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(8, 8), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x), self.training)


class Connected(nn.Module):
    """Dropout of weights, which no row has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ F.dropout(self.weight, 0.3, self.training)


def windows(h: Tensor, training: bool) -> Tensor:
    """Four windows of each row on the axis of the rows, as Swin has them."""
    return F.dropout(h.unflatten(2, (4, 2)).flatten(0, 2), 0.4, training).reshape(h.shape)


def encoder(first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=first)


DRAWING: dict[str, Callable[[], nn.Module]] = {
    "attention": Attention,
    "causal attention": lambda: Attention(causal=True),
    "attention and dropout": lambda: nn.Sequential(Attention(), nn.Dropout(0.1)),
    "encoder layer": lambda: encoder(True),
    "encoder layer, rows second": lambda: Second(encoder(False)),
    "heads": lambda: Heads(first=True, weights=True),
    "heads, rows second": lambda: Heads(first=False, weights=True),
    "heads without weights": lambda: Heads(first=True, weights=False),
    "stochastic depth": lambda: Residual(StochasticDepth(0.3)),
    "stochastic depth of batches": lambda: Residual(StochasticDepth(0.3, "batch")),
    "drop path by rand": lambda: Residual(
        Of(lambda h, on: h * (0.6 + torch.rand(len(h), 1, 1)).floor() / 0.6 if on else h)
    ),
    "RReLU": lambda: nn.Sequential(nn.Linear(8, 8), nn.RReLU(0.0, 0.9)),
    "native dropout": lambda: Of(lambda h, on: torch.native_dropout(h, 0.3, on)[0]),
    "alpha dropout": lambda: nn.Sequential(nn.Linear(8, 8), nn.SELU(), nn.AlphaDropout(0.2)),
    "feature dropout": lambda: Of(lambda h, on: torch.feature_dropout(h, 0.3, on)),
    "dropout in place": lambda: Of(lambda h, on: torch.dropout_(h * 1, 0.3, on)),
    "dropout of weights": Connected,
    "windows": lambda: Of(windows),
    "Bernoulli of a tensor": lambda: Of(lambda h, on: h * torch.bernoulli(h.sigmoid())),
    "noise": lambda: Of(lambda h, on: h + torch.randn_like(h) if on else h),
    "noise of a distribution": lambda: Of(
        lambda h, on: h + torch.distributions.Normal(0.0, h.abs() + 0.1).sample()
    ),
    "exponential": lambda: Of(lambda h, on: h * torch.empty_like(h).exponential_(2.0)),
    "Gumbel": lambda: Of(lambda h, on: F.gumbel_softmax(4 * h)),
}


#: What is drawn once for all rows of a pass.
SHARED = ("stochastic depth of batches", "dropout of weights")


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    part = DRAWING[kind]()
    return nn.Sequential(part, nn.Flatten(), nn.Linear(40, 3)).eval()


@torch.no_grad()
@pytest.mark.parametrize("kind", DRAWING)
def test_the_spread_is_that_of_training_mode(kind: str) -> None:
    """Of passes; where each row draws for itself one pass, in which rows come again, is many."""
    net = network(kind)
    torch.manual_seed(1)
    x = X[:3]
    mine = as_teacher(net).probs(x, COUNT)
    with training(net):
        if kind in SHARED:
            theirs = torch.stack([net(x) for _ in range(COUNT // 4)]).softmax(-1)
        else:
            many = x.repeat_interleave(COUNT, 0)
            theirs = net(many).softmax(-1).unflatten(0, (len(x), COUNT)).transpose(0, 1)
    error = (mine.var(0) / len(mine) + theirs.var(0) / len(theirs)).sqrt()
    # Six standard errors at 9 numbers; variances of 6,000 draws err by 2 to 3 %.
    assert ((mine.mean(0) - theirs.mean(0)).abs() < 6 * error + 1e-6).all()
    assert float(mine.var(0).mean() / theirs.var(0).mean()) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("kind", DRAWING)
def test_a_draw_is_one_function_of_all_rows(kind: str) -> None:
    teacher = as_teacher(network(kind))
    probs = teacher.probs(X[:1].expand(4, *X.shape[1:]), 5)
    torch.testing.assert_close(probs, probs[:, :1].expand_as(probs), rtol=1e-4, atol=1e-5)
    assert len(probs[:, 0].unique(dim=0)) > 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.randn(4, 4, generator=torch.Generator().manual_seed(0)) > -0.5},
        {"attn_mask": torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))},
        {"attn_mask": torch.tensor([False, True, True, True])[:, None].expand(4, 4)},
    ],
)
def test_attention_without_dropout_is_torchs(options: dict) -> None:
    q, k, v = torch.randn(3, 3, 2, 4, 5)
    weights, values = attention(q, k, v, **options)
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(weights @ values, expected)


def test_attention_of_groups_of_queries() -> None:
    q, (k, v) = torch.randn(3, 4, 5, 6), torch.randn(2, 3, 2, 5, 6)
    weights, values = attention(q, k, v, enable_gqa=True)
    expected = F.scaled_dot_product_attention(q, *(t.repeat_interleave(2, 1) for t in (k, v)))
    torch.testing.assert_close(weights @ values, expected)


def test_what_does_nothing_in_training_mode_is_left_out() -> None:
    off = nn.Sequential(Of(lambda h, on: F.dropout(h, 0.5, False)), nn.Linear(8, 8))
    net = nn.Sequential(off, nn.Dropout(0.2), nn.Flatten(), nn.Linear(40, 3))
    assert [call.p for call in RandomCalls.of(net, X, log_probs_of_output).calls] == [0.2]


class Auxiliary(nn.Module):
    """Answers in training mode with a second head, as GoogLeNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.other = nn.Dropout(0.3), nn.Sequential(nn.Dropout(0.7), nn.Linear(8, 3))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        h = self.drop(x.mean(1))
        return (self.head(h), self.other(x.mean(1))) if self.training else self.head(h)


class Augmented(nn.Module):
    """Adds noise in training mode, by a part that does not ask for the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.noise, self.head = Of(lambda h, on: h + torch.randn_like(h)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.noise(x.mean(1)) if self.training else self.noise.layer(x.mean(1)))


@pytest.mark.parametrize(("build", "calls"), [(Auxiliary, 1), (Augmented, 1)])
def test_what_a_part_decides_for_others(build: type[nn.Module], calls: int) -> None:
    net = build().eval()
    assert len(RandomCalls.of(net, X, log_probs_of_output).calls) == calls
    assert as_teacher(net).probs(X, COMPARED).std(0).min() > 0  # without a warning


def left_out(h: Tensor, on: bool) -> Tensor:
    """A layer that is left out in some of the passes, by torch's numbers."""
    return h if on and torch.rand(()) < 0.5 else F.dropout(h, 0.5, on)


@pytest.mark.filterwarnings("ignore:the dropout network is evaluated draw by draw")
@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            nn.LSTM(8, 8, 2, dropout=0.2),
            r"in training mode '0.0' is a LSTM that calls \w+ inside. Set its `dropout` to 0",
        ),
        (
            Of(lambda h, on: h + torch.randint(2, h.shape)),
            "'0.0' is a Of that calls randint inside",
        ),
        (Of(left_out), "same random functions .* left out at random"),
        (
            Of(lambda h, on: h * F.dropout(torch.ones(len(h) + 1, 1, 1), 0.5, on)[1:]),
            r"\(3, 1, 1\) for two rows and \(4, 1, 1\) for three",
        ),
    ],
)
def test_what_cannot_be_sampled_is_refused_by_name(part: nn.Module, message: str) -> None:
    class First(nn.Module):
        def forward(self, x: Tensor | tuple) -> Tensor:
            return x[0] if isinstance(x, tuple) else x

    body = nn.Sequential(part, First())
    net = nn.Sequential(body, nn.Dropout(0.1), nn.Flatten(), nn.Linear(40, 3))
    with pytest.raises(ValueError, match=message):
        as_teacher(net).probs(X, 40)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
def test_dropout_in_a_script_is_refused() -> None:
    script = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2)))
    net = nn.Sequential(script, nn.Dropout(0.1), nn.Flatten(), nn.Linear(40, 3))
    with pytest.raises(ValueError, match=r"'0' is a \w+ that calls \w+ inside"):
        as_teacher(net).probs(X, 3)
    with pytest.raises(ValueError, match=r"'' is a \w+ that calls \w+ inside"):
        as_teacher(torch.jit.script(net)).probs(X, 3)


def unused(h: Tensor, on: bool) -> Tensor:
    F.dropout(h, 0.5, on, inplace=True)
    return h


@pytest.mark.parametrize(
    "function",
    [unused, lambda h, on: h * (0 if on and random.random() < 0.5 else 1)],
    ids=["in place", "numbers of Python"],
)
def test_what_is_not_met_is_warned_of(function: Callable[[Tensor, bool], Tensor]) -> None:
    random.seed(0)
    net = nn.Sequential(Of(function), nn.Dropout(0.1), nn.Flatten(), nn.Linear(40, 3))
    teacher = as_teacher(net)
    teacher.probs(X, 3)  # too few to be compared for
    with pytest.warns(UserWarning, match=r"vary otherwise in training mode \(variance"):
        teacher.probs(X, COMPARED // len(X))
    teacher.probs(X, COMPARED)  # once


class TestScoreSums:
    @pytest.mark.parametrize(
        "values", [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0, 0.0, 1.0, 1.0, 1.0, 9.0]]
    )
    def test_over_all_ways_to_part_they_have_mean_0_and_variance_1(
        self, values: list[float]
    ) -> None:
        ways = []
        for first in itertools.combinations(range(6), 3):
            rest = [index for index in range(6) if index not in first]
            ways.append(torch.tensor(values)[[*first, *rest]])
        z = _score_sums(torch.stack(ways, 1))
        assert len(z) == 20 and float(z.mean()) == pytest.approx(0.0, abs=1e-9)
        assert float(z.square().mean()) == pytest.approx(1.0)

    def test_alarms_by_chance_are_as_many_as_said(self) -> None:
        """A hundredth at 2.576 errors: of 4,000 sets, 40 up to five deviations of 6.3."""
        z = _score_sums(torch.randn(512, 4000, generator=torch.Generator().manual_seed(0)) ** 2)
        assert 9 <= int((z.abs() > 2.576).sum()) <= 71

    def test_half_a_spread_is_seen(self) -> None:
        draws = torch.randn(512, 200, generator=torch.Generator().manual_seed(0))
        draws[:256] *= 0.5**0.5
        assert float((_score_sums(draws**2).abs() > ERRORS).float().mean()) > 0.6

    def test_rounding_makes_no_ranks(self) -> None:
        """Draws of few values, of which one side is a rounding larger."""
        few = torch.tensor([0.0, 1e-4, 0.04, 0.05])[torch.arange(512) % 4, None].double()
        few[256:] = few[256:] * (1 + 1e-5) + 1e-12
        assert float(_score_sums(few).abs()) < 1e-6


def test_rows_of_a_call() -> None:
    two = [Call("keep", (2, 7), 0.5), Call("uniform", (5, 6)), Call("normal", (4,))]
    three = [Call("keep", (3, 7), 0.5), Call("uniform", (5, 9)), Call("normal", (4,))]
    found = of_one_row(two, three)
    assert [call.shape for call in found] == [(1, 7), (5, 3), (4,)]
    assert [call.of_rows for call in found] == [True, True, False]
    for other in (three[:2], [Call("keep", (3, 7), 0.4), *three[1:]]):
        with pytest.raises(ValueError, match="same random functions"):
            of_one_row(two, other)
    with pytest.raises(ValueError, match=r"\(2, 2\) for two rows and \(3, 3\) for three"):
        of_one_row([Call("keep", (2, 2), 0.5)], [Call("keep", (3, 3), 0.5)])
