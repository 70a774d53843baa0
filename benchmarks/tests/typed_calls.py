"""Public calls in a strictly typed program, for ``test_install.py``: it is checked, and runs.

A call that is ignored is a slip, and an "ignore" without a slip is an error too, so that a checker
passes only if it sees the types of the package.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

import pyro_opu
from pyro_opu import FidelityReport, OnePassPredictive, PredictiveDirichlet, Teacher
from pyro_opu.metrics.distances import kl_divergence
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.transfer import Jitter

SLOPES = torch.randn(20, 2, 3, generator=torch.Generator().manual_seed(0))


def draws(x: Tensor) -> Tensor:
    """Class probabilities ``(S, N, C)`` of inputs ``(N, D)``."""
    return (x @ SLOPES).softmax(-1)


def distilled(x: Tensor) -> OnePassPredictive:
    return pyro_opu.distill(draws, x, transfer=Jitter(0.1), num_steps=10, seed=0, progress=False)


def answers(fast: OnePassPredictive, x: Tensor) -> dict[str, Tensor]:
    labels: dict[str, Tensor] = fast(x)
    dirichlet: PredictiveDirichlet = fast.dirichlet(x)
    epistemic: Tensor = fast.uncertainty(x).epistemic
    novelty: Tensor = fast.novelty(x)
    found = {"alpha": dirichlet.concentration, "epistemic": epistemic, "novelty": novelty}
    return labels | found | {"draws": fast.probs(x, 10)}


def compared(fast: OnePassPredictive, x: Tensor) -> tuple[bool | None, Tensor]:
    teacher: Teacher = pyro_opu.as_teacher(draws)
    report: FidelityReport = pyro_opu.fidelity(fast, teacher, x, num_draws=10)
    mean: Tensor = teacher.probs(x).mean(0)
    return report.faithful, kl_divergence(mean, fast.dirichlet(x).mean)


def main(path: Path) -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    fast = distilled(x)
    fast.save(path)
    again: OnePassPredictive = OnePassPredictive.load(path)
    alpha: Tensor = pyro_opu.laplace_bridge(torch.zeros(3), torch.eye(3))
    entropy: Tensor = pyro_opu.entropy(draws(x))
    models = [logistic_regression(2), pyro_opu.models.laplace.laplace, pyro_opu.samplers.SGLD]
    print(answers(again, x).keys(), compared(again, x), alpha, entropy.shape, len(models))
    print(pyro_opu.__version__)


def slips(x: Tensor) -> None:
    pyro_opu.distill(draws, x, num_steps="9")  # type: ignore[arg-type] # pyright: ignore
    pyro_opu.fidelity(draws)  # type: ignore[call-arg] # pyright: ignore
    print(pyro_opu.models.no_model)  # type: ignore[attr-defined] # pyright: ignore


if __name__ == "__main__":
    main(Path(sys.argv[1]))
