"""Students of networks as users write them: in place, by blocks, in float64, of several inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from input_forms import FORMS, GROUP, NUMBERS, G, S, posterior, quick
from pyro.infer import Predictive
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_opu import as_teacher
from pyro_opu.guides.beginning import NoBeginning, check_digits
from pyro_opu.guides.networks import SET_UP, Standardize
from pyro_opu.guides.operations import Operations
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.guides.recording import record
from pyro_opu.guides.writes import Unrecorded
from pyro_opu.programs.plug_in import PlugIn

pytestmark = pytest.mark.usefixtures("brief")

W = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
STILL: dict[str, Any] = {"num_steps": 1, "learning_rate": 1e-9, "recalibrate": False}


def changed(write: Callable[[Tensor], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """What a hidden layer is after a write into it or into a view."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        h = x @ w
        write(h)
        return h * 1

    return function


def seen_in_views(x: Tensor, w: Tensor) -> Tensor:
    h = x @ w
    before, flat = h * 1, h.view(-1)
    h.relu_()
    return flat.view(-1, 4) + before


def mask_of_zeros(x: Tensor, w: Tensor) -> Tensor:
    mask, bias = torch.zeros(4, 4), torch.zeros(len(x), 4)
    mask[:2, 2:] = -1.0
    bias[:, ::2] = x[:, ::2]
    bias[:, -1].copy_(x[:, 0])
    return x @ (w + mask) + bias


def in_turn(x: Tensor, w: Tensor) -> Tensor:
    h = F.hardtanh_(x @ w, -0.8, 0.9)
    h = F.silu(h, inplace=True)
    h += x
    h = F.hardswish(h, inplace=True)
    return F.elu_(F.hardsigmoid(h, inplace=True) - 0.5)


WRITES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu_": changed(lambda h: h.relu_()),
    "views see it": seen_in_views,
    "a column": changed(lambda h: h[:, 0].fill_(3.0)),
    "columns": changed(lambda h: h[:, 1:].relu_()),
    "a view of a view": changed(lambda h: h.unflatten(1, (2, 2))[:, 1].mul_(2)),
    "transposed": changed(lambda h: h.transpose(0, 1)[0].add_(1)),
    "permuted": changed(lambda h: h.view(-1, 2, 2).permute(0, 2, 1)[:, :, 0].add_(1)),
    "a half": changed(lambda h: h.chunk(2, 1)[1].add_(1)),
    "unbound": changed(lambda h: h.unbind(1)[1].add_(1)),
    "narrow": changed(lambda h: h.narrow(1, 1, 2).zero_()),
    "where it is large": changed(lambda h: h.masked_fill_(h > 0.2, 0.0)),
    "by an index": changed(lambda h: h.__setitem__(h > 0.2, 0.0)),
    "detached": changed(lambda h: h.detach().clamp_(-0.5, 0.5)),
    "masks": mask_of_zeros,
    "activations": in_turn,
    "inputs": lambda x, w: x.relu_() @ w,
}


@pytest.mark.parametrize("name", WRITES)
def test_a_network_that_writes_is_recorded(name: str) -> None:
    function, x = WRITES[name], torch.randn(5, 4)
    plug_in = PlugIn(lambda weights, x: function(x, weights["w"]), [{"w": W}])
    kept = x.clone()
    found = record(plug_in, {"w": W}, x)
    assert torch.equal(x, kept)
    torch.testing.assert_close(found.run(x), function(x.clone(), W))
    assert not any(step.name.split(".")[0].endswith("_") for step in found.steps)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda h: h.expand(2, *h.shape)[0].add_(1), "writes into a view by aten.expand"),
        (lambda h: h.copy_(torch.matmul(h, W, out=torch.empty_like(h))), "calls aten.matmul.out"),
        (lambda h: h.bernoulli_(0.5), "calls aten.bernoulli_"),
    ],
)
def test_a_write_without_another_form_is_named(write: Callable, reason: str) -> None:
    function = changed(write)
    with pytest.raises(Unrecorded, match=reason):
        record(PlugIn(lambda w, x: function(x, w["w"]), [{"w": W}]), {"w": W}, torch.randn(5, 4))


class BasicBlock(nn.Module):
    """Of a ResNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norms[0](self.first(x)))
        out = self.norms[1](self.second(out))
        out += x
        return self.relu(out)


class InvertedResidual(nn.Module):
    """Of a MobileNet, with squeeze and excitation, and stochastic depth."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, wide, 1), nn.BatchNorm2d(wide), nn.Hardswish(inplace=True)),
            *(nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.ReLU6(inplace=True)),
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, wide, 1), nn.Hardsigmoid(inplace=True)
        )
        self.last = nn.Conv2d(wide, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(x)
        h = self.last(h * self.squeeze(h))
        if self.training:
            noise = torch.empty(len(h), 1, 1, 1).bernoulli_(0.8)
            h = h * noise.div_(0.8)
        return x + h


class Block(nn.Module):
    """Of a transformer, in the words of today's libraries, behind an embedding of four parts."""

    def __init__(self) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.randn(1, 1, 8))
        self.embed, self.inner, self.outer = nn.Linear(16, 8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x.reshape(len(x), -1, 16))
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1)
        q, k, v = (
            t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.inner(tokens).chunk(3, -1)
        )
        p = 0.2 if self.training else 0.0
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=p).transpose(1, 2).flatten(2)
        return (tokens + self.outer(found))[:, 0]


