"""Chains in processes of their own, by Pyro's own means, and their draws as one teacher."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, Predictive
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_opu import SGLD, as_teacher, distill, mixing
from pyro_opu.samplers import PolyaGammaGibbs

pytestmark = pytest.mark.usefixtures("brief")


def model(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)


KERNELS: dict[str, tuple[Callable[[], MCMCKernel], int]] = {
    "PolyaGammaGibbs": (lambda: PolyaGammaGibbs(model), 100),
    "SGLD": (lambda: SGLD(model, step_size=0.02, batch_size=10, thinning=5), 200),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_chains_in_processes_are_a_teacher(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kernel, draws = KERNELS[name]
    # Pyro takes chains one after another where there are fewer than two cores for two of them.
    monkeypatch.setattr("pyro.infer.mcmc.api.mp.cpu_count", lambda: 3)
    x = torch.randn(40, 2)
    y = (torch.rand(40) < (2 * x[:, 0]).sigmoid()).float()
    mcmc = MCMC(kernel(), draws, 20, num_chains=2, mp_context="spawn", disable_progbar=True)
    mcmc.run(x, y)

    grouped = mcmc.get_samples(group_by_chain=True)["w"]
    assert grouped.shape == (2, draws, 2) and not torch.equal(grouped[0], grouped[1])
    # Two chains of a posterior with one mode agree: their means differ by less than its deviation.
    assert ((grouped[0].mean(0) - grouped[1].mean(0)).abs() < grouped.flatten(0, 1).std(0)).all()

    predictive = Predictive(model, mcmc.get_samples())
    teacher = as_teacher(predictive)
    assert teacher.max_draws == 2 * draws
    second = (grouped.flatten(0, 1) @ x.T).sigmoid()  # the chains one after another
    torch.testing.assert_close(teacher.probs(x)[..., 1], second)
    assert mixing(predictive, x).num_draws == 2 * draws
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether so few draws have mixed is left to chance
        fast = distill(predictive, x, num_steps=4, seed=0, progress=False)
    assert fast(x)["obs"].shape == (2 * draws, 40)
