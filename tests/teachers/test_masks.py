"""Networks without their dropped units: equal to networks with zeros in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_opu.programs.cost import counted, metered
from pyro_opu.teachers import as_teacher, networks
from pyro_opu.teachers.masks import Thinned
from pyro_opu.teachers.shared import Call, given_by

# Rounding of float32 products summed in another order, on logits of size 1.
ROUNDING = {"rtol": 1e-5, "atol": 1e-5}
WIDTH = 24


class Written(nn.Module):
    """A network whose forward pass is written out."""

    def __init__(self, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, 3)
        self.written = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


def plain(net: Written, x: Tensor) -> Tensor:
    h = F.dropout(net.first(x).relu())
    return net.last(F.dropout(net.second(h).tanh(), 0.3))


def residual(net: Written, x: Tensor) -> Tensor:
    h = F.dropout(net.first(x).relu())
    return net.last(h + F.dropout(F.gelu(net.second(h))))


def of_inputs(net: Written, x: Tensor) -> Tensor:
    return net.last(F.dropout(net.first(F.dropout(x, 0.2)), 0.5).relu())


def twice(net: Written, x: Tensor) -> Tensor:
    h = F.dropout(F.dropout(net.first(x), 0.3).sigmoid(), 0.3)
    h = F.dropout(F.dropout(net.second(h), 0.3), 0.3)
    return net.last(h)


def in_place(net: Written, x: Tensor) -> Tensor:
    h = F.dropout(F.relu(net.first(x), inplace=True))
    return net.last(F.dropout(F.relu(net.second(h), inplace=True)))


def changed_before(net: Written, x: Tensor) -> Tensor:
    h = net.first(x)
    g = h.exp()
    h += 1
    h.relu_()
    h += g.mul_(h.exp())
    return net.last(F.dropout(net.second(h + h.exp().clamp(max=5.0))) + h.sigmoid())


def joined(net: Written, x: Tensor) -> Tensor:
    h = F.dropout(net.first(x))
    g = net.second(h)
    assert h.shape == g.shape == (len(x), WIDTH) and h.dim() == 2
    both = torch.cat([h, g], 1)
    return net.last(both[:, ::2] * g.size(1) ** -0.5 + g.T.mT)


def scaled(net: Written, x: Tensor) -> Tensor:
    h = F.dropout(net.first(x))
    return F.linear(h / h.norm(dim=-1, keepdim=True), net.last.weight * 2)


def by_name(net: Written, x: Tensor) -> Tensor:
    h = F.dropout(input=F.linear(input=x, weight=net.first.weight), p=0.3)
    g = F.linear(h, net.second.weight, bias=net.first.bias)
    return F.linear(input=F.relu(input=F.dropout(g)), weight=net.last.weight)


def of_all(net: Written, x: Tensor) -> Tensor:
    return F.dropout(net.last(F.dropout(net.first(x), 1.0)), 0.0) + F.dropout(x, 0.5)[:, :3]


def alpha(net: Written, x: Tensor) -> Tensor:
    h = F.alpha_dropout(F.selu(net.first(x)), 0.2, training=True)
    return F.dropout(net.last(F.alpha_dropout(net.second(F.dropout(h)), 0.2, training=True)))


FORWARD = [plain, residual, of_inputs, twice, in_place, joined, scaled, by_name, of_all, alpha]
FORWARD += [changed_before]
forwards = pytest.mark.parametrize("forward", FORWARD, ids=lambda forward: forward.__name__)


def masks(seed: int, calls: Sequence[Call]) -> Callable[[Call], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return given_by(calls, (torch.rand(c.shape, generator=generator) >= c.p for c in calls))


@torch.no_grad()
def test_what_is_left_out() -> None:
    """Half of the units, of both sides of a product; what is before dropout once for all draws."""
    rows, inputs, width, draws = 8, 50, 400, 16
    net = nn.Sequential(
        *(nn.Linear(inputs, width), nn.ReLU(), nn.Dropout()),
        *(nn.Linear(width, width), nn.ReLU(), nn.Dropout()),
        nn.Linear(width, 10),
    )
    x = torch.randn(rows, inputs)
    thinned = Thinned((x, *net.parameters()))
    with counted(), metered() as meter:
        for seed in range(draws):
            thinned.run(net, x, masks(seed, [Call("keep", (1, width), 0.5)] * 2))
    expected = 2 * rows * (inputs * width + draws * (width**2 / 4 + width / 2 * 10))
    # a mask keeps 200 of 400 units up to 10, and all products average over 16 draws
    assert meter.operations == pytest.approx(expected, rel=0.06)


@torch.no_grad()
def test_what_is_changed_in_place_before_dropout_is_computed_once() -> None:
    rows, draws = 3, 5
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3)),
        *(nn.ReLU6(inplace=True), nn.Flatten(), nn.Dropout(), nn.Linear(64, 10)),
    ).eval()
    net[6].train()
    x = torch.randn(rows, 3, 8, 8)
    thinned = Thinned((x, *net.parameters(), *net.buffers()))
    with counted(), metered() as meter:
        for _ in range(draws):
            thinned.run(net, x, lambda call: torch.ones(call.shape, dtype=torch.bool))
    trunk = 2 * rows * (36 * 8 * 27 + 16 * 4 * 72)
    assert meter.operations == trunk + 2 * draws * rows * 64 * 10


class Counting(nn.Module):
    """Layers that count their passes, and what they give in a dict, to which the caller adds."""

    def __init__(self, as_dict: bool = False) -> None:
        super().__init__()
        self.layers, self.passes, self.as_dict = nn.Linear(4, WIDTH), 0, as_dict

    def forward(self, x: Tensor) -> Any:
        self.passes += 1
        h = self.layers(x).relu_()
        return {"h": h} if self.as_dict else h


class Headed(nn.Module):
    """A trunk, dropout, and layers that are run under every draw, also those of the trunk."""

    def __init__(self, as_dict: bool) -> None:
        super().__init__()
        self.trunk, self.after = Counting(as_dict), Counting()
        self.dropout, self.last = nn.Dropout(), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        given = self.trunk(x)
        if isinstance(given, dict):
            assert len(given) == 1
            given["more"] = given = given["h"]
        h = self.last(self.dropout(given))
        return self.last(self.after(h)) + self.trunk.layers(h).sum(-1, keepdim=True)


@pytest.mark.parametrize("as_dict", [False, True])
@torch.no_grad()
def test_parts_before_the_first_dropout_run_once(as_dict: bool) -> None:
    net, x, draws = Headed(as_dict), torch.randn(5, 4), 6
    calls = [Call("keep", (1, WIDTH), 0.5)]

    def answers(thinned: Thinned) -> Tensor:
        return torch.stack([thinned.run(net, x, masks(seed, calls)) for seed in range(draws)])

    expected = answers(Thinned((x, *net.parameters())))
    net.trunk.passes = net.after.passes = 0
    thinned = Thinned((x, *net.parameters()))
    with thinned.skipping(net):
        found = answers(thinned)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert (net.trunk.passes, net.after.passes) == (draws if as_dict else 1, draws)
    with pytest.raises(ZeroDivisionError), thinned.skipping(net):
        1 / 0  # noqa: B018
    assert not any("forward" in vars(part) for part in net.modules())


class Attending(nn.Module):
    """Attention between places of a row, then dropout; what is switched off draws nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.off, self.dropout, self.last = nn.Dropout(0.0), nn.Dropout(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1:] == (4, 8)
        h = self.off(self.attention(x, x, x, need_weights=False)[0])
        return self.last(self.dropout(h.sum(1)))


