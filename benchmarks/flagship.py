"""resnet18 on Fashion-MNIST at 3 x 32 x 32: three posteriors that people have, and their students.

    python -m benchmarks.flagship [--rows 1000 --epochs 3 --steps 300]

MC dropout before the head, Laplace's approximation of the last layer, and an ensemble of five whole
networks. The networks see ``rows`` pictures, and each student as many others by default: on a GPU
25,000 of either and ten epochs, on a CPU the few above, which leave networks worse than they could
be. The student of five networks, which is a network that moves, takes ``steps``. Judged at 1,000
other pictures: accuracy; how near the mean is, in draws; the typical factor of the epistemic part
at one picture; AUROC of pictures of KMNIST, by either's best score. A pass is beside the network's
own at 100 pictures, of which a sweep of 100 draws over 60,000 pictures takes 60,000.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
import torchvision
from pyro.infer import Predictive
from torch import Tensor, nn

import pyro_opu
from papers import datasets
from papers.results import finish, parser, say
from papers.timing import timed
from pyro_opu.judging.yardstick import typical_factor
from pyro_opu.models.last_layer import last_layer_laplace, on_features
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.models.neural_network import fit_network

MEMBERS, JUDGED, DRAWS = 5, 1000, 100


def main() -> None:
    options = parser(__doc__)
    gpu = torch.cuda.is_available()
    options.add_argument("--rows", type=int, default=25_000 if gpu else 1000)
    options.add_argument("--epochs", type=int, default=10 if gpu else 3)
    options.add_argument("--steps", type=int, default=None if gpu else 300)
    args = options.parse_args()
    judged = JUDGED
    if args.quick:
        args.rows, args.epochs, args.steps, judged = 60, 1, 2, 40
    torch.manual_seed(0)
    sets = Sets.of(args.rows, judged, step=4 if args.quick else 1)
    rows = []
    for name, source, plain in islice(posteriors(*sets.train, args.epochs), 1 if args.quick else 3):
        moves = args.quick or isinstance(source, list)
        num_steps = args.steps if moves else None
        rows.append({"posterior": name} | of(source, plain, sets, num_steps=num_steps, seed=0))
        say({"so far": rows[-1:]})
    finish(
        __file__, args, {"Students": rows}, device=torch.cuda.get_device_name() if gpu else "CPU"
    )


def small(seed: int) -> dict[str, float]:
    """For the scoreboard: dropout before the head, 500 pictures at 3 x 16 x 16, by "quick"."""
    torch.manual_seed(0)
    sets = Sets.of(500, 500, step=2)
    _, source, plain = next(posteriors(*sets.train, epochs=5))
    return of(source, plain, sets, effort="quick", seed=seed)


class Sets(NamedTuple):
    """Pictures and labels that train and test, pictures that transfer, and those of KMNIST."""

    train: tuple[Tensor, Tensor]
    transfer: Tensor
    test: tuple[Tensor, Tensor]
    outside: Tensor

    @classmethod
    def of(cls, rows: int, judged: int, step: int = 1) -> Sets:
        """So many that train, and that transfer, in random order; of pixels each ``step``-th."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        data = datasets.fashion_mnist()
        order = torch.randperm(len(data.x))[: 2 * rows + judged]
        x, y = pictures(data.x[order])[..., ::step, ::step].to(device), data.y[order].to(device)
        train, transfer, test = zip(
            *(each.split([rows, rows, judged]) for each in (x, y)), strict=True
        )
        outside = pictures(datasets.kmnist().x[:judged])[..., ::step, ::step].to(device)
        return cls(train, transfer[0], test, outside)


def pictures(x: Tensor) -> Tensor:
    """Grey pictures ``(N, 28, 28)`` as ``(N, 3, 32, 32)``."""
    return nn.functional.pad(x, (2, 2, 2, 2))[:, None].expand(-1, 3, -1, -1).contiguous()


def network() -> nn.Sequential:
    """torchvision's, in three parts: the trunk, dropout and the head."""
    trunk = torchvision.models.resnet18(num_classes=10)
    trunk.fc, head = nn.Identity(), trunk.fc
    return nn.Sequential(trunk, nn.Dropout(), head)


def posteriors(x: Tensor, y: Tensor, epochs: int) -> Iterator[tuple[str, Any, nn.Module]]:
    """Names, sources, and the network whose pass is the plain one."""

    def fitted() -> nn.Sequential:
        made = network().to(x.device)
        fit_network(made, x, y, epochs=epochs).eval()
        return made

    first = fitted()
    plain = nn.Sequential(first[0], first[2])
    yield "dropout before the head", first, plain
    trunk, fit = last_layer_laplace(copy.deepcopy(plain), x, y)
    model = on_features(trunk, logistic_regression(10))
    last = Predictive(model, guide=fit.guide, num_samples=DRAWS, return_sites=["obs"])
    yield "last-layer Laplace", last, plain
    yield "five networks", [first, *(fitted() for _ in range(MEMBERS - 1))], plain


def of(source: Any, plain: nn.Module, sets: Sets, **options: Any) -> dict[str, float]:
    """A student of one posterior, beside it."""
    test, begun = sets.test, time.perf_counter()
    fast = pyro_opu.distill(source, sets.transfer, progress=False, **options)
    seconds = time.perf_counter() - begun
    found = pyro_opu.fidelity(fast, source, test[0], num_draws=DRAWS, seed=0, wasserstein_inputs=0)
    scores = pyro_opu.detection(
        fast, source, *test, {"KMNIST": sets.outside}, num_draws=DRAWS, seed=0
    )
    theirs = pyro_opu.mutual_information(pyro_opu.as_teacher(source).probs(test[0], DRAWS))
    mine, few = fast.uncertainty(test[0]).epistemic, test[0][:100]
    with torch.no_grad():
        calls = {"pass": lambda: fast.distribution(few), "plain": lambda: plain(few)}
        times = timed(calls, 2.0)
    return {
        "accuracy, %": 100 * scores.teacher.accuracy,
        "the student's": 100 * scores.student.accuracy,
        "distil, s": seconds,
        "naive sweep, s": 60_000 * times["plain"],
        "pass / network": times["pass"] / times["plain"],
        "draws": found.draws,
        "factor": typical_factor(*(e.double().cpu().numpy() for e in (mine, theirs))),
        "AUROC": 100 * scores.best("teacher", "KMNIST")[1].auroc,
        "its student's": 100 * scores.best("student", "KMNIST")[1].auroc,
    }


if __name__ == "__main__":
    main()
