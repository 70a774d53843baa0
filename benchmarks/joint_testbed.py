"""Joint predictions on known generative models, in the manner of the Neural Testbed.

Twenty problems after Osband et al. (The Neural Testbed, 2022): inputs are standard normal, labels
are drawn from the softmax of a random network of two layers of 50, divided by a temperature. The
problems are picked at random from a grid of dimensions, temperatures and training rows for each
dimension.

Two teachers of 500 draws. An ensemble of networks, each with a fixed random network added to it
(randomised prior functions) and trained with weights of its own for the rows: on the testbed such
ensembles are good at joint predictions; 1,000 of them learn together in seconds, so that the "other
500 draws" are independent of the first; and each is a function of its own, the hardest thing for
last layers on shared features. And dropout, whose draws are parts of one network. The student sees
1,000 further inputs, and no label.

The joint log-loss of a group of inputs is minus the logarithm of the probability that a posterior
gives to all its labels together, of labels from the true model. Groups are of 1, 10 or 100 random
inputs; a dyadic group of 10 has only two different inputs, each several times, on which a posterior
that is independent between rows cannot learn the one from the other. With draws the probability is
a mean over them, and of 500 draws it is noisy for 100 labels: the other 500 draws say how much.
"Its last layers alone" are the joint student's draws before the joint law of groups of inputs
teaches them. "Teacher's marginals" are what a perfect marginal student would have. "Plug-in" is one
network: of the ensemble, the mean of ten, or without dropout. Gaps are in per cent of the teacher's
log-loss.

    python -m benchmarks.joint_testbed
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

import pyro_opu
from papers.results import Tables, parser, record_seeds, say
from pyro_opu.guides.joint import JointGuide
from pyro_opu.models.neural_network import dropout_network, fit_network
from pyro_opu.teachers.held import hold
from pyro_opu.training import joint

HIDDEN, CLASSES = 50, 2
GRID = tuple(itertools.product((2, 10, 100), (0.01, 0.1, 0.5), (1, 10, 100)))
#: Training of the ensemble: steps of Adam, rows in each, its rate, the scale of the fixed networks.
STEPS, BATCH, RATE, PRIOR = 400, 100, 3e-3, 1.0
#: Dropout, as in the library's other benchmarks of trained networks but for the rate.
RATE_OF_DROPOUT, EPOCHS = 0.1, 300
TRANSFER, TEST, GROUPS = 1000, 1000, 2000
SIZES = {"1": 1, "10": 10, "100": 100, "dyadic": 10}
TEACHER = "teacher, 500 draws"


class Layers(NamedTuple):
    """Weights ``(S, out, in)`` and biases ``(S, 1, out)`` of S networks."""

    weights: list[Tensor]
    biases: list[Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """Logits ``(S, N, C)`` at ``(N, D)`` or ``(S, N, D)``."""
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = (x.relu() if number else x) @ weight.mT + bias
        return x


def main() -> None:
    options = parser(__doc__, seeds=20)
    options.add_argument("--draws", type=int, default=500)
    options.add_argument("--only", type=int, help="one of the twenty problems; nothing is kept")
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.quick:
        args.seeds, args.draws = 1, 30
    if args.only is not None:
        say({"Summary": summary(of_problem(args.only, args)["Problems"])})
        return
    record_seeds(__file__, args, of_problem, lambda rows: {"Summary": summary(rows["Problems"])})


def networks(count: int, dimension: int, generator: torch.Generator) -> Layers:
    """Random networks with weights of variance 2 / in."""
    widths = (dimension, HIDDEN, HIDDEN, CLASSES)
    made = [
        torch.randn(count, wide, narrow, generator=generator) * (2 / narrow) ** 0.5
        for narrow, wide in itertools.pairwise(widths)
    ]
    return Layers(made, [torch.zeros(count, 1, w.shape[1]) for w in made])


def ensemble(x: Tensor, y: Tensor, count: int, steps: int, generator: torch.Generator):
    """Log class probabilities of ``count`` trained networks, as a function of x."""
    prior = networks(count, x.shape[1], generator)
    own = networks(count, x.shape[1], generator)
    parameters = [p.requires_grad_() for p in (*own.weights, *own.biases)]
    weights = torch.empty(count, len(x)).exponential_(generator=generator)
    adam = torch.optim.Adam(parameters, lr=RATE, fused=True)
    for _ in range(steps):
        rows = torch.randint(len(x), (min(BATCH, len(x)),), generator=generator)
        with torch.no_grad():
            fixed = PRIOR * prior(x[rows])
        logits = own(x[rows]) + fixed
        target = y[rows].expand(count, -1).flatten()
        loss = F.cross_entropy(logits.flatten(0, 1), target, reduction="none")
        adam.zero_grad()
        (loss.view(count, -1) * weights[:, rows]).mean(1).sum().backward()
        adam.step()

    @torch.no_grad()
    def log_probs(x: Tensor, index: slice = slice(None)) -> Tensor:
        def some(layers: Layers) -> Layers:
            return Layers([w[index] for w in layers.weights], [b[index] for b in layers.biases])

        return (some(own)(x) + PRIOR * some(prior)(x)).log_softmax(-1)

    return log_probs


def of_problem(seed: int, args) -> Tables:
    """Rows of one problem, one for each way to answer."""
    chosen = random.Random(0).sample(GRID, 20)
    dimension, temperature, ratio = GRID[0] if args.quick else chosen[seed]
    generator = torch.Generator().manual_seed(seed)
    truth = networks(1, dimension, generator)

    def labels(x: Tensor) -> Tensor:
        p = (truth(x)[0] / temperature).softmax(-1)
        return (torch.rand(len(x), generator=generator) < p[:, 1]).long()

    def inputs(count: int) -> Tensor:
        return torch.randn(count, dimension, generator=generator)

    train, transfer, test = inputs(ratio * dimension), inputs(TRANSFER), inputs(TEST)
    groups = {name: groups_of(name, labels, test, generator) for name in SIZES}
    y, rows = labels(train), []
    for kind, posterior in POSTERIORS.items():
        torch.manual_seed(seed)
        teacher, other, plug_ins = posterior(train, y, args, generator)
        with before_the_law() as before:
            fast = pyro_opu.distill(
                pyro_opu.as_teacher(
                    lambda x, teacher=teacher: teacher(x).exp(), num_samples=args.draws
                ),
                transfer,
                guide="joint",
                seed=seed,
                progress=False,
                **({"num_steps": 5} if args.quick else {}),
            )
        draws = teacher(test)
        ways: dict[str, list[Tensor]] = {
            TEACHER: [draws],
            "other 500 draws": [other(test)],
            "joint student": [fast.log_probs(test)],
            "its last layers alone": [before[0].draws(test)],
            "teacher's marginals": [draws.logsumexp(0, keepdim=True) - math.log(len(draws))],
            "marginal student": [fast.dirichlet(test).mean.log()[None]],
            "plug-in": plug_ins(test),
        }
        mine = [
            {"posterior": kind, "way": way} | losses(each, groups) for way, each in ways.items()
        ]
        for row in mine:
            for name in SIZES:
                row[f"gap {name}, %"] = gap(row[f"log-loss {name}"], mine[0][f"log-loss {name}"])
        rows += mine
    return {"Problems": rows}


@contextmanager
def before_the_law() -> Iterator[list[JointGuide]]:
    """Joint guides as they are before the joint law of groups of inputs teaches them."""
    found: list[JointGuide] = []
    by_law = joint._by_law

    def noted(guide: JointGuide, *rest):
        found.append(guide.requires_grad_(False))
        return by_law(guide, *rest)

    with mock.patch.object(joint, "_by_law", noted):
        yield found


def randomised(x: Tensor, y: Tensor, args, generator: torch.Generator):
    """Two sets of draws and single networks of an ensemble, each a function of x."""
    steps, first = 20 if args.quick else STEPS, slice(0, args.draws)
    members = ensemble(x, y, 2 * args.draws, steps, generator)
    other, ten = slice(args.draws, None), slice(0, 10)
    return (
        lambda x: members(x, first),
        lambda x: members(x, other),
        lambda x: list(members(x, ten)[:, None]),
    )


def dropout(x: Tensor, y: Tensor, args, generator: torch.Generator):
    """Two sets of masks, and the network without dropout."""
    network = dropout_network((x.shape[1], HIDDEN, HIDDEN, CLASSES), RATE_OF_DROPOUT)
    fit_network(network, x, y, epochs=5 if args.quick else EPOCHS)
    teacher = pyro_opu.as_teacher(network, output="classes")
    first, other = (hold(teacher, x, args.draws) for _ in range(2))

    @torch.no_grad()
    def plug_in(x: Tensor) -> list[Tensor]:
        return [network(x).log_softmax(-1)[None]]

    return first.log_probs, other.log_probs, plug_in


POSTERIORS = {"random priors": randomised, "dropout": dropout}


def losses(answers: list[Tensor], groups: dict[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Joint log-loss in groups of every size, the mean over answers."""
    return {
        f"log-loss {name}": statistics.mean(joint_loss(answer, *group) for answer in answers)
        for name, group in groups.items()
    }


