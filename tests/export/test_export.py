"""A student as a file: the same answers from a program that knows neither Pyro nor this package."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import psi
from sklearn.datasets import load_digits
from torch import Tensor, nn

import pyro_opu
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.distributions.measures import ClassMeasures
from pyro_opu.export import formats
from pyro_opu.export.plain_ops import (
    digamma,
    expm1,
    lgamma,
    log1p,
    log_sigmoid,
    log_softmax,
    logsumexp,
)
from pyro_opu.export.program import StudentProgram, far_inputs, trace
from pyro_opu.guides import GUIDES, PredictiveGuide
from pyro_opu.guides.normal import REGRESSION_GUIDES
from pyro_opu.guides.novelty import fit_novelty
from pyro_opu.metrics.uncertainty import uncertainty
from pyro_opu.parts import Outcome
from pyro_opu.predictive import OnePassPredictive
from pyro_opu.utils import files

D, C = 6, 4
UNITS = ClassMeasures.units
REPLACED = {"digamma", "lgamma", "expm1", "log1p", "log_sigmoid", "log_softmax", "_log_softmax"}
REPLACED |= {"logsumexp"}
Run = Callable[[Tensor], dict[str, Tensor]]


class LogAlpha(nn.Module):
    """A guide whose input is the logarithm of alpha."""

    def forward(self, x: Tensor) -> PredictiveDirichlet:
        return PredictiveDirichlet(x.log_softmax(-1), x.logsumexp(-1), validate_args=False)


class Looks(nn.Module):
    """A guide that chooses its answer by looking at x."""

    def forward(self, x: Tensor) -> PredictiveDirichlet:
        return LogAlpha()(x if x.sum() > 0 else -x)


class Noisy(nn.Module):
    """A guide with something random left on."""

    def forward(self, x: Tensor) -> PredictiveDirichlet:
        return LogAlpha()(x + torch.randn_like(x))


class Plain(nn.Module):
    """A guide that answers with torch's own Dirichlet, validated."""

    def forward(self, x: Tensor) -> torch.distributions.Dirichlet:
        return torch.distributions.Dirichlet(x.exp())


def student(kind: str = "dirichlet") -> OnePassPredictive:
    """An untrained student whose answers differ widely between inputs."""
    x = torch.randn(20, D)
    if kind in GUIDES:
        options = {"num_components": 3} if kind == "mixture" else {}
        guide = GUIDES[kind].for_inputs(x, C, hidden=(8,), **options)
        fast = OnePassPredictive(guide, (D,), C)
    else:
        family = REGRESSION_GUIDES[kind.removeprefix("real ")]
        guide = family.for_inputs(x, 3 * x[:, 0] + 1, hidden=(8,))
        fast = OnePassPredictive(guide, (D,), Outcome.of_real())
    spread(guide)
    return fast


@torch.no_grad()
def spread(guide: nn.Module) -> None:
    guide.requires_grad_(False).eval()
    for name, head in guide.named_children():
        if name.endswith("head"):
            head.weight.mul_(8.0)


def eager(fast: OnePassPredictive, x: Tensor) -> dict[str, Tensor]:
    return {"mean": fast.distribution(x).mean, **fast.uncertainty(x).to_dict()}


