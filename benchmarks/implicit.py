"""Which guide where the shape of a posterior matters: curves, groups, corners, dependent numbers.

python -m benchmarks.implicit

Students of known posteriors of 512 draws, by ``distill`` with defaults but for guide, loss and
steps: a mixture has 1,000, and "implicit, critic" 600 by the Wasserstein bound from a cold start.
"energy" is the joint energy distance (l2, whole rows) of 512 draws to these at new rows, as a share
of their mean distance; "likelihood" by how much the expected log-likelihood of all labels of a row
together is worse than the posterior's own, by enumeration. "pass" is that of 32 draws at 1,000
rows, in passes of a plain network of as many inputs and ten classes.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from itertools import product
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

from papers.results import Tables, parser, record_seeds
from papers.timing import timed
from pyro_opu import Training, distill
from pyro_opu.guides import ImplicitGuide
from pyro_opu.guides.table import TableGuide
from pyro_opu.objectives.energy import joint_energy_distance
from pyro_opu.teachers.finished import finished_teacher

D, HELD, LABELS = 4, 512, 5
STUDENTS: dict[str, dict[str, Any]] = {
    "default": {},
    "mixture": {"guide": "mixture", "num_steps": 1000},
    "implicit, 400 steps": {"guide": "implicit", "num_steps": 400},
    "implicit, 1,500 steps": {"guide": "implicit", "num_steps": 1500},
    "implicit, critic": {
        "guide": "implicit",
        "loss": "wasserstein",
        "training": Training(warm_start=False),
        "num_steps": 600,
    },
}
#: They answer one label of a row.
OF_CLASSES = ("mixture", "implicit, critic")
QUICK = (("groups", "implicit, 400 steps"), ("labels", "default"))


def curve() -> Any:
    """One number decides where on a curve of the simplex the draws of a row are."""
    u = 6 * torch.rand(HELD, 1)

    def logits(x: Tensor) -> Tensor:
        turn = u + x[:, 0]
        return 2.5 * torch.stack([turn.sin(), turn.cos(), 0.3 * x[:, 1] + 0 * u], -1)

    return lambda x: logits(x).softmax(-1)


def groups() -> Any:
    """Two groups of hypotheses that contradict one another."""
    noise = 0.15 * torch.randn(HELD, D, 3)
    weight = torch.randn(2, D, 3)[torch.randint(2, (HELD,))] + noise
    return lambda x: torch.einsum("nd,sdc->snc", 1.5 * x, weight).softmax(-1)


def corners() -> Any:
    """Five networks that agree on little."""
    weights = [(torch.randn(D, 32), torch.randn(32, 3)) for _ in range(5)]
    return lambda x: torch.stack([((x @ a).tanh() @ b).softmax(-1) for a, b in weights])


def observed(signs: Tensor, law: Any) -> Predictive:
    """Numbers of a row that share what the posterior does not know."""
    slopes = torch.randn(D, signs.shape[1])

    def model(x: Tensor) -> None:
        b = pyro.sample("b", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        shared = b * torch.stack([x[:, 0].sigmoid() + 0.5, x[:, 1]], -1)
        with pyro.plate("data", len(x)):
            pyro.sample("obs", law(x @ slopes + shared @ signs).to_event(1))

    return Predictive(model, {"b": torch.randn(HELD, 2)})


def labels() -> Predictive:
    signs = torch.tensor([[3.0, 3.0, -3.0, 3.0, -3.0], [1.0, -1.0, 1.0, 0.0, 0.0]])
    return observed(signs, lambda z: dist.Bernoulli(logits=z))


def vectors() -> Predictive:
    return observed(
        torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, 0.0]]), partial(dist.Normal, scale=0.3)
    )


POSTERIORS = {f.__name__: f for f in (curve, groups, corners, labels, vectors)}


def drawn(fast: Any, x: Tensor) -> Tensor:
    """Draws ``(S, N, K)`` in a teacher's form; of marginals, where there are no others."""
    if type(fast.guide) is not TableGuide:
        return fast.draws(x, HELD)
    (answer,) = fast.answer(x).answers
    if fast.guide.parts[0].on_simplex:
        return answer.sample((HELD,)).reshape(HELD, len(x), -1)
    f, _, variance = answer.components().drawn(HELD)
    return torch.stack([f, variance / 2], -1).reshape(HELD, len(x), -1)


def log_joint(draws: Tensor) -> Tensor:
    """Logarithms of the probabilities ``(N, 32)`` of all rows of labels."""
    each, rows = draws.double().unflatten(-1, (LABELS, 2)), product([0, 1], repeat=LABELS)
    return torch.stack([each[:, :, range(LABELS), y].prod(-1).mean(0) for y in rows], -1).log()


def of_seed(seed: int, args: argparse.Namespace) -> Tables:
    rows: list[dict[str, Any]] = []
    cells = product(args.posteriors, args.students)
    for posterior, student in QUICK if args.quick else cells:
        if posterior in ("labels", "vectors") and student in OF_CLASSES:
            continue
        torch.manual_seed(seed)
        source, x, new = (
            POSTERIORS[posterior](),
            torch.randn(2000, D),
            torch.randn(20 if args.quick else 200, D),
        )
        options = STUDENTS[student] | ({"num_steps": 5} if args.quick else {})
        begun = time.process_time()
        fast = distill(source, x, seed=seed, progress=False, **options)
        seconds = time.process_time() - begun
        truth, mine = finished_teacher(source, new).draws(new, None), drawn(fast, new)
        if posterior == "vectors":  # the noise is known
            truth, mine = truth[..., ::2], mine[..., ::2]
        each, at = 1 / len(truth), truth.movedim(0, 1)
        apart = torch.cdist(at, at).mean() / (1 - each)
        energy = joint_energy_distance(mine, truth).mean() / apart + each
        row = {"posterior": posterior, "student": student, "energy": float(energy)}
        row |= {"mean as of": fast.report["draws"], "CPU s": seconds}
        if posterior == "labels":
            own, found = log_joint(truth), log_joint(mine)
            best, its = ((own.exp() * logs).sum(-1).mean() for logs in (own, found))
            row["likelihood"] = float(its / best - 1)
        rows.append(row | {"family": fast.report["family"]})
        print(rows[-1], flush=True)
    return {"Posteriors": rows, "Passes": passes(0.0 if args.quick else 3.0)}


def draws_at(guide: nn.Module, x: Tensor) -> Tensor:
    return guide(x).log_rsample((32,))


@torch.no_grad()
def passes(budget: float) -> list[dict[str, Any]]:
    rows = []
    for inputs, width in ((64, 256), (784, 400)):
        layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        plain, x = nn.Sequential(*layers, nn.Linear(width, 10)), torch.randn(1000, inputs)
        guide = ImplicitGuide.for_inputs(x, 10)
        found = timed({"plain": partial(plain, x), "draws": partial(draws_at, guide, x)}, budget)
        ratio = found["draws"] / found["plain"]
        rows.append({"network": f"{inputs}-{width}-{width}-10", "pass": ratio})
    return rows


def main() -> None:
    found = parser(__doc__ or "", seeds=2)
    for name, known in (("posteriors", POSTERIORS), ("students", STUDENTS)):
        found.add_argument(f"--{name}", nargs="+", choices=known, default=list(known))
    args = found.parse_args()
    args.seeds = 1 if args.quick else args.seeds
    torch.set_num_threads(1)
    by = {"Posteriors": ("posterior", "student"), "Passes": ("network",)}
    record_seeds(__file__, args, of_seed, by)


if __name__ == "__main__":
    main()
