"""Uncertainty-aware top-k: the overlap of Beta marginals by quadrature, and sets by hand."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Tensor

from pyro_opu.distributions.dirichlet import PredictiveDirichlet
from pyro_opu.metrics.top_k import top_k


def dirichlet(alpha: list[list[float]] | Tensor) -> PredictiveDirichlet:
    return PredictiveDirichlet.from_alpha(torch.as_tensor(alpha, dtype=torch.float64))


def quadrature(a: float, c: float, total: float) -> float:
    """Shared area of Beta(a, total - a) and Beta(c, total - c), in u = logit(x): no poles."""

    def smaller(u: float) -> float:
        x, y = 1 / (1 + math.exp(-u)), 1 / (1 + math.exp(u))
        logs = [
            p * math.log(x) + q * math.log(y) - math.lgamma(p) - math.lgamma(q) + math.lgamma(total)
            for p, q in ((a, total - a), (c, total - c))
        ]
        return math.exp(min(logs))

    edges = np.linspace(-40, 40, 81)
    parts = [integrate.quad(smaller, *pair)[0] for pair in zip(edges, edges[1:], strict=False)]
    return sum(parts)


@pytest.mark.parametrize(
    "alpha",
    [
        [5.0, 4.0, 0.5],
        [90.0, 8.0, 2.0],
        [3.0, 2.999, 1.0],  # nearly alike
        [0.9, 0.8, 0.7],  # poles at both ends
        [400.0, 380.0, 1.0],
    ],
)
def test_overlaps_against_quadrature(alpha: list[float]) -> None:
    found = top_k(dirichlet([alpha])).overlaps[0]
    expected = [quadrature(alpha[0], a, sum(alpha)) for a in alpha]
    # 1e-7: of the quadrature, whose integrand has a kink.
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=0.0, atol=1e-7)


def test_sets_against_loop() -> None:
    torch.manual_seed(1)
    alpha = 10 ** (3 * torch.rand(60, 5, dtype=torch.float64) - 0.5)
    sets = top_k(dirichlet(alpha), overlap=0.2)
    for n, row in enumerate(alpha.tolist()):
        order = sorted(range(5), key=lambda c: -row[c])
        inside = [order[0]]
        for c in order[1:]:
            if quadrature(row[order[0]], row[c], sum(row)) <= 0.2:
                break
            inside.append(c)
        assert sets.k[n] == len(inside)
        assert sets.ranking[n, : len(inside)].tolist() == inside
        assert sets.mask[n].nonzero().flatten().tolist() == sorted(inside)
    assert (sets.overlaps.diff(dim=1) <= 0).all()
    assert sets.mean_k == pytest.approx(sets.mask.sum(1).double().mean().item())
    # Classes may come in any order.
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(
        top_k(dirichlet(alpha[:, order]), overlap=0.2).mask, sets.mask[:, order]
    )


def test_coverage_by_hand() -> None:
    sets = top_k(dirichlet([[9.0, 8.0, 0.1], [90.0, 0.1, 1.0], [1.2, 1.0, 1.1]]))
    assert sets.ranking.tolist() == [[0, 1, 2], [0, 2, 1], [0, 2, 1]]
    assert sets.k.tolist() == [2, 1, 3]
    assert sets.mean_k == 2.0
    y = torch.tensor([1, 2, 2])
    assert sets.covers(y).tolist() == [True, False, True]
    assert sets.coverage(y) == pytest.approx(2 / 3)
    assert [sets.fixed(y, k) for k in (1, 2, 3)] == [0.0, 1.0, 1.0]
    assert sets.fixed(torch.tensor([0, 1, 2]), 1) == pytest.approx(1 / 3)


@pytest.mark.parametrize(("inputs", "classes"), [(1, 2), (1, 3), (2, 2)])
def test_small_shapes_and_dtypes(inputs: int, classes: int) -> None:
    alpha = torch.rand(inputs, classes) + 0.1
    sets = top_k(torch.distributions.Dirichlet(alpha), max_k=50)
    assert sets.mask.shape == (inputs, classes) and sets.mask.dtype == torch.bool
    assert torch.equal(sets.ranking[:, 0], alpha.argmax(1))
    one = top_k(torch.distributions.Dirichlet(alpha), max_k=1)
    assert one.k.tolist() == [1] * inputs


@pytest.mark.parametrize(("classes", "max_k"), [(10, None), (1000, 10)])
def test_many_inputs_in_seconds(classes: int, max_k: int | None) -> None:
    alpha = torch.rand(10_000, classes).square() * 5 + 0.01
    start = time.process_time()
    sets = top_k(torch.distributions.Dirichlet(alpha), max_k=max_k)
    assert len(sets.k) == 10_000
    assert time.process_time() - start < 30.0  # about 0.4 s and 3 s; the machine may be busy
