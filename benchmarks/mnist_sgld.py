"""MNIST by SGD and by SGLD, as in Bayesian Dark Knowledge, in a budget of minutes.

python -m benchmarks.mnist_sgld

Korattikara et al. 2015, section 3.2, tables 3 and 4: a 784-400-400-10 network with a standard
normal prior, 50,000 rows to train on, minibatches of 100, a million steps of 4e-6 (SGD: 5e-6). Here
SGLD goes on until a budget of minutes is spent (of one processor core: what the machine does
besides does not count), with somewhat larger steps for a sixth or so of their number, and averages
over all draws after a burn-in; SGD then does as many steps from the same start. Step size and
burn-in are chosen on the validation rows; a step of 1.6e-5 does not stay finite.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from itertools import islice

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.func import functional_call

from benchmarks.results import parser, say, write
from pyro_opu import datasets
from pyro_opu.models.neural_network import bayesian_network, perceptron
from pyro_opu.samplers import SGLD, Halving

Pair = tuple[Tensor, Tensor]  # inputs (N, 784), labels (N,)
SIZES = (784, 400, 400, 10)


def main() -> None:
    args = options()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    train, held = data(args.seed)
    network = perceptron(SIZES).requires_grad_(False)
    kept, curve = Kept(args.keep), []
    averages = {burn_in: Average(held) for burn_in in args.burn_in}
    rate = args.step if args.halve is None else Halving(args.step, args.halve)
    start = time.process_time()
    for count, draw in enumerate(chain(network, train, rate, 1.0, args), 1):
        probs = predict(network, draw, held)
        for burn_in, average in averages.items():
            if count * args.thinning > burn_in:
                average.add(probs)
        if args.save and count * args.thinning > min(args.burn_in):
            kept.add(draw)
        over = time.process_time() - start > 60 * args.minutes
        if over or count % args.curve == 0:
            minutes = (time.process_time() - start) / 60
            curve += rows(count * args.thinning, minutes, averages, Average(held).add(probs))
            finish(args, curve)
        if over:
            break
    if args.save:
        kept.save(args.save)
    start = time.process_time()
    (point,) = deque(islice(chain(network, train, args.sgd_step, 0.0, args), count), maxlen=1)
    last = Average(held).add(predict(network, point, held))
    minutes = (time.process_time() - start) / 60
    curve.append(
        {"chain": "SGD", "steps": count * args.thinning, "minutes": minutes, **last.scores()}
    )
    finish(args, curve)


def options():
    command = parser(__doc__.splitlines()[0])
    command.add_argument("--minutes", type=float, help="of one core for SGLD; by default 24")
    command.add_argument("--threads", type=int, default=1)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--step", type=float, default=6e-6, help="SGLD's step size")
    command.add_argument("--halve", type=int, help="steps between halvings of it; by default never")
    command.add_argument("--sgd-step", type=float, default=5e-6)
    command.add_argument("--thinning", type=int, default=200, help="steps per evaluated draw")
    command.add_argument("--burn-in", type=int, nargs="+", help="steps; an average from each")
    command.add_argument("--curve", type=int, default=50, help="draws per point of the curve")
    command.add_argument("--save", help="safetensors file for draws of SGLD")
    command.add_argument("--keep", type=int, default=100, help="at most so many are saved")
    command.add_argument("--name", default="mnist_sgld", help="of the results file")
    args = command.parse_args()
    args.minutes = args.minutes or (0.1 if args.quick else 24.0)
    args.burn_in = args.burn_in or ([0] if args.quick else [10_000, 30_000, 60_000])
    return args


def data(seed: int) -> tuple[Pair, dict[str, Pair]]:
    """50,000 rows to train on; 10,000 others for the settings, and the test rows.

    Pixels are bytes divided by 126.
    """
    train, validation = datasets.split(datasets.mnist(), test=10_000, seed=seed)
    parts = train, validation, datasets.mnist(train=False)
    train, validation, test = ((part.x.flatten(1) * (255 / 126), part.y) for part in parts)
    validation = tuple(part[:5000] for part in validation)  # half of them, to save time
    return train, {"validation": validation, "test": test}


def chain(network, train, step: float | Halving, temperature: float, args) -> Iterator:
    """States of SGLD, or of SGD at temperature 0, every ``thinning`` steps."""
    kernel = SGLD(
        bayesian_network(network),
        step_size=step,
        batch_size=100,
        thinning=args.thinning,
        temperature=temperature,
        initial_params=dict(network.named_parameters()),
    )
    return kernel.stream(*train)


@torch.no_grad()
def predict(network, draw: dict[str, Tensor], held: dict[str, Pair]) -> dict[str, Tensor]:
    """Class probabilities ``(N, 10)`` of one draw at each set of held-out inputs."""
    return {
        name: torch.cat(
            [functional_call(network, draw, (rows,)) for rows in x.split(1000)]
        ).softmax(-1)
        for name, (x, _) in held.items()
    }


class Average:
    """The mean of class probabilities at the held-out inputs over draws; no draw is kept."""

    def __init__(self, held: dict[str, Pair]) -> None:
        self.labels, self.draws = {name: y for name, (_, y) in held.items()}, 0
        self.total = {name: torch.zeros(len(y), 10) for name, y in self.labels.items()}

    def add(self, probs: dict[str, Tensor]) -> Average:
        self.draws += 1
        for name, total in self.total.items():
            total += probs[name]
        return self

    def scores(self) -> dict[str, float]:
        """Error in per cent and log-likelihood per example, in nats."""
        row: dict[str, float] = {"draws": self.draws}
        for name, y in self.labels.items():
            probs = self.total[name] / self.draws
            row[f"{name} error"] = 100 * float((probs.argmax(-1) != y).float().mean())
            picked = probs[torch.arange(len(probs)), y].clamp_min(1e-30)
            row[f"{name} log-likelihood"] = float(picked.log().mean())
        return row


def rows(steps: int, minutes: float, averages: dict[int, Average], single: Average) -> list[dict]:
    """One row for the last draw, and one for the average from each burn-in that is over."""
    at = {"steps": steps, "minutes": minutes}
    found = [{"chain": "SGLD, one draw", **at, **single.scores()}]
    for burn_in, average in averages.items():
        if average.draws:
            found.append({"chain": f"SGLD from step {burn_in}", **at, **average.scores()})
    say({"curve": found})
    return found


class Kept:
    """At most so many draws, evenly spaced however many come: when full, every other one goes."""

    def __init__(self, most: int) -> None:
        self.most, self.draws, self.seen, self.stride = most, [], 0, 1

    def add(self, draw: dict[str, Tensor]) -> None:
        if self.seen % self.stride == 0:
            if len(self.draws) == self.most:
                self.draws, self.stride = self.draws[::2], 2 * self.stride
            if self.seen % self.stride == 0:
                self.draws.append(draw)
        self.seen += 1

    def save(self, path: str) -> None:
        sites = self.draws[0] if self.draws else {}
        save_file({name: torch.stack([draw[name] for draw in self.draws]) for name in sites}, path)
        print(f"{len(self.draws)} of {self.seen} draws saved to {path}")


def finish(args, curve: list[dict]) -> None:
    """Write what there is; the last row of every chain is the result."""
    last = {row["chain"]: row for row in curve}
    say({"so far": list(last.values())})
    if not args.quick:
        tables = {"Last": list(last.values()), "Curve": curve}
        settings = {k: v for k, v in vars(args).items() if k not in ("save", "name", "quick")}
        write(args.name, "python -m benchmarks.mnist_sgld", settings, tables)


if __name__ == "__main__":
    main()
