"""Laplace approximations of networks, and the Laplace bridge as a student of any teacher."""

from __future__ import annotations

import copy
import importlib.util
import sys
import warnings
from math import prod

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from pyro_opu import OnePassPredictive, as_teacher, fidelity, out_of_domain
from pyro_opu.distributions.bridge import inverse_laplace_bridge, laplace_bridge
from pyro_opu.models.laplace import laplace
from pyro_opu.models.laplace_network import NetworkLaplace, network_laplace, with_trunk
from pyro_opu.models.last_layer import last_layer_laplace, on_features, split_last_layer
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import dropout_network, fit_network, perceptron
from pyro_opu.rivals.laplace_bridge import (
    DrawnBridgeGuide,
    LaplaceBridgeGuide,
    laplace_bridge_predictive,
)

DOUBLE = torch.float64
library = pytest.mark.skipif(
    importlib.util.find_spec("laplace") is None, reason="needs laplace-torch"
)
STRUCTURES = ("diagonal", "kron", "full")


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    """Three blobs in the plane."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    centres = torch.tensor([[0.0, 2.0], [-2.0, -1.0], [2.0, -1.0]])
    return centres[y] + torch.randn(90, 2, generator=generator), y


@pytest.fixture
def network(data) -> nn.Sequential:
    return fit_network(perceptron((2, 5, 3)), *data, epochs=20, learning_rate=1e-2)


def jacobians(body: nn.Module, features: Tensor) -> Tensor:
    """(N, C, P) slowly: one backward pass for every input and logit, parameters in their order."""
    weights = list(body.parameters())

    def row(z: Tensor) -> Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(z, weights, retain_graph=True)])

    return torch.stack([torch.stack([row(z) for z in logits]) for logits in body(features)])


def gradients_on(body: nn.Module) -> nn.Module:
    return copy.deepcopy(body).requires_grad_(True)


def filled(network: nn.Module, subset: str, structure: str) -> tuple[NetworkLaplace, Tensor]:
    """Any covariance of that structure, and its dense matrix made block by block."""
    fit = NetworkLaplace(network, 3, subset=subset, structure=structure).double()
    for buffer in fit.root.buffers():
        buffer.copy_(torch.rand(buffer.shape, dtype=DOUBLE) + 0.1)
    if structure == "diagonal":
        return fit, fit.root.scale.square().diag()
    if structure == "full":
        return fit, fit.root.factor @ fit.root.factor.mT
    blocks = []
    for i, weight in enumerate(fit.body.parameters()):
        left, right, scale = (getattr(fit.root, f"{n}_{i}") for n in ("left", "right", "scale"))
        if weight.dim() == 1:
            right.fill_(1.0)
        both = torch.kron(left, right)
        blocks.append(both @ scale.flatten().square().diag() @ both.mT)
        assert len(both) == prod(weight.shape)
    return fit, torch.block_diag(*blocks)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("subset", ["last_layer", "all"])
def test_logits_and_draws_against_dense_matrices(network, data, subset, structure) -> None:
    fit, covariance = filled(network, subset, structure)
    x = data[0][:4].double()
    jacobian = jacobians(gradients_on(fit.body), fit.trunk(x))
    mean, of_logits = fit.logits(x)
    torch.testing.assert_close(mean, network.double()(x))
    expected = jacobian @ covariance @ jacobian.mT
    torch.testing.assert_close(of_logits, expected)
    # Joint draws: the covariance between inputs too. Logits up to a constant, so centred ones.
    torch.manual_seed(0)
    z = fit.log_probs(x, 20_000)
    z = (z - z.mean(-1, keepdim=True)).flatten(1)
    centre = torch.eye(3, dtype=DOUBLE) - 1 / 3
    rows = (centre @ jacobian).flatten(0, 1)
    whole = rows @ covariance @ rows.mT
    scale = whole.diagonal().sqrt()
    # Standard error of a correlation by 20,000 draws: at most 0.007; 144 of them.
    torch.testing.assert_close(
        z.T.cov() / torch.outer(scale, scale),
        whole / torch.outer(scale, scale),
        rtol=0.0,
        atol=0.04,
    )
    assert ((z.mean(0) - (centre @ mean.mT).mT.flatten()).abs() < 5 * scale / 20_000**0.5).all()


@pytest.mark.parametrize("classes", [2, 3])
def test_with_trunk_is_the_last_layer_laplace(data, classes) -> None:
    x, y = data
    trunk, fit = last_layer_laplace(perceptron((2, 5, classes)).double(), x.double(), y % classes)
    whole = with_trunk(trunk, fit)
    new = torch.randn(7, 2, dtype=DOUBLE)
    torch.testing.assert_close(whole.logits(new), fit.logits(trunk(new)))
    teacher = as_teacher(whole)
    draws = teacher.probs(new, 4000)
    assert draws.shape == (4000, 7, classes) and teacher.num_classes == classes
    model = on_features(trunk, logistic_regression(classes))
    other = as_teacher(Predictive(model, guide=fit.guide, num_samples=4000)).probs(new)
    error = ((draws.var(0) + other.var(0)) / 4000).sqrt()
    assert ((draws.mean(0) - other.mean(0)).abs() < 5 * error).all()  # five standard errors


def test_without_a_trunk(data) -> None:
    x, y = data
    fit = laplace(x, y, 3)
    # 1e-5: rounding to float32.
    torch.testing.assert_close(
        with_trunk(nn.Identity(), fit).logits(x), fit.logits(x), rtol=1e-4, atol=1e-5
    )


def test_the_network_is_copied(network, data) -> None:
    network.train()
    before = copy.deepcopy(network.state_dict())
    fit = NetworkLaplace(network, 3, subset="all", structure="diagonal")
    fit.logits(data[0])
    assert network.training and all(p.requires_grad for p in network.parameters())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert not fit.training and not any(p.requires_grad for p in fit.parameters())


@library
@pytest.mark.parametrize("structure", ["diagonal", "full"])
@pytest.mark.parametrize("subset", ["last_layer", "all"])
def test_curvature_against_loop(network, data, subset, structure) -> None:
    """Gauss-Newton matrix plus prior, added up input by input; over several batches."""
    x, y = data
    fit = network_laplace(
        network, x, y, subset=subset, structure=structure, prior_precision=2.0, batch_size=40
    )
    body = gradients_on(fit.body).double()
    features = fit.trunk(x).double()
    jacobian = jacobians(body, features)
    precision = 2.0 * torch.eye(jacobian.shape[-1], dtype=DOUBLE)
    for j, p in zip(jacobian, body(features).softmax(-1).detach(), strict=True):
        precision += j.mT @ (p.diag() - torch.outer(p, p)) @ j
    if structure == "diagonal":
        precision = precision.diagonal().diag()
    expected = jacobian @ torch.linalg.inv(precision) @ jacobian.mT
    # 1e-4: the curvature is added up in float32.
    torch.testing.assert_close(fit.logits(x)[1].double(), expected, rtol=1e-4, atol=1e-5)
    assert fit.prior_precision == 2.0


def convolutional(classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 1, 2)), nn.Conv2d(1, 3, (1, 2)), nn.Flatten(), nn.Linear(3, classes)
    )


@library
@pytest.mark.parametrize(
    ("network", "classes"),
    [(perceptron((2, 5, 2)), 2), (perceptron((2, 5, 3)), 3), (convolutional(3), 3)],
)
def test_kronecker_and_normalized_bridge_against_the_library(data, network, classes) -> None:
    """Its own covariance of the logits, and its own two bridges on logits that sum to zero."""
    from laplace import Laplace as Library
    from torch.utils.data import DataLoader, TensorDataset

    x, y = data[0], data[1] % classes
    network = fit_network(copy.deepcopy(network), x, y, epochs=5)
    fit = network_laplace(network, x, y, subset="all", structure="kron", prior_precision=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = Library(network, "classification", "all", "kron", prior_precision=0.5)
        theirs.fit(DataLoader(TensorDataset(x, y), 90))
    mean, covariance = fit.logits(x)
    jacobian = jacobians(network, x)
    # 1e-4: float32.
    torch.testing.assert_close(
        covariance, theirs.functional_variance(jacobian).detach(), rtol=1e-4, atol=1e-4
    )
    # They condition the Gaussian on a zero sum first, where this package projects it.
    rows = covariance.double().sum(-1)
    total = rows.sum(-1)[:, None]
    mean = mean.double()
    mean = mean - rows * mean.sum(-1, keepdim=True) / total
    covariance = covariance.double() - rows[:, :, None] * rows[:, None] / total[:, :, None]
    for normalize, name in ((False, "bridge"), (True, "bridge_norm")):
        alpha = laplace_bridge(mean, covariance, normalize=normalize)
        probs = alpha / alpha.sum(-1, keepdim=True)
        expected = theirs(x, pred_type="glm", link_approx=name)
        torch.testing.assert_close(probs, expected.double(), rtol=0.0, atol=1e-3)


@library
def test_prior_precision_by_marginal_likelihood(data) -> None:
    """Where Laplace's evidence, on a line of values, is highest."""
    x, y = data
    network = fit_network(perceptron((2, 5, 3)), x, y, epochs=60, learning_rate=1e-2)
    found = network_laplace(
        network, x, y, structure="full", prior_precision="marginal likelihood"
    ).prior_precision
    flat = network_laplace(network, x, y, structure="full", prior_precision=1.0)
    covariance = flat.root.factor.double() @ flat.root.factor.mT.double()
    values = (1 / torch.linalg.eigvalsh(covariance) - 1.0).clamp(min=0.0)  # of the curvature
    size = sum(p.square().sum().item() for p in network[-1].parameters())

    def evidence(precision: float) -> float:
        fit = -0.5 * precision * size
        return fit - 0.5 * (values / precision + 1.0).log().sum().item()

    grid = (10 ** torch.linspace(-4, 4, 8001, dtype=DOUBLE)).tolist()
    # 5 %: a hundred steps of Adam.
    assert found == pytest.approx(max(grid, key=evidence), rel=0.05)


