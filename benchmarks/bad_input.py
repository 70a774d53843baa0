"""Every kind of bad input and the error it gets; fails if one is let through.

python -m benchmarks.bad_input
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, Predictive
from safetensors.torch import save_file

import pyro_opu
from benchmarks.results import parser, write
from models.gaussian_process import gaussian_process
from models.laplace import laplace
from models.logistic_regression import logistic_regression
from models.neural_network import bayesian_network, perceptron
from models.sgpmc import svgp
from pyro_opu import (
    SGLD,
    OnePassPredictive,
    PolyaGammaGibbs,
    PredictiveGuide,
    as_teacher,
    datasets,
    distill,
)

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
SHORT = {"num_steps": 4, "progress": False, "seed": 0}


def main() -> int:
    args = parser(__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tried = cases(Path(folder)) | sampling_cases()
        rows = [told(what, call, Path(folder)) for what, call in tried.items()]
    for row in rows:
        print(f"{row['bad input']}\n    {row['error']}: {row['message']}")
    let_through = [row["bad input"] for row in rows if row["error"] == "none"]
    print(f"\n{len(rows)} cases, let through: {let_through or 'none'}")
    if not args.quick:
        write("bad_input", "python -m benchmarks.bad_input", {}, {"Errors": rows})
    return len(let_through)


def told(what: str, call: Callable[[], object], folder: Path) -> dict:
    """The error a call raises, and whether it left anything half-written."""
    before = sorted(path.name for path in folder.iterdir())
    error, message = "none", ""
    try:
        call()
    except (ValueError, TypeError, FileNotFoundError, KeyError) as caught:
        message = str(caught).replace(str(folder), "FOLDER").replace(str(Path.home()), "~")
        error = type(caught).__name__
    left = sorted(set(path.name for path in folder.iterdir()) - set(before))
    return {
        "bad input": what,
        "error": error,
        "message": message,
        "left on disk": left or "nothing",
    }


def predictive(draws: int = 8) -> Predictive:
    weight = torch.randn(draws, 3, 4, generator=torch.Generator().manual_seed(1))
    return Predictive(logistic_regression(4), {"weight": weight, "bias": torch.zeros(draws, 4)})


def two_sites(x: torch.Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("first", dist.Bernoulli(logits=w * x[:, 0]))
        pyro.sample("second", dist.Bernoulli(logits=w * x[:, 1]))


def counts(x: torch.Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Poisson((w * x[:, 0]).exp()))


def run(kernel, x: torch.Tensor, y: torch.Tensor | None) -> None:
    MCMC(kernel, 4, 2, disable_progbar=True).run(x, y)


def sampling_cases() -> dict[str, Callable[[], object]]:
    """What is tried on the kernels and on what models are fitted by."""
    y, model = (X[:, 0] > 0).float(), logistic_regression(2)
    broken = X.clone()
    broken[3, 1] = float("nan")
    kernels: dict[str, Callable[[], object]] = {
        "Polya-Gamma": lambda: PolyaGammaGibbs(model),
        "SGLD": lambda: SGLD(model, step_size=1e-3, batch_size=10),
    }
    found: dict[str, Callable[[], object]] = {}
    for name, kernel in kernels.items():
        found |= {
            f"{name}: labels outside the range": lambda k=kernel: run(k(), X, y + 1),
            f"{name}: NaN in the features": lambda k=kernel: run(k(), broken, y),
            f"{name}: no labels": lambda k=kernel: run(k(), X, None),
        }
    found |= {
        "Polya-Gamma: a network": lambda: run(
            PolyaGammaGibbs(bayesian_network(perceptron((3, 4, 2)))), X, y.long()
        ),
        "SGLD: batch larger than the data": lambda: run(
            SGLD(model, step_size=1e-3, batch_size=21), X, y
        ),
        "SGLD: a step of zero": lambda: SGLD(model, step_size=0.0),
        "SGLD: a step too large to stay finite": lambda: run(
            SGLD(bayesian_network(perceptron((3, 4, 2))), step_size=1e9), X, y.long()
        ),
        "Laplace: labels outside the range": lambda: laplace(X, y + 1, 2),
        "Gaussian process: one class only": lambda: svgp(
            gaussian_process(X[:4], 2), X, torch.ones(20)
        ),
        "Gaussian process: NaN in the features": lambda: svgp(
            gaussian_process(X[:4], 2), broken, y
        ),
        "a data set that is not there": lambda: datasets.kmnist(
            train=True, root="nowhere", download=False
        ),
        "scaling by columns with NaN": lambda: datasets.standardize(broken),
    }
    return found


def cases(folder: Path) -> dict[str, Callable[[], object]]:
    """What is tried on distillation and on the student."""
    fast = distill(predictive(), X, **SHORT)
    saved, corrupt, foreign = (folder / name for name in ("saved", "corrupt", "foreign"))
    fast.save(saved)
    corrupt.write_bytes(saved.read_bytes()[:100])
    save_file({"weight": torch.zeros(2)}, foreign)
    scalar = {"w": torch.randn(8)}
    broken = X.clone()
    broken[3, 1] = float("nan")
    infinite = predictive()
    infinite.posterior_samples["weight"][0, 0, 0] = float("inf")
    found: dict[str, Callable[[], object]] = {
        "wrong shape": lambda: fast(torch.randn(5, 7)),
        "wrong dtype": lambda: fast(torch.ones(5, 3, dtype=torch.long)),
        "no tensor": lambda: fast([[0.0, 1.0, 2.0]]),
        "NaN in the input": lambda: fast(broken),
        "NaN in the transfer inputs": lambda: distill(predictive(), broken, **SHORT),
        "infinite posterior draw": lambda: distill(infinite, X, **SHORT),
        "unknown site": lambda: distill(predictive(), X, return_sites=["label"], **SHORT),
        "latent site asked of the student": lambda: distill(
            predictive(), X, return_sites=["obs", "weight"], **SHORT
        ),
        "latent site named as observed": lambda: distill(predictive(), X, site="weight", **SHORT),
        "several observed sites, none named": lambda: distill(
            Predictive(two_sites, scalar), X, **SHORT
        ),
        "a site of counts": lambda: distill(Predictive(counts, scalar), X, **SHORT),
        "empty transfer set": lambda: distill(predictive(), X[:0], **SHORT),
        "one class": lambda: distill(lambda x: torch.ones(8, len(x), 1), X, **SHORT),
        "one draw": lambda: distill(predictive(1), X, **SHORT),
        "off the simplex": lambda: distill(lambda x: torch.randn(8, len(x), 3), X, **SHORT),
        "a network without dropout": lambda: distill(torch.nn.Linear(3, 4), X, **SHORT),
        "more draws than the posterior holds": lambda: as_teacher(predictive()).probs(X, 9),
        "unknown loss": lambda: distill(predictive(), X, loss="kl", **SHORT),
        "mismatched classes on load": lambda: OnePassPredictive.load(
            saved, guide=PredictiveGuide.for_inputs(X, 5)
        ),
        "corrupt file": lambda: OnePassPredictive.load(corrupt),
        "foreign file": lambda: OnePassPredictive.load(foreign),
        "missing file": lambda: OnePassPredictive.load(folder / "missing"),
        "missing folder": lambda: fast.save(folder / "missing" / "fast.safetensors"),
        "a file of another kind as checkpoint": lambda: other_kind(folder),
        "negative variance": lambda: pyro_opu.laplace_bridge(torch.zeros(3), -torch.ones(3)),
    }
    if not torch.cuda.is_available():
        found["CUDA where there is none"] = lambda: distill(predictive(), X, device="cuda", **SHORT)
    return found


def other_kind(folder: Path) -> object:
    path = folder / "saved"
    return distill(predictive(), X, checkpoint=path, **SHORT)


if __name__ == "__main__":
    sys.exit(main())
