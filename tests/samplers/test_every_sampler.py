"""Samplers: what holds of every one in Pyro's MCMC."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from posteriors import SAMPLERS, two_classes
from pyro.infer import MCMC, Predictive
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_opu import as_teacher

Build = Callable[[Callable[..., Tensor]], MCMCKernel]


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(25, 2)
    return x, (x[:, 0] + 0.5 * torch.randn(25) > 0).float()


def run(kernel: MCMCKernel, seed: int = 1, **options: object) -> MCMC:
    mcmc = MCMC(kernel, 12, 3, disable_progbar=True, **options)
    x, y = data()
    torch.manual_seed(seed)
    mcmc.run(x, y)
    return mcmc


def draws_of(kernel: MCMCKernel, seed: int = 1) -> Tensor:
    return run(kernel, seed).get_samples()["w"]


@pytest.mark.parametrize("build", SAMPLERS.values(), ids=SAMPLERS)
class TestEverySampler:
    def test_the_seed_fixes_the_draws(self, build: Build) -> None:
        draws = draws_of(build(two_classes))
        assert draws.shape == (12, 2) and draws.dtype == torch.float32 and draws.isfinite().all()
        assert len(draws.unique(dim=0)) == 12
        assert torch.equal(draws_of(build(two_classes)), draws)
        assert not torch.equal(draws_of(build(two_classes), seed=2), draws)

    @pytest.mark.filterwarnings("ignore:num_chains", "ignore:Could not get vectorized trace")
    def test_several_chains(
        self, build: Build, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("pyro.infer.mcmc.api.mp.cpu_count", lambda: 1)  # one after another
        starts: list[Tensor] = []
        mcmc = run(
            build(two_classes),
            num_chains=3,
            hook_fn=lambda kernel, params, stage, i: starts.append(params["w"].clone()),
        )
        grouped = mcmc.get_samples(group_by_chain=True)["w"]
        assert grouped.shape == (3, 12, 2)
        assert len(grouped[:, 0].unique(dim=0)) == 3  # every chain has a start of its own
        assert len(starts) == 3 * 15
        mcmc.summary()
        assert "Number of divergences: 0" in capsys.readouterr().out
        assert mcmc.diagnostics()["divergences"] == {f"chain {i}": [] for i in range(3)}
        arviz = pytest.importorskip("arviz")
        if hasattr(arviz, "from_pyro"):  # dropped in ArviZ 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of ArviZ about its own future
                found = arviz.from_pyro(mcmc, log_likelihood=False)
            assert found.posterior["w"].shape == (3, 12, 2)
            assert not found.sample_stats["diverging"].values.any()

    def test_pickles_before_and_after_a_run(self, build: Build) -> None:
        expected = draws_of(build(two_classes))
        kernel = pickle.loads(pickle.dumps(build(two_classes)))
        assert torch.equal(draws_of(kernel), expected)
        assert torch.equal(draws_of(pickle.loads(pickle.dumps(kernel))), expected)

    def test_draws_are_a_teacher(self, build: Build) -> None:
        (x, _), samples = data(), {"w": draws_of(build(two_classes))}
        probs = as_teacher(Predictive(two_classes, samples)).probs(x)
        expected = torch.sigmoid(samples["w"] @ x.T)
        torch.testing.assert_close(probs[..., 1], expected)