def gap(loss: float, teacher: float) -> float:
    """Per cent of the teacher's log-loss."""
    return round(100 * (loss / teacher - 1), 3)  # rounding of float32 is no gap


def groups_of(name: str, labels, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Indices of test rows ``(G, size)``, and labels for them from the true model."""
    size = SIZES[name]
    index = torch.randint(len(x), (GROUPS, size), generator=generator)
    if name == "dyadic":
        side = torch.randint(2, (GROUPS, size), generator=generator)
        index = index[:, :2].gather(1, side)
    return index, labels(x[index.flatten()]).view(index.shape)


def joint_loss(log_probs: Tensor, index: Tensor, y: Tensor) -> float:
    """Mean over groups of the joint log-loss of draws ``(S, N, C)``, in nats."""
    total = torch.zeros(len(log_probs), len(index), dtype=torch.float64)
    for rows, labels in zip(index.mT, y.mT, strict=True):
        total += log_probs[:, rows, labels]
    return -float((total.logsumexp(0) - math.log(len(log_probs))).mean())


def summary(rows: list[dict]) -> list[dict]:
    """Over problems: gaps of the sums of losses, and the middle and the largest of the gaps."""
    found = []
    for posterior, way in dict.fromkeys((row["posterior"], row["way"]) for row in rows):
        of_posterior = [row for row in rows if row["posterior"] == posterior]
        mine, teacher = ([r for r in of_posterior if r["way"] == w] for w in (way, TEACHER))
        row: dict = {"posterior": posterior, "way": way, "problems": len(mine)}
        for name in SIZES:
            loss, theirs = (sum(r[f"log-loss {name}"] for r in some) for some in (mine, teacher))
            gaps = [r[f"gap {name}, %"] for r in mine]
            row |= {f"log-loss {name}": loss / len(mine), f"gap {name}, %": gap(loss, theirs)}
            row |= {f"median gap {name}, %": statistics.median(gaps)}
            row |= {f"largest gap {name}, %": max(gaps)}
        found.append(row)
    return found


if __name__ == "__main__":
    main()
