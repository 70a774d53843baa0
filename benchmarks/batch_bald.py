"""BatchBALD, sums and their cost by a joint student, on digits and on repeated digits.

Two posteriors over a network 64-128-10: dropout, trained on 60 digits, and the 1,000 draws of an
SGLD run of a Pyro model of 200 digits. The student is distilled with ``guide="joint"`` at 600 other
digits without labels. The pool are 497 further digits; the repeated pool has each five times.

A batch of 10 is judged by how many digits it shares with that of 500 of the teacher's draws, the
mean over three such sets (SGLD: the two halves of its draws), and by its joint information under
2,000 other draws (SGLD: under all), in per cent of that of the teacher's own batches. "Other 500
draws" are batches of the teacher's sets judged by one another: what chance leaves. "Marginal
student" draws independently between rows, which the library refuses: it sees no row to be like
another. Copies of a digit count as that digit.

Sums are how many rows of the pool are of each class, differences how many more there are in its
first half than in its second; what is compared is the epistemic variance, the median over classes
of the relative error.

Times are of the pool of 497 on one thread, of the first seed. Predictive's loop draws labels, which
is less than BatchBALD needs. An acquisition is the draws and the choice from them, which costs all
the same.

    python -m benchmarks.batch_bald
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from typing import Any

import pyro
import torch
from pyro.infer import MCMC, Predictive
from torch import Tensor

import pyro_opu
from papers.digits import Digits, digits
from papers.results import parser, record_seeds
from papers.timing import spans
from pyro_opu.joint import PoolDraws, batch_bald, joint_information, total
from pyro_opu.models.dropout import DropoutGuide
from pyro_opu.models.neural_network import (
    bayesian_network,
    dropout_network,
    fit_network,
    perceptron,
)

SIZES = (64, 128, 10)
SIZE, COPIES, SETS = 10, 5, 3
MEANS = {
    "Batches": ("posterior", "pool", "way"),
    "Sums": ("posterior", "of", "way"),
    "Seconds": ("posterior", "draws by"),
}


def main() -> None:
    options = parser(__doc__, seeds=3)
    options.add_argument("--draws", type=int, default=500)
    args = options.parse_args()
    torch.set_num_threads(1)
    if args.quick:
        args.seeds, args.draws = 1, 30
    record_seeds(__file__, args, of_seed, MEANS)


def dropout(data: Digits, args: Any) -> tuple[Any, Predictive, Any]:
    """Source, the ``Predictive`` whose loop is timed, the plug-in network."""
    x, y = data.train.x[:60], data.train.y[:60]
    epochs = 20 if args.quick else 300
    network = fit_network(dropout_network(SIZES), x, y, epochs=epochs, learning_rate=3e-3)
    pyro.clear_param_store()
    guide = DropoutGuide(network)
    loop = Predictive(bayesian_network(network), guide=guide, num_samples=args.draws)
    return network, loop, network


def sgld(data: Digits, args: Any) -> tuple[Any, Predictive, Any]:
    x, y = data.train.x[:200], data.train.y[:200]
    network = perceptron(SIZES)
    model = bayesian_network(network, prior=0.2)
    fit_network(network, x, y, epochs=50)
    start = dict(network.named_parameters())
    kernel = pyro_opu.SGLD(
        model,
        step_size=2e-4,
        batch_size=100,
        thinning=1 if args.quick else 20,
        initial_params=start,
    )
    run = MCMC(kernel, 2 * args.draws, 10 if args.quick else 200, disable_progbar=True)
    run.run(x, y)
    held = run.get_samples()
    half = {name: value[::2] for name, value in held.items()}
    return Predictive(model, held), Predictive(model, half), network


POSTERIORS = {"dropout": dropout, "SGLD": sgld}


def of_seed(seed: int, args: Any) -> dict[str, list[dict]]:
    """Both posteriors; times of the first seed."""
    tables: dict[str, list[dict]] = {}
    data = digits(seed)
    for name, make in list(POSTERIORS.items())[: 1 if args.quick else None]:
        pyro.set_rng_seed(seed)
        source, loop, network = make(data, args)
        teacher = pyro_opu.as_teacher(source)
        fast = distilled(source, data, args, seed)
        same = {"posterior": name}
        pool = data.test.x[:60] if args.quick else data.test.x
        found = {
            "Batches": batches(teacher, fast, pool, args.draws, seed),
            "Sums": sums(teacher, fast, pool, args.draws),
        }
        if seed == 0:
            found["Seconds"] = seconds(teacher, fast, loop, network, pool, args)
        for title, rows in found.items():
            tables.setdefault(title, []).extend(same | row for row in rows)
    return tables


def distilled(source: Any, data: Digits, args: Any, seed: int) -> Any:
    """The joint student."""
    steps = 5 if args.quick else None
    teacher = pyro_opu.as_teacher(source, num_samples=args.draws)
    return pyro_opu.distill(
        teacher, data.transfer.x, guide="joint", num_steps=steps, seed=seed, progress=False
    )


def independent(fast: Any, x: Tensor, count: int) -> Tensor:
    """Draws of the student's marginal answer."""
    return fast.distribution(x).sample((count,))