@library
def test_fit_leaves_the_world_alone(network, data) -> None:
    network.train()
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    network_laplace(network, *data)
    assert torch.equal(state, torch.get_rng_state())
    assert network.training and all(p.requires_grad for p in network.parameters())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_missing_library(network, data, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(ImportError, match=r"pip install \"pyro_opu\[laplace\]\""):
        network_laplace(network, *data)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"subset": "first"}, ValueError, r"`subset` must be one of .*'first'"),
        ({"structure": "dense"}, ValueError, r"`structure` must be one of .*'dense'"),
        ({"network": nn.Linear(2, 3)}, TypeError, "ends with a Linear layer"),
        ({"y": torch.zeros(5, dtype=torch.long)}, ValueError, r"one label per input.*got \(5,\)"),
        ({"y": torch.full((90,), 3)}, ValueError, "labels from 0 to C - 1 = 2"),
        ({"x": torch.full((90, 2), torch.nan)}, ValueError, "`x` must be finite"),
        ({"prior_precision": 0.0}, ValueError, "must be a positive finite number; got 0.0"),
        ({"prior_precision": "guess"}, ValueError, "_precision` must be one of .* got 'guess'"),
    ],
)
def test_network_laplace_refuses(network, data, changed, error, message) -> None:
    arguments = {"network": network, "x": data[0], "y": data[1], **changed}
    with pytest.raises(error, match=message):
        network_laplace(**arguments)


