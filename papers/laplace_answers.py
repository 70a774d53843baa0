"""From the normal law of a network's logits to an answer: how good it is, and how dear."""

from __future__ import annotations

import copy
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Dirichlet
from torch.utils.data import DataLoader, TensorDataset

from pyro_opu import OnePassPredictive, laplace_bridge, probit_predictive
from pyro_opu.distributions import Empirical, SimplexDistribution
from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.metrics.uncertainty import concentration, mutual_information
from pyro_opu.models.laplace_network import NetworkLaplace
from pyro_opu.rng import preserve_rng

Answer = Dirichlet | SimplexDistribution | Tensor  # a tensor holds draws (S, N, C)
Gaussian = tuple[Tensor, Tensor]  # of the logits: mean (N, C), covariance (N, C, C) or (N, C)
Method = Callable[[Tensor, Tensor], Answer]


def fitted(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    weights: str = "last_layer",
    structure: str = "kron",
    precision: float | None = None,
) -> NetworkLaplace:
    """The fit of laplace-torch, by default with the precision of the highest evidence."""
    with preserve_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and einops, about their own parts
        from laplace import Laplace

        network = copy.deepcopy(network)
        fit = Laplace(
            network, "classification", weights, structure, prior_precision=precision or 1.0
        )
        fit.fit(DataLoader(TensorDataset(x, y), 256))
        if precision is None:
            fit.optimize_prior_precision(method="marglik")
    return NetworkLaplace(fit)


def gaussian(fit: NetworkLaplace, x: Tensor) -> Gaussian:
    """The law of the logits; the diagonal of the covariance where there is nothing else."""
    mean, covariance = fit.logits(x)
    independent = type(fit.fit).__name__.startswith("Diag")
    return mean, covariance.diagonal(dim1=1, dim2=2).clone() if independent else covariance


def sampled(mean: Tensor, covariance: Tensor, num_draws: int) -> Tensor:
    """Class probabilities ``(S, N, C)`` of draws of the logits, every input by itself.

    Args:
        mean: ``(N, C)``.
        covariance: ``(N, C, C)``, or its diagonal ``(N, C)``.
        num_draws: S.
    """
    noise = torch.randn(num_draws, *mean.shape, dtype=mean.dtype)
    if covariance.shape == mean.shape:
        spread = noise * covariance.sqrt()
    else:
        root = torch.linalg.cholesky(covariance.double()).to(mean)
        spread = (root @ noise.permute(1, 2, 0)).permute(2, 0, 1)
    return (mean + spread).softmax(-1)


def methods(draws: int) -> dict[str, Method]:
    """What takes the law of the logits to an answer."""

    def bridge(normalize: bool) -> Method:
        return lambda mean, covariance: PredictiveDirichlet.from_alpha(
            laplace_bridge(mean, covariance, normalize=normalize), validate_args=False
        )

    return {
        "sampling": lambda mean, covariance: sampled(mean, covariance, draws),
        "bridge": bridge(False),
        "normalised bridge": bridge(True),
        "probit": lambda mean, covariance: Empirical(
            probit_predictive(mean, covariance).log()[None]
        ),
        "MAP network": lambda mean, covariance: Empirical(mean.log_softmax(-1)[None]),
    }


def blocks(mean: Tensor, covariance: Tensor) -> Iterator[Gaussian]:
    """A hundred inputs at a time, so that their draws stay small."""
    return zip(mean.split(100), covariance.split(100), strict=True)


def read(answer: Method, mean: Tensor, covariance: Tensor) -> dict[str, Tensor]:
    """Measures at all inputs."""
    parts = [measured(answer(*block)) for block in blocks(mean, covariance)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def measured(answer: Answer) -> dict[str, Tensor]:
    """Means ``(N, C)``, and how suspect an input is by each measure, ``(N,)``."""
    mean = mean_of(answer).double()
    # 1 - max, added up from the other classes: the difference is often zero.
    others = mean.scatter(-1, mean.argmax(-1, keepdim=True), 0.0).sum(-1)
    found = {"mean": mean, "by max-probability": others}
    if not isinstance(answer, Empirical):  # which has no spread
        found["by mutual information"] = mutual_information(answer)
        found["by concentration"] = -concentration(answer).log().nan_to_num()
    return found


def mmc(reading: dict[str, Tensor]) -> float:
    """The mean over inputs of the largest class probability."""
    return 1 - reading["by max-probability"].mean().item()


def mean_of(answer: Answer) -> Tensor:
    """Class probabilities ``(N, C)``."""
    if isinstance(answer, (Dirichlet, SimplexDistribution)):
        return answer.mean
    return torch.mean(answer, 0)


def auroc(inside: Tensor, elsewhere: Tensor) -> float:
    """In per cent; the larger, the more suspect."""
    from sklearn.metrics import roc_auc_score

    positive = torch.arange(len(inside) + len(elsewhere)) >= len(inside)
    return 100 * float(roc_auc_score(positive, torch.cat([inside, elsewhere])))


def trivial(sets: dict[str, Tensor]) -> list[dict[str, Any]]:
    """What needs no classifier, in whichever direction does better."""
    rows = []
    inside, *_ = sets.values()
    for method, measure in (
        ("mean pixel", lambda x: x.flatten(1).mean(1)),
        ("norm", lambda x: x.flatten(1).norm(dim=1)),
    ):
        for name, x in list(sets.items())[1:]:
            area = auroc(measure(inside), measure(x))
            row = {"posterior": "none", "method": method, "test set": name}
            rows.append({**row, "AUROC, trivial": max(area, 100 - area)})
    return rows


def seconds(call: Callable[[], object], runs: int) -> float:
    """Median processor time."""
    found = []
    for _ in range(runs):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return statistics.median(found)


def timed(
    fit: NetworkLaplace,
    x: Tensor,
    law: Gaussian,
    students: dict[str, OnePassPredictive],
    draws: int,
) -> dict[str, float]:
    """Seconds for the class probabilities of all inputs; the median of 20 but for what is slow."""
    row = {"law of the logits, s": seconds(partial(fit.logits, x), 1)}
    for name, answer in methods(draws).items():
        if name == "sampling":
            row["sampling, s"] = seconds(partial(in_blocks, answer, *law), 1)
        else:
            row[f"{name}, s"] = seconds(partial(probabilities, answer, *law), 20)
    row["sampling / bridge"] = row["sampling, s"] / row["bridge, s"]
    for name, student in students.items():
        row[f"{name}, one pass, s"] = seconds(partial(one_pass, student, x), 3)
    return row


def probabilities(answer: Method, mean: Tensor, covariance: Tensor) -> Tensor:
    """Of the classes, ``(N, C)``."""
    return mean_of(answer(mean, covariance))


def in_blocks(answer: Method, mean: Tensor, covariance: Tensor) -> Tensor:
    """The same a hundred inputs at a time."""
    return torch.cat([probabilities(answer, *block) for block in blocks(mean, covariance)])


def one_pass(student: OnePassPredictive, x: Tensor) -> Tensor:
    """The student's, from the inputs."""
    return mean_of(student.distribution(x))
