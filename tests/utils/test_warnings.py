"""Warnings point at the line of the user that led to them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, Predictive
from pyro.infer.autoguide import AutoNormal

from pyro_opu import PolyaGammaGibbs, as_teacher, distill
from pyro_opu.reports.mixing import MixingWarning
from pyro_opu.utils.warnings import warn_user

pytestmark = pytest.mark.usefixtures("brief")

HERE = Path(__file__)
X = torch.linspace(-1.0, 1.0, 40).reshape(20, 2)
QUICK = {"num_steps": 2, "loss": "moments", "progress": False}


def model(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)


def branching(x):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    logits = x @ w if w.sum() > 0 else -(x @ w)
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=logits))


def not_mixed():
    """A chain that goes from one end to the other once."""
    return Predictive(model, {"w": torch.linspace(-3.0, 3.0, 200)[:, None].expand(200, 2)})


def guided():
    guide = AutoNormal(pyro.poutine.block(model, hide=["obs"]))
    return Predictive(model, guide=guide, num_samples=5)


def one_class():
    mcmc = MCMC(PolyaGammaGibbs(model), 2, 1, disable_progbar=True)
    mcmc.run(X, torch.ones(20))


CASES = {
    "the chain has not mixed": (
        lambda: distill(not_mixed(), X, **QUICK),
        MixingWarning,
        "Sample with a longer warm-up",
    ),
    "a site is left out": (lambda: distill(guided(), X, **QUICK), UserWarning, "Pass return_sites"),
    "draw by draw": (
        lambda: as_teacher(Predictive(branching, {"w": torch.randn(5, 2)})).probs(X),
        UserWarning,
        "torch.where in the place of",
    ),
    "labels of one class": (one_class, UserWarning, "Check y"),
}


@pytest.mark.parametrize("name", CASES)
def test_points_here_and_says_what_to_do(name):
    call, category, advice = CASES[name]
    if name == "labels of one class":
        pytest.importorskip("polyagamma")
    with pytest.warns(category, match=advice) as caught:
        call()
    (found,) = [each for each in caught if advice in str(each.message)]
    assert Path(found.filename) == HERE


def test_the_line_is_the_callers():
    with pytest.warns(MixingWarning, match="of mine") as caught:
        warn_user("of mine", MixingWarning)
    assert HERE.read_text().splitlines()[caught[0].lineno - 1].strip().startswith("warn_user(")


def test_lines_of_the_package_are_passed_over():
    names = {"__name__": "pyro_opu.inner", "warn_user": warn_user}
    exec("def inner():\n    warn_user('deep')", names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names["inner"]()
    assert Path(caught[0].filename) == HERE
