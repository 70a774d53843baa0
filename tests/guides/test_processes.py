"""Students of a posterior with latents at every row, such as a Gaussian process."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.contrib import gp
from pyro.infer import Predictive

import pyro_opu
from pyro_opu import OnePassPredictive, as_teacher
from pyro_opu.guides import PredictiveGuide, guide_at
from pyro_opu.guides.beginning import NoBeginning, find_beginning
from pyro_opu.guides.moments import ProcessTrunk
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.guides.products import with_products
from pyro_opu.guides.recorded import Recorded, Step
from pyro_opu.guides.recording import record
from pyro_opu.models.factored import factored
from pyro_opu.models.gaussian_process import gaussian_process

pytestmark = pytest.mark.usefixtures("coarse")

S, M, D = 300, 6, 3
X = torch.randn(80, D, generator=torch.Generator().manual_seed(0))
NEW = 2 * torch.randn(200, D, generator=torch.Generator().manual_seed(1))


def process(num_classes=2, spread=0.0, inducing=M, **settings):
    """A process and draws of v, whose kernel varies by so many in the logarithm."""
    torch.manual_seed(0)
    model = gaussian_process(torch.randn(inducing, D), num_classes, **settings)
    middle = model.kernel.unpack(0.7 * model.kernel.medians(model.inducing))
    draws = {k: v * (spread * torch.randn(S, *v.shape)).exp() for k, v in middle.items()}
    shape = (inducing,) if num_classes == 2 else (num_classes, inducing)
    draws["v"] = 0.5 * torch.randn(S, *shape) + torch.randn(shape)
    return model, draws


def beginning(source, x=X):
    """Where a student of it begins, and the posterior's probabilities at x."""
    torch.manual_seed(0)
    teacher = as_teacher(source)
    probs = teacher.probs(x)
    try:
        return find_beginning(teacher.plug_ins(x), x, probs), probs
    except NoBeginning:
        return None, probs


def trunk_of(start):
    guide = guide_at(PredictiveGuide, start, X)
    assert isinstance(guide.trunk, NetworkTrunk)
    return guide.trunk


@pytest.mark.parametrize(
    ("joint_rows", "settings"),
    [(256, {}), (0, {"ard": True}), (256, {"linear": False, "constant": 0.0})],
)
def test_the_moments_told_are_those_in_closed_form(joint_rows, settings):
    model, draws = process(joint_rows=joint_rows, **settings)
    start, _ = beginning(Predictive(model, draws))
    assert start is not None and start.process
    trunk = trunk_of(start)
    mean, variance = trunk.moments_of(NEW)[1:]
    middle = {name: value[0] for name, value in draws.items() if name != "v"}
    projection, v = model.projection(NEW, middle), draws["v"]
    given = model.variance(NEW, projection, middle)
    expected = given + ((v - v.mean(0)) @ projection.mT).square().sum(0) / (S - 0.5)  # each twice
    # Where f is joint over rows, its variance has the model's jitter, 1e-4 of the prior's.
    jitter = 1e-3 + 2e-4 * float(model.kernel.diagonal(NEW, middle).max()) * bool(joint_rows)
    torch.testing.assert_close(mean[:, 0], projection @ v.mean(0), atol=5e-3, rtol=1e-3)
    torch.testing.assert_close(variance[:, 0], expected, atol=jitter, rtol=5e-3)


@pytest.mark.parametrize("num", [1, 2])
def test_a_factor_of_one_number_is_its_root(num):
    eye = torch.eye(num)
    steps = [
        Step("sum.dim_IntList", [{"x": 0}, [1], True], {}),
        Step("unsqueeze.default", [{"step": 0}, 2], {}),
        Step("mul.Tensor", [{"step": 1}, {"weight": "eye"}], {}),
        Step("linalg_cholesky_ex.default", [{"step": 2}], {}),
        Step("getitem", [{"step": 3}, 0], {}),
        Step("getitem", [{"step": 3}, 1], {}),
        Step("gt.Scalar", [{"step": 5}, 0], {}),
        Step("unsqueeze.default", [{"step": 6}, 1], {}),
        Step("unsqueeze.default", [{"step": 7}, 2], {}),
        Step("where.ScalarSelf", [{"step": 8}, float("nan"), {"step": 4}], {}),
        Step("sum.dim_IntList", [{"step": 9}, [1, 2]], {}),
    ]
    found = Recorded(steps, {"eye": eye}, frozenset())
    x = torch.rand(5, D)
    changed = with_products(found, x[:2])
    torch.testing.assert_close(changed.run(x), found.run(x))
    torch.testing.assert_close(changed.run(x), num * x.sum(1).sqrt())
    kept = [step.name for step in changed.until(len(changed.steps) - 1).steps]
    assert ("linalg_cholesky_ex.default" in kept) == (num > 1)
    if num == 1:  # what rounding has left below 0
        assert torch.equal(changed.run(-x), torch.zeros(5))


