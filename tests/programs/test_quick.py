"""What is rewritten in a recorded program gives what it gave, and writes into nobody's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_opu.programs.algebra import is_simplex, output
from pyro_opu.programs.bound import Bound
from pyro_opu.programs.quick import FEW_NUMBERS, _log1p, _summed, is_quicker_in_line
from pyro_opu.programs.recorded import VALID, Recorded

Draws = dict[str, Tensor]
S, G, D, N = 40, 6, 5, 300
DRAWS = {"a": torch.randn(S, G), "b": torch.randn(S, G, D), "w": torch.randn(S, D)}
DRAWS |= {"u": torch.randn(S, D, 8), "v": torch.randn(S, 8, 3)}
X, GROUP = torch.randn(N, D), torch.randint(G, (N,), generator=torch.Generator().manual_seed(0))


def valid(*checks: Tensor) -> Tensor:
    return torch.stack(checks).all()


def grouped(t: Draws, x: Tensor, group: Tensor) -> Draws:
    slopes = (t["w"][:, None] + t["b"][:, group]).exp() * 2.0
    p = (t["a"][:, group] + (x * slopes).sum(-1)).sigmoid()
    ends = p.aminmax()
    return {"p": p, VALID: valid(ends.min >= 0, ends.max <= 1)}


def classes(t: Draws, x: Tensor, group: Tensor) -> Draws:
    z = torch.einsum("nd,sgd->sng", x, t["b"])
    p = z.mT.softmax(-2).mT
    p = p / p.sum(-1, True)
    total = p.sum(-1)
    checks = p.amin() >= 0, total.amin() > 0, total.amax() < torch.inf
    return {"p": p, "direct": z.softmax(-1), "log": z.log_softmax(-1), VALID: valid(*checks)}


def logs(t: Draws, x: Tensor, group: Tensor) -> Draws:
    p = (t["w"] @ x.T * 9).sigmoid()
    said = torch.stack([torch.log1p(-p.clamp_max(1 - 6e-8)), p.clamp_min(1e-38).log()], -1)
    return {"said": said, "probs": said.exp()}


def written(t: Draws, x: Tensor, group: Tensor) -> Draws:
    """Everything that may be written over, beside what may not."""
    z = t["w"] @ x.T
    twice = (z + 1.0).relu() + z
    windows = (z * 2.0).unfold(0, 3, 1) + 1.0
    kept, columns = -z, (z * 3.0)[:, 1:].mT
    return {
        "twice": twice,
        "windows": windows.sum(0)[None] + z[..., None],
        "kept": kept,
        "columns": 1.0 + columns.tanh(),
    }


def parts(t: Draws, x: Tensor, group: Tensor) -> Draws:
    """Parts of a tensor are written, also after what was there has been used."""
    z = torch.einsum("nd,sd->sn", x, t["w"])
    made = 1.5 * torch.stack([z, z + 1, z + 2], -1)
    made[..., 0] = z.exp()
    made[..., 1:] = z[..., None].tanh()
    before = made + 1
    made[..., 2] = z.double()
    return {"before": before, "made": made}


def layers(t: Draws, x: Tensor, group: Tensor) -> Draws:
    """Products by matrices of the draws, from the right and from the left."""
    h = torch.bmm(x.expand(len(t["u"]), *x.shape), t["u"]).tanh()
    return {"right": torch.bmm(h, t["v"] + 1), "left": torch.bmm(t["v"].mT.exp(), h.mT), "h": h}


PROGRAMS: dict[str, Callable[..., Draws]] = {
    each.__name__: each for each in (grouped, classes, logs, written, parts, layers)
}


def bound(program: Callable[..., Draws]) -> tuple[Bound, Callable[[Draws, Sequence[Any]], Draws]]:
    def together(draws: Draws, inputs: Sequence[Tensor]) -> Draws:
        return program(draws, *inputs)

    return Bound(Recorded(together, DRAWS, [X[:9], GROUP[:9]]), DRAWS), together


def targets(graph: Any) -> str:
    return " ".join(str(node.target) for node in graph.graph.nodes)


@pytest.mark.parametrize("rows", [1, 3, N])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_gives_what_it_gave(name: str, rows: int) -> None:
    made, together = bound(PROGRAMS[name])
    given = [X[:rows], GROUP[:rows]]
    before = [each.clone() for each in (*DRAWS.values(), *given, *made.values)]
    for block in (slice(None), slice(3, 11)):
        part = {name: value[block] for name, value in DRAWS.items()}
        for key, value in together(part, given).items():
            torch.testing.assert_close(made(given, block)[key], value)
            (alone,) = made.at(given, [key])(block).values()
            torch.testing.assert_close(alone, value)
    after = (*DRAWS.values(), *given, *made.values)
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["grouped", "classes"])
def test_what_cannot_be_sampled_is_still_seen(name: str) -> None:
    made, _ = bound(PROGRAMS[name])
    assert bool(made([X, GROUP])[VALID])
    assert not bool(made([X.index_fill(0, torch.tensor([7]), torch.nan), GROUP])[VALID])
    assert "amin" not in targets(made.late) and "aminmax" not in targets(made.late)


def test_two_numbers_that_may_be_nan_are_both_seen() -> None:
    def two(t: Draws, x: Tensor, group: Tensor) -> Draws:
        p, q = (t["w"] @ x.T).sigmoid(), t["a"].exp()
        return {"p": p, "q": q, VALID: valid(p.amin() >= 0, q.amin() >= 0, p.amax() <= 1)}

    made, _ = bound(two)
    assert bool(made([X, GROUP])[VALID])
    assert not bool(made([X.index_fill(0, torch.tensor([7]), torch.nan), GROUP])[VALID])


def test_numbers_without_known_ends_are_looked_at() -> None:
    def any_numbers(t: Draws, x: Tensor, group: Tensor) -> Draws:
        p = t["w"] @ x.T
        ends = p.aminmax()
        return {"p": p, VALID: valid(ends.min >= -50, ends.max <= 50)}

    made, _ = bound(any_numbers)
    assert bool(made([X, GROUP])[VALID]) and not bool(made([100 * X, GROUP])[VALID])


def test_an_index_is_taken_after_what_follows_from_the_draws() -> None:
    made, _ = bound(grouped)
    assert "exp" not in targets(made.late) and "exp" in targets(made.recorded.program)


@pytest.mark.parametrize("quicker", [True, False])
def test_matrices_lie_line_by_line_for_few_rows_where_that_is_quicker(
    monkeypatch: pytest.MonkeyPatch, quicker: bool
) -> None:
    monkeypatch.setattr("pyro_opu.programs.bound.is_quicker_in_line", lambda *_: quicker)
    made, together = bound(layers)
    found, expected = made([X[:1], GROUP[:1]]), together(DRAWS, [X[:1], GROUP[:1]])
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    made([X, GROUP])
    assert made._end_of_few is not None
    assert targets(made._end_of_few.program).count("by_lines") == (3 if quicker else 0)
    assert "by_lines" not in targets(made.late) and "bmm" in targets(made.late)
    assert all(each.is_contiguous() for each in made._end_of_few.values) or not quicker


def test_both_ways_are_timed_by_the_right_product() -> None:
    """Neither raises for matrices on either side of the rows."""
    value = torch.randn(7, 3, 5)
    assert {type(is_quicker_in_line(value, first)) for first in (True, False)} == {bool}


@pytest.mark.parametrize("count", [FEW_NUMBERS - 1, FEW_NUMBERS])
def test_many_short_rows_are_summed_by_a_product(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    products: list[int] = []
    product = torch.mv
    monkeypatch.setattr(torch, "mv", lambda *a: (products.append(1), product(*a))[1])
    x = torch.randn(count, 1, 7)
    torch.testing.assert_close(_summed(x, [-1]), x.sum(-1))
    assert len(products) == (count >= FEW_NUMBERS)


def test_an_index_below_zero_counts_from_the_end_and_one_too_large_is_refused() -> None:
    made, together = bound(grouped)
    given = [X, GROUP - G]
    torch.testing.assert_close(made(given)["p"], together(DRAWS, given)["p"])
    with pytest.raises(IndexError):
        made([X, GROUP + G])


def test_probabilities_are_recorded_without_their_logarithms() -> None:
    made, _ = bound(logs)
    assert "log" not in targets(made.only("probs")) and "log" in targets(made.only("said"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logarithms_keep_their_digits(dtype: torch.dtype) -> None:
    u = -torch.cat([10.0 ** -torch.linspace(0, 30, 9000), torch.tensor([0.0])]).to(dtype)
    found, expected = _log1p(u), torch.log1p(u)
    torch.testing.assert_close(found, expected, rtol=8 * torch.finfo(dtype).eps, atol=0)
    assert _log1p(u.index_fill(0, torch.tensor([5]), torch.nan))[5].isnan()


@pytest.mark.parametrize(
    ("probs", "known"),
    [
        (lambda z: z.softmax(-1).clamp_min(1e-30), True),
        (lambda z: z.mT.softmax(-2).mT, True),
        (lambda z: torch.stack([1 - z[..., 0].sigmoid(), z[..., 0].sigmoid()], -1), False),
        (lambda z: logs({"w": z[:, 0]}, X[:2, :1].expand(2, z.shape[-1]), GROUP)["probs"], True),
        (lambda z: z.softmax(-1).clamp_min(0.1), False),
        (lambda z: z.softmax(-2), False),
        (lambda z: z.sigmoid(), False),
    ],
)
def test_what_is_known_to_sum_to_one(probs: Callable[[Tensor], Tensor], known: bool) -> None:
    recorded = Recorded(lambda t, x: {"p": probs(t["b"])}, DRAWS, [X])
    assert is_simplex(output(recorded.program)[0]) == known
