"""The captured pass: any number of rows through fixed buffers, and what a machine can do."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyro_opu import distill
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.export.capture import StaticPass, capture
from pyro_opu.guides import (
    ImplicitGuide,
    LogisticNormalGuide,
    MixtureGuide,
    PredictiveGuide,
    SingleHeadGuide,
)
from pyro_opu.guides.normal import GaussianGuide, NormalMixtureGuide
from pyro_opu.parts import Outcome
from pyro_opu.predictive import OnePassPredictive

D, C, B = 6, 3, 4
FAMILIES = [SingleHeadGuide, MixtureGuide, LogisticNormalGuide, ImplicitGuide]


def student(shared: bool = True) -> OnePassPredictive:
    x = torch.randn(20, D)
    guide = PredictiveGuide.for_inputs(x, C, hidden=(16, 16), shared=shared)
    return OnePassPredictive(guide.requires_grad_(False).eval(), (D,), C)


def regressor(family: type = GaussianGuide) -> OnePassPredictive:
    x = torch.randn(20, D)
    guide = family.for_inputs(x, 3 * x[:, 0] + 1, hidden=(16,))
    return OnePassPredictive(guide.requires_grad_(False).eval(), (D,), Outcome.of_real())


def assert_same(found: PredictiveDirichlet, expected: PredictiveDirichlet, atol: float) -> None:
    for name in ("log_mean", "log_concentration"):
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), rtol=0.0, atol=atol, msg=name
        )


class Recording(StaticPass):
    """Stands for a CUDA graph: reads one buffer, and overwrites the same outputs every time."""

    def __init__(self, stages: Sequence[tuple[Tensor, Any]] = ()) -> None:
        super().__init__(lambda x: (x[:, :C] * 2, x.sum(-1)), torch.full((B, D), torch.nan), stages)
        self.outputs = torch.empty(B, C), torch.empty(B)
        self.replays = 0

    def replay(self) -> tuple[Tensor, ...]:
        self.replays += 1
        for output, value in zip(self.outputs, self.forward(self.buffer), strict=True):
            output.copy_(value)
        return self.outputs


class Event:
    """Stands for a CUDA event, and writes down what is asked of it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def synchronize(self) -> None:
        self.log.append(f"wait {self.name}")

    def record(self) -> None:
        self.log.append(f"sent {self.name}")