@torch.no_grad()
def test_attention_before_the_first_dropout_is_computed_once() -> None:
    net, x = Attending(), torch.randn(5, 4, 8)
    thinned, cost = Thinned((x, *net.parameters())), []
    for _ in range(3):
        with counted(), metered() as meter:
            thinned.run(net, x, lambda call: torch.ones(call.shape, dtype=torch.bool))
        cost.append(meter.operations)
    head = 2 * 5 * 8 * 3
    assert cost[0] > head and cost[1:] == [head, head]


@forwards
def test_a_teacher_thins_large_layers(
    forward: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = Written(forward), torch.randn(7, 4)
    answers = []
    for threshold in (networks.THINNED, 0):
        monkeypatch.setattr(networks, "THINNED", threshold)
        teacher = as_teacher(net)
        torch.manual_seed(3)
        answers.append(teacher.log_probs(x, 6))
    assert teacher._thinned and teacher.queries == 6 * 7 + 5  # by which its cost was measured
    torch.testing.assert_close(*answers, **ROUNDING)


def test_layers_that_take_their_size_from_the_inputs() -> None:
    lazy = nn.Sequential(nn.LazyLinear(WIDTH), nn.ReLU(), nn.Dropout(), nn.LazyLinear(3))
    assert as_teacher(lazy).probs(torch.randn(7, 4), 5).shape == (5, 7, 3)


@pytest.mark.parametrize("fails", [False, True])
def test_a_network_that_answers_otherwise_or_fails_is_left_whole(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counting(net: Written, x: Tensor) -> Tensor:
        h = net.first(x)
        h.relu_()  # of what stands for a layer after the first
        g = net.second(F.dropout(h))
        F.relu(g, inplace=True)
        return net.last(F.dropout(g))

    net, x = Written(counting), torch.randn(7, 4)
    torch.manual_seed(3)
    expected = as_teacher(net).log_probs(x, 6)
    monkeypatch.setattr(networks, "THINNED", 0)
    if fails:
        monkeypatch.setattr(networks.Thinned, "run", lambda *_: 1 / 0)
    teacher = as_teacher(net)
    torch.manual_seed(3)
    torch.testing.assert_close(teacher.log_probs(x, 6), expected, **ROUNDING)
    assert teacher._thinned is False