class Given:
    """Gaussian logits that are the same function of the input for everybody."""

    def __init__(self, full: bool, classes: int = 3) -> None:
        self.full = full
        self.weight = torch.randn(2, classes)
        self.root = torch.randn(classes, classes)

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale = 0.2 + x.square().sum(-1, keepdim=True)
        covariance = self.root @ self.root.mT + torch.eye(len(self.root))
        whole = scale.unsqueeze(-1) * covariance
        return x @ self.weight, whole if self.full else whole.diagonal(dim1=1, dim2=2)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_student_of_gaussian_logits(full, normalize, classes) -> None:
    source = Given(full, classes)
    x = torch.randn(20, 2)
    state = torch.get_rng_state()
    fast = laplace_bridge_predictive(source, x, normalize=normalize, num_samples=7, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    expected = laplace_bridge(*source.logits(x), normalize=normalize)
    torch.testing.assert_close(fast.dirichlet(x).concentration, expected)
    assert fast.num_classes == classes and fast.report["one_pass"]
    assert fast(x[:1])["obs"].shape == (7, 1)
    sites = laplace_bridge_predictive(source, x, return_sites=["obs", "probs"])(x)
    assert sites["probs"].shape == (500, 20, classes)


def test_on_a_network_saved_and_loaded(network, data, tmp_path) -> None:
    x, y = data
    fit = with_trunk(*last_layer_laplace(network, x, y))
    fit.train()
    fast = laplace_bridge_predictive(fit, x, num_samples=20)
    assert fit.training  # what was passed is copied, as the student is frozen
    new = torch.randn(6, 2)
    torch.testing.assert_close(
        fast.dirichlet(new).concentration, laplace_bridge(*fit.logits(new)), rtol=1e-4, atol=0.0
    )
    path = tmp_path / "fast.safetensors"
    fast.save(path)
    # The architecture alone: other weights, and no variance yet.
    blank = nn.Sequential(*split_last_layer(perceptron((2, 5, 3))))
    empty = NetworkLaplace(blank, 3, structure="full")
    with pytest.raises(ValueError, match="positive variance"):
        LaplaceBridgeGuide(empty)(new)
    with pytest.raises(ValueError, match="`guide` must be given"):
        OnePassPredictive.load(path)
    with pytest.raises(ValueError, match="must have the parameters of the file"):
        OnePassPredictive.load(path, guide=LaplaceBridgeGuide(NetworkLaplace(network, 3)))
    loaded = OnePassPredictive.load(path, guide=LaplaceBridgeGuide(empty))
    assert torch.equal(loaded.dirichlet(new).concentration, fast.dirichlet(new).concentration)


def test_moments_of_a_teacher_against_loop() -> None:
    torch.manual_seed(0)
    draws = torch.randn(40, 5, 4, dtype=DOUBLE).softmax(-1)
    fast = laplace_bridge_predictive(lambda x: draws[:, : len(x)], torch.zeros(5, 1).double())
    z = draws.log()
    alpha = fast.dirichlet(torch.zeros(5, 1).double()).concentration
    for n in range(5):
        rows = [z[s, n] - z[s, n].sum() / 4 for s in range(40)]
        mean = sum(rows) / 40
        variance = sum((row - mean) ** 2 for row in rows) / 39
        expected = laplace_bridge(mean, variance, project=False)
        torch.testing.assert_close(alpha[n], expected)
    assert not fast.report["one_pass"]


def test_a_dirichlet_that_the_bridge_knows_is_found_again() -> None:
    """A teacher whose logits are the bridge's own Gaussian: alpha comes back."""
    alpha = torch.tensor([[8.0, 3.0, 1.0], [30.0, 30.0, 90.0]], dtype=DOUBLE)
    mean, covariance = inverse_laplace_bridge(alpha, full=True)
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)

    def teacher(x: Tensor, num_draws: int) -> Tensor:
        noise = torch.randn(num_draws, 2, 3, dtype=DOUBLE)
        return (mean + (root @ noise.unsqueeze(-1)).squeeze(-1))[:, : len(x)].softmax(-1)

    x = torch.zeros(2, 1, dtype=DOUBLE)
    fast = laplace_bridge_predictive(teacher, x, num_draws=40_000)
    # Standard error of a variance by 40,000 draws is 0.7 %; four of them.
    torch.testing.assert_close(fast.dirichlet(x).concentration, alpha, rtol=0.03, atol=0.0)


