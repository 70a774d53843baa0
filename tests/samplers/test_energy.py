"""NUTS with energies: the draws of Pyro's, and energies against closed forms."""

from __future__ import annotations

import math
import pickle
from functools import cache
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from chains import in_turn
from pyro.infer import MCMC, NUTS

from pyro_opu import to_inference_data
from pyro_opu.samplers import NUTSWithEnergy

D = 4


def model() -> None:
    pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))


def run(kernel: Any, draws: int = 50, chains: int = 1) -> MCMC:
    pyro.set_rng_seed(0)
    return in_turn(kernel, draws, 20, chains=chains)


@cache
def normal() -> MCMC:
    """400 draws of a standard normal, where the mass matrix is not adapted: it is 1."""
    return run(NUTSWithEnergy(model, adapt_mass_matrix=False), 400)


def test_draws_are_those_of_nuts() -> None:
    ours, theirs = (run(kind(model)).get_samples()["w"] for kind in (NUTSWithEnergy, NUTS))
    assert torch.equal(ours, theirs)


def test_energy_less_potential_is_the_kinetic_energy_of_a_fresh_momentum() -> None:
    w = normal().get_samples()["w"].double()
    potential = (0.5 * w**2 + 0.5 * math.log(2 * math.pi)).sum(-1)
    energy = torch.tensor(normal().diagnostics()["energy"]["chain 0"], dtype=torch.float64)
    assert energy.shape == (400,)
    kinetic = energy[1:] - potential[:-1]  # of the draw before, where the trajectory begins
    # Half a chi-squared of D degrees: positive (to float32), mean and variance D / 2. Momenta are
    # independent; 5 standard errors, where that of a gamma's variance is sqrt((2 D + 12) / D).
    assert kinetic.min() > -1e-5
    assert float(kinetic.mean()) == pytest.approx(D / 2, abs=5 * math.sqrt(D / 2 / 399))
    error = math.sqrt((2 * D + 12) / D / 399)
    assert float(kinetic.var()) == pytest.approx(D / 2, rel=5 * error)
    assert abs(float(torch.corrcoef(torch.stack([kinetic[1:], kinetic[:-1]]))[0, 1])) < 0.25


def test_arviz_has_it_by_chain() -> None:
    az = pytest.importorskip("arviz")
    mcmc = run(NUTSWithEnergy(model), chains=2)
    found = to_inference_data(mcmc)
    energy = found["sample_stats"]["energy"]
    assert energy.dims == ("chain", "draw") and energy.shape == (2, 50)
    for chain in range(2):
        assert energy.values[chain].tolist() == mcmc.diagnostics()["energy"][f"chain {chain}"]
    change, spread = np.diff(energy.values) ** 2, energy.values.var(1)
    told = az.bfmi(found)
    if not isinstance(told, np.ndarray):  # of ArviZ 1
        told = told["energy"].values
    np.testing.assert_allclose(told, change.mean(1) / spread, rtol=0.05)  # of 49 or of 50 terms
    assert "energy" not in to_inference_data(run(NUTS(model)))["sample_stats"]


def test_arviz_draws_it() -> None:
    az, matplotlib = pytest.importorskip("arviz"), pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    az.plot_energy(to_inference_data(normal()))
    assert any(axes.has_data() for axes in pyplot.gcf().axes)
    pyplot.close("all")


def test_compiled_pickled_and_without_latents() -> None:
    kernel = NUTSWithEnergy(model, jit_compile=True, ignore_jit_warnings=True)
    kernel = pickle.loads(pickle.dumps(kernel))
    # A compiled potential rounds otherwise, and a trajectory may then end elsewhere: energies of
    # the same law, not the same ones.
    assert len(run(kernel).diagnostics()["energy"]["chain 0"]) == 50
    assert run(NUTSWithEnergy(lambda: None)).diagnostics()["energy"]["chain 0"] == []
