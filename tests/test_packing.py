"""Several inputs, indices and tensors (N,), packed into one tensor and given to the model again."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from input_forms import (
    ALPHA,
    BETA,
    FORMS,
    GROUP,
    NUMBERS,
    G,
    N,
    S,
    TwoInputs,
    hierarchical,
    posterior,
    probs,
    quick,
)
from pyro.infer import Predictive
from torch import Tensor

import pyro_opu
from pyro_opu import OnePassPredictive, Training, as_teacher
from pyro_opu.guides.networks import Indexed
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.inputs import PLAIN, Form, form_of
from pyro_opu.transfer import Jitter, Seen, default_transfer

pytestmark = pytest.mark.usefixtures("brief")


def one_number(x: Tensor, y: Tensor | None = None) -> None:
    beta = pyro.sample("beta", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Normal(beta * x, 0.5), obs=y)


def leaves(x: Any) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x.values() if isinstance(x, dict) else x)


@pytest.mark.parametrize("x", FORMS.values(), ids=FORMS)
def test_what_is_packed_comes_back(x: Any) -> None:
    form = form_of(x)
    packed = form.pack(x)
    assert packed.is_floating_point() and packed.ndim == 2 and len(packed) == N
    back = form.unpack(packed)
    assert type(back) is (tuple if isinstance(x, list) else type(x))
    for value, expected in zip(leaves(back), leaves(x), strict=True):
        assert value.dtype == expected.dtype and torch.equal(value, expected)
    assert Form.from_config(form.describe()) == form
    assert form.pack(packed) is packed


def test_one_floating_tensor_stays_as_it_is() -> None:
    assert form_of(NUMBERS) is form_of(torch.randn(3, 4, 5)) is PLAIN


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ({"x": NUMBERS}, ValueError, r"must be a dict of tensors x \(N, 2\), group \(N,\); got a"),
        ((NUMBERS, GROUP), ValueError, "must be a dict of tensors .*; got a tuple of tensors"),
        ({"x": NUMBERS[:, :1], "group": GROUP}, ValueError, r"`x\['x'\]` must have shape"),
        ({"x": NUMBERS, "group": GROUP + 3}, ValueError, r"has seen; got \[5, 6, 7\]"),
        ({"x": NUMBERS, "group": GROUP.float()}, TypeError, r"`x\['group'\]` must be whole"),
        ({"x": GROUP[:, None].repeat(1, 2), "group": GROUP}, TypeError, "must be floating, as it"),
    ],
)
def test_other_inputs_than_those_seen_are_refused(
    x: Any, error: type[Exception], message: str
) -> None:
    form = form_of(FORMS["dict"])
    with pytest.raises(error, match=message):
        form.pack(x, check_seen=True)


def function(x: Tensor, group: Tensor) -> Tensor:
    return probs()[:, : len(x)] if len(x) < N else probs()


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_a_model_is_given_its_inputs_as_they_are(form: str) -> None:
    teacher = as_teacher(posterior())
    torch.testing.assert_close(teacher.probs(FORMS[form]), probs())
    again = as_teacher(function)
    torch.testing.assert_close(again.probs(FORMS[form]), probs())


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_networks_are_given_their_inputs_as_they_are(form: str) -> None:
    networks = [TwoInputs().eval() for _ in range(3)]
    with torch.no_grad():
        expected = torch.stack([network(NUMBERS, GROUP).softmax(-1) for network in networks])
    torch.testing.assert_close(as_teacher(networks).probs(FORMS[form]), expected)
    assert as_teacher(networks[0]).probs(FORMS[form], 7).shape == (7, N, 2)


@pytest.mark.parametrize(("form", "guide"), [("tuple", "network"), ("dict", None)])
def test_a_student_is_called_as_the_model_is(form: str, guide: str | None, tmp_path: Any) -> None:
    x = FORMS[form]
    fast = quick(posterior(), x, guide=guide)
    assert isinstance(fast.guide.trunk, NetworkTrunk if guide is None else Indexed)
    expected = fast.dirichlet(x).mean
    for answers in (fast(NUMBERS, GROUP), fast(x=NUMBERS, group=GROUP), fast(x)):
        assert answers["obs"].shape == (S, N)
    fast.save(tmp_path / "student")
    again = OnePassPredictive.load(tmp_path / "student")
    assert torch.equal(again.dirichlet(x).mean, expected)
    assert again(NUMBERS, GROUP)["obs"].shape == (S, N)
    assert pyro_opu.fidelity(fast, posterior(), x, seed=0).num_draws == S // 2
    with pytest.raises(TypeError, match=r"by position or by name; missing are \['group'\]"):
        fast(NUMBERS)
    with pytest.raises(ValueError, match="has seen"):
        fast(NUMBERS, GROUP + 1)


@pytest.mark.parametrize("source", ["student", "teacher", "report"])
def test_no_unseen_index_is_answered_silently(source: str) -> None:
    """Nor where the inputs are packed already, and -1 is not taken from the end."""
    x, fast = FORMS["dict"], quick(posterior(), FORMS["dict"])
    packed = fast.form.pack(x)
    for wrong in (torch.tensor([-1.0]), torch.tensor([2.5]), torch.tensor([5.0])):
        packed[3, 2] = wrong
        with pytest.raises(ValueError, match=rf"`x\['group'\]` must hold .*got \[{wrong[0]:g}\]"):
            fast.dirichlet(packed)
    new, below = {**x, "group": GROUP + 1}, {**x, "group": GROUP - 1}
    if source == "student":
        with pytest.raises(ValueError, match=r"seen; got \[5\]"):
            fast.dirichlet(new)
        with pytest.raises(TypeError, match="an index is int64, from zero"):
            fast.dirichlet(below)
    elif source == "teacher":
        teacher = as_teacher(posterior())
        teacher.probs(x)
        with pytest.raises(TypeError, match="an index is int64, from zero"):
            teacher.probs(below)
        with pytest.raises(RuntimeError, match="index 5 is out of.* needs an entry in the model"):
            teacher.probs(new)
    else:
        with pytest.raises(ValueError, match=r"seen; got \[5\]"):
            pyro_opu.fidelity(fast, function, new)


def test_one_number_for_every_row() -> None:
    predictive = Predictive(one_number, {"beta": torch.randn(S)})
    fast = quick(predictive, NUMBERS[:, 0])
    answers = fast(NUMBERS[:5, 0])
    assert answers["obs"].shape == predictive(NUMBERS[:5, 0])["obs"].shape == (S, 5)


def test_a_hierarchical_model_is_learnt() -> None:
    """The groups differ: to forget them would leave a KL many times as large."""
    torch.manual_seed(0)
    alpha, beta = 2 * torch.randn(G) + 0.5 * ALPHA, 1 + 0.3 * BETA
    predictive = Predictive(hierarchical, {"alpha": alpha, "beta": beta})
    x = {"x": torch.randn(300, 2), "group": torch.randint(G, (300,))}
    fast = pyro_opu.distill(predictive, x, seed=0, progress=False, effort="quick")
    new = {"x": torch.randn(200, 2), "group": torch.randint(G, (200,))}
    report = pyro_opu.fidelity(fast, predictive, new, seed=0)
    assert report.kl_ratio < 1.5
    assert report.kl < 0.1 * report.kl_trivial


def test_no_index_is_made_up() -> None:
    x = torch.cat([3 * GROUP[:, None] + 1.0, NUMBERS, GROUP[:, None] + 10.0], 1)
    for policy in (default_transfer(x, indices=[0, 3]), Seen(Jitter(), [0, 3])):
        drawn = policy.fit(x).sample(500)
        pairs = set(map(tuple, drawn[:, [0, 3]].tolist()))
        assert {first for first, _ in pairs} == set(x[:, 0].tolist())
        assert {second for _, second in pairs} == set(x[:, 3].tolist())
    held = Seen(Jitter(), [0, 3]).fit(x).sample(500)[:, [0, 3]]
    assert torch.equal(held[:, 0], 3 * (held[:, 1] - 10) + 1)  # those of one row, together


def test_a_run_is_resumed(tmp_path: Any) -> None:
    """With the weights of an unbroken one, and not for other inputs."""
    whole = quick(posterior(), FORMS["dict"], num_steps=20, training=Training(evaluate_every=5))
    file = tmp_path / "run"
    settings = {"num_steps": 20, "training": Training(evaluate_every=5), "checkpoint": file}
    quick(posterior(), FORMS["dict"], **settings)
    again = quick(posterior(), FORMS["dict"], **settings)
    x = FORMS["dict"]
    assert torch.equal(again.dirichlet(x).mean, whole.dirichlet(x).mean)


@pytest.mark.parametrize(
    ("guide", "suffix"),
    [
        pytest.param(None, ".onnx", marks=pytest.mark.slow),
        pytest.param(None, ".pt2", marks=pytest.mark.slow),
        ("network", ".pt2"),
        pytest.param("network", ".onnx", marks=pytest.mark.slow),
    ],
)
def test_an_exported_student_has_named_inputs(
    guide: str | None, suffix: str, tmp_path: Any
) -> None:
    """In ONNX by name; by position in torch.export's archive."""
    fast, path = quick(posterior(), FORMS["dict"], guide=guide), tmp_path / f"student{suffix}"
    if suffix == ".onnx":
        runtime = pytest.importorskip("onnxruntime")
    fast.export(path, outputs=["mean"])
    if suffix == ".onnx":
        session = runtime.InferenceSession(str(path))
        assert [each.name for each in session.get_inputs()] == ["x", "group"]
    else:
        program = torch.export.load(str(path)).module()

    def run(x: Tensor, group: Tensor) -> Tensor:
        if suffix == ".pt2":
            return program(x, group)["mean"]
        return torch.as_tensor(session.run(["mean"], {"x": x.numpy(), "group": group.numpy()})[0])

    expected = fast.dirichlet(FORMS["dict"]).mean
    torch.testing.assert_close(run(NUMBERS, GROUP), expected, rtol=1e-4, atol=1e-6)
    wrong = torch.tensor([-1, 5, 2, 10**6])
    answer = run(NUMBERS[:4], wrong)
    assert answer.isnan().all(1).tolist() == [True, True, False, True]


def test_reports_and_arviz_take_the_inputs_as_they_are() -> None:
    fast, x, y = quick(posterior(), FORMS["dict"]), FORMS["dict"], GROUP % 2
    far = {"x": 9 * NUMBERS, "group": GROUP}
    assert pyro_opu.fidelity(fast, posterior(), x, extra={"far": far}, seed=0)["far"].kl > 0
    found = pyro_opu.detection(fast, posterior(), x, y, {"far": far}, seed=0)
    assert found["far"].num_inputs == 2 * N
    assert pyro_opu.mixing(posterior(), x).num_draws == S
    pytest.importorskip("arviz")
    data = pyro_opu.to_inference_data(fast, x, y)
    assert data.posterior["probs"].shape[-2:] == (N, 2)
