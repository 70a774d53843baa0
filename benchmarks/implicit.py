"""Which guide where the shape of a posterior matters: curves, groups, corners, dependent numbers.

python -m benchmarks.implicit

Students of six known posteriors, each by ``distill`` and its defaults but for the guide and loss.
"energy" is the joint energy distance (l2, whole rows) of 512 draws from 512 new ones of the
posterior at 200 new rows, as a share of the mean distance of two of these. "labels" is by how much
the expected log-likelihood of all labels of a row together is below the posterior's own, by
enumeration. "pass" is the time of 32 draws, in plain passes of the network 64-256-256-10.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from torch import Tensor, nn

import pyro_opu
from pyro_opu.objectives.energy import joint_energy_distance

D, HELD, ROWS, LABELS = 4, 512, 2000, 5
GUIDES: dict[str, dict[str, Any]] = {
    "default": {},
    "default, twice the steps": {"num_steps": 6000},
    "mixture": {"guide": "mixture"},
    "implicit": {"guide": "implicit"},
    "implicit, wasserstein": {"guide": "implicit", "loss": "wasserstein"},
}


def curve(count: int) -> Callable[[Tensor], Tensor]:
    """All draws of a row are on one curve of the simplex, where a latent number says."""
    u = torch.rand(count, 1)

    def probs(x: Tensor) -> Tensor:
        turn = 6.0 * u + x[:, 0]
        z = torch.stack([turn.sin(), turn.cos(), 0.3 * x[:, 1] + 0 * turn], -1)
        return (2.5 * z).softmax(-1)

    return probs


def groups(count: int) -> Callable[[Tensor], Tensor]:
    """Two groups of hypotheses, each certain, that contradict one another where x[0] > 0."""
    weight = torch.randn(2, D, 3)
    which, noise = torch.randint(2, (count,)), 0.15 * torch.randn(count, D, 3)
    return lambda x: torch.einsum("nd,sdc->snc", 1.5 * x, weight[which] + noise).softmax(-1)


def corners(count: int) -> list[nn.Module]:
    """Five networks that agree on little."""
    return [
        nn.Sequential(nn.Linear(D, 32), nn.Tanh(), nn.Linear(32, 3), Times(6.0)) for _ in range(5)
    ]


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def labels(count: int) -> Predictive:
    """Binary labels of a row, which share a number that the posterior does not know."""
    slopes = torch.randn(D, LABELS)
    loads = torch.tensor([1.0, 1.0, -1.0, 1.0, -1.0])

    def model(x: Tensor) -> None:
        b = pyro.sample("b", dist.Normal(0.0, 2.0))
        w = pyro.sample("w", dist.Normal(torch.zeros(D), 0.3).to_event(1))
        logits = x @ slopes + ((x @ w)[:, None] + b * (1 + 0.5 * x[:, :1])) * loads
        with pyro.plate("data", len(x), dim=-2), pyro.plate("labels", LABELS, dim=-1):
            pyro.sample("obs", dist.Bernoulli(logits=logits))

    return Predictive(model, {"b": 2.0 * torch.randn(count), "w": 0.3 * torch.randn(count, D)})


def vectors(count: int) -> Predictive:
    """Three real numbers of a row, whose means are known but for what they share."""
    slopes = torch.randn(D, 3)

    def model(x: Tensor) -> None:
        b = pyro.sample("b", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        shared = torch.stack([b[0] * x[:, 0].exp().clamp_max(3), b[1] + 0 * x[:, 0]], -1)
        mean = x @ slopes + shared @ torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, 0.0]])
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(mean, 0.3).to_event(1))

    return Predictive(model, {"b": torch.randn(count, 2)})


POSTERIORS: dict[str, Callable[[int], Any]] = {
    "curve": curve,
    "two groups": groups,
    "ensemble of five": corners,
    "labels": labels,
    "vectors": vectors,
}


def drawn(student: Any, x: Tensor, count: int) -> Tensor:
    """Draws ``(S, N, K)`` in a teacher's form, of marginals where it has no others."""
    try:
        return student.draws(x, count)
    except TypeError:
        answers = student.answer(x).answers
    found = []
    for part, answer in zip(student.parts, answers, strict=True):
        if part.on_simplex:
            values = answer.sample((count,))
        else:
            f, _, variance = answer.components().drawn(count)
            values = torch.stack([f, variance / 2], -1)
        found.append(values.reshape(count, len(x), -1))
    return torch.cat(found, -1)


def joint_likelihood(student: Tensor, posterior: Tensor) -> float:
    """By how much the likelihood of all labels together is below that of the posterior."""
    every = torch.tensor(list(product([0, 1], repeat=LABELS)))

    def of(draws: Tensor) -> Tensor:
        p = draws.unflatten(-1, (LABELS, 2)).double()
        logs = torch.stack([p[:, :, torch.arange(LABELS), y].log().sum(-1) for y in every], -1)
        return logs.logsumexp(0) - torch.tensor(float(len(draws))).log()

    truth, found = of(posterior), of(student)
    own = (truth.exp() * truth).sum(-1).mean()
    return float((truth.exp() * found).sum(-1).mean() / own - 1)


def run(seed: int, posterior: str, guides: list[str]) -> list[dict[str, Any]]:
    rows = []
    torch.manual_seed(seed)
    source = POSTERIORS[posterior](HELD)
    x, new = torch.randn(ROWS, D), torch.randn(200, D)
    teacher = pyro_opu.as_teacher(source)
    for name in guides:
        begun = time.perf_counter()
        fast = pyro_opu.distill(source, x, seed=seed, progress=False, **GUIDES[name])
        seconds = time.perf_counter() - begun
        truth = teacher_draws(teacher, new)
        mine = drawn(fast, new, HELD)
        scale = truth.std(0).mean(0).clamp_min(1e-3) if posterior == "vectors" else 1.0
        distance = joint_energy_distance(mine / scale, truth / scale).mean()
        a, b = (truth / scale).transpose(0, 1), (truth / scale).transpose(0, 1)
        spread = torch.cdist(a, b).mean()
        row = {"posterior": posterior, "student": name, "family": fast.report["family"]}
        row |= {"energy": float(distance / spread), "seconds": seconds}
        row |= {"draws": fast.report["draws"]}
        if posterior == "labels":
            row["labels"] = joint_likelihood(mine, truth)
        print({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        rows.append(row)
    return rows


def teacher_draws(teacher: Any, x: Tensor) -> Tensor:
    return teacher.draws(x, None) if hasattr(teacher, "draws") else teacher.probs(x)


if __name__ == "__main__":
    import sys

    torch.set_num_threads(1)
    for p in sys.argv[1].split(","):
        run(int(sys.argv[3]) if len(sys.argv) > 3 else 0, p, sys.argv[2].split(","))
