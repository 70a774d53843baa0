"""The student that begins with a Gaussian process's own mean and variance."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from pyro.infer import Predictive

import pyro_opu
from pyro_opu import OnePassPredictive, PredictiveGuide
from pyro_opu.models.gaussian_process import gaussian_process
from pyro_opu.models.process_guide import LatentLaw, process_guide

ROWS, DRAWS = 7, 40


def process(num_classes=2, features=3, **settings):
    """A process with draws of v, all at the same hyper-parameters; v is not white."""
    torch.manual_seed(0)
    model = gaussian_process(torch.randn(6, features), num_classes, joint_rows=0, **settings)
    middle = model.kernel.unpack(0.7 * model.kernel.medians(model.inducing))
    draws = {name: value.expand(DRAWS, *value.shape) for name, value in middle.items()}
    shape = (6,) if num_classes == 2 else (num_classes, 6)
    draws["v"] = 0.5 * torch.randn(DRAWS, *shape) + torch.randn(shape)
    return model, draws, middle


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("settings", [{}, {"ard": True}, {"linear": False, "constant": 0.0}])
def test_moments_are_those_of_the_draws_one_by_one(num_classes, settings):
    model, draws, middle = process(num_classes, **settings)
    x = 2 * torch.randn(ROWS, 3)
    projection = model.projection(x, middle)
    means = torch.stack([projection @ v.reshape(-1, 6).mT for v in draws["v"]])
    mean, given, between = LatentLaw(model, draws, torch.randn(50, 3)).moments(x)
    close = {"rtol": 1e-3, "atol": 1e-3}  # float32, and a variance that is a difference
    torch.testing.assert_close(mean, means.mean(0), **close)
    torch.testing.assert_close(between, means.var(0), **close)
    torch.testing.assert_close(given[:, 0], model.variance(x, projection, middle), **close)


def test_fewer_directions_leave_more_variance_given_v():
    model, draws, _ = process()
    x, new = torch.randn(50, 3), torch.randn(ROWS, 3)
    laws = [LatentLaw(model, draws, x, rank).moments(new) for rank in (1, 3, 6)]
    for (mean, given, _), (same, less, _) in pairwise(laws):
        torch.testing.assert_close(mean, same, rtol=1e-4, atol=1e-4)  # the mean keeps all of them
        assert (given >= less - 1e-5).all() and (given > less).any()


def test_features_are_finite_far_away_and_have_slopes():
    model, draws, _ = process()
    law = LatentLaw(model, draws, torch.randn(50, 3))
    far = (1e4 * torch.randn(ROWS, 3)).requires_grad_()
    features = law(far)
    assert features.shape == (ROWS, law.num_features)
    features.sum().backward()
    assert torch.isfinite(features).all() and torch.isfinite(far.grad).all()


@pytest.mark.slow
def test_student_is_nearer_than_one_of_x_alone():
    """After as many steps; the latent values change sign from one inducing input to the next."""
    torch.manual_seed(0)
    model = gaussian_process(torch.linspace(-3, 3, 8)[:, None], 2, joint_rows=0, linear=False)
    draws = {"lengthscale": 0.4 * torch.ones(100), "variance": 8 * torch.ones(100)}
    draws["v"] = 2 * torch.tensor([1.0, -1.0] * 4) + 0.3 * torch.randn(100, 8)
    teacher, x = Predictive(model, draws, return_sites=["obs"]), 6 * torch.rand(300, 1) - 3
    found = {}
    for name, guide in (
        ("told", process_guide(model, draws, x, hidden=(32, 32))),
        ("not told", PredictiveGuide.for_inputs(x, 2, hidden=(32, 32))),
    ):
        fast = pyro_opu.distill(
            teacher, x, guide=guide, loss="moments", num_steps=300, seed=0, progress=False
        )
        found[name] = fast.report["energy_distance"]
    assert found["told"] < 0.5 * found["not told"]


def test_saved_student_is_loaded_with_a_guide_of_its_kind(tmp_path):
    model, draws, _ = process()
    x = torch.randn(20, 3)
    guide = process_guide(model, draws, x, hidden=(8,))
    fast = OnePassPredictive(guide, (3,), 2)
    fast.save(tmp_path / "fast.safetensors")
    other = {name: value + 0.1 for name, value in draws.items()}
    again = process_guide(model, other, torch.randn(20, 3), hidden=(8,))
    loaded = OnePassPredictive.load(tmp_path / "fast.safetensors", guide=again)
    expected, found = fast.dirichlet(x).concentration, loaded.dirichlet(x).concentration
    torch.testing.assert_close(found, expected)  # rounding alone; the buffers were loaded too
