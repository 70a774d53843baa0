"""The judge that keeps weights and fills reports, against closed forms and slow sums."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from quick_distill import quick
from torch import Tensor, nn
from widest import Held

from pyro_opu import PredictiveDirichlet, epistemic_uncertainty, fidelity
from pyro_opu.distributions import Empirical
from pyro_opu.distributions.normal import PredictiveNormal
from pyro_opu.judging import ClassJudge, RealJudge, classes
from pyro_opu.judging.classes import Measured
from pyro_opu.rng import seeded

S, N = 200, 400
PARAMETERS = torch.tensor([2.0, 1.0, 3.0])


class Says(nn.Module):
    """A student with one answer at any inputs."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer


def kl(p: Tensor, q: Tensor) -> float:
    return float((p * (p / q).log()).sum(-1).mean())


class TestClasses:
    with seeded(0):
        draws = torch.distributions.Dirichlet(PARAMETERS).sample((S, N))
    x = torch.zeros(N, 1)

    def test_a_student_of_all_held_draws_attains_what_halves_leave(self) -> None:
        labelled = ClassJudge(self.x, self.draws, held=S)
        mine = Says(Empirical(self.draws.log()))
        assert labelled.scores(mine)["kl_ratio"] == pytest.approx(1.0, rel=1e-3)  # float32 answers
        # The mean of half of S held draws has variance V (1 / (S / 2) - 1 / S) = V / S, and the KL
        # is sum_k V_k / (2 m_k) to second order; 400 inputs of 2 numbers, error 5 %.
        p = PARAMETERS / 6
        expected = float((p * (1 - p) / 7 / (2 * p)).sum()) / S
        found = labelled.summary(mine)
        assert found["kl_attainable"] == pytest.approx(expected, rel=0.15)
        shared = self.draws.mean((0, 1)).expand(N, -1)
        halves = [half.exp().float() for half in labelled.means]
        assert found["kl_trivial"] == pytest.approx(
            sum(kl(h, shared) for h in halves) / 2, rel=1e-3
        )
        assert found["energy_to_posterior"] == pytest.approx(0.0, abs=5e-4)  # 256 draws of it

    def test_gaps_of_draws_are_found_some_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        measured = Measured.of_draws(self.draws)
        mean = self.draws.double().mean(0)
        monkeypatch.setattr(classes, "NUMBERS", 7 * mean.numel())
        with Held() as held:
            found = measured.gaps
        expected = (self.draws.double() * (self.draws.double() / mean).log()).sum(-1)
        torch.testing.assert_close(found, expected)
        assert held.bytes < found.nbytes + 4 * 7 * mean.nbytes

    def test_the_posterior_itself_attains_what_fresh_draws_leave(self) -> None:
        labelled = ClassJudge(self.x, self.draws)
        # One answer for all inputs is the truth here: 3 standard errors of 400 inputs.
        perfect = Says(
            PredictiveDirichlet(
                (PARAMETERS / 6).log().expand(N, 3), torch.full((N,), math.log(6.0))
            )
        )
        assert labelled.scores(perfect)["kl_ratio"] == pytest.approx(1.0, abs=0.15)
        found = labelled.summary(perfect)
        assert found["kl_trivial"] == pytest.approx(found["kl_attainable"], rel=0.15)
        ratio = found["mutual_information"] / found["mutual_information_teacher"]
        assert ratio == pytest.approx(1.0, abs=0.01)  # 400 x 200 draws

    def test_energy_and_information_of_few_draws_are_without_bias(self) -> None:
        sets = torch.distributions.Dirichlet(PARAMETERS).sample((2, 20, 16 * N))
        others = Says(Empirical(sets[0].log()))
        found = ClassJudge(torch.zeros(16 * N, 1), sets[1]).summary(others)
        # Monte Carlo of 256 draws from 20, over 6,400 inputs: five deviations.
        assert found["energy_to_posterior"] == pytest.approx(found["energy_of_draws"], rel=0.08)
        exact = ClassJudge(self.x, self.draws).summary(Says(Empirical(self.draws.log())))
        mine, theirs = (each["mutual_information_teacher"] for each in (found, exact))
        assert mine == pytest.approx(theirs, rel=0.02)

    @pytest.mark.parametrize(("held", "share"), [(20, 0.0), (40, 0.5), (None, 1.0)])
    def test_information_is_that_of_as_many_draws_as_are_held(
        self, held: int | None, share: float
    ) -> None:
        """Of S among M draws a part 1 / S - 1 / M is missing, which is none where S is M."""
        draws = self.draws[:20]
        found = ClassJudge(self.x, draws, held=held).summary(Says(Empirical(draws.log())))
        plain = float(epistemic_uncertainty(draws).mean())
        expected = plain * (1 + share / 20)  # to first order
        assert found["mutual_information_teacher"] == pytest.approx(expected, rel=0.01)

    def test_it_is_the_ratio_of_fidelity(self) -> None:
        held = torch.randn(400, 2, 3, generator=torch.Generator().manual_seed(0))
        x = torch.randn(800, 2, generator=torch.Generator().manual_seed(1))

        def source(x: Tensor) -> Tensor:
            return (x @ (held + torch.tensor([1.0, 0.0, -1.0]))).softmax(-1)

        options = {"guide": "network", "batch_size": 64, "evaluate_every": 20}
        fast = quick(source, x, loss=None, num_steps=60, **options)
        options = {"num_draws": 200, "seed": 0, "wasserstein_inputs": 0}
        ratio = fidelity(fast, source, x, **options).kl_ratio
        # 120 held-out inputs stand for 800.
        assert fast.report["kl_ratio"] == pytest.approx(ratio, rel=0.4) and ratio > 1.2


