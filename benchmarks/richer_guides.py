"""Teachers that no single Dirichlet can copy, and the guides that go beyond one.

The judge is asked afresh, with draws of its own at every input. Distances are means over inputs:

- "energy": unbiased energy distance (U-statistic) of 2,000 draws, 0 for a perfect student;
- "plug-in / floor": the energy distance of S = 500 student draws to S = 500 teacher draws with
  the pairs of a draw with itself counted (V-statistic), over the same of two sets of teacher
  draws. A perfect student has 1; where the best single Dirichlet of every input (by moments) has
  2 or more, the bar for the mixture is 1.3;
- "W1 / floor": exact 1-Wasserstein distance over that of two sets of teacher draws, at 500 draws
  each. The l1 energy distance sees the marginal of every class alone; this one sees how the
  classes depend on each other.

    python -m benchmarks.richer_guides
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import pyro_opu
from benchmarks.known_answers import on_the_line
from benchmarks.results import parser, say, spread, write
from pyro_opu.distributions import SimplexDistribution
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.metrics.distances import energy_distance, kl_divergence, wasserstein1
from pyro_opu.metrics.marginals import mean_absolute_difference
from pyro_opu.metrics.uncertainty import moment_concentration
from pyro_opu.objectives import Objective
from pyro_opu.objectives.likelihood import LikelihoodFirst

GUIDES = ("dirichlet", "mixture", "logistic_normal")
#: S of the plug-in energy distance and of W1.
NUM_DRAWS = 500
#: Inputs that W1 is solved at, where there are more than two classes.
WASSERSTEIN_INPUTS = 24

CORNERS = 0.9 * torch.eye(4) + 0.1 / 3 * (1 - torch.eye(4))
PAIRS = torch.tensor([[0.45, 0.45, 0.05, 0.05], [0.05, 0.05, 0.45, 0.45]])
COMMON = torch.tensor([0.4, 0.3, 0.2, 0.1])
CORNER_WEIGHTS = torch.tensor([[1.0, -1.0, 0.5, -0.5], [0.4, 0.8, -0.8, -0.4]])
#: Mean weights and bias of two groups of logistic regressions.
GROUPS = torch.tensor([[2.0, 1.0, 0.5], [-1.0, 1.5, -1.0]])


def hypotheses(x: Tensor, means: Tensor, weights: Tensor, chance: Tensor) -> Tensor:
    """Draws near one of K means ``(K, C)``, all the same near (1, 1) and apart elsewhere.

    Args:
        x: ``(N, 2)``.
        means: Of hypotheses that disagree, ``(K, C)``.
        weights: Of the hypotheses, ``(N, K)``.
        chance: Uniform numbers ``(S, 1 or N)`` that choose the hypothesis.
    """
    chosen = (chance[..., None] > weights.cumsum(-1)[:, :-1]).sum(-1).expand(-1, len(x))
    apart = torch.sigmoid(3 * ((x - 1).norm(dim=-1) - 1))[:, None, None]
    each = torch.lerp(COMMON, means, apart)
    alpha = 50 * each[torch.arange(len(x)), chosen]
    return torch.distributions.Dirichlet(alpha, validate_args=False).sample()


def corners(x: Tensor, chance: Tensor, noise: Tensor) -> Tensor:
    """Four groups of hypotheses, each sure of another class."""
    return hypotheses(x, CORNERS, (x @ CORNER_WEIGHTS).softmax(-1), chance)


def pairs(x: Tensor, chance: Tensor, noise: Tensor) -> Tensor:
    """Classes 0 and 1, or classes 2 and 3: the marginals do not say which go together."""
    return hypotheses(x, PAIRS, torch.full((len(x), 2), 0.5), chance)


def line(x: Tensor, chance: Tensor, noise: Tensor) -> Tensor:
    """The edge between two of three classes, of ``benchmarks.known_answers``."""
    return on_the_line(x, noise[..., 0])


def groups(x: Tensor, chance: Tensor, noise: Tensor) -> Tensor:
    """Two groups of logistic regressions of two classes."""
    weights = GROUPS[(chance < 0.4).long()] + 0.3 * noise
    logit = (weights[..., :2] * x).sum(-1) + weights[..., 2]
    return torch.stack([logit.sigmoid(), (-logit).sigmoid()], -1)


class Case(NamedTuple):
    """A teacher, by its answer to inputs, a uniform number and a normal vector per draw."""

    name: str
    answer: Callable[[Tensor, Tensor, Tensor], Tensor]

    def teacher(self, x: Tensor, num_draws: int = 500) -> Tensor:
        """Joint draws ``(S, N, C)``: one hypothesis for all inputs."""
        return self.answer(x, torch.rand(num_draws, 1), torch.randn(num_draws, 1, 3))

    def judge(self, x: Tensor, num_draws: int) -> Tensor:
        """The same marginals, with a hypothesis for every input: a mean over inputs is steadier."""
        return self.answer(x, torch.rand(num_draws, len(x)), torch.randn(num_draws, len(x), 3))


CASES = (
    Case("four corners", corners),
    Case("two pairs", pairs),
    Case("two-class line", line),
    Case("two groups", groups),
)


def plug_in(p: Tensor, q: Tensor) -> Tensor:
    """V-statistic of the energy distance of draws ``(S, N, C)``, per input."""
    own = sum(mean_absolute_difference(each.movedim(0, -1)).sum(-1) for each in (p, q))
    return energy_distance(p, q) + own / len(p)  # a pair of a draw with itself has distance 0


def score(answer: SimplexDistribution, case: Case, x: Tensor) -> dict[str, float]:
    """All columns for one student; the judge's draws are the same for all students."""
    torch.manual_seed(0)
    draws, others = case.judge(x, 2000), case.judge(x, 2000)
    best = PredictiveDirichlet(
        others.mean(0).clamp_min(1e-30).log(), moment_concentration(others).log(), False
    ).sample((2000,))
    mine = answer.sample((2000,))
    few = slice(None, NUM_DRAWS)
    floor = plug_in(draws[few], others[few]).mean()
    some = slice(None, None if draws.shape[-1] == 2 else WASSERSTEIN_INPUTS)
    transport = [wasserstein1(draws[few, some], q[few, some]).mean() for q in (mine, others)]
    information = [pyro_opu.uncertainty(each).epistemic.mean() for each in (answer, draws)]
    values = {
        "KL": kl_divergence(draws.mean(0), answer.mean).mean(),
        "energy": energy_distance(draws, mine).mean(),
        "plug-in / floor": plug_in(draws[few], mine[few]).mean() / floor,
        "best Dirichlet's": plug_in(draws[few], best[few]).mean() / floor,
        "W1 / floor": transport[0] / transport[1],
        "mutual information, error": information[0] / information[1] - 1,
    }
    return {name: float(value) for name, value in values.items()}


