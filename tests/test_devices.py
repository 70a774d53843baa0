"""One of every kind on the device of ``--device``: the same answers as on a processor, there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from posteriors import (
    ANSWERS,
    GUIDES,
    OUTCOMES,
    RIVALS,
    SOURCES,
    C,
    X,
)
from pyro.infer import MCMC, Predictive
from torch import Tensor, nn

import pyro_opu
from pyro_opu import OnePassPredictive, as_teacher, joint
from pyro_opu.distributions import Answer
from pyro_opu.models.gaussian_process import gaussian_process
from pyro_opu.models.last_layer import last_layer_laplace, on_features
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import fit_network
from pyro_opu.models.sgpmc import sgpmc
from pyro_opu.samplers import SGLD

pytestmark = pytest.mark.usefixtures("brief")

#: Of float32 in another order of sums; a GPU's products of matrices have their own.
ROUNDING = {"rtol": 1e-3, "atol": 1e-4}
#: Draw within the model, whose tensors are made on a processor.
DRAWING = {"guide", "prior", "mixed sites"}
#: Compute with NumPy, and so on a processor, wherever the inputs are.
OF_ARRAYS = {"arrays", "forest"}
QUICK = {"num_steps": 5, "effort": "quick", "seed": 0, "progress": False}


@pytest.fixture
def there(device: torch.device) -> Callable[[Callable[[], Any]], Any]:
    """Builds a thing on the device: tensors and modules are made there."""

    def built(build: Callable[[], Any]) -> Any:
        with torch.device(device):
            return build()

    return built


def tensors(found: Any) -> Iterator[Tensor]:
    """Those of a dict, or of an object's attributes and properties."""
    values = found.values() if isinstance(found, dict) else vars(found).values()
    yield from (value for value in values if isinstance(value, Tensor))


@pytest.mark.filterwarnings("ignore::pyro_opu.FidelityWarning")
class TestPosteriors:
    @pytest.mark.parametrize("name", [n for n in SOURCES if n not in DRAWING])
    def test_of_classes(self, name: str, there: Any, device: torch.device, tmp_path: Path) -> None:
        build = SOURCES[name][0]
        source, x = build() if name in OF_ARRAYS else there(build), X.to(device)
        probs = as_teacher(source).probs(x, 7)
        assert probs.shape == (7, len(X), C) and probs.device == x.device
        torch.testing.assert_close(probs.sum(-1), torch.ones_like(probs[..., 0]), **ROUNDING)
        fast = pyro_opu.distill(source, x, **QUICK)
        assert all(value.device == x.device for value in fast(x).values())
        report = pyro_opu.fidelity(fast, source, x, seed=0)
        assert np.isfinite(report.kl)
        fast.save(tmp_path / "fast")
        again = OnePassPredictive.load(tmp_path / "fast", device="cpu")
        found, expected = again.dirichlet(X), fast.dirichlet(x)
        torch.testing.assert_close(found.log_mean, expected.log_mean.cpu(), **ROUNDING)

    @pytest.mark.parametrize("name", OUTCOMES)
    def test_of_every_outcome(self, name: str, there: Any, device: torch.device) -> None:
        source, x = there(OUTCOMES[name]), X.to(device)
        fast = pyro_opu.distill(source, x, **QUICK)
        assert all(value.device == x.device for value in fast(x).values())
        assert repr(pyro_opu.fidelity(fast, source, x, seed=0))

    @pytest.mark.parametrize("name", RIVALS)
    def test_rivals(self, name: str, there: Any, device: torch.device) -> None:
        if name in ("dark knowledge, online",) or "prior network" in name:
            pytest.skip("its data lie on a processor")
        source, x = there(SOURCES["samples"][0]), X.to(device)
        fast = RIVALS[name](source, x, seed=0, progress=False)
        assert all(value.device == x.device for value in fast(x).values())

    @pytest.mark.parametrize(
        "loss",
        ["moments", "energy", pytest.param("wasserstein", marks=pytest.mark.gpu), "likelihood"],
    )
    def test_losses(self, loss: str, there: Any, device: torch.device) -> None:
        source, x = there(SOURCES["dropout"][0]), X.to(device)
        fast = pyro_opu.distill(source, x, loss=loss, **QUICK)
        assert fast.dirichlet(x).log_mean.device == x.device

    def test_reports(self, there: Any, device: torch.device) -> None:
        source, x = there(SOURCES["dropout"][0]), X.to(device)
        fast = pyro_opu.distill(source, x, guide="network", **QUICK)
        y = torch.arange(len(X), device=device) % C
        assert repr(pyro_opu.detection(fast, source, x, y, {"far": x + 9}, seed=0))
        assert fast.novelty(x).device == x.device
        assert repr(pyro_opu.fidelity(fast, source, x, where="inputs", seed=0))
        mine, theirs = fast.uncertainty(x), pyro_opu.uncertainty(as_teacher(source).probs(x, 9))
        assert all(value.device == x.device for value in (*tensors(mine), *tensors(theirs)))
        assert pyro_opu.top_k(fast.dirichlet(x)).k.device == x.device

    def test_followed_and_resumed(self, there: Any, device: torch.device, tmp_path: Path) -> None:
        source, x = there(SOURCES["samples"][0]), X.to(device)
        fast = pyro_opu.distill(source, x, checkpoint=tmp_path / "run", **QUICK)
        again = pyro_opu.distill(source, x, checkpoint=tmp_path / "run", **QUICK)
        for one, other in zip(fast.guide.parameters(), again.guide.parameters(), strict=True):
            assert torch.equal(one, other)

    def test_joint_answers(self, there: Any, device: torch.device) -> None:
        source, x = there(SOURCES["samples"][0]), X.to(device)
        fast = pyro_opu.distill(source, x, guide="joint", **QUICK)
        pool = joint.joint_draws(fast, x, 20, seed=0)
        assert pool.draws.shape == (20, len(X), C) and pool.draws.device == x.device
        weights = torch.eye(C, device=device)[0]
        assert joint.covariance(fast, x[:3], weights, seed=0).device == x.device
        assert joint.total(fast, x, weights, seed=0).mean.isfinite().all()
        assert len(joint.batch_bald(fast, x, 3, seed=0).indices) == 3