class TestReal:
    def test_a_student_of_all_moments_attains_what_halves_leave(self) -> None:
        f, log_scale = torch.randn(S, N), torch.zeros(S, N)
        draws, x = torch.stack([f, log_scale], -1), torch.zeros(N, 1)
        normal = PredictiveNormal(f.mean(0), torch.zeros(N), f.var(0).log())
        for by_moments in (True, False):
            labelled = RealJudge(x, draws, S, by_moments=by_moments)
            assert labelled.scores(Says(normal))["kl_ratio"] == pytest.approx(1.0, rel=1e-3)
            found = labelled.summary(Says(normal))
            # Errors of mean and of variance, V / S and 2 V^2 / S, in units of the variance 2 of y:
            # (1 / 2 + 2 / 4 / 2) / (2 S).
            assert found["kl_attainable"] == pytest.approx(0.75 / (2 * S), rel=0.15)
            assert found["epistemic_share"] == pytest.approx(found["epistemic_share_teacher"])
            assert found["epistemic_share"] == pytest.approx(0.5, rel=0.02)
            assert abs(found["energy_to_posterior"]) < 0.2 * found["energy_of_draws"]
            fresh = RealJudge(x, draws, by_moments=by_moments)
            truth = Says(PredictiveNormal(torch.zeros(N), torch.zeros(N), torch.zeros(N)))
            assert fresh.scores(truth)["kl_ratio"] == pytest.approx(1.0, abs=0.2)

    def test_two_draws_are_judged_whole(self) -> None:
        draws = torch.stack([torch.randn(2, N), torch.zeros(2, N)], -1)
        normal = PredictiveNormal(draws[..., 0].mean(0), torch.zeros(N), torch.zeros(N))
        found = RealJudge(torch.zeros(N, 1), draws, held=2).scores(Says(normal))
        assert math.isfinite(found["kl_ratio"])


def test_sampling_distance_is_what_draws_leave_of_their_posterior() -> None:
    torch.manual_seed(0)
    posterior = torch.distributions.Dirichlet(torch.tensor([2.0, 1.0, 3.0]))
    few = posterior.sample((20, 2000))
    truth = posterior.sample((2000, 1))
    # The distance of 20 draws from 2000, with the few draws' pairs with themselves counted in.
    cross = torch.stack([(few[:, n, None] - truth[:, 0]).abs().sum(-1).mean() for n in range(2000)])
    within = (few[:, None] - few).abs().sum(-1).mean((0, 1))
    other = (truth[:, 0, None] - truth[:, 0]).abs().sum(-1).sum() / (2000 * 1999)
    expected = (2 * cross - within - other).mean()
    found = ClassJudge(torch.zeros(2000, 1), few).sampling_distance()
    assert found == pytest.approx(float(expected), rel=0.05)  # 2000 repeats, error 2 %


def test_two_blocks_of_a_report_are_split_apart() -> None:
    x, draws = torch.zeros(50, 1), torch.rand(20, 50, 2)
    blocks = [RealJudge(x, draws, block=block).halves[0] for block in (0, 0, 1)]
    assert torch.equal(blocks[0], blocks[1])
    first, second = (block[..., 0].sort(0).values for block in (blocks[0], blocks[2]))
    # An input with the same ten draws of twenty in both: one in 184,756.
    assert int((first == second).all(0).sum()) <= 1


@pytest.mark.parametrize("concentration", [3.0, 1e3, 1e5])
def test_what_is_attainable_of_fresh_draws_is_known(concentration: float) -> None:
    """A half of S draws judges: (C - 1) / S (alpha_0 + 1), to second order."""
    alpha = concentration * torch.tensor([0.2, 0.5, 0.3])
    draws = torch.distributions.Dirichlet(alpha).sample((100, 2000))
    found = ClassJudge(torch.zeros(2000, 1), draws).attainable
    # 2,000 rows with two degrees of freedom: a standard error of 2 %; 1 % is of third order.
    assert found == pytest.approx(0.02 / (concentration + 1), rel=0.11)
    held = ClassJudge(torch.zeros(2000, 1), draws, held=100)
    assert held.attainable == pytest.approx(found / 2)


def test_no_error_below_what_float32_resolves_is_held_against_a_student() -> None:
    """Logits of a network are rounded by 1e-5, which is a KL of 1e-11, where all draws agree."""
    logits = torch.randn(300, 3)
    draws = logits.softmax(-1).expand(20, -1, -1)
    answer = (logits + 1e-5 * torch.randn(300, 3)).log_softmax(-1)
    guide = nn.Identity()
    guide.forward = lambda x: PredictiveDirichlet(answer, torch.full((300,), 16.0))
    assert ClassJudge(torch.zeros(300, 1), draws).scores(guide)["kl_ratio"] < 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_halves_do_not_follow_the_numbers_that_made_the_draws(seed: int) -> None:
    """Draws by the first numbers of a usual seed, one for each; a split by them is by size."""
    torch.manual_seed(seed)
    p = torch.rand(40, 500)
    labelled = ClassJudge(torch.zeros(500, 1), torch.stack([p, 1 - p], -1))
    one, other = (half.exp()[:, 0] for half in labelled.means)
    assert (one - other).abs().mean() < 0.15  # by size it is 0.5, by chance 0.07


def test_what_is_attainable_of_fresh_draws_of_a_real_y_is_known() -> None:
    """A half of S draws judges: e / S (a + e), where the noise a is known and large."""
    f = 0.1 * torch.randn(100, 4000, dtype=torch.float64)
    draws = torch.stack([f, torch.zeros_like(f)], -1)
    found = RealJudge(torch.zeros(4000, 1), draws).attainable
    # 4,000 rows with a degree of freedom each: a standard error of 2 %; 1 % is of second order.
    assert found == pytest.approx(0.01 / (100 * 1.01), rel=0.12)