def ended(*layers: nn.Module, features: int = 4) -> nn.Module:
    return nn.Sequential(*layers, nn.Dropout(0.3, inplace=True), nn.Linear(features, 3))


POOL = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": lambda: ended(
        nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True)
    ),
    "ResNet": lambda: ended(nn.Conv2d(1, 4, 3), BasicBlock(4), *POOL),
    "MobileNet": lambda: ended(nn.Conv2d(1, 4, 3), InvertedResidual(4), *POOL),
    "transformer": lambda: ended(Block(), features=8),
    "encoder layer": lambda: ended(
        nn.Flatten(2),
        nn.TransformerEncoderLayer(64, 2, 8, batch_first=True),
        nn.Flatten(),
        features=64,
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_student_begins_at_the_network(name: str) -> None:
    torch.manual_seed(0)
    network, x = NETWORKS[name](), torch.randn(40, 1, 8, 8)
    with torch.no_grad():
        for _ in range(3):
            network(x)  # so that statistics are not the first ones
    network.eval()
    fast = quick(network, x, num_samples=5, num_draws=8, **STILL)
    assert fast.report["start"] in ("network", "moments")
    assert isinstance(fast.guide.trunk, NetworkTrunk)
    torch.testing.assert_close(fast.guide.trunk.shaped(x), network[:-2](x), rtol=0, atol=1e-5)


def test_what_is_not_read_is_said_and_warned_of() -> None:
    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sort(-1).values

    network = nn.Sequential(nn.Linear(2, 8), Sorted(), nn.Dropout(), nn.Linear(8, 3))
    with pytest.warns(UserWarning, match="begins from scratch, .* it calls aten.sort"):
        fast = quick(network, NUMBERS, num_samples=5, num_draws=8)
    assert fast.report["start"] == "scratch"
    assert fast.report["start_reason"] == "its network cannot be read: it calls aten.sort.default"
    named = quick(network, NUMBERS, guide="network", num_samples=5, num_draws=8)
    assert (named.report["start"], named.report["start_reason"]) == ("scratch", "`guide` was given")


class Largest:
    """Rows of the largest batch that modules of some kinds meet."""

    def __init__(self, *kinds: type[nn.Module]) -> None:
        self.kinds, self.rows = kinds, 0

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, self.kinds) and isinstance(args[0], Tensor):
            self.rows = max(self.rows, len(args[0]))


@pytest.mark.parametrize("networks", [1, 3])
def test_no_network_is_run_at_all_rows(networks: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(SET_UP + 300, 1, 12, 12)

    def made() -> nn.Module:
        return ended(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), *POOL).eval()

    source = made() if networks == 1 else [made() for _ in range(networks)]
    largest = Largest(Operations)
    handle = nn.modules.module.register_module_forward_pre_hook(largest)
    try:
        fast = quick(source, x, num_steps=2, num_draws=2, num_samples=5)
    finally:
        handle.remove()
    assert fast.report["start"] in ("network", "moments")
    assert 0 < largest.rows <= SET_UP


def test_scales_of_few_rows_are_those_of_all() -> None:
    """2,048 rows of a normal law give a deviation to 1.6 %."""
    x = torch.randn(9000, 1, generator=torch.Generator().manual_seed(0))
    source = [nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(3)]
    fast = quick(as_teacher(source, output="classes"), x, num_samples=5, **STILL)
    features = fast.guide.trunk.shaped(x)
    whole = Standardize((4,))
    whole.fit(features.detach(), (0,))
    torch.testing.assert_close(fast.guide.trunk.standardize.scale, whole.scale, rtol=0.1, atol=0)


# Several inputs in float64 -----------------------------------------------------------------------

STAMPS = 1.7e12 + 1e4 * torch.randn(len(NUMBERS), dtype=torch.float64)


def stamped(x: Tensor, time: Tensor, group: Tensor, y: Tensor | None = None) -> None:
    """A slope of time in milliseconds, which float32 does not tell apart."""
    kind = x.dtype
    with pyro.plate("groups", G):
        alpha = pyro.sample("alpha", dist.Normal(torch.zeros((), dtype=kind), 1.0))
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2, dtype=kind), 1.0).to_event(1))
    trend = pyro.sample("trend", dist.Normal(torch.zeros((), dtype=kind), 1.0))
    with pyro.plate("data", len(x)):
        logits = alpha[group] + x @ beta + trend * ((time - 1.7e12) / 1e4)
        pyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)


