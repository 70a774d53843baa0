"""The paper's two speed tests: KL against samples, and against time.

The law of the logits is given: at the first 100 rows of a test set, and 100 laws that Dirichlets
map to, which are those that the bridge is made for (every alpha between 1 and 100, uniform in the
logarithm). "True" is what 100,000 draws of it say. The slides do not say which KL they show; here
are two, both means over the inputs, in nats:

- "KL of the mean": KL(true class probabilities || mean of S draws, or of the Dirichlet).
- "KL of histograms": every class has a law of its probability, cut into 20 bins of equal width;
  KL(true shares || shares of S draws, or what the Beta marginal of the Dirichlet puts into each
  bin), the mean over the classes too. One draw in all is added to the S, spread evenly over the
  bins, so that no share is zero; shares of the Beta below 1e-12 are raised to it.

The draws judged are not those of the reference; fewer are the first of more. The time is that of
the class probabilities at 1,000 inputs, the 100 ten times over: draws, softmax and mean for a
hundred at a time, or a closed form and its mean for all at once. The probit has a mean alone. In
the tables a closed form has 0 samples.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Dirichlet

from papers.laplace_answers import (
    in_blocks,
    mean_of,
    methods,
    probabilities,
    sampled,
    seconds,
)
from pyro_opu import inverse_laplace_bridge
from pyro_opu.metrics.distances import kl_divergence

SAMPLES = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
ROWS, TIMED, BINS, AT_ONCE = 100, 1000, 20, 10


def speed_tests(laws: dict[str, tuple[Tensor, Tensor]], reference: int) -> list[dict[str, Any]]:
    """A row for each set of inputs, and number of samples or closed form."""
    return [
        {"inputs": name, **row}
        for name, (mean, covariance) in laws.items()
        for row in one_test(mean[:ROWS], covariance[:ROWS], reference)
    ]


def one_test(mean: Tensor, covariance: Tensor, reference: int) -> list[dict[str, Any]]:
    """The rows of one set of inputs."""
    sizes = [count for count in SAMPLES if count <= reference // 10]
    found: dict[int, list[tuple[Tensor, Tensor]]] = {count: [] for count in (*sizes, reference)}
    for block in zip(mean.split(AT_ONCE), covariance.split(AT_ONCE), strict=True):
        found[reference].append(summary(sampled(*block, reference)))
        draws = sampled(*block, sizes[-1])
        for count in sizes:
            found[count].append(summary(draws[:count]))
    whole = {
        count: tuple(torch.cat(part) for part in zip(*blocks, strict=True))
        for count, blocks in found.items()
    }
    target, shares = whole[reference][0], whole[reference][1] / reference
    copies = -(-TIMED // len(mean))
    many = tuple(torch.cat([part] * copies) for part in (mean, covariance))
    rows = []
    for count in sizes:
        probs, counts = whole[count]
        row: dict[str, Any] = {"answer": "sampling", "samples": count}
        row["KL of the mean"] = mean_kl(target, probs)
        row["KL of histograms"] = mean_kl(shares, (counts + 1 / BINS) / (count + 1))
        call = partial(in_blocks, methods(count)["sampling"], *many)
        rows.append({**row, "time, s": seconds(call, 3 if count < 1000 else 1)})
    for name in ("bridge", "normalised bridge", "probit"):
        answer = methods(1)[name](mean, covariance)
        row = {"answer": name, "samples": 0}
        row["KL of the mean"] = mean_kl(target, mean_of(answer).double().clamp_min(1e-30))
        if isinstance(answer, Dirichlet):
            beta = beta_shares(answer.concentration.double())
            row["KL of histograms"] = mean_kl(shares, beta.clamp_min(1e-12))
        call = partial(probabilities, methods(1)[name], *many)
        rows.append({**row, "time, s": seconds(call, 50)})
    return rows


def of_dirichlets(classes: int) -> tuple[Tensor, Tensor]:
    """Laws of the logits that the bridge takes back to Dirichlets, mean and full covariance."""
    alpha = 100 ** torch.rand(ROWS, classes)
    mean, covariance = inverse_laplace_bridge(alpha, full=True)
    return mean, covariance + 0.01  # a shift of all logits, which makes it regular


def summary(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Of ``(S, n, C)``: means ``(n, C)`` in float64, and counts of the bins ``(n, C, bins)``."""
    n, classes = draws.shape[1:]
    first = BINS * torch.arange(n * classes).reshape(n, classes)
    places = (draws * BINS).long().clamp_(max=BINS - 1) + first
    counts = torch.bincount(places.flatten(), minlength=n * classes * BINS)
    return draws.double().mean(0), counts.reshape(n, classes, BINS).double()


def beta_shares(alpha: Tensor) -> Tensor:
    """What the marginals of Dirichlets ``(N, C)`` put into each bin, ``(N, C, bins)``."""
    from scipy.special import betainc

    rest = alpha.sum(-1, keepdim=True) - alpha
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)
    below = betainc(alpha.unsqueeze(-1).numpy(), rest.unsqueeze(-1).numpy(), edges.numpy())
    return torch.from_numpy(below).diff(dim=-1)


def mean_kl(target: Tensor, other: Tensor) -> float:
    """KL(target || other) over the last axis, the mean over the others."""
    return kl_divergence(target, other).mean().item()
