"""How near default students of networks are to their posteriors, at new rows and at taught ones.

python -m benchmarks.networks
python -m benchmarks.networks --only wide --trial NETWORK_SHARE=1   # another number of `tuned`

Networks of digits: MC dropout of two sizes, dropout before the head of two convolutions, and an
ensemble. "As near as draws" is the number of posterior draws whose mean errs as the student's does
(KL), "single inputs" the typical factor between the student's epistemic part and the posterior's.
The wide network is fitted to 900 rows and its student taught at 450; the others are those of the
scoreboard. Posteriors that draw afresh are known by 8,000 draws, whose own error is allowed for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import pyro_opu
from benchmarks.board_posteriors import Task, task
from papers.results import Tables, parser, record_seeds
from pyro_opu.judging.yardstick import typical_factor
from pyro_opu.metrics.distances import kl_of_rows
from pyro_opu.models.neural_network import dropout_network, fit_network
from pyro_opu.reports.answers import teacher_of
from pyro_opu.training import tuned

DRAWS, PARTS = 8000, 8


def wide() -> Task:
    """Dropout of .4 after both layers of 256 units."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(21))
    train, transfer, test = order.tensor_split([900, 1350])
    x, y = torch.as_tensor(x / 16.0, dtype=torch.float32), torch.as_tensor(y)
    torch.manual_seed(21)
    network = fit_network(dropout_network((64, 256, 256, 10), 0.4), x[train], y[train])
    what = "network 64-256-256-10, MC dropout, digits"
    return Task(what, network.eval(), x[transfer], x[test], {})


TASKS: dict[str, Callable[[], Task]] = {
    "wide": wide,
    **{name: partial(task, name) for name in ("dropout", "convolution", "ensemble")},
}


def main() -> None:
    arguments = parser(__doc__, seeds=5)
    arguments.add_argument("--effort", default="default")
    arguments.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    arguments.add_argument("--trial", nargs="+", default=[], metavar="NAME=NUMBER")
    args = arguments.parse_args()
    for trial in args.trial:
        try_out(*trial.split("="))
    torch.set_num_threads(1)
    if args.quick:
        args.seeds = 1
    record_seeds(__file__, args, of_seed, {"students": ("posterior", "effort")})


def try_out(name: str, number: str) -> None:
    """Teach by another number than that which training was tuned by."""
    setattr(tuned, name, type(getattr(tuned, name))(float(number)))


def of_seed(seed: int, args: Any) -> Tables:
    rows = []
    for name in ("wide",) if args.quick else args.only:
        asked, known = TASKS[name](), truth(name)
        effort = "quick" if args.quick else args.effort
        began = time.process_time()
        fast = pyro_opu.distill(
            asked.source, asked.transfer, seed=seed, effort=effort, progress=False, **asked.options
        )
        seconds = time.process_time() - began
        row = {"posterior": asked.what, "effort": effort, "s": seconds}
        for where, x in (("new rows", asked.test), ("taught rows", asked.transfer)):
            answer, posterior = fast.uncertainty(x), known[where]
            row |= {
                f"as near as draws, {where}": posterior.as_near_as(answer.mean),
                f"single inputs, {where}": typical_factor(
                    answer.epistemic.double().numpy(), posterior.epistemic.numpy()
                ),
            }
        rows.append(row)
    return {"students": rows}


class Known(NamedTuple):
    """Mean ``(N, C)`` and epistemic part ``(N,)`` of a posterior, and what they were found by.

    Attributes:
        spread: KL of the mean of n draws is this over n.
        draws: Draws that were averaged, infinite where they are all that there are.
    """

    mean: Tensor
    epistemic: Tensor
    spread: float
    draws: float

    def as_near_as(self, student: Tensor) -> float:
        """Draws whose mean errs as this one does, beyond the error of what is known."""
        apart = float(kl_of_rows(self.mean, student.double()).mean())
        return self.spread / (apart - self.spread / self.draws)


@cache
def truth(name: str) -> dict[str, Known]:
    asked = TASKS[name]()
    inputs = {"new rows": asked.test, "taught rows": asked.transfer}
    return {where: known(asked.source, x) for where, x in inputs.items()}


def known(source: Any, x: Tensor) -> Known:
    """Moments by all draws that there are, or by `DRAWS`."""
    teacher = teacher_of(source, x)
    parts = [None] if teacher.max_draws else [DRAWS // PARTS] * PARTS
    torch.manual_seed(0)
    found = [teacher.probs(x, each).double() for each in parts]
    mean = torch.stack([each.mean(0) for each in found]).mean(0)
    variance = torch.stack([(each - mean).square().mean(0) for each in found]).mean(0)
    within = torch.stack([torch.special.entr(each).sum(-1).mean(0) for each in found]).mean(0)
    epistemic = torch.special.entr(mean).sum(-1) - within
    spread = float((variance / mean.clamp_min(1e-12)).sum(-1).mean() / 2)
    return Known(mean, epistemic, spread, math.inf if teacher.max_draws else DRAWS)


if __name__ == "__main__":
    main()