def sets_of(teacher: Any, x: Tensor, draws: int) -> tuple[list[Tensor], Tensor]:
    """Disjoint sets of draws, and others to judge by: of held draws the two halves, and all."""
    if teacher.max_draws is None:
        return [teacher.probs(x, draws) for _ in range(SETS)], teacher.probs(x, 4 * draws)
    every = teacher.probs(x)
    return [every[::2], every[1::2]], every


def batches(teacher: Any, fast: Any, x: Tensor, draws: int, seed: int) -> list[dict]:
    """Batches of every way, from the pool and from the repeated pool."""
    sets, every = sets_of(teacher, x, draws)
    judge = PoolDraws("classes", every)
    random = torch.Generator().manual_seed(seed)
    rows = []
    for copies in (1, COPIES):

        def repeated(probs: Tensor, copies: int = copies) -> PoolDraws:
            return PoolDraws("classes", probs.repeat(1, copies, 1))

        def bald(probs: Tensor, copies: int = copies) -> Tensor:
            score = pyro_opu.mutual_information(probs).repeat(copies)
            return score.topk(SIZE).indices

        def greedy(pool: PoolDraws) -> Tensor:
            return batch_bald(pool, None, SIZE, seed=seed).indices

        theirs = [greedy(repeated(each)) for each in sets]
        ways = {
            "other 500 draws": theirs,
            "joint student": [greedy(repeated(fast.probs(x)))],
            "marginal student": [greedy(repeated(independent(fast, x, draws)))],
            "teacher's BALD": [bald(each) for each in sets],
            "random": [torch.randperm(copies * len(x), generator=random)[:SIZE] for _ in range(20)],
        }
        asked = torch.stack([batch % len(x) for batch in (*theirs, *sum(ways.values(), []))])
        told = joint_information(judge, None, asked, num_labellings=10_000, seed=seed).epistemic
        best, told = float(told[: len(sets)].mean()), told[len(sets) :].tolist()
        for way, mine in ways.items():
            own = [told.pop(0) for _ in mine]
            pairs = (
                itertools.combinations(mine, 2)
                if way == "other 500 draws"
                else itertools.product(mine, theirs)
            )
            rows.append({
                "pool": f"{copies} x {len(x)}",
                "way": way,
                "shared": statistics.mean(shared(a, b, len(x)) for a, b in pairs),
                "different digits": statistics.mean(len(set((b % len(x)).tolist())) for b in mine),
                "information": statistics.mean(own),
                "information, % of the teacher's": 100 * statistics.mean(own) / best,
            })  # fmt: skip
    return rows


def shared(first: Tensor, second: Tensor, rows: int) -> int:
    """How many digits two batches have in common; copies are the same digit."""
    counts = [Counter((batch % rows).tolist()) for batch in (first, second)]
    return (counts[0] & counts[1]).total()


def sums(teacher: Any, fast: Any, x: Tensor, draws: int) -> list[dict]:
    """Relative errors of the epistemic variance of sums and of differences."""
    sets, every = sets_of(teacher, x, draws)
    reference = PoolDraws("classes", every)
    ways = {
        "teacher, 500 draws": sets[0],
        "joint student": fast.probs(x),
        "marginal student": independent(fast, x, draws),
    }
    half = torch.where(torch.arange(len(x)) < len(x) // 2, 1.0, -1.0)
    classes = torch.eye(10)
    weights = {
        "sum": [of.expand(len(x), 10) for of in classes],
        "difference": [half[:, None] * of for of in classes],
    }
    rows = []
    for kind, each in weights.items():
        true = [float(total(reference, None, w).epistemic) for w in each]
        for way, probs in ways.items():
            pool = PoolDraws("classes", probs)
            ratios = [
                float(total(pool, None, w).epistemic) / t for w, t in zip(each, true, strict=True)
            ]
            rows.append({
                "of": kind,
                "way": way,
                "variance / teacher's": statistics.median(ratios),
                "error, %": 100 * statistics.median(abs(r - 1) for r in ratios),
                "largest error, %": 100 * max(abs(r - 1) for r in ratios),
            })  # fmt: skip
    return rows


def seconds(teacher: Any, fast: Any, loop: Any, network: Any, x: Tensor, args: Any) -> list[dict]:
    """What draws and the choice cost, by way."""
    pool = PoolDraws("classes", fast.probs(x))

    def module() -> Tensor:
        network.train()
        with torch.no_grad():
            found = torch.stack([network(x).softmax(-1) for _ in range(args.draws)])
        network.eval()
        return found

    ways = {
        "Predictive's loop": lambda: loop(x),
        "the network in a loop": module,
        "batched teacher": lambda: teacher.probs(x, args.draws),
        "joint student": lambda: fast.probs(x),
    }
    every = {**ways, "choice": lambda: batch_bald(pool, None, SIZE, seed=0)}
    found = spans(every, 0.0 if args.quick else 30.0)
    choice, student = found["choice"].median, found["joint student"].median
    return [
        {
            "draws by": way,
            "draws, ms": 1e3 * (taken := found[way].median),
            "choice, ms": 1e3 * choice,
            "acquisition, ms": 1e3 * (taken + choice),
            "draws / student's": taken / student,
            "acquisition / student's": (taken + choice) / (student + choice),
        }
        for way in ways
    ]


if __name__ == "__main__":
    main()