def draws(kind: torch.dtype) -> dict[str, Tensor]:
    held = posterior().posterior_samples
    trend = 1.0 + 0.3 * torch.randn(S, generator=torch.Generator().manual_seed(0))
    return {name: value.to(kind) for name, value in (held | {"trend": trend}).items()}


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["dict", "tuple", "stamps"])
def test_moments_are_told_in_either_precision(form: str, kind: torch.dtype) -> None:
    held = draws(kind)
    inputs: Any = {"x": NUMBERS.to(kind), "group": GROUP}
    source = Predictive(posterior().model, {name: held[name] for name in ("alpha", "beta")})
    if form == "tuple":
        inputs = tuple(inputs.values())
    if form == "stamps":
        inputs, source = {**inputs, "time": STAMPS}, Predictive(stamped, held)
    fast = quick(source, inputs, **STILL)
    assert fast.report["start"] == "moments"
    assert fast.report["history"][0]["kl_ratio"] < 1.2  # 30 draws of a normal logit


def test_a_network_in_float64_is_read_unless_digits_are_lost() -> None:
    def network(columns: int) -> nn.Module:
        layers = nn.Linear(columns, 8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 3)
        with torch.no_grad():
            layers[0].weight[:, 2:] *= 1e-12  # or it is flat at such numbers, and affine
        return nn.Sequential(*layers).double()

    x = NUMBERS.double()
    fast = quick(network(2), x, num_samples=5, **STILL)
    assert fast.report["start"] in ("network", "moments")
    with pytest.warns(UserWarning, match="too few digits for column 2 of x; subtract its mean"):
        fast = quick(network(3), torch.cat([x, STAMPS[:, None]], 1), num_samples=5, **STILL)
    assert fast.report["start"] == "scratch"


@pytest.mark.parametrize(
    ("column", "index", "fits"),
    [
        (torch.randn(50).double(), False, True),
        (2020 + torch.rand(50).double() * 5, False, True),  # years
        (1.7e9 + 1e7 * torch.randn(50).double(), False, True),  # seconds of a year
        (1.7e9 + 1e3 * torch.randn(50).double(), False, False),  # of an hour
        (STAMPS, False, False),
        (torch.full((50,), 1e12 + 0.1).double(), False, True),
        (torch.arange(50).double() + 2**23, True, True),
        (torch.arange(50).double() + 2**24, True, False),
        (torch.arange(50).double() * 2**20 + 2**24 + 1, True, False),
    ],
)
def test_digits_after_centring_decide(column: Tensor, index: bool, fits: bool) -> None:
    x = torch.stack([torch.zeros(len(column)).double(), column], 1)
    if fits:
        check_digits(x, [1] if index else [])
    else:
        with pytest.raises(NoBeginning, match="column 1"):
            check_digits(x, [1] if index else [])


@pytest.mark.slow
@pytest.mark.parametrize("guide", [None, "network"])
def test_a_student_in_float64_is_saved_and_exported(guide: str | None, tmp_path: Any) -> None:
    fast = quick(Predictive(stamped, draws(torch.float64)), INPUTS, guide=guide, **STILL)
    mean = fast.dirichlet(INPUTS).mean
    fast.save(tmp_path / "student")
    assert torch.equal(type(fast).load(tmp_path / "student").dirichlet(INPUTS).mean, mean)
    fast.export(tmp_path / "student.pt2")
    program = torch.export.load(tmp_path / "student.pt2").module()
    torch.testing.assert_close(program(*INPUTS.values())["mean"], mean, rtol=1e-4, atol=1e-5)


INPUTS = {"x": NUMBERS.double(), "group": GROUP, "time": STAMPS}
assert set(FORMS["dict"]) < set(INPUTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "mobilenet_v3_small",
        "shufflenet_v2_x0_5",
        "densenet121",
        "swin_t",
    ],
)
def test_networks_of_torchvision_are_recorded(name: str) -> None:
    models = pytest.importorskip("torchvision").models
    torch.manual_seed(0)
    network, x = getattr(models, name)(num_classes=4).eval(), torch.randn(3, 3, 64, 64)
    weights = dict(network.named_parameters())

    def log_probs(given: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(network, dict(given), (x,)).log_softmax(-1)

    found = record(PlugIn(log_probs, [weights]), weights, x)
    torch.testing.assert_close(found.run(x), log_probs(weights, x), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_network_of_half_precision_is_not_read_and_says_so(dtype: torch.dtype) -> None:
    plug_in = PlugIn(lambda given, x: (x @ given["w"]).log_softmax(-1), [{"w": W.to(dtype)}])
    with pytest.raises(Unrecorded, match=rf"{dtype}; pass source.float\(\)"):
        record(plug_in, plug_in.candidates[0], torch.randn(3, 4).to(dtype))