class TestStaticPass:
    @pytest.mark.parametrize(("rows", "replays"), [(1, 1), (3, 1), (4, 1), (5, 2), (11, 3)])
    def test_any_number_of_rows(self, rows: int, replays: int) -> None:
        run, x = Recording(), torch.randn(rows, D)
        double, total = run(x)
        assert torch.equal(double, x[:, :C] * 2) and torch.equal(total, x.sum(-1))
        assert run.replays == replays

    def test_answers_outlive_the_next_call(self) -> None:
        run, x = Recording(), torch.randn(B, D)
        first = run(x)[1]
        run(-x)
        assert torch.equal(first, x.sum(-1))

    def test_streaming(self) -> None:
        """Through two stages in turn, each filled only when what it held is on the device."""
        log: list[str] = []
        x = torch.randn(3 * B - 1, D)
        stages = [(torch.empty(B, D), Event(name, log)) for name in "ab"]
        total = Recording(stages)(x)[1]
        assert torch.equal(total, x.sum(-1))
        assert log == ["wait a", "sent a", "wait b", "sent b", "wait a", "sent a"]
        assert torch.equal(stages[1][0], x[B : 2 * B])  # through the stages, and not past them


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a compiler."""

    def broken(function: Callable, **options: object) -> Callable:
        raise RuntimeError("no C++ compiler\nlook in the manual")

    monkeypatch.setattr(torch, "compile", broken)


@pytest.mark.usefixtures("uncompiled")
class TestOnTheCPU:
    def test_it_says_what_it_is(self) -> None:
        captured = student().capture(torch.randn(2, D))
        assert captured.kind == "eager" and captured.rows is None
        assert captured.reason == "RuntimeError: no C++ compiler"
        assert repr(captured) == (
            "Captured(eager, any number of rows: RuntimeError: no C++ compiler)"
        )

    @pytest.mark.parametrize("rows", [1, 2, 50])
    def test_equal_to_the_student(self, rows: int) -> None:
        fast, x = student(), torch.randn(rows, D)
        x.requires_grad_()
        found = fast.capture(torch.randn(3, D))(x)
        assert isinstance(found, PredictiveDirichlet) and not found.log_mean.requires_grad
        assert_same(found, fast.fuse().dirichlet(x), 0.0)
        assert_same(found, fast.dirichlet(x), 1e-5)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_other_families(self, family: type) -> None:
        x = torch.randn(5, D)
        fast = OnePassPredictive(family.for_inputs(x, C, hidden=(8,)), (D,), C)
        assert_same(fast.capture(x)(x), fast.fuse().dirichlet(x), 0.0)

    @pytest.mark.parametrize("family", [GaussianGuide, NormalMixtureGuide])
    def test_regression(self, family: type) -> None:
        fast, x = regressor(family), torch.randn(5, D)
        found, expected = fast.capture(x)(x), fast.fuse().normal(x)
        assert isinstance(found, PredictiveNormal)
        for name in ("mean", "aleatoric", "epistemic", "variance"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name

    def test_a_snapshot(self) -> None:
        fast, x = student(), torch.randn(5, D)
        captured, before = fast.capture(x), fast.fuse().dirichlet(x)
        fast.guide.recalibrate(1.0)
        fast.guide.mean_head.bias.add_(torch.randn(C))
        assert_same(captured(x), before, 0.0)

    def test_other_dtypes_of_x(self) -> None:
        fast, x = student(), torch.randn(5, D, dtype=torch.float64)
        assert_same(fast.capture(x)(x), fast.fuse().dirichlet(x), 0.0)

    def test_time_stamps(self) -> None:
        """What float32 has no digits for is centred in float64, in a captured pass too."""
        x = 1.7e12 + 1e4 * torch.randn(20, D, dtype=torch.float64)
        guide = PredictiveGuide.for_inputs(x.float(), C, hidden=(16,))
        guide.trunk.fit_scale(x)
        fast = OnePassPredictive(guide.requires_grad_(False).eval(), (D,), C)
        found = fast.capture(x)(x)
        assert_same(found, fast.dirichlet(x), 1e-6)
        assert found.log_mean.std(0).min() > 0.01

    @pytest.mark.parametrize("shared", [True, False])
    # Half of the last digit, 2^-9 and 2^-12, adds up over three layers, and in values up to ten.
    @pytest.mark.parametrize(
        ("precision", "atol"), [(torch.bfloat16, 0.02), (torch.float16, 0.004)]
    )
    def test_half_precision(self, shared: bool, precision: torch.dtype, atol: float) -> None:
        fast, x = student(shared), torch.randn(200, D)
        found, expected = fast.capture(x, precision=precision)(x), fast.dirichlet(x)
        assert_same(found, expected, atol)
        assert not torch.equal(found.log_mean, expected.log_mean)
        # Heads and Dirichlet are in float32: rows are normalised, and g has more digits than half.
        torch.testing.assert_close(
            found.log_mean.logsumexp(-1), torch.zeros(200), atol=1e-6, rtol=0
        )
        assert (found.log_concentration != found.log_concentration.to(precision).float()).any()
        assert all(p.dtype == torch.float32 for p in fast.guide.parameters())

    def test_a_guide_that_is_not_a_module(self) -> None:
        with pytest.raises(TypeError, match="`guide` must be a module"):
            capture(student, torch.ones(2, D))

    def test_a_guide_alone(self) -> None:
        fast, x = student(), torch.randn(5, D)
        assert_same(capture(fast.guide, x)(x), fast.fuse().dirichlet(x), 0.0)

    @pytest.mark.parametrize(
        ("x", "message"),
        [
            (torch.ones(D), r"shape \(N, 6\), N >= 1, as the example; got \(6,\)"),
            (torch.ones(0, D), r"got \(0, 6\)"),
            (torch.ones(2, D, device="meta"), "must be on cpu, where the student is.*got meta"),
        ],
    )
    def test_refused_inputs(self, x: Tensor, message: str) -> None:
        captured = student().capture(torch.ones(2, D))
        with pytest.raises(ValueError, match=message):
            captured(x)

    def test_a_fault_of_the_guide_is_no_fault_of_the_compiler(self) -> None:
        class Faulty(nn.Module):
            def forward(self, x: Tensor) -> PredictiveDirichlet:
                raise ArithmeticError("mine")

        with pytest.raises(ArithmeticError, match="mine"):
            OnePassPredictive(Faulty(), (D,), C).capture(torch.ones(2, D))


@pytest.mark.slow
def test_compiled() -> None:
    """Two students share code and may not share answers; no call compiles again."""
    one, other, x = student(), student(), torch.randn(40, D)
    captured = [fast.capture(x[:3]) for fast in (one, other)]
    if captured[0].kind == "eager":
        pytest.skip(captured[0].reason)
    assert repr(captured[0]) == "Captured(compiled, any number of rows)"
    assert torch.distributions.Distribution._validate_args  # which torch.compile switches off
    inputs = [x[:1], x[:1].clone(), x[:2], x[:3].clone(), x[5:40], x, x.T.clone().T]
    with torch.compiler.set_stance("fail_on_recompile"):
        for some in inputs:
            for fast, quick in zip((one, other), captured, strict=True):
                # Float32 in another order, in logarithms of up to ten.
                assert_same(quick(some), fast.dirichlet(some), 1e-5)


@pytest.mark.slow
def test_any_number_of_students_are_compiled() -> None:
    """torch counts how often one function is compiled, and students have one."""
    from torch._dynamo import config

    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with config.patch({limit: 2}):  # monkeypatch would delete it at the end
        for width in range(D, D + 3):
            x = torch.randn(20, width)
            guide = PredictiveGuide.for_inputs(x, C, hidden=(16,))
            captured = capture(guide, x)
            if captured.kind == "eager" and width == D:
                pytest.skip(captured.reason)
            assert captured.kind == "compiled", captured.reason


@pytest.mark.gpu
class TestOnTheGPU:
    @pytest.mark.parametrize("rows", [1, 4, 5, 103])
    @pytest.mark.parametrize("place", ["cuda", "cpu"])
    def test_graph(self, rows: int, place: str) -> None:
        fast, x = student().cuda(), torch.randn(rows, D)
        captured = fast.capture(torch.randn(B, D, device="cuda"))
        assert captured.kind == "cuda graph" and captured.rows == B
        assert not captured.reason  # compiled before it was recorded
        found = captured(x.to(place))
        assert found.log_mean.device.type == place
        expected = fast.dirichlet(x.cuda())
        for name in ("log_mean", "log_concentration"):
            # The same kernels may add up in another order for another number of rows.
            torch.testing.assert_close(
                getattr(found, name).cpu(), getattr(expected, name).cpu(), rtol=0.0, atol=1e-5
            )

    @pytest.mark.parametrize("rows", [1, 64, 5000])
    def test_a_student_that_begins_as_a_network(self, rows: int) -> None:
        """Few products are sums inside of kernels, many are products of a library."""
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(D, 40), nn.ReLU(), nn.Dropout(0.2), nn.Linear(40, C))
        x = torch.randn(5000, D, device="cuda")
        fast = distill(network.cuda().eval(), x[:200], seed=0, progress=False, effort="quick")
        captured = fast.capture(x[:rows])
        assert captured.kind == "cuda graph" and not captured.reason
        found, expected = captured(x[:rows]), fast.dirichlet(x[:rows])
        for name in ("log_mean", "log_concentration"):
            # Sums in another order.
            torch.testing.assert_close(
                getattr(found, name), getattr(expected, name), rtol=0.0, atol=2e-5
            )

    def test_answers_outlive_the_next_call(self) -> None:
        fast, x = student().cuda(), torch.randn(B, D, device="cuda")
        captured = fast.capture(x)
        first = captured(x)
        kept = first.log_mean.clone()
        captured(-x)
        assert torch.equal(first.log_mean, kept)

    def test_half_precision(self) -> None:
        fast, x = student().cuda(), torch.randn(200, D, device="cuda")
        found = fast.capture(x, precision=torch.bfloat16)(x)
        assert found.log_mean.dtype == torch.float32
        assert_same(found, fast.dirichlet(x), 0.02)  # as on the CPU

    def test_a_guide_that_waits_for_the_host(self) -> None:
        class Waits(nn.Module):
            def forward(self, x: Tensor) -> PredictiveDirichlet:
                return PredictiveDirichlet(x.log_softmax(-1), x[:, 0] * x.sum().item())

        x, fast = torch.randn(B, D, device="cuda"), OnePassPredictive(Waits(), (D,), D)
        state, stream = torch.cuda.get_rng_state(), torch.cuda.current_stream()
        with pytest.raises(ValueError, match="can be captured in a CUDA graph"):
            fast.capture(x)
        assert torch.equal(torch.cuda.get_rng_state(), state)
        assert torch.cuda.current_stream() == stream
        torch.rand(3, device="cuda")
        torch.cuda.empty_cache()  # an internal assertion where a capture is still under way
        captured = student().cuda().capture(x)
        assert captured.kind == "cuda graph"

    def test_a_capture_owns_its_weights(self) -> None:
        """Memory that is freed goes to the next tensors; the replay must not have read it."""
        fast, x = student().cuda(), torch.randn(B, D, device="cuda")
        captured, expected = fast.capture(x), fast.dirichlet(x)
        gc.collect()
        held = [torch.full((size,), torch.nan, device="cuda") for size in range(1, 2000, 7)]
        assert_same(captured(x), expected, 1e-5)
        assert len(held)
