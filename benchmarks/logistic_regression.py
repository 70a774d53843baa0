"""Bayesian logistic regression against scikit-learn's, on Pima and Spambase.

python -m benchmarks.logistic_regression

Every split: 10 % of the rows for testing, scaling fitted on the others. The Bayesian answer is the
mean of the class probabilities of the Polya-Gamma draws, read by ``as_teacher``. Both have the
same prior on the weights, N(0, 1), which is scikit-learn's default C = 1; scikit-learn's intercept
has none, the model's has the same as the weights. Nothing is chosen on the test rows.
"""

from __future__ import annotations

import statistics
import time

import pyro
import torch
from pyro.infer import MCMC, Predictive
from torch import Tensor

from benchmarks.results import parser, say, spread, write
from pyro_opu import as_teacher, datasets
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.samplers.polya_gamma import PolyaGammaGibbs

DATA = {"pima": datasets.pima, "spambase": datasets.spambase}
SCALINGS = {"standardised": datasets.standardize, "l2 by column": datasets.l2_columns}
SCALE = 1.0
Scores = dict[str, list[float]]


def main() -> None:
    options = parser("Bayesian logistic regression against scikit-learn's.")
    options.add_argument("--splits", type=int, default=20)
    options.add_argument("--draws", type=int, default=500)
    options.add_argument("--warmup", type=int, default=200)
    args = options.parse_args()
    if args.quick:
        args.splits, args.draws, args.warmup = 2, 20, 10
    torch.set_num_threads(1)
    scores: dict[tuple[str, str], Scores] = {(d, s): {} for d in DATA for s in SCALINGS}
    for split in range(args.splits):
        for (data, scaling), found in scores.items():
            for name, value in one_split(data, scaling, split, args.draws, args.warmup).items():
                found.setdefault(name, []).append(value)
        tables = {"Test rows": [row(*which, found) for which, found in scores.items()]}
        finish(args, tables, split + 1)
        print(f"split {split + 1} of {args.splits}", flush=True)
    tables["Pima, standardised, with more draws or more splits"] = noise(args)
    finish(args, tables, args.splits)
    say(tables)


def finish(args, tables: dict[str, list[dict]], splits: int) -> None:
    if not args.quick:
        settings = {**vars(args), "finished": splits, "scale": SCALE}
        write("logistic_regression", "python -m benchmarks.logistic_regression", settings, tables)


def noise(args) -> list[dict]:
    """What of the difference on Pima is Monte Carlo error, and what chance in 77 rows a split."""
    rows = []
    for draws, splits in ((10 * args.draws, args.splits), (args.draws, 5 * args.splits)):
        found: Scores = {}
        for split in range(splits):
            scores = one_split("pima", "standardised", split, draws, args.warmup)
            for name, value in scores.items():
                found.setdefault(name, []).append(value)
        rows.append({"draws": draws, "splits": splits, **row("pima", "standardised", found)})
    return rows


def one_split(data: str, scaling: str, split: int, draws: int, warmup: int) -> dict[str, float]:
    """Accuracy in percent and negative log-likelihood in nats of both, and of the majority."""
    from sklearn.linear_model import LogisticRegression

    pyro.set_rng_seed(split)
    train, test = SCALINGS[scaling](*datasets.split(DATA[data](), 0.1, seed=split))
    start = time.perf_counter()
    model = logistic_regression(2, SCALE)
    mcmc = MCMC(PolyaGammaGibbs(model), draws, warmup, disable_progbar=True)
    mcmc.run(train.x, train.y.float())
    seconds = time.perf_counter() - start
    bayes = as_teacher(Predictive(model, mcmc.get_samples())).probs(test.x).mean(0)
    other = LogisticRegression(C=SCALE**2, max_iter=10_000).fit(train.x.numpy(), train.y.numpy())
    theirs = torch.from_numpy(other.predict_proba(test.x.numpy()))
    majority = (test.y == train.y.mode().values).double().mean().item()
    return {
        "accuracy": accuracy(bayes, test.y),
        "accuracy, sklearn": accuracy(theirs, test.y),
        "NLL": nll(bayes, test.y),
        "NLL, sklearn": nll(theirs, test.y),
        "majority class": 100 * majority,
        "seconds": seconds,
    }


def accuracy(probs: Tensor, y: Tensor) -> float:
    return 100 * (probs.argmax(-1) == y).double().mean().item()


def nll(probs: Tensor, y: Tensor) -> float:
    chosen = probs.double().gather(1, y.unsqueeze(1))
    return -chosen.clamp_min(1e-300).log().mean().item()


def row(data: str, scaling: str, found: Scores) -> dict:
    """Mean and deviation over the splits, and of the paired differences with their error."""
    differences = {
        name: [a - b for a, b in zip(found[name], found[f"{name}, sklearn"], strict=True)]
        for name in ("accuracy", "NLL")
    }
    return {
        "data": data,
        "scaling": scaling,
        **{name: spread(values) for name, values in found.items() if name != "seconds"},
        **{f"{name}, difference": spread(values) for name, values in differences.items()},
        **{f"{name}, its error": error(values) for name, values in differences.items()},
        "PG seconds": statistics.median(found["seconds"]),
    }


def error(values: list[float]) -> float:
    """Standard error of the mean over splits (their test rows overlap a little)."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


if __name__ == "__main__":
    main()
