"""Recorded programs give what ``vmap`` gives, at any number of draws and rows, or are refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from posteriors import SOURCES, X, model
from pyro import poutine
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoDelta
from torch import Tensor, nn

from pyro_opu import batched
from pyro_opu.models.gaussian_process import gaussian_process
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import bayesian_network
from pyro_opu.programs.bound import Bound, _cuts, _split
from pyro_opu.programs.pace import Pace
from pyro_opu.programs.recorded import Recorded, Size
from pyro_opu.programs.recorder import NotRecorded
from pyro_opu.rng import seeded

Draws = dict[str, Tensor]
S, D = 9, 3
WIDE = torch.randn(D, 200)
LSTM = nn.LSTM(1, 4, batch_first=True).requires_grad_(False)
DRAWS = {"w": torch.randn(S, D), "s": torch.rand(S)}


def affine(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    w = draws["w"] * draws["s"].exp()[:, None]
    return {"z": torch.einsum("nd,sd->sn", inputs[0], w)}


def centred(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    x = inputs[0] - inputs[0].mean(0)  # rows depend on each other
    return {"z": torch.einsum("nd,sd->sn", x, draws["w"]), "w": draws["w"]}


def noisy(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    z = affine(draws, inputs)["z"]
    return {"y": z + torch.randn_like(z), "z": z}


def in_place(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    z = affine(draws, inputs)["z"].clone()
    z[:, 0] += 1
    z.mul_(2)
    return {"z": z}


def flat(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    z = affine(draws, inputs)["z"]
    return {"flat": z.reshape(-1), "twice": z.repeat(1, 2), "rows": z.new_full((len(z),), 2.0)}


def blank(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    """Uniform numbers are drawn, beside memory that is never written and memory that is filled."""
    ones = torch.empty_like(draws["s"]).fill_(1.0)
    one, each = torch.empty(()), draws["s"].new_empty(len(draws["s"]))
    noise = torch.rand_like(one.expand(len(ones))) + torch.rand_like(each)
    return {"z": affine(draws, inputs)["z"] + ones[:, None], "u": noise}


def across(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    """Draws lie side by side for a while."""
    flat = draws["w"].T.reshape(-1)
    for _ in range(5):
        flat = flat.sin()
    return {"z": (flat + inputs[0].sum()).reshape(D, -1).T}


def wide(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    """What is too wide to be kept is asked for twice: by what is kept, and with the inputs."""
    many = (draws["w"] @ WIDE).exp()
    return {"z": many.sum(-1)[:, None] * inputs[0].sum(-1), "y": many[:, None] * inputs[0][:, :1]}


def recurrent(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    """torch's kernel reads the numbers of a transposed copy as they lie in memory."""
    x = LSTM(inputs[0][:, :, None])[0].sum(-1)
    return {"z": torch.einsum("nd,sd->sn", x, draws["w"])}


PROGRAMS: dict[str, Callable[[Draws, Sequence[Tensor]], Draws]] = {
    each.__name__: each
    for each in (affine, centred, noisy, in_place, flat, across, wide, recurrent)
}


def same(one: Draws, other: Draws) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name])


@pytest.mark.parametrize("rows", [1, 2, 7, 30])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_any_rows_and_draws(program: Callable[..., Draws], rows: int) -> None:
    recorded = Recorded(program, DRAWS, [torch.randn(5, D)])
    x = torch.randn(rows, D)
    for draws in (DRAWS, {name: value[:2] for name, value in DRAWS.items()}):
        with seeded(0):
            found = recorded(draws, [x])
        with seeded(0):
            same(found, program(draws, [x]))


def test_of_no_rows() -> None:
    assert Recorded(affine, DRAWS, [X[:5, :D]])(DRAWS, [torch.randn(0, D)])["z"].shape == (S, 0)


