"""What a draw of a teacher costs, against counts by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pyro.infer import Predictive

from pyro_opu import as_teacher
from pyro_opu.models.factored import factored
from pyro_opu.models.gaussian_process import gaussian_process
from pyro_opu.programs.cost import counted, metered
from pyro_opu.training.plan import Facts

LOWER = torch.eye(6).repeat(3, 1, 1)


@pytest.mark.parametrize(
    "compute, expected",
    [
        (lambda: torch.randn(4, 5) @ torch.randn(5, 7), 2 * 4 * 5 * 7),
        (lambda: torch.linalg.solve_triangular(LOWER, torch.ones(3, 6, 2), upper=False), 3 * 72),
        (
            lambda: torch.linalg.solve_triangular(
                LOWER, torch.ones(3, 2, 6), upper=False, left=False
            ),
            3 * 72,
        ),
        (lambda: torch.cholesky_solve(torch.ones(3, 6, 2), LOWER), 3 * 144),
        (lambda: torch.linalg.cholesky(LOWER), 3 * 6**3 // 3),
        (lambda: torch.vmap(torch.linalg.cholesky)(LOWER), 3 * 6**3 // 3),
        (lambda: torch.randn(100).exp(), 0),
    ],
)
def test_operations_are_those_counted_by_hand(compute: Callable[[], object], expected: int) -> None:
    with counted(), metered() as meter:
        compute()
    assert meter.operations == expected


@pytest.mark.parametrize(
    "compute, stored",
    [
        (lambda x: x.expand(50, 50), [0]),
        (lambda x: x.expand(50, 50) + 1, [0, 2500]),
        (lambda x: x.view(5, 10).T[1:], [0, 0, 0]),
        (lambda x: x.view(5, 10).T.contiguous(), [0, 0, 50]),
        (lambda x: x.add_(1).mul(2), [0, 50]),
        (lambda x: torch.stack([x, x]).unbind(), [100, 0]),
        (lambda x: x.to_sparse().coalesce(), None),
    ],
)
def test_a_view_stores_nothing(compute: Callable[..., object], stored: list[int] | None) -> None:
    x = torch.ones(50)
    with metered() as meter:
        compute(x)
    if stored is None:
        assert max(meter.sizes) >= 50
    else:
        assert meter.sizes == stored


def test_a_gaussian_process_is_not_cheap() -> None:
    """Its triangular systems are what a draw costs; uncounted, a step took nearly all draws."""
    inducing, features, draws = 60, 4, 500
    model = gaussian_process(torch.randn(inducing, features), 2, joint_rows=0)
    samples = {name: torch.linspace(0.9, 1.1, draws) for name in model.kernel.names}
    samples["v"] = torch.randn(draws, inducing)
    teacher = as_teacher(Predictive(*factored(model, samples), return_sites=["obs"]))
    x = torch.randn(8, features)
    teacher.probs(x)
    assert (teacher.operations(x) or 0) >= inducing**2
    facts = Facts(8, features, teacher.num_outputs, teacher.max_draws, teacher.operations(x))
    warm, refine = facts.draws_of_step(256)
    assert warm < 100
    assert refine == 32
