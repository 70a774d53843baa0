"""CUDA graphs without a GPU: stand-ins with the state that torch's graph and generator have."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from taught import as_network
from torch import Tensor, nn

from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.export import capture as module
from pyro_opu.export.capture import GraphPass
from pyro_opu.guides import PredictiveGuide
from pyro_opu.guides.normal import GaussianGuide
from pyro_opu.guides.plug_in import MANY, NetworkTrunk
from pyro_opu.parts import Outcome
from pyro_opu.predictive import OnePassPredictive

D, C, B = 6, 3, 4


class Machine:
    """The parts of CUDA's state that a capture changes, as in torch's C++.

    ``CUDAGeneratorState``: the start of a capture sets ``capturing``, only the end of one that
    succeeds clears it, and outside of a capture an increment raises while it is set.
    ``CUDACachingAllocator``: a pool is under way from the start of a capture to its end, and
    ``empty_cache`` raises while one is.
    """

    def __init__(self) -> None:
        self.stream = "default"
        self.in_graph = self.invalid = False  # what the driver knows of the stream
        self.capturing, self.offset, self.in_graph_offset = False, 0, 0
        self.pools: list[object] = []

    def __deepcopy__(self, memo: object) -> Machine:
        return self  # a guide is copied, and the machine is one

    def random(self) -> None:
        """What every random kernel does first."""
        if self.in_graph:
            self.in_graph_offset += 4
            return
        if self.capturing:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        self.offset += 4

    def wait(self) -> None:
        """The host waits for the device, as ``.item()`` does."""
        if self.in_graph:
            self.invalid = True
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

    def empty_cache(self) -> None:
        if self.pools:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")


class Graph:
    """Stands for ``torch.cuda.CUDAGraph``: knows addresses, keeps no tensor alive."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.replays = machine, 0

    def capture_begin(self, pool: object = None) -> None:
        self.pool = pool or object()
        self.machine.pools.append(self.pool)
        self.machine.capturing = self.machine.in_graph = True

    def capture_end(self) -> None:
        self.machine.in_graph = False
        if self.machine.invalid:
            self.machine.invalid = False
            raise RuntimeError("operation failed due to a previous error during capture")
        self.machine.pools.remove(self.pool)
        self.machine.capturing = False

    def replay(self) -> None:
        self.replays += 1

    def reset(self) -> None:
        """Of a capture that failed torch's own mends nothing."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A GPU for :func:`capture`: tensors claim to lie on one; ``torch.cuda`` has stand-ins."""
    found = Machine()

    class Stream:
        def __init__(self) -> None:
            self.name = "aside"

        def wait_stream(self, other: Any) -> None: ...

    @contextmanager
    def stream(used: Stream) -> Iterator[None]:
        before, found.stream = found.stream, used.name
        try:
            yield
        finally:
            found.stream = before

    class graph:
        """As in torch/cuda/graphs.py: the stream is put back only after a good end."""

        def __init__(
            self,
            graph: Graph,
            pool: Any = None,
            stream: Any = None,
            capture_error_mode: str = "global",
        ) -> None:
            self.graph, self.pool, self.inner = graph, pool, stream or Stream()

        def __enter__(self) -> None:
            found.empty_cache()
            self.before, found.stream = found.stream, self.inner.name
            self.graph.capture_begin(self.pool)

        def __exit__(self, *args: object) -> None:
            self.graph.capture_end()
            found.stream = self.before

    def end(device: int, pool: object) -> None:
        if pool not in found.pools:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        found.pools.remove(pool)

    def set_state(state: int, device: Any) -> None:
        found.offset = state

    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch, "compile", lambda forward, **options: forward)
    stood_in: dict[str, Any] = {
        "device": lambda device: nullcontext(),
        "device_of": lambda tensor: nullcontext(),
        "Stream": Stream,
        "current_stream": Stream,
        "current_device": lambda: 0,
        "stream": stream,
        "synchronize": lambda: None,
        "graph": graph,
        "CUDAGraph": lambda: Graph(found),
        "graph_pool_handle": object,
        "Event": object,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "get_rng_state_all": lambda: [found.offset],
        "set_rng_state": set_state,
    }
    for name, value in stood_in.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda.memory, "_cuda_endAllocateToPool", end)
    monkeypatch.setattr(torch.cuda.memory, "_cuda_releasePool", lambda device, pool: None)
    return found


def classifier() -> OnePassPredictive:
    guide = PredictiveGuide.for_inputs(torch.randn(20, D), C, hidden=(16,))
    return OnePassPredictive(guide.requires_grad_(False).eval(), (D,), C)


def regressor() -> OnePassPredictive:
    x = torch.randn(20, D)
    guide = GaussianGuide.for_inputs(x, x[:, 0], hidden=(16,))
    return OnePassPredictive(guide.requires_grad_(False).eval(), (D,), Outcome.of_real())


class Guide(nn.Module):
    """A guide that does something to the machine in every pass."""

    def __init__(self, *does: Callable[[], None]) -> None:
        super().__init__()
        self.does = does

    def forward(self, x: Tensor) -> PredictiveDirichlet:
        for act in self.does:
            act()
        return PredictiveDirichlet(x.log_softmax(-1), x[:, 0])


