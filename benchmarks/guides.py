"""Teachers that no single Dirichlet can copy, and the guides that go beyond one.

python -m benchmarks.guides

The posteriors are those of `benchmarks/known.py`. The judge is asked afresh, with draws of its own
at every input. Distances are means over inputs:

- "energy": unbiased energy distance (U-statistic) of 2,000 draws, 0 for a perfect student;
- "plug-in / floor": the energy distance of 500 student draws to 500 teacher draws with the pairs of
  a draw with itself counted (V-statistic), over the same of two sets of teacher draws. A perfect
  student has 1;
- "W1 / floor": exact 1-Wasserstein distance over that of two sets of teacher draws, at 500 draws
  each. The l1 energy distance sees the marginal of every class alone; this one sees how the classes
  depend on each other.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

import pyro_opu
from benchmarks.known import KNOWN, Known
from benchmarks.results import Tables, parser, record_seeds
from pyro_opu.distributions import SimplexDistribution
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.metrics.distances import energy_distance, kl_divergence, wasserstein1
from pyro_opu.metrics.marginals import mean_absolute_difference
from pyro_opu.metrics.uncertainty import moment_concentration

GUIDES = ("dirichlet", "mixture", "logistic_normal")
#: Draws of the plug-in energy distance and of W1; inputs of W1 where classes are more than two.
NUM_DRAWS, WASSERSTEIN_INPUTS = 500, 24


def main() -> None:
    options = parser(__doc__, seeds=3)
    options.add_argument("--steps", type=int, default=1000, help="of every distillation")
    options.add_argument("--judged", type=int, default=300, help="inputs to judge on")
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.quick:
        args.seeds, args.steps, args.judged = 1, 10, 2
    record_seeds(__file__, args, of_seed, {"Guides": ("teacher", "guide")})


def of_seed(seed: int, args) -> Tables:
    """Every guide of every teacher, with the default loss."""
    rows = []
    for name, case in list(KNOWN.items())[: 1 if args.quick else None]:
        torch.manual_seed(seed)
        x, fresh = torch.randn(1000, 2), torch.randn(args.judged, 2)
        for guide in GUIDES:
            start = time.process_time()
            fast = pyro_opu.distill(
                case.teacher,
                x,
                guide=guide,
                num_steps=args.steps,
                batch_size=128,
                seed=seed,
                progress=False,
            )
            seconds = time.process_time() - start
            same = {"teacher": name, "guide": guide}
            rows.append(same | score(fast.distribution(fresh), case, fresh) | {"CPU s": seconds})
    return {"Guides": rows}


def plug_in(p: Tensor, q: Tensor) -> Tensor:
    """V-statistic of the energy distance of draws ``(S, N, C)``, per input."""
    own = sum(mean_absolute_difference(each.movedim(0, -1)).sum(-1) for each in (p, q))
    return energy_distance(p, q) + own / len(p)  # a pair of a draw with itself has distance 0


def score(answer: SimplexDistribution, case: Known, x: Tensor) -> dict[str, float]:
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


if __name__ == "__main__":
    main()