@pytest.mark.parametrize("cached", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_kernel_that_varies_is_carried_by_the_functions_of_one(cached):
    model, draws = process(spread=0.3)
    source = factored(model, draws) if cached else (model, draws)
    start, _ = beginning(Predictive(*source))
    assert start is not None and start.process
    assert not start.trunk.trained & set(start.trunk.weights)
    guide = guide_at(PredictiveGuide, start, X)
    new = X + 0.3 * NEW[: len(X)]
    probs = torch.cat([as_teacher(Predictive(*source)).probs(new) for _ in range(4)])
    answer = guide(new)
    # Of 1,200 draws a mean is known within .01, a deviation within 2 %; the logits of a kernel that
    # varies are not quite normal.
    apart = (answer.mean - probs.mean(0)).abs()
    assert float(apart.mean()) < 0.01 and float(apart.max()) < 0.05
    ratio = answer.variance[:, 0].sqrt() / probs[..., 0].std(0)
    assert 0.9 < float(ratio.median()) < 1.1 and float(ratio.min()) > 0.6


def test_a_kernel_written_by_hand_in_place_is_read():
    torch.manual_seed(0)
    inducing = X[:M].clone()

    def kernel(a, b, lengthscale):
        return 2.0 * (-0.5 * (torch.cdist(a, b) / lengthscale).square()).exp()

    def model(x):
        lengthscale = pyro.sample("lengthscale", dist.LogNormal(0.0, 0.3))
        v = pyro.sample("v", dist.Normal(torch.zeros(M), 1.0).to_event(1))
        covariance = kernel(inducing, inducing, lengthscale).contiguous()
        covariance.view(-1)[:: M + 1] += 1e-3  # which vmap cannot do
        lower = torch.linalg.cholesky(covariance)
        found = kernel(inducing, x, lengthscale)
        projection = torch.linalg.solve_triangular(lower, found, upper=False)
        scale = (2.0 - projection.square().sum(0)).clamp_min(1e-6).sqrt()
        with pyro.plate("data", len(x)):
            f = pyro.sample("f", dist.Normal(v @ projection, scale))
            pyro.sample("y", dist.Bernoulli(logits=f))

    draws = {"lengthscale": (0.2 * torch.randn(S)).exp(), "v": torch.randn(M) + torch.randn(S, M)}
    start, probs = beginning(Predictive(model, draws, return_sites=("y",)))
    assert start is not None and start.process
    answer = guide_at(PredictiveGuide, start, X)(X)
    ratio = answer.variance[:, 0].sqrt() / probs[..., 0].std(0)
    assert 0.9 < float(ratio.median()) < 1.1


def test_a_value_at_every_row_is_told_with_the_weights():
    torch.manual_seed(0)

    def model(x):
        weights = pyro.sample("weights", dist.Normal(torch.zeros(D), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            value = pyro.sample("value", dist.Normal(0.0, 1.5), infer={"epistemic": True})
            pyro.sample("obs", dist.Bernoulli(logits=x @ weights + value))

    weights = torch.randn(D) + 0.3 * torch.randn(S, D)
    start, _ = beginning(Predictive(model, {"weights": weights}))
    assert start is not None
    trunk = trunk_of(start)
    mean, variance = trunk.moments_of(NEW)[1:]
    torch.testing.assert_close(mean[:, 0], NEW @ weights.mean(0), atol=1e-4, rtol=1e-4)
    centred = (weights - weights.mean(0)) @ NEW.mT
    expected = 1.5**2 + centred.square().sum(0) / (S - 0.5)
    torch.testing.assert_close(variance[:, 0], expected, rtol=0.01, atol=0)  # signs: 1/(2 S)


def test_a_process_of_pyro_is_told_its_own_mean_and_variance():
    torch.manual_seed(0)
    kernel = gp.kernels.RBF(D, torch.tensor(2.0), torch.tensor(1.5))
    made = gp.models.VariationalSparseGP(
        X, torch.zeros(len(X)), kernel, X[:M].clone(), gp.likelihoods.Binary(), whiten=True
    )
    with torch.no_grad():
        made.u_loc.copy_(torch.randn(M))

    def model(x):
        made.set_mode("guide")
        loc, variance = made(x)
        with pyro.plate("data", len(x)):
            f = pyro.sample("f", dist.Normal(loc, variance.sqrt()))
            pyro.sample("y", dist.Bernoulli(logits=f))

    start, _ = beginning(Predictive(model, num_samples=S, return_sites=("y",)))
    assert start is not None and start.process
    assert not start.trunk.trained & set(start.trunk.weights)
    trunk = trunk_of(start)
    mean, variance = trunk.moments_of(NEW)[1:]
    with torch.no_grad():
        loc, own = made(NEW)
    torch.testing.assert_close(mean[:, 0], loc, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(variance[:, 0], own, atol=1e-3, rtol=5e-3)  # 512 signs


def test_an_operation_that_is_not_known_is_refused_only_where_it_is_needed():
    def model(x, needed):
        v = pyro.sample("v", dist.Normal(torch.zeros(D), 1.0).to_event(1))
        median = x.nanmedian()
        fn = dist.Normal(x @ v + (median if needed else 0.0), 1.0).to_event(1)
        f = pyro.sample("f", fn, infer={"epistemic": True})
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=f))

    for needed in (False, True):
        source = Predictive(lambda x, needed=needed: model(x, needed), {"v": torch.randn(S, D)})
        start, _ = beginning(source)
        assert (start is None) == needed


def test_what_functions_of_one_kernel_do_not_carry_has_a_network_of_the_inputs():
    model, draws = process(spread=0.3)
    start, probs = beginning(Predictive(model, draws))
    teacher = as_teacher(Predictive(model, draws))
    teacher.probs(X)
    sure = probs.mean(0) + 0.2 * (probs - probs.mean(0))  # as if draws varied a fifth as much
    assert start is not None
    with pytest.raises(NoBeginning, match="one kernel do not stand for"):
        find_beginning(teacher.plug_ins(X), X, sure)


def test_a_latent_of_a_row_that_is_not_normal_is_not_read():
    def model(x):
        weights = pyro.sample("weights", dist.Normal(torch.zeros(D), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            noise = pyro.sample("noise", dist.Gamma(2.0, 1.0))
            pyro.sample("obs", dist.Bernoulli(logits=x @ weights + noise))

    start, _ = beginning(Predictive(model, {"weights": torch.randn(S, D)}))
    assert start is None


def test_far_away_a_student_is_finite_and_as_unsure_as_its_process():
    model, draws = process(spread=0.2)
    start, _ = beginning(Predictive(model, draws))
    trunk = trunk_of(start)
    far = 1e4 * NEW
    assert torch.isfinite(trunk(far)).all()
    _, variance = trunk.moments_of(100 * NEW)[1:]
    slope = draws["slope"].median().square()
    prior = slope * (100 * NEW).square().sum(1)
    assert 0.1 < float((variance[:, 0] / prior).median()) < 2.0  # six inducing inputs pin some


@pytest.mark.parametrize("num_classes", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_default_student_begins_there_and_lives_in_a_file(tmp_path, num_classes):
    model, draws = process(num_classes, spread=0.1)
    source = Predictive(model, draws)
    fast = pyro_opu.distill(source, X, num_steps=20, seed=0, progress=False)
    assert (
        isinstance(fast.guide.trunk, ProcessTrunk)
        and fast.guide.trunk.outputs == (1, 3)[num_classes > 2]
    )
    assert not list(fast.guide.trunk.network.parameters())
    fast.save(tmp_path / "student.safetensors")
    again = OnePassPredictive.load(tmp_path / "student.safetensors")
    assert torch.equal(again.dirichlet(NEW).concentration, fast.dirichlet(NEW).concentration)
    before = fast.dirichlet(NEW).concentration
    torch.testing.assert_close(fast.fuse().dirichlet(NEW).concentration, before, rtol=1e-3, atol=0)


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_a_process_of_one_kernel_takes_no_step(spread):
    """Its moments are right everywhere; of several kernels they are near where they are fitted."""
    model, draws = process(spread=spread, joint_rows=0)
    x = torch.randn(300, D, generator=torch.Generator().manual_seed(2))
    fast = pyro_opu.distill(Predictive(model, draws), x, seed=0, progress=False)
    assert (fast.report["spent"]["steps"] == 0) == (spread == 0), str(fast.report)
    if spread == 0:
        far, kernel = 3.0 * NEW, {name: value[0] for name, value in draws.items() if name != "v"}
        projection = model.projection(far, kernel)
        f = draws["v"] @ projection.mT  # (S, N), the mean of a draw
        nodes, weights = np.polynomial.hermite_e.hermegauss(64)
        scale = model.variance(far, projection, kernel).sqrt()
        under = torch.sigmoid(f[..., None] + scale[:, None] * torch.tensor(nodes))
        expected = (under * torch.tensor(weights / weights.sum())).sum(-1).mean(0)
        found = fast.distribution(far).mean[:, 1].double()
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-3)


@pytest.mark.slow
def test_a_later_student_is_told_of_the_later_kernel():
    model, draws = process(spread=0.1)
    fast = pyro_opu.distill(Predictive(model, draws), X, num_steps=10, seed=0, progress=False)
    moved = {name: 1.5 * value for name, value in draws.items()}
    source = Predictive(model, moved)
    later = pyro_opu.distill(source, X, start=fast, num_steps=1, seed=0, progress=False)
    before, after = (each.guide.trunk.network.state_dict() for each in (fast, later))
    assert any(not torch.equal(before[name], after[name]) for name in before)
    trunk = later.guide.trunk
    _, variance = trunk.moments_of(100 * NEW)[1:]
    _, first = fast.guide.trunk.moments_of(100 * NEW)[1:]
    assert float((variance / first).median()) > 1.5  # of 1.5 times the slope and weights


@pytest.mark.slow
def test_a_later_process_of_more_functions_is_learnt_from_where_the_student_is():
    first, later = (
        Predictive(*process(spread=0.1, inducing=m), return_sites=["obs"]) for m in (M, M + 2)
    )
    fast = pyro_opu.distill(first, X, num_steps=5, seed=0, progress=False)
    again = pyro_opu.distill(later, X, start=fast, num_steps=2, seed=0, progress=False)
    mine, own = (each.guide.trunk for each in (again, fast))
    assert torch.equal(mine.mean, own.mean) and torch.equal(mine.factor, own.factor)


def test_folded_steps_give_the_same_answer():
    steps = [
        Step("exp.default", [{"weight": "a"}], {}),
        Step("neg.default", [{"step": 0}], {}),
        Step("mul.Tensor", [{"x": 0}, {"step": 1}], {}),
        Step("add.Tensor", [{"step": 2}, {"step": 0}], {}),
    ]
    found = Recorded(steps, {"a": torch.tensor(0.5)}, frozenset({"a"}))
    folded = found.folded(X)
    torch.testing.assert_close(folded.run(X), found.run(X))
    assert [step.name for step in folded.steps] == ["mul.Tensor", "add.Tensor"]
    assert len(folded.weights) == 2 and not folded.trained & set(folded.weights)


@pytest.mark.parametrize("left", [True, False])
def test_a_triangular_system_becomes_a_product(left):
    matrix = torch.randn(D, D).tril() + 3 * torch.eye(D)
    steps = [
        Step("neg.default", [{"x": 0}], {}),
        Step("mT.default", [{"step": 0}], {}),
        Step(
            "linalg_solve_triangular.default",
            [{"weight": "matrix"}, {"step": int(left)}],
            {"upper": False, "left": left},
        ),
    ]
    found = Recorded(steps, {"matrix": matrix}, frozenset({"matrix"}))
    changed = with_products(found, X[:2])
    torch.testing.assert_close(changed.run(X), found.run(X), atol=1e-5, rtol=1e-5)
    assert changed.steps[-1].name == "matmul.default"


def test_a_factor_of_a_constant_matrix_stays():
    steps = [
        Step("linalg_cholesky_ex.default", [{"weight": "matrix"}], {}),
        Step("getitem", [{"step": 0}, 0], {}),
        Step("matmul.default", [{"x": 0}, {"step": 1}], {}),
    ]
    found = Recorded(steps, {"matrix": 4 * torch.eye(D)}, frozenset())
    torch.testing.assert_close(with_products(found, X[:2]).run(X), 2 * X)
    torch.testing.assert_close(with_products(found, X[:2]).folded(X).run(X), 2 * X)


def test_a_record_by_rows_does_not_depend_on_the_other_rows():
    model, draws = process()
    teacher = as_teacher(Predictive(model, draws))
    teacher.probs(X)
    (plug_in,) = teacher.plug_ins(X)
    assert plug_in.deviations == {"deviation of f"}
    found = record(plug_in, plug_in.candidates[0], X)
    torch.testing.assert_close(found.run(X)[7:9], found.run(X[7:9]), atol=1e-4, rtol=1e-4)
    up = found.under({"deviation of f": torch.ones(1, 1)}).run(X)
    down = found.under({"deviation of f": -torch.ones(1, 1)}).run(X)
    logit = [each[:, 1] - each[:, 0] for each in (up, found.run(X), down)]
    torch.testing.assert_close(logit[0] - logit[1], logit[1] - logit[2], atol=1e-3, rtol=1e-3)
    assert (logit[0] > logit[2]).all()