def read(path: Path) -> Run:
    """The written program as a function."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(x: Tensor) -> dict[str, Tensor]:
        values = session.run(names, {"x": x.numpy()})
        return {name: torch.from_numpy(v) for name, v in zip(names, values, strict=True)}

    return run


def written(fast: OnePassPredictive, path: Path, **settings: object) -> Run:
    if path.suffix == ".onnx":
        pytest.importorskip("onnxscript")
    fast.export(path, **settings)
    return read(path)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], rtol: float) -> None:
    for name, value in found.items():
        assert value.dtype == expected[name].dtype and value.shape == expected[name].shape, name
        # Near zero what is left of larger numbers in float32: 1e-6 of nats and probabilities.
        torch.testing.assert_close(value, expected[name], rtol=rtol, atol=1e-6, msg=name)


class TestPlainOps:
    POSITIVE = torch.logspace(-300, 15, 3000, dtype=torch.float64)
    ANY = torch.cat([-torch.logspace(-30, 2, 500), torch.zeros(1), torch.logspace(-30, 2, 500)])

    @pytest.mark.parametrize(
        ("ours", "theirs", "x", "error"),
        [
            # Rounding of about twenty operations in float64, relative or (below 1) absolute.
            (digamma, torch.digamma, POSITIVE, 2e-15),
            (lgamma, torch.lgamma, POSITIVE, 1e-14),
        ],
    )
    def test_gamma(self, ours: Callable, theirs: Callable, x: Tensor, error: float) -> None:
        expected = theirs(x)
        assert ((ours(x) - expected).abs() / expected.abs().clamp(min=1.0)).max() < error
        assert ours(x).dtype == torch.float64

    @pytest.mark.parametrize(
        ("ours", "theirs", "x"),
        [
            (expm1, torch.expm1, ANY.double()),
            (log1p, torch.log1p, ANY[501:].double()),
            (log_sigmoid, torch.nn.functional.logsigmoid, ANY.double()),
        ],
    )
    def test_nothing_cancels_near_zero(self, ours: Callable, theirs: Callable, x: Tensor) -> None:
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-15, atol=0.0)  # a rounding or four

    def test_large_arguments(self) -> None:
        x = torch.tensor([1e16, 1e200, 1e307, math.inf], dtype=torch.float64)
        torch.testing.assert_close(log1p(x), x.log1p(), rtol=1e-15, atol=0.0)  # a rounding or four
        torch.testing.assert_close(expm1(x), x.expm1())
        torch.testing.assert_close(expm1(-x), (-x).expm1())

    @pytest.mark.parametrize("size", [1.0, 1e4, 1e30])
    def test_logarithms_of_sums(self, size: float) -> None:
        x = size * torch.randn(50, 5)
        torch.testing.assert_close(log_softmax(x, -1), x.log_softmax(-1))
        torch.testing.assert_close(logsumexp(x, [-1]), x.logsumexp(-1))
        torch.testing.assert_close(logsumexp(x, [0], True), x.logsumexp(0, keepdim=True))

    def test_known_values(self) -> None:
        half, one = (torch.full((1,), value, dtype=torch.float64) for value in (0.5, 1.0))
        assert abs(digamma(one).item() + 0.5772156649015329) < 1e-15  # Euler's constant
        assert abs(lgamma(half).exp().item() - math.sqrt(math.pi)) < 1e-14
        assert abs(lgamma(10 * one).item() - math.log(math.factorial(9))) < 1e-13


def test_a_program_is_of_the_fused_guide() -> None:
    """Two products, of the trunk and of one head, and nothing before them but the inputs."""
    fast, x = student(), 3 * torch.randn(5, D) + 7
    fast.guide.trunk.fit_scale(x)
    program = trace(StudentProgram(fast.guide, (D,), ["mean"]), (x,))
    linear = torch.ops.aten.linear.default
    products = [node for node in program.graph.nodes if node.target is linear]
    assert len(products) == 2
    assert (products[0].args[0].name,) == program.graph_signature.user_inputs


@pytest.fixture(scope="module")
def digits() -> Tensor:
    return torch.tensor(load_digits().data, dtype=torch.float32)


@pytest.fixture(scope="module")
def on_digits(digits: Tensor) -> OnePassPredictive:
    torch.manual_seed(0)
    guide = PredictiveGuide.for_inputs(digits[:900], 10, hidden=(32, 32))
    spread(guide)
    return OnePassPredictive(guide, (64,), 10)


@pytest.fixture(scope="module")
def onnx_digits(on_digits: OnePassPredictive, digits: Tensor, tmp_path_factory) -> Path:
    pytest.importorskip("onnxscript")
    path = tmp_path_factory.mktemp("digits") / "student.onnx"
    on_digits.export(path, digits[:5], outputs=[*reversed(UNITS)])
    return path


@pytest.mark.slow
class TestOnDigits:
    """In ONNX Runtime, over real data."""

    def test_answers(self, onnx_digits: Path, on_digits: OnePassPredictive, digits: Tensor) -> None:
        run = read(onnx_digits)
        for rows in (1, 7, 1000):
            found, expected = run(digits[-rows:]), eager(on_digits, digits[-rows:])
            assert set(found) == set(expected)
            # The network's own rounding in float32: 1e-6 in a logit of ten, or in g.
            assert_same(found, expected, rtol=2e-5)
            assert (found["mean"] - expected["mean"]).abs().max() < 1e-5
            assert (found["concentration"] / expected["concentration"] - 1).abs().max() < 1e-4

    def test_description(self, onnx_digits: Path) -> None:
        onnx = pytest.importorskip("onnx")
        model = onnx.load(onnx_digits)
        onnx.checker.check_model(model, full_check=True)
        assert [(each.domain, each.version) for each in model.opset_import] == [("", 18)]
        assert [each.name for each in model.graph.input] == ["x"]
        assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
        said = json.loads({each.key: each.value for each in model.metadata_props}["pyro_opu"])
        assert said["opset"] == 18
        assert said["input"] == {"name": "x", "shape": ["N", 64], "dtype": "float32"}
        assert said["num_classes"] == 10 and said["sites"] == ["obs"]
        assert said["pyro_opu_version"] == pyro_opu.__version__
        assert said["outputs"]["mean"] == {"shape": ["N", 10], "unit": "probability"}
        assert said["outputs"]["epistemic"] == {"shape": ["N"], "unit": "nats"}
        outputs = [each.name for each in model.graph.output]
        assert outputs == list(said["outputs"]) == [*reversed(UNITS)]

    def test_far_from_the_data(
        self, onnx_digits: Path, on_digits: OnePassPredictive, digits: Tensor
    ) -> None:
        """From 1e-3 to 1e6 deviations: infinite where the student is, never NaN."""
        x = torch.cat([far_inputs(on_digits.guide, digits), torch.full((1, 64), 1e30)])
        assert x[9].abs().max() > 1e6
        found, expected = read(onnx_digits)(x), eager(on_digits, x)
        infinite = expected["differential_entropy"].isinf()
        assert infinite.any() and not infinite.all()
        for name, value in expected.items():
            assert not value.isnan().any()
            assert torch.equal(found[name].isinf(), value.isinf()), name
            # A logit of 1e6 is rounded by 0.1, and what is not saturated there differs by that.
            near = found[name][:7], value[:7]
            torch.testing.assert_close(*near, rtol=1e-3, atol=1e-5, msg=name)

    def test_numbers_are_in_float64(self, onnx_digits: Path) -> None:
        onnx = pytest.importorskip("onnx")
        arrays = map(onnx.numpy_helper.to_array, onnx.load(onnx_digits).graph.initializer)
        numbers = {float(each) for each in arrays if each.dtype == np.float64 and each.size == 1}
        assert {1 / 12, 1 / 120, float(np.finfo(np.float64).tiny)} <= numbers

    def test_alone(self, onnx_digits: Path, on_digits: OnePassPredictive, digits: Tensor) -> None:
        """Read where no torch, no Pyro and not this package can be imported."""
        folder = onnx_digits.parent
        np.save(folder / "x.npy", digits[:3].numpy())
        script = (
            "import sys; sys.modules.update(dict.fromkeys(['torch', 'pyro', 'pyro_opu']))\n"
            "import numpy, onnxruntime\n"
            "session = onnxruntime.InferenceSession('student.onnx')\n"
            "numpy.save('mean.npy', session.run(['mean'], {'x': numpy.load('x.npy')})[0])\n"
        )
        run_alone(script, folder)
        mean = torch.from_numpy(np.load(folder / "mean.npy"))
        # As in test_answers.
        assert (mean - on_digits.dirichlet(digits[:3]).mean).abs().max() < 1e-5


def run_alone(script: str, folder: Path) -> None:
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr


class TestArchive:
    """The file of torch.export."""

    def test_says_what_it_is(self, tmp_path: Path) -> None:
        fast = student("real gaussian")
        fast.guide.train().requires_grad_(True)
        fast.export(tmp_path / "a.pt2", outputs=["total"])
        extra = {"pyro_opu": ""}
        torch.export.load(tmp_path / "a.pt2", extra_files=extra)
        assert json.loads(extra["pyro_opu"]) == {
            "pyro_opu_version": pyro_opu.__version__,
            "input": {"name": "x", "shape": ["N", D], "dtype": "float32"},
            "form": {"kind": "plain", "parts": []},
            "num_classes": None,
            "sites": ["obs"],
            "outputs": {"total": {"shape": ["N"], "unit": "units of y squared"}},
            "bound": {"0.9": None, "0.95": None, "0.99": None},
        }
        content = (tmp_path / "a.pt2").read_bytes()
        for module in (torch, pyro_opu):  # nothing of this machine is in it
            assert str(Path(module.__file__).parent).encode() not in content
        # The student itself is left as it was.
        assert fast.guide.training and all(p.requires_grad for p in fast.guide.parameters())

    @pytest.mark.slow
    def test_alone(self, tmp_path: Path) -> None:
        """Read where neither Pyro nor this package can be imported."""
        fast, x = student(), torch.randn(3, D)
        fast.export(tmp_path / "a.pt2", outputs=["mean", "epistemic"])
        torch.save(x, tmp_path / "x")
        script = (
            "import sys; sys.modules.update(dict.fromkeys(['pyro', 'pyro_opu']))\n"
            "import torch\n"
            "program = torch.export.load('a.pt2').module()\n"
            "torch.save(program(torch.load('x')), 'answers')\n"
        )
        run_alone(script, tmp_path)
        assert_same(
            torch.load(tmp_path / "answers"), eager(fast, x), rtol=1e-4
        )  # as in test_written


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_extremes(tmp_path: Path, suffix: str) -> None:
    """alpha from 1e-3 to 1e6 in every mixture: where digits cancel."""
    sizes = torch.logspace(-3, 6, 10, dtype=torch.float64)
    alpha = torch.cartesian_prod(sizes, sizes, sizes)  # (1000, 3)
    log_alpha = alpha.log().float()
    fast = OnePassPredictive(LogAlpha(), (3,), 3)
    run = written(fast, tmp_path / f"extreme{suffix}", outputs="all")
    found, answer = run(log_alpha), LogAlpha()(log_alpha)
    for name, value in uncertainty(answer).to_dict().items():
        # Relative, however small: roundings in float32 of the logarithms of mean and concentration
        # (up to 20, so 2e-6 of what they are logarithms of) and of the result.
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=0.0, msg=name)

    # The textbook's formula of the expected entropy by SciPy, in float64.
    total = alpha.sum(-1, keepdim=True)
    gap = torch.from_numpy(psi(total.numpy() + 1) - psi(alpha.numpy() + 1))
    expected = (alpha / total * gap).sum(-1)
    # log alpha in float32 is off by 1e-6, and so is every share.
    torch.testing.assert_close(found["aleatoric"].double(), expected, rtol=1e-5, atol=1e-7)


def test_outputs_that_are_told_where_nobody_says_which() -> None:
    fast = student()
    fast.detector = fit_novelty(fast.guide, torch.randn(20, D))

    def named(fast: OnePassPredictive, outputs: Any = None) -> tuple[str, ...]:
        program = StudentProgram(fast.guide, (D,), outputs, fast.detector)
        assert tuple(program(torch.randn(3, D))) == program.outputs
        return program.outputs

    assert named(fast) == ("mean", "concentration", "epistemic")
    assert named(fast, "all") == (*UNITS, "novelty", "trust")
    assert named(student("real gaussian")) == ("mean", "total", "aleatoric", "epistemic")
    with pytest.raises(
        TypeError, match="`outputs` must be a list of names, or \"all\"; got 'mean'"
    ):
        named(fast, "mean")


class TestFamilies:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "suffix"),
        [
            *((kind, ".onnx") for kind in (*GUIDES, "real gaussian", "real mixture")),
            ("dirichlet", ".pt2"),
            ("real mixture", ".pt2"),
        ],
    )
    def test_written(self, kind: str, suffix: str, tmp_path: Path) -> None:
        fast, path = student(kind), tmp_path / f"student{suffix}"
        # A single head answers with the same Dirichlet as two.
        outputs = ["epistemic", "mean"] if kind == "single_head" else "all"
        run = written(fast, path, outputs=outputs)
        for rows in (1, 7):
            x = torch.randn(rows, D)
            expected, found = eager(fast, x), run(x)
            if kind == "logistic_normal":
                del expected["differential_entropy"]
            assert set(found) == set(expected if outputs == "all" else outputs)
            # The rounding of the network in float32, in logits of up to ten.
            assert_same(found, expected, rtol=1e-4)
        if suffix == ".pt2":
            nodes = torch.export.load(path).graph.nodes
            steps = {getattr(node.target, "_opname", "") for node in nodes}
            assert "linear" in steps and not steps & REPLACED

    def test_two_networks_recalibrated_on_images(self, tmp_path: Path) -> None:
        x = torch.randn(6, 1, 9, 8)
        guide = PredictiveGuide.for_inputs(x, 2, shared=False, hidden=(2, 3, 4))
        guide.recalibrate(0.5)
        spread(guide)
        fast = OnePassPredictive(guide, (1, 9, 8), 2)
        found = written(fast, tmp_path / "a.pt2", outputs=["mean", "epistemic"])(x)
        assert_same(found, eager(fast, x), rtol=1e-4)  # as in test_written

    def test_float64(self, tmp_path: Path) -> None:
        fast, x = student().double(), torch.randn(5, D, dtype=torch.float64)
        found = written(fast, tmp_path / "a.pt2", outputs=["mean", "total"])(x)
        assert found["mean"].dtype == torch.float64
        assert_same(found, eager(fast, x), rtol=1e-12)  # rounding in float64

    def test_time_stamps(self, tmp_path: Path) -> None:
        """Inputs in float64 are centred before they are rounded, if the example is in float64."""
        x = 1.7e12 + 3e4 * torch.randn(20, D, dtype=torch.float64)
        fast = OnePassPredictive(PredictiveGuide.for_inputs(x, C, hidden=(8,)), (D,), C)
        run = written(fast, tmp_path / "a.pt2", example_x=x, outputs=["mean"])
        expected = fast.dirichlet(x).mean
        assert expected.std(0).min() > 0.01 and expected.dtype == torch.float32
        torch.testing.assert_close(run(x)["mean"], expected, rtol=1e-5, atol=1e-6)  # rounding

    def test_guide_of_ones_own(self, tmp_path: Path) -> None:
        x = torch.randn(5, C)
        fast = OnePassPredictive(Plain(), (C,), C)
        found = written(fast, tmp_path / "a.pt2", outputs=["mean", "variance"])(x)
        assert_same(found, uncertainty(Plain()(x)).to_dict() | {"mean": x.softmax(-1)}, rtol=1e-5)


class TestRefused:
    @pytest.mark.slow
    def test_a_model_that_answers_otherwise(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As ONNX does where numbers are rounded to float32."""
        pytest.importorskip("onnxscript")
        monkeypatch.setattr(formats, "_exact_numbers", dict)
        with pytest.raises(ValueError, match="ONNX can express; the model's 'differential_entropy"):
            student().export(tmp_path / "a.onnx", outputs=["differential_entropy"])
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("guide", "message"),
        [
            (Looks(), "torch.export can trace for any number of rows; Looks is not"),
            (Noisy(), "must not branch on the values of x; the traced graph gives another"),
        ],
    )
    def test_guides(self, tmp_path: Path, guide: nn.Module, message: str) -> None:
        fast = OnePassPredictive(guide, (3,), 3)
        with pytest.raises(ValueError, match=message):
            fast.export(tmp_path / "a.pt2", torch.ones(2, 3), outputs=["mean"])
        assert not list(tmp_path.iterdir())

    def test_missing_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(formats, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match=r'pip install "pyro_opu\[onnx\]"'):
            student().export(tmp_path / "a.onnx", outputs=["mean"])

    def test_nothing_is_left_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(source: object, target: object) -> None:
            raise OSError("disk full")

        (tmp_path / "a").write_bytes(b"old")
        with monkeypatch.context() as broken, pytest.raises(OSError, match="disk full"):
            broken.setattr("os.replace", full)
            files.put(tmp_path / "a", b"new")
        assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
        files.put(tmp_path / "a", b"new")
        assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


@pytest.mark.gpu
def test_from_the_gpu(tmp_path: Path) -> None:
    """What is written runs on the CPU."""
    fast, x = student(), torch.randn(5, D)
    expected = eager(fast, x)
    assert_same(written(fast.cuda(), tmp_path / "a.pt2")(x), expected, rtol=1e-4)