@pytest.mark.parametrize(("build", "inputs"), GUIDES.values(), ids=GUIDES)
def test_guides(
    build: Callable[[], nn.Module],
    inputs: Callable[[int], Tensor],
    there: Any,
    device: torch.device,
) -> None:
    guide, x = build(), inputs(6)
    expected = guide(x).as_tensors()
    moved = copy.deepcopy(guide).to(device)(x.to(device)).as_tensors()
    for name, value in moved.items():
        assert value.device.type == device.type
        torch.testing.assert_close(value.cpu(), expected[name], **ROUNDING)
    built = there(build)
    assert all(value.device.type == device.type for value in built.state_dict().values())
    assert all(v.device.type == device.type for v in built(x.to(device)).as_tensors().values())


@pytest.mark.parametrize("build", ANSWERS.values(), ids=ANSWERS)
def test_answers(build: Callable[[], Answer], device: torch.device) -> None:
    answer = build()
    moved = answer.from_tensors({k: v.to(device) for k, v in answer.as_tensors().items()})
    assert moved.predict(3)[0].device.type == device.type
    for one, other in zip(tensors(moved.measures()), tensors(answer.measures()), strict=True):
        assert one.device.type == device.type
        torch.testing.assert_close(one.cpu(), other, **ROUNDING)


def test_networks_are_fitted_there(there: Any, device: torch.device) -> None:
    x, y = X.to(device), torch.arange(len(X), device=device) % C
    network = fit_network(there(SOURCES["dropout"][0]), x, y, epochs=2)
    trunk, fit = last_layer_laplace(network, x, y)
    model = on_features(trunk, logistic_regression(C))
    fast = pyro_opu.distill(Predictive(model, guide=fit.guide, num_samples=50), x, **QUICK)
    assert fast.dirichlet(x).log_mean.device == x.device


def test_models_and_samplers(there: Any, device: torch.device) -> None:
    x, y = X.to(device), torch.arange(len(X), device=device) % 2
    mcmc = MCMC(SGLD(logistic_regression(2), step_size=1e-2), 9, 2, disable_progbar=True)
    mcmc.run(x, y.float())
    probs = as_teacher(Predictive(logistic_regression(2), mcmc.get_samples())).probs(x)
    assert probs.shape == (9, len(X), 2) and probs.device == x.device
    drawn = pyro_opu.batched(Predictive(logistic_regression(2), num_samples=3))(x)["obs"]
    assert drawn.device == x.device
    process = gaussian_process(x[:4], 2, joint_rows=4)
    result = sgpmc(process, x, y, num_samples=6, warmup_steps=5)
    fast = pyro_opu.distill(Predictive(process, result.samples), x, **QUICK)
    assert fast.dirichlet(x).log_mean.device == x.device
    found = pyro_opu.batched(Predictive(process, result.samples))(x)
    assert found["obs"].device == x.device and found["obs"].shape == (6, len(X))
