"""Closed forms of more than two classes: multinomial regressions, before any step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pyro.infer import MCMC, Predictive
from sklearn.datasets import load_iris, load_wine
from torch import Tensor

import pyro_opu
from pyro_opu import OnePassPredictive, PolyaGammaGibbs, Training
from pyro_opu.guides.plug_in import MomentsTrunk
from pyro_opu.interop.scikit_learn import OnePassClassifier
from pyro_opu.models.laplace import laplace
from pyro_opu.models.logistic_regression import logistic_regression


def data(load: Any) -> tuple[Tensor, Tensor]:
    found = load()
    x = torch.tensor(found.data)
    return ((x - x.mean(0)) / x.std(0)).float(), torch.tensor(found.target)


def normal() -> tuple[Predictive, Tensor, Tensor]:
    """Laplace's draws of three species, which are normal."""
    x, y = data(load_iris)
    guide = laplace(x, y, 3).guide
    return Predictive(logistic_regression(3), guide=guide, num_samples=500), x, y


@pytest.fixture(scope="module")
def iris() -> tuple[OnePassPredictive, Predictive, Tensor]:
    source, x, _ = normal()
    return pyro_opu.distill(source, x, seed=0, progress=False), source, x


def test_a_multinomial_regression_takes_no_step(iris: Any) -> None:
    fast, source, x = iris
    assert fast.report["spent"]["steps"] == 0 and fast.report["draws"] > 500, str(fast.report)
    assert isinstance(fast.guide.trunk, MomentsTrunk) and fast.guide.trunk.has_logits
    assert "closed form kept" in str(fast.report) and "excellent" in str(fast.report)
    new = 1.5 * x + 0.3
    draws = pyro_opu.as_teacher(source).probs(new).double()
    found = fast.distribution(new)
    torch.testing.assert_close(found.mean.double(), draws.mean(0), rtol=0, atol=0.015)
    mine, theirs = (pyro_opu.uncertainty(each).epistemic for each in (found, draws))
    some = theirs > 1e-3
    assert 0.8 < float((mine[some] / theirs[some]).quantile(0.1))
    assert float((mine[some] / theirs[some]).quantile(0.9)) < 1.25


def test_it_lives_in_a_file_and_in_an_export(iris: Any, tmp_path: Path) -> None:
    fast, _, x = iris
    fast.save(tmp_path / "fast.safetensors")
    again = OnePassPredictive.load(tmp_path / "fast.safetensors")
    one, two = (each.distribution(x).as_tensors() for each in (fast, again))
    assert all(torch.equal(one[key], two[key]) for key in one)
    before, after = (each.dirichlet(x).concentration for each in (fast, fast.fuse()))
    torch.testing.assert_close(after, before, rtol=1e-3, atol=0)


@pytest.mark.slow
def test_it_is_exported_and_answers_any_number_of_rows(iris: Any, tmp_path: Path) -> None:
    fast, _, x = iris
    fast.export(tmp_path / "fast.pt2")
    program = torch.export.load(tmp_path / "fast.pt2").module()
    torch.testing.assert_close(program(x[:7])["mean"], fast.distribution(x[:7]).mean)


def test_an_estimator_is_one_too() -> None:
    source, x, y = normal()
    made = OnePassClassifier(lambda x, y: source, num_steps=3, random_state=0)
    fitted = made.fit(x.numpy(), y.numpy())
    assert isinstance(fitted.student_.guide.trunk, MomentsTrunk)
    expected = pyro_opu.as_teacher(source).probs(x, 2000).mean(0)
    probs = torch.as_tensor(fitted.predict_proba(x.numpy())).float()
    torch.testing.assert_close(probs, expected, rtol=0, atol=0.04)  # after three steps


def test_it_is_taught_if_steps_are_asked_for() -> None:
    source, x, _ = normal()
    fast = pyro_opu.distill(
        source, x, num_steps=3, seed=0, progress=False, training=Training(recalibrate=False)
    )
    assert fast.report["spent"]["steps"] == 3 and fast.report["history"][0]["draws"] > 500


@pytest.mark.slow
@pytest.mark.parametrize(("load", "draws"), [(load_iris, 300), (load_wine, 90)])
def test_skewed_draws_of_a_sampler_begin_there(load: Any, draws: float) -> None:
    """As near as hundreds; by MacKay's factor as near as 20."""
    x, y = data(load)
    mcmc = MCMC(PolyaGammaGibbs(logistic_regression(3)), 2000, 300, disable_progbar=True)
    mcmc.run(x, y)
    source = Predictive(logistic_regression(3), mcmc.get_samples(), return_sites=("obs",))
    torch.manual_seed(0)
    wide = torch.cat([x, 3 * torch.randn(300, x.shape[1])])
    fast = pyro_opu.distill(source, wide, seed=0, progress=False)
    assert fast.report["spent"]["steps"] <= 1000 and fast.report["draws"] > 400
    assert fast.report["history"][0]["draws"] > draws, str(fast.report)