class TestCompiled:
    """What is recorded is the compiled pass, for the rows of the graph."""

    def test_it_is_compiled_first(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        done: list[str] = []

        def compiler(forward: Callable, *, dynamic: bool, **options: object) -> Callable:
            assert not dynamic

            def run(x: Tensor) -> tuple[Tensor, ...]:
                assert x.shape == (B, D)
                done.append("in the graph" if machine.in_graph else "before")
                return forward(x)

            return run

        monkeypatch.setattr(torch, "compile", compiler)
        captured = classifier().capture(torch.randn(B, D))
        assert done == [*["before"] * 4, "in the graph"] and not captured.reason

    def test_a_network_is_told_the_rows(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[int] = []

        def through(self: NetworkTrunk, *args: Tensor) -> Tensor:
            told.append(self.rows)
            return original(self, *args)

        original = NetworkTrunk.through
        monkeypatch.setattr(NetworkTrunk, "through", through)
        guide = as_network(torch.randn(2 * MANY, D), C)
        fast = OnePassPredictive(guide.requires_grad_(False).eval(), (D,), C)
        assert fast.capture(torch.randn(B, D)).kind == "cuda graph"
        assert told[0] == 0 and set(told[1:]) == {B}  # first its answer is checked, uncaptured
        assert fast.guide.trunk.rows == 0

    def test_without_a_compiler(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(forward: Callable, **options: object) -> Callable:
            raise RuntimeError("no Triton\nlook in the manual")

        monkeypatch.setattr(torch, "compile", broken)
        captured = classifier().capture(torch.randn(B, D))
        assert repr(captured) == ("Captured(cuda graph, 4 rows at a time: RuntimeError: no Triton)")


class TestOwner:
    """A graph reads addresses: whoever can replay it must keep alive what lies there."""

    @pytest.mark.parametrize(
        ("make", "precision"),
        [(classifier, None), (classifier, torch.bfloat16), (regressor, None)],
    )
    def test_the_copied_weights_live_as_long_as_what_is_captured(
        self,
        machine: Machine,
        monkeypatch: pytest.MonkeyPatch,
        make: Callable[[], OnePassPredictive],
        precision: torch.dtype | None,
    ) -> None:
        read: list[weakref.ref] = []
        snapshot = module._snapshot

        def watched(*args: Any) -> nn.Module:
            copied = snapshot(*args)
            parts = (*copied.parameters(), *copied.buffers())
            read.extend(weakref.ref(part) for part in parts)
            return copied

        monkeypatch.setattr(module, "_snapshot", watched)
        captured = make().capture(torch.randn(B, D), precision=precision)
        gc.collect()
        assert captured.kind == "cuda graph" and len(read) > 4
        assert all(part() is not None for part in read)
        del captured
        gc.collect()
        assert all(part() is None for part in read)

    def test_any_pass(self, machine: Machine) -> None:
        """The module that a function reads, the buffer and what is written, by construction."""
        layer, written = nn.Linear(D, C), []

        def forward(x: Tensor, layer: nn.Module = layer) -> tuple[Tensor]:
            written.append(weakref.ref(value := layer(x)))
            return (value,)

        weight = weakref.ref(layer.weight)
        run = GraphPass(forward, torch.randn(B, D))
        del layer, forward
        gc.collect()
        assert weight() is not None and run.buffer.shape == (B, D)
        assert [value() is not None for value in written] == [False, False, False, True]
        assert run.replay()[0] is written[-1]() and run._graph.replays == 1


class TestFailedCapture:
    """A guide that cannot be captured leaves the process as it was."""

    def fails(self, machine: Machine, *does: Callable[[], None], reason: str = "") -> None:
        fast = OnePassPredictive(Guide(*does, machine.wait), (D,), D)
        with pytest.raises(ValueError, match="captured in a CUDA graph" + reason):
            fast.capture(torch.ones(B, D))

    def test_the_stand_in_is_stuck_as_torch_is(self, machine: Machine) -> None:
        """A capture whose end raises, with nothing done about it."""
        with pytest.raises(RuntimeError, match="previous error during capture"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                machine.wait()
        with pytest.raises(RuntimeError, match="Offset increment outside graph capture"):
            machine.random()
        with pytest.raises(RuntimeError, match="captures_underway"):
            machine.empty_cache()
        assert machine.stream == "aside"

    def test_the_reason(self, machine: Machine) -> None:
        """What the guide did, in its first line, not that a capture has failed."""
        self.fails(machine, reason=r".*\(operation not permitted when stream is capturing\)")

    def test_the_generator_works(self, machine: Machine) -> None:
        self.fails(machine)
        assert not machine.capturing
        machine.random()

    def test_the_generators_are_where_they_were(self, machine: Machine) -> None:
        def draws(x: Tensor) -> tuple[Tensor]:
            machine.random()
            return (x + torch.rand(D),)

        def draws_and_waits(x: Tensor) -> tuple[Tensor]:
            machine.wait()
            return draws(x)

        def draws_both() -> None:
            torch.rand(2)
            machine.random()

        machine.random()
        before, host = machine.offset, torch.get_rng_state()
        self.fails(machine, draws_both)
        GraphPass(draws, torch.ones(B, D))
        with pytest.raises(ValueError, match="captured in a CUDA graph"):
            GraphPass(draws_and_waits, torch.ones(B, D))
        assert machine.offset == before and torch.equal(torch.get_rng_state(), host)

    def test_the_allocator_and_the_stream_are_free(self, machine: Machine) -> None:
        self.fails(machine)
        machine.empty_cache()
        assert machine.stream == "default" and not machine.in_graph

    def test_the_next_student_is_captured(self, machine: Machine) -> None:
        self.fails(machine)
        assert classifier().capture(torch.randn(B, D)).kind == "cuda graph"

    def test_a_torch_that_has_ended_the_capture(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its allocator refuses to end it again."""
        monkeypatch.setattr(Graph, "reset", lambda self: machine.pools.remove(self.pool))
        self.fails(machine)
        machine.empty_cache()
        machine.random()
