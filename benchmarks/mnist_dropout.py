"""Monte Carlo dropout on MNIST: the paper's network 784-400-400-10, rate 0.5, 500 draws.

Trained on all 60,000 training rows by Adam with pixels in [-1, 1], as the paper scales them; the
number of epochs is fixed beforehand, nothing is chosen on the test rows.

    python -m benchmarks.mnist_dropout
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import nll_loss

import pyro_opu
from benchmarks.results import parser, say, spread, write
from pyro_opu import datasets
from pyro_opu.datasets import Dataset
from pyro_opu.models.neural_network import dropout_network, fit_network

SIZES = (784, 400, 400, 10)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--epochs", type=int, default=25)
    options.add_argument("--draws", type=int, default=500)
    options.add_argument("--learning-rate", type=float, default=1e-3)
    options.add_argument("--weight-decay", type=float, default=1e-6)
    options.add_argument("--save", help="store the first seed's weights here (safetensors)")
    args = options.parse_args()
    if args.quick:
        args.seeds, args.epochs, args.draws = 1, 1, 20
    rows: list[dict] = []
    train, test = images(train=True), images(train=False)
    if args.quick:
        train, test = tuple(part[:5000] for part in train), tuple(part[:500] for part in test)
    for seed in range(args.seeds):
        network, seconds = trained(seed, train, args)
        if args.save and seed == 0:
            store(network, args.save)
        rows.append({"seed": seed, **judged(network, test, args.draws), "training, s": seconds})
        tables = {"MC dropout on MNIST": [*rows, summary(rows)]}
        say(tables)
        if not args.quick:
            settings = {key: value for key, value in vars(args).items() if key != "save"}
            write("mnist_dropout", "python -m benchmarks.mnist_dropout", settings, tables)


def images(*, train: bool) -> tuple[Tensor, Tensor]:
    """Pixels ``(N, 784)`` in [-1, 1], and labels."""
    data = datasets.mnist(train=train)
    return pixels(data), data.y


def pixels(data: Dataset, most: int | None = None) -> Tensor:
    """The first rows ``(N, 784)`` in [-1, 1]."""
    return 2 * data.x[:most].flatten(1) - 1


def trained(seed: int, train: tuple[Tensor, Tensor], args) -> tuple[nn.Module, float]:
    """The network of a seed, and the seconds it took: two thirds of the epochs at the full rate."""
    torch.manual_seed(seed)
    network, start = dropout_network(SIZES, 0.5), time.perf_counter()
    late = args.epochs // 3
    for epochs, rate in ((args.epochs - late, 1.0), (late, 0.1)):
        if not epochs:  # one epoch has no third
            continue
        fit_network(
            network,
            *train,
            epochs=epochs,
            batch_size=256,
            learning_rate=rate * args.learning_rate,
            weight_decay=args.weight_decay,
        )
    return network, time.perf_counter() - start


def judged(network: nn.Module, test: tuple[Tensor, Tensor], draws: int) -> dict[str, float]:
    """Accuracy and negative log-likelihood of the mean over draws, and of the plug-in network."""
    x, y = test
    start = time.perf_counter()
    stream = pyro_opu.as_teacher(network).stream(x, draws)
    mean = torch.cat([log_probs.exp().mean(0) for log_probs in stream])
    seconds = time.perf_counter() - start
    with torch.no_grad():
        plug_in = network(x).log_softmax(-1)
    return {
        "accuracy, %": accuracy(mean, y),
        "NLL": nll_loss(mean.log(), y).item(),
        "plug-in accuracy, %": accuracy(plug_in, y),
        "plug-in NLL": nll_loss(plug_in, y).item(),
        "prediction, s": seconds,
    }


def accuracy(scores: Tensor, y: Tensor) -> float:
    return 100 * (scores.argmax(-1) == y).float().mean().item()


def summary(rows: list[dict]) -> dict[str, str]:
    """Mean ± deviation over seeds."""
    return {"seed": "mean"} | {k: spread([r[k] for r in rows]) for k in rows[0] if k != "seed"}


def store(network: nn.Module, path: str) -> None:
    """Write the weights, named as in the network's ``state_dict``, in torch's convention."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    sizes = {"sizes": " ".join(map(str, SIZES)), "p": "0.5"}
    Path(path).write_bytes(save(dict(network.state_dict()), sizes))


if __name__ == "__main__":
    main()