class Task:
    """One teacher and seed: 1,000 transfer inputs, and fresh ones to judge on."""

    def __init__(self, case: Case, seed: int, args: Any) -> None:
        torch.manual_seed(seed)
        self.case, self.seed, self.args = case, seed, args
        self.x, self.fresh = torch.randn(1000, 2), torch.randn(args.judged, 2)

    def distil(self, **settings: Any) -> tuple[pyro_opu.OnePassPredictive, dict[str, float]]:
        """A student and its row, with the seconds of processor time that it took."""
        common = {"num_steps": self.args.steps, "batch_size": self.args.batch, "seed": self.seed}
        start = time.process_time()
        fast = pyro_opu.distill(self.case.teacher, self.x, progress=False, **{**common, **settings})
        seconds = time.process_time() - start
        row = score(fast.distribution(self.fresh), self.case, self.fresh)
        return fast, {**row, "seconds": seconds}


def over_seeds(names: dict[str, str], rows: list[dict[str, float]]) -> dict[str, str]:
    """One row: mean ± deviation of each column."""
    return {**names, **{key: spread([row[key] for row in rows]) for key in rows[0]}}


def guides(args: Any, table: list[dict]) -> Iterator[None]:
    """Every guide with the default loss: one row at a time."""
    for case in CASES[: args.cases]:
        for guide in GUIDES:
            rows = [Task(case, seed, args).distil(guide=guide)[1] for seed in range(args.seeds)]
            table.append(over_seeds({"teacher": case.name, "guide": guide}, rows))
            say({"guides": table[-1:]})
            yield


def at_rate(objective: Objective, rate: float) -> Objective:
    """The objective, to be trained by alone at this learning rate."""
    objective.learning_rate = rate
    return objective


STARTS: dict[str, Callable[[], Objective]] = {
    "likelihood, then energy (default)": lambda: at_rate(LikelihoodFirst(), 4e-3),
    "energy": lambda: at_rate(pyro_opu.EnergyDistance(likelihood=1.0), 4e-3),
    "critic": lambda: at_rate(pyro_opu.WassersteinELBO(), 1e-3),
}
REFINEMENTS = {"critic": "wasserstein", "energy": "energy"}


def losses(args: Any, table: list[dict]) -> Iterator[None]:
    """The mixture from three starts, each as it is and refined by two losses.

    A refinement that does not lower the held-out energy distance is dropped, as in ``distill``;
    "kept" is the share of seeds where it did. Its seconds are its own.
    """
    for case in CASES[1 : args.cases : 2]:
        for name, start in STARTS.items():
            rows: dict[str, list[dict[str, float]]] = {"": [], **{key: [] for key in REFINEMENTS}}
            for seed in range(args.seeds):
                task = Task(case, seed, args)
                fast, row = task.distil(guide="mixture", loss=start(), warm_start=False)
                rows[""].append(row)
                for refinement, loss in REFINEMENTS.items():
                    better, row = task.distil(
                        guide=copy.deepcopy(fast.guide),
                        loss=loss,
                        warm_start=False,
                        num_steps=args.refine_steps,
                        evaluate_every=max(1, args.refine_steps // 6),
                    )
                    kept = float(better.report["kept"].startswith("objective kept"))
                    rows[refinement].append({**row, "kept": kept})
            for refinement, each in rows.items():
                names = {"teacher": case.name, "start": name, "then": refinement}
                table.append(over_seeds(names, each))
            say({"losses": table[-3:]})
            yield


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=1000, help="of every distillation")
    options.add_argument("--refine-steps", type=int, default=300, help="of a refinement")
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--judged", type=int, default=300, help="inputs to judge on")
    options.add_argument("--cases", type=int, default=4, help="the first so many teachers")
    options.add_argument("--seeds", type=int, default=3)
    args = options.parse_args()
    if args.quick:
        args.steps, args.refine_steps, args.judged, args.cases, args.seeds = 10, 6, 2, 2, 1
    settings = {key: value for key, value in vars(args).items() if key != "quick"}
    tables: dict[str, list[dict]] = {}
    for title, make in (("Guides, default loss", guides), ("Losses, mixture", losses)):
        for _ in make(args, tables.setdefault(title, [])):
            if not args.quick:
                write("richer_guides", "python -m benchmarks.richer_guides", settings, tables)
    say(tables)


if __name__ == "__main__":
    main()