def branches(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    z = affine(draws, inputs)["z"]
    return {"z": z if len(inputs[0]) < 9 else -z}


def loops(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    total = torch.zeros(len(draws["w"]))
    for row in inputs[0]:
        total = total + draws["w"] @ row
    return {"total": total}


def scaled(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    return {"z": affine(draws, inputs)["z"] * (100.0 / len(inputs[0]))}


def listed(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    return {"z": affine(draws, inputs)["z"] + torch.tensor(list(range(len(inputs[0]))))}


def halved(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
    return {"z": affine(draws, inputs)["z"][:, : len(inputs[0]) // 2]}


SCALE = nn.Parameter(torch.tensor(2.0))


def by_input(x: Tensor) -> float:
    return 1.0 if x.sum() > 0 else 2.0


def by_parameter(x: Tensor) -> float:
    return float(SCALE.exp())


def by_random_number(x: Tensor) -> float:
    return float(torch.rand(()))


def by_what_is_written(x: Tensor) -> float:
    number = torch.tensor([1.0, 2.0])
    number[0].copy_(x.sum())
    return float(number.sum())


def by_constant(x: Tensor) -> float:
    return float(torch.tensor([1.0, 2.0]).sum())


@pytest.mark.parametrize("program", [branches, loops, scaled, listed, halved])
def test_what_depends_on_the_rows_otherwise_is_recorded_at_these_alone(
    program: Callable[..., Draws],
) -> None:
    x = torch.randn(5, D)
    with pytest.raises(NotRecorded):
        Recorded(program, DRAWS, [x])
    recorded = Recorded(program, DRAWS, [x], free=False)
    other = torch.randn(5, D)
    same(recorded(DRAWS, [other]), program(DRAWS, [other]))


def times(factor: Callable[[Tensor], float]) -> Callable[[Draws, Sequence[Tensor]], Draws]:
    return lambda draws, inputs: {"z": affine(draws, inputs)["z"] * factor(inputs[0])}


@pytest.mark.parametrize("factor", [by_input, by_parameter, by_random_number, by_what_is_written])
def test_a_number_that_may_differ_from_call_to_call_is_not_recorded(
    factor: Callable[[Tensor], float],
) -> None:
    with pytest.raises(NotRecorded, match="reads a number out of a tensor"):
        Recorded(times(factor), DRAWS, [X[:5, :D]])


OUT_OF_TORCH: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda x: torch.from_numpy(x.numpy() ** 2),
    "array": lambda x: float(np.asarray(x).sum()),
    "list": lambda x: torch.tensor(x.tolist()),
    "dlpack": torch.from_dlpack,
    "parameter": nn.Parameter,
}


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("way", OUT_OF_TORCH.values(), ids=OUT_OF_TORCH)
def test_what_goes_out_of_torch_and_back_is_no_constant(
    way: Callable[[Tensor], Any], rows: int, free: bool
) -> None:
    def program(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
        return {"z": affine(draws, [inputs[0] * way(inputs[0])])["z"]}

    with pytest.raises(NotRecorded):
        Recorded(program, DRAWS, [torch.randn(rows, D)], free=free)


def test_a_constant_that_follows_the_values_is_refused() -> None:
    """By a way that nobody has thought of, here through a list outside."""
    seen: list[Tensor] = []

    def program(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
        seen.append(inputs[0].clone())
        with torch.utils._python_dispatch._disable_current_modes():
            hidden = seen[-1] * 2
        return {"z": affine(draws, [inputs[0] + hidden])["z"]}

    with pytest.raises(NotRecorded, match="a constant that depends"):
        Recorded(program, DRAWS, [torch.randn(5, D)], free=False)


def test_arrays_of_constants_are_recorded() -> None:
    program = times(lambda x: float(np.asarray(WIDE).mean()))
    x = torch.randn(5, D)
    same(Recorded(program, DRAWS, [x])(DRAWS, [X[:, :D]]), program(DRAWS, [X[:, :D]]))


def test_a_number_of_constants_is_recorded() -> None:
    program = times(by_constant)
    same(Recorded(program, DRAWS, [X[:5, :D]])(DRAWS, [X[:, :D]]), program(DRAWS, [X[:, :D]]))


@pytest.mark.parametrize("free", [True, False])
def test_what_autocast_casts_follows_the_parameters(free: bool) -> None:
    weight = nn.Parameter(torch.randn(D, D))

    def program(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
        return {"z": draws["w"] @ weight @ inputs[0].T}

    with torch.autocast("cpu", torch.bfloat16):
        x = X[:5, :D]
        same(Recorded(program, DRAWS, [x], free=free)(DRAWS, [x]), program(DRAWS, [x]))
        recorded = Recorded(program, DRAWS, [x], free=free)
        with torch.no_grad():
            weight.mul_(2)
        torch.clear_autocast_cache()
        same(recorded(DRAWS, [x]), program(DRAWS, [x]))


class TestBound:
    @pytest.mark.parametrize("program", [affine, centred, in_place])
    def test_blocks_are_the_whole(self, program: Callable[..., Draws]) -> None:
        x = torch.randn(6, D)
        bound = Bound(Recorded(program, DRAWS, [x]), DRAWS)
        blocks = [bound([x], slice(start, start + 4)) for start in (0, 4, 8)]
        whole = {name: torch.cat([each[name] for each in blocks]) for name in blocks[0]}
        same(whole, program(DRAWS, [x]))

    def test_computes_once_what_follows_from_the_draws(self) -> None:
        x = torch.randn(6, D)
        bound = Bound(Recorded(affine, DRAWS, [x]), DRAWS)
        targets = {str(node.target) for node in bound.late.graph.nodes}
        assert not any("exp.default" in each for each in targets)
        assert any("exp.default" in str(n.target) for n in bound.recorded.program.graph.nodes)

    def test_fresh_draws_of_every_call(self) -> None:
        x = torch.randn(6, D)
        bound = Bound(Recorded(affine, DRAWS, [x]), DRAWS, fresh=True)
        other = {"w": torch.randn(4, D), "s": torch.rand(4)}
        same(bound.at([x])(slice(2, 6), other), affine(other, [x]))

    def test_a_trunk_runs_once_under_a_guide(self) -> None:
        def latent() -> Tensor:
            return pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))

        def source(x: Tensor) -> None:
            pyro.deterministic("z", x.tanh() @ latent())

        exact = batched(Predictive(source, guide=lambda x: latent(), num_samples=S), chunk_size=1)
        x = torch.randn(6, D)
        found = exact(x)
        torch.testing.assert_close(found["z"], found["w"] @ x.tanh().T)
        (programs,) = exact._programs._kept.values()
        trunk, late = programs._bound.trunk.graph, programs._bound.late.graph
        assert "aten.tanh.default" in {str(node.target) for node in trunk.nodes}
        assert "aten.tanh.default" not in {str(node.target) for node in late.nodes}

    def test_a_guide_whose_samples_are_looked_at_is_recorded(self) -> None:
        def latent() -> Tensor:
            return pyro.sample("keep", dist.Bernoulli(torch.full((D,), 0.8)).to_event(1))

        def source(x: Tensor) -> None:
            pyro.sample("obs", dist.Bernoulli(torch.sigmoid(x @ latent())).to_event(1))

        exact = batched(Predictive(source, guide=lambda x: latent(), num_samples=S))
        exact(torch.randn(6, D))
        assert len(exact._programs._kept) == 1

    @pytest.mark.parametrize("program", [blank, across, wide, noisy])
    def test_two_splits_are_enough(
        self, program: Callable[..., Draws], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        splits: list[Collection[str]] = []

        def counted(*args: Any) -> Any:
            splits.append(args[-1])
            return _split(*args)

        monkeypatch.setattr("pyro_opu.programs.bound._split", counted)
        x = torch.randn(6, D)
        bound = Bound(Recorded(program, DRAWS, [x]), DRAWS)
        assert len(splits) == (2 if program is across else 1)
        blocks = []
        for start in (0, 4, 8):
            with seeded(0):
                blocks.append(bound([x], slice(start, start + 4)))
            part = {name: value[start : start + 4] for name, value in DRAWS.items()}
            with seeded(0):
                same(blocks[-1], program(part, [x]))

    def test_keeps_nothing_that_lies_in_memory_by_chance(self) -> None:
        kept = _cuts(Recorded(blank, DRAWS, [torch.randn(6, D)]).program, DRAWS)
        assert not any(name.startswith(("empty", "new_empty", "expand")) for name in kept)
        assert any(name.startswith("fill") for name in kept)

    def test_answers_are_nobody_elses(self) -> None:
        """Whoever writes into them changes no draw and no later answer."""
        x = torch.randn(6, D)
        bound = Bound(Recorded(centred, DRAWS, [x]), DRAWS)
        before = {name: value.clone() for name, value in DRAWS.items()}
        first = bound([x])
        kept = {name: value.clone() for name, value in first.items()}
        for value in first.values():
            value.zero_()
        same(bound([x]), kept)
        same(DRAWS, before)


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ({(3, 7): 4, (3, 11): 4, (5, 7): 4, (5, 11): 4}, Size(4, 0, 0, 0)),
        ({(3, 7): 22, (3, 11): 34, (5, 7): 36, (5, 11): 56}, Size(1, 0, 0, 1)),
        ({(3, 7): 17, (3, 11): 25, (5, 7): 19, (5, 11): 27}, Size(0, 1, 2, 0)),
        ({(3, 0): 6, (5, 0): 10}, Size(0, 2, 0, 0)),
    ],
)
def test_a_size_goes_through_the_corners(values: dict[tuple[int, int], int], size: Size) -> None:
    assert Size.through(values) == size
    assert all(size.at(*corner) == value for corner, value in values.items())


def settled(
    pace: Pace, seconds: Callable[[int, bool], float], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, bool]]:
    """Ways in which blocks are done, by a clock that the work moves."""
    now, done = [0.0], []

    def work(original: bool) -> Callable[[slice], Draws]:
        def run(block: slice) -> Draws:
            done.append((block.stop - block.start, original))
            now[0] += seconds(*done[-1])
            return {}

        return run

    monkeypatch.setattr("pyro_opu.programs.pace.time.perf_counter", lambda: now[0])
    for _ in range(40):
        blocks = [block for block, _ in pace.blocks(work(False), work(True))]
        assert [block.start for block in blocks[1:]] == [block.stop for block in blocks[:-1]]
        assert (blocks[0].start, blocks[-1].stop) == (0, pace._draws)
    return done


class TestPace:
    @pytest.mark.parametrize("best", [8, 32, 100])
    def test_the_quickest_is_kept(self, best: int, monkeypatch: pytest.MonkeyPatch) -> None:
        pace = Pace.of(100, 2**12, 2**21, timed=True, original=100)
        done = settled(pace, lambda size, _: 1e-6 * size * (1 + (size != best)), monkeypatch)
        assert pace.size == best and not any(original for _, original in done)

    @pytest.mark.parametrize("quicker", [True, False])
    def test_what_takes_long_is_never_slower_than_the_original(
        self, quicker: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pace = Pace.of(100, 2**12, 2**21, timed=True, original=100)
        done = settled(
            pace, lambda size, original: size * (1 + original * (1 - 2 * quicker) / 2), monkeypatch
        )
        assert pace.by_original == quicker
        assert quicker or 3 <= [original for _, original in done].count(True) <= 12

    def test_what_is_random_does_not_depend_on_the_clock(self) -> None:
        paces = [Pace.of(100, 2**12, 2**21, timed=False, original=100) for _ in range(3)]
        assert len({pace.size for pace in paces}) == 1 and not any(pace._left for pace in paces)

    def test_no_block_is_larger_than_allowed(self) -> None:
        pace = Pace.of(100, 1000, 5000, timed=True, original=100)
        assert max(pace.size, *(size for size, _ in pace._left)) <= 5


class TestModels:
    """Of ``batched``: what a recorded form of call follows, and what it does not."""

    @pytest.mark.parametrize(
        "source",
        [
            model,
            logistic_regression(2),
            logistic_regression(3),
            bayesian_network(nn.Linear(X.shape[1], 3)),
            gaussian_process(X[:4], 2, joint_rows=4),
        ],
        ids=["written here", "two classes", "three classes", "network", "process"],
    )
    def test_no_model_runs_after_the_first_call(self, source: Callable[[Tensor], Any]) -> None:
        runs: list[int] = []

        def counted(x: Tensor) -> None:
            runs.append(len(x))
            source(x)

        exact = batched(Predictive(counted, num_samples=S, return_sites=("obs",)))
        exact(X)
        first = len(runs)
        exact(X + 1)
        assert len(runs) == first
        exact(X[:5])  # another number of rows is compared once
        compared = len(runs)
        exact(X[:5] * 2)
        assert len(runs) == compared <= first + 2

    def test_a_guide_of_points_is_recorded(self) -> None:
        guide = AutoDelta(poutine.block(model, hide=["obs"]))
        guide(X)
        exact = batched(Predictive(model, guide=guide, num_samples=S))
        exact(X)
        assert not exact._never

    @pytest.mark.parametrize("name", ["samples", "guide", "prior"])
    def test_the_same_seed_gives_the_same_draws(self, name: str) -> None:
        exact = batched(SOURCES[name][0]())
        exact(X)
        with seeded(1):
            one = exact(X)
        with seeded(1):
            same(exact(X), one)

    def test_parameters_that_are_replaced(self) -> None:
        def source(x: Tensor) -> None:
            scale = pyro.param("scale", torch.tensor(1.0))
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            pyro.deterministic("z", scale * (x @ w))

        predictive = Predictive(source, {"w": torch.randn(S, D)}, return_sites=("z",))
        exact, x = batched(predictive), torch.randn(6, D)
        same(exact(x), predictive(x))
        with torch.no_grad():
            pyro.get_param_store()["scale"].mul_(3)
        same(exact(x), predictive(x))
        pyro.clear_param_store()
        pyro.param("scale", torch.tensor(5.0))
        same(exact(x), predictive(x))

    @pytest.mark.parametrize(
        "change",
        [
            lambda net, samples: setattr(net[0], "weight", nn.Parameter(torch.randn(D, D))),
            lambda net, samples: setattr(net[1], "running_mean", torch.ones(D)),
            lambda net, samples: net[1].running_mean.add_(1),
            lambda net, samples: setattr(net[0].weight, "data", torch.randn(D, D)),
            lambda net, samples: net[2].train(),
            lambda net, samples: samples["w"].mul_(2),
        ],
        ids=["parameter", "buffer", "written", "data", "mode", "draws"],
    )
    def test_what_a_model_reads_may_change(self, change: Callable[..., object]) -> None:
        class Mode(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x if self.training else x**3

        net = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), Mode()).eval()

        def source(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            pyro.deterministic("z", net(x) @ (2 * w))

        samples = {"w": torch.randn(S, D)}
        predictive = Predictive(source, samples, return_sites=("z",))
        exact, x = batched(predictive), torch.randn(6, D)
        same(exact(x), predictive(x))
        with torch.no_grad():
            change(net, samples)
        same(exact(x), predictive(x))

    def test_modules_that_change_their_mode(self) -> None:
        class Source(nn.Module):
            def forward(self, x: Tensor) -> None:
                w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
                pyro.deterministic("z", (2.0 if self.training else 1.0) * (x @ w))

        source = Source()
        predictive = Predictive(source, {"w": torch.randn(S, D)}, return_sites=("z",))
        exact, x = batched(predictive), torch.randn(6, D)
        same(exact(x), predictive(x))
        source.eval()
        same(exact(x), predictive(x))

    def test_a_branch_on_the_rows(self) -> None:
        """Taken at another number than those recorded; compared, and recorded anew."""

        def source(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            pyro.deterministic("z", (x @ w) * (-1 if len(x) > 20 else 1))

        predictive = Predictive(source, {"w": torch.randn(S, D)}, return_sites=("z",))
        exact = batched(predictive)
        for rows in (6, 30, 6, 31):
            x = torch.randn(rows, D)
            same(exact(x), predictive(x))

    def test_what_cannot_be_sampled_raises_as_in_the_loop(self) -> None:
        def source(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(torch.sigmoid(x @ w)))

        exact, x = batched(Predictive(source, {"w": torch.randn(S, D)})), torch.randn(6, D)
        exact(x)
        x[2] = torch.nan
        with pytest.raises(ValueError, match="Expected parameter probs"):
            exact(x)


COUNTED: dict[str, Callable[[Tensor], int]] = {
    "unique": lambda group: len(group.unique()),
    "bincount": lambda group: len(group.bincount()),
    "nonzero": lambda group: len(group.nonzero()),
    "mask": lambda group: len(group[group > 0]),
}


@pytest.mark.parametrize("name", COUNTED)
def test_how_many_are_found_is_no_constant(name: str) -> None:
    def counted(group: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.deterministic("z", w * COUNTED[name](group))

    answer = batched(Predictive(counted, {"w": torch.ones(S)}))
    one, other = torch.tensor([0, 1, 2, 0, 1, 2, 1]), torch.tensor([0, 1, 1, 0, 0, 1, 0])
    for group in (one, other, one):
        assert (answer(group)["z"] == COUNTED[name](group)).all()


def test_parts_of_modules_are_watched() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            pyro.deterministic("z", self.net(x * w))

    def change(part: int, module: nn.Module) -> None:
        net[part] = module

    predictive, x = Predictive(Model(), {"w": torch.randn(S)}), torch.randn(7, 2)
    answer = batched(predictive)
    changes: list[Callable[[], object]] = [
        lambda: change(1, nn.Tanh()),
        lambda: change(0, nn.Linear(2, 3)),
        lambda: net.append(nn.Sigmoid()),
        lambda: net.register_forward_hook(lambda module, given, found: found + 1),
        lambda: setattr(net[0].weight, "data", torch.ones(3, 2)),
    ]
    for make in changes:
        before = answer(x)["z"]
        make()
        found = answer(x)["z"]
        torch.testing.assert_close(found, predictive(x)["z"])
        assert not torch.allclose(found, before)
