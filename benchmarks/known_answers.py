"""Teachers whose answer is known: Dirichlets, a degenerate line, and Betas for the critic.

python -m benchmarks.known_answers
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import pyro_opu
from benchmarks.results import parser, say, write
from pyro_opu import MetaCritic, WassersteinELBO
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.metrics.distances import energy_distance, wasserstein1
from pyro_opu.metrics.uncertainty import moment_concentration

WEIGHTS = torch.tensor([[1.0, -1.0, 0.3], [0.2, 0.7, -0.9]])


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    args = options.parse_args()
    steps = {"num_steps": 40} if args.quick else {}
    tables = {
        "Concentration of a Dirichlet teacher": recovered(steps),
        "Two-class line in a three-class simplex": line(steps),
        "Trained critic against the true W1, two classes": critic(20 if args.quick else 1000),
    }
    say(tables)
    if not args.quick:
        write("known_answers", "python -m benchmarks.known_answers", {}, tables)


def dirichlet_teacher(alpha_0: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Mean softmax(x W), concentration alpha_0(x); a Dirichlet exactly."""

    def teacher(x: Tensor, num_draws: int = 500) -> Tensor:
        log_mean = (x @ WEIGHTS).log_softmax(-1)
        return PredictiveDirichlet(log_mean, alpha_0(x).log()).sample((num_draws,))

    return teacher


def recovered(steps: dict) -> list[dict]:
    """Ratio of the student's alpha_0 to the true one on fresh inputs."""
    torch.manual_seed(0)
    x, fresh = torch.randn(1000, 2), torch.randn(1000, 2)
    cases: dict[str, Callable[[Tensor], Tensor]] = {
        str(value): (lambda x, value=value: torch.full((len(x),), value))
        for value in (0.5, 2.0, 10.0, 50.0, 500.0)
    }
    cases["from 0.5 to 500 with x"] = lambda x: 0.5 * 1000 ** torch.sigmoid(2 * x[:, 0])
    rows = []
    for name, alpha_0 in cases.items():
        teacher = dirichlet_teacher(alpha_0)
        fast = pyro_opu.distill(teacher, x, seed=0, progress=False, **steps)
        student = fast.dirichlet(fresh)
        ratio = student.log_concentration.exp() / alpha_0(fresh)
        low, middle, high = ratio.quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()
        gap = (student.mean - (fresh @ WEIGHTS).softmax(-1)).abs().sum(-1).mean()
        rows.append(
            {
                "alpha_0": name,
                "student / true, median": middle,
                "5 %": low,
                "95 %": high,
                "mean, l1 gap": float(gap),
                "kept": fast.report["kept"],
            }
        )
        say({"recovered": rows[-1:]})
    return rows


def on_the_line(x: Tensor, noise: Tensor) -> Tensor:
    """Points on the edge between classes 0 and 1, as in Fig. 3 of Cui et al."""
    p = torch.sigmoid(x[:, 0] + (0.5 + 2 * x[:, 1].abs()) * noise)
    return torch.stack([p, 1 - p, torch.zeros_like(p)], -1)


def line_teacher(x: Tensor, num_draws: int = 500) -> Tensor:
    """Joint draws: one noise for all inputs."""
    return on_the_line(x, torch.randn(num_draws, 1))


def line_judge(x: Tensor, num_draws: int) -> Tensor:
    """The same marginals with a noise for every input, so that a mean over inputs is less noisy."""
    return on_the_line(x, torch.randn(num_draws, len(x)))


def line(steps: dict) -> list[dict]:
    """Mean and energy distance on the degenerate line, beside the best Dirichlet per input."""
    rows = []
    for seed in range(3):
        torch.manual_seed(seed)
        x, fresh = torch.randn(1000, 2), torch.randn(500, 2)
        fast = pyro_opu.distill(line_teacher, x, seed=seed, progress=False, **steps)
        student = fast.dirichlet(fresh)
        fit, judge = line_judge(fresh, 8000), line_judge(fresh, 2000)
        best = PredictiveDirichlet(
            fit.mean(0).clamp_min(1e-30).log(), moment_concentration(fit).log(), validate_args=False
        )
        mine, least = (
            float(energy_distance(judge, each.sample((2000,))).mean()) for each in (student, best)
        )
        rows.append(
            {
                "seed": seed,
                "mean, l1 gap": float((student.mean - fit.mean(0)).abs().sum(-1).mean()),
                "energy distance": mine,
                "best per-input Dirichlet": least,
                "ratio": mine / least,
                "kept": fast.report["kept"],
            }
        )
        say({"line": rows[-1:]})
    mean = {
        key: sum(row[key] for row in rows) / len(rows)
        for key in ("mean, l1 gap", "energy distance", "best per-input Dirichlet")
    }
    mean["ratio"] = mean["energy distance"] / mean["best per-input Dirichlet"]
    return [*rows, {"seed": "mean", **mean}]


def critic(rounds: int) -> list[dict]:
    """Gain of the trained witness per input, against the exact W1 and its own steepest slope.

    The soft penalty's own optimum has the slope 1 + W1 / (2 lambda), so the gain may exceed W1 by
    that factor; it never exceeds the steepest slope times W1, whatever the critic.
    """
    torch.manual_seed(0)
    x = torch.randn(64, 2)
    mean = torch.sigmoid(x[:, :1])
    two = torch.cat([mean, 1 - mean], -1)
    teacher = PredictiveDirichlet(two.log(), torch.full((64,), 8.0).log())
    off = torch.sigmoid(1.0 + x[:, :1])
    student = PredictiveDirichlet(torch.cat([off, 1 - off], -1).log(), torch.full((64,), 2.0).log())
    p, q = teacher.sample((5000,)), student.sample((5000,))
    true = wasserstein1(p, q)
    grid = torch.linspace(0, 1, 401)[:, None, None].expand(-1, 64, 1)
    grid = torch.cat([grid, 1 - grid], -1)
    rows = []
    for residual, two_sided in ((False, True), (False, False), (True, True), (True, False)):
        for penalty in (1.0, 10.0):
            objective = WassersteinELBO(residual=residual, two_sided=two_sided, penalty=penalty)
            objective.critic = MetaCritic(x, 2)
            optimizer = torch.optim.Adam(objective.critic.parameters(), 1e-3, betas=(0.5, 0.99))
            for _ in range(rounds):
                draws, samples = teacher.sample((128,)), student.sample((128,))
                loss = torch.stack(list(objective.critic_loss(samples, draws, x).values())).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            value = objective.witness_values(grid, q, p, x)
            # Along the line |d pi|_1 = 2 |d pi_1|.
            slope = (value.diff(dim=0) / 2 * 400).abs().amax(0)
            gain = (
                objective.witness_values(p, q, p, x) - objective.witness_values(q, q, p, x)
            ).mean(0)
            rows.append(
                {
                    "residual": residual,
                    "penalty": f"{penalty:g}, {'two-sided' if two_sided else 'one-sided'}",
                    "gain / true W1, mean": float((gain / true).mean()),
                    "largest": float((gain / true).max()),
                    "penalty allows, largest": float((1 + true / (2 * penalty)).max()),
                    "steepest slope, mean": float(slope.mean()),
                    "steepest": float(slope.max()),
                    "gain / (slope x true W1), largest": float((gain / (slope * true)).max()),
                }
            )
    return rows


if __name__ == "__main__":
    main()