def test_draws_that_rule_out_a_class_or_all_agree() -> None:
    x = torch.zeros(2, 1)
    sure = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]).expand(9, 2, 3)
    fast = laplace_bridge_predictive(lambda x: sure[:, : len(x)], x)
    answer = fast.dirichlet(x)
    assert answer.concentration.isfinite().all()
    torch.testing.assert_close(answer.mean, sure[0], rtol=0.0, atol=1e-4)


@pytest.fixture
def predictive(data) -> Predictive:
    """A Pyro posterior with latent weights, and the probabilities as a site."""
    x, y = data

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
        probs = pyro.deterministic("p", (x @ w).softmax(-1))
        with pyro.plate("data", len(x)):
            return pyro.sample("obs", dist.Categorical(probs), obs=y)

    w = torch.tensor([[0.0, -1.5, 1.5], [2.0, -1.0, -1.0]]) + 0.3 * torch.randn(30, 2, 3)
    return Predictive(model, {"w": w}, return_sites=["obs", "p"])


def test_same_call_as_predictive(predictive, data) -> None:
    x = data[0]
    fast, slow = laplace_bridge_predictive(predictive, x), predictive
    for name, value in slow(x).items():
        assert fast(x)[name].shape == value.shape and fast(x)[name].dtype == value.dtype
    assert set(fast(x=x)) == {"obs", "p"}
    named = laplace_bridge_predictive(
        predictive, x, site="obs", return_sites=["obs"], num_samples=4, progress=False
    )
    assert {k: v.shape for k, v in named(x).items()} == {"obs": (4, 90)}


def test_judged_as_any_student(predictive, data) -> None:
    x = data[0]
    fast = laplace_bridge_predictive(predictive, x)
    report = fidelity(fast, predictive, x, num_draws=15)
    assert report.kl < report.kl_trivial
    scores = out_of_domain(fast, x, x + 1.0)
    answers = [fast.uncertainty(inputs) for inputs in (x, x + 1.0)]
    for name, measure in {"mutual_information": "epistemic", "entropy": "total"}.items():
        values = torch.cat([getattr(answer, measure) for answer in answers])
        expected = roc_auc_score([0] * 90 + [1] * 90, values)
        assert scores[name].auroc == pytest.approx(expected)


def test_a_layer_named_logits_is_a_layer() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.logits = nn.Dropout(0.5), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.logits(self.drop(x))

    network = Net().train()
    fast = laplace_bridge_predictive(network, torch.randn(6, 4), num_draws=50)
    assert isinstance(fast.guide, DrawnBridgeGuide)
    assert fast.dirichlet(torch.randn(6, 4)).batch_shape == (6,)
    assert network.training and all(p.requires_grad for p in network.parameters())


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (3, {}, TypeError, "`source` must be"),
        (
            dropout_network((2, 4, 3)),
            {"num_draws": 1},
            ValueError,
            "`num_draws` must be at least 2",
        ),
        (dropout_network((2, 4, 3)), {"site": "obs"}, ValueError, "`site` names a site"),
        (Given(True), {"site": "obs"}, ValueError, "`site` names a site"),
        (Given(True), {"return_sites": ["w"]}, ValueError, "`return_sites` asks for 'w'"),
        (Given(True), {"x": torch.zeros(2, 2).long()}, TypeError, "`x` must have a floating dtype"),
    ],
)
def test_refused(source, options, error, message) -> None:
    arguments = {"x": torch.randn(5, 2), **options}
    with pytest.raises(error, match=message):
        laplace_bridge_predictive(source, **arguments)
