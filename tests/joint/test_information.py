"""Joint information against loops over all labellings, and the choice of a batch by it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from pyro_opu.joint import PoolDraws, batch_bald, joint_draws, joint_information
from pyro_opu.joint.draws import draw_labels
from pyro_opu.joint.information import _greedy, _Labellings
from pyro_opu.metrics.uncertainty import uncertainty


def pool_of(draws=20, rows=6, classes=3, scale=3.0, seed=0):
    """Draws in float64, with correlated rows."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(draws, 2, classes, generator=generator, dtype=torch.float64)
    x = scale * torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    return PoolDraws("classes", (x @ theta).softmax(-1))


def slowly(probs, batch):
    """Joint entropy and expected conditional entropy by a loop over all labellings."""
    joint = 0.0
    for labels in itertools.product(range(probs.shape[-1]), repeat=len(batch)):
        likelihood = torch.stack([probs[:, n, y] for n, y in zip(batch, labels, strict=True)])
        p = float(likelihood.prod(0).mean())
        joint -= p * math.log(p) if p > 0 else 0.0
    given = sum(float(torch.special.entr(probs[:, n]).sum(-1).mean()) for n in batch)
    return joint, given


BATCHES = torch.tensor([[0, 1, 2], [3, 4, 5], [2, 2, 2], [5, 0, 3]])


def test_exact_against_the_loop():
    pool = pool_of()
    found = joint_information(pool, None, BATCHES)
    for number, batch in enumerate(BATCHES.tolist()):
        total, aleatoric = slowly(pool.draws, batch)
        assert float(found.total[number]) == pytest.approx(total, abs=1e-12)
        assert float(found.aleatoric[number]) == pytest.approx(aleatoric, abs=1e-12)
        assert float(found.epistemic[number]) == pytest.approx(total - aleatoric, abs=1e-12)


def test_of_one_row_it_is_the_mutual_information():
    pool = pool_of()
    found = joint_information(pool, None, torch.arange(6)[:, None])
    alone = uncertainty(pool.draws)
    assert torch.allclose(found.epistemic, alone.epistemic)
    assert torch.allclose(found.total, alone.total)


@pytest.mark.parametrize("most", [1, 3])
def test_sampled_against_the_loop(most):
    """Switched to drawn labellings from the first and the second row on."""
    pool = pool_of()
    runs = [
        joint_information(pool, None, BATCHES, num_labellings=most, seed=seed).total
        for seed in range(400)
    ]
    found = torch.stack(runs)
    true = torch.tensor([slowly(pool.draws, batch)[0] for batch in BATCHES.tolist()])
    error = found.std(0) / 20
    assert (found.std(0) > 0).any()
    assert ((found.mean(0) - true).abs() < 4 * error + 1e-12).all()


def test_impossible_labels():
    """Draws that are sure, and contradict each other: the label names the draw."""
    probs = torch.eye(4, dtype=torch.float64)[:, None].expand(4, 3, 4)
    found = joint_information(PoolDraws("classes", probs), None, torch.tensor([0, 1, 2]))
    assert float(found.epistemic) == pytest.approx(math.log(4))
    batch = batch_bald(PoolDraws("classes", probs), None, 3)
    assert torch.allclose(batch.information, torch.full((3,), math.log(4), dtype=torch.float64))


def test_of_sure_classes_nothing_is_learnt():
    probs = torch.eye(3, dtype=torch.float64)[torch.tensor([0, 2, 1, 1])].expand(5, 4, 3)
    batch = batch_bald(PoolDraws("classes", probs), None, 4)
    assert torch.equal(batch.information, torch.zeros(4, dtype=torch.float64))
    assert sorted(batch.indices.tolist()) == [0, 1, 2, 3]


def test_two_draws_cannot_tell_more_than_log_2():
    batch = batch_bald(pool_of(draws=2, rows=40, scale=9.0), None, 12, seed=0)
    assert float(batch.information.max()) <= math.log(2) + 1e-9


def test_one_candidate():
    pool = pool_of(rows=1)
    batch = batch_bald(pool, None, 1)
    assert batch.indices.tolist() == [0]
    assert torch.allclose(batch.information, uncertainty(pool.draws).epistemic)


def slow_greedy(probs, size):
    """Every step by the loop over all labellings, at all rows."""
    chosen, information = [], []
    for _ in range(size):
        rows = [n for n in range(probs.shape[1]) if n not in chosen]
        gains = [total - given for total, given in (slowly(probs, [*chosen, n]) for n in rows)]
        information.append(max(gains))
        chosen.append(rows[gains.index(max(gains))])
    return chosen, information


@pytest.mark.parametrize("seed", range(4))
def test_batch_against_the_loop(seed):
    pool = pool_of(rows=12, seed=seed)
    batch = batch_bald(pool, None, 4)
    chosen, information = slow_greedy(pool.draws, 4)
    assert batch.indices.tolist() == chosen
    assert batch.information.tolist() == pytest.approx(information, abs=1e-10)


def test_rows_are_looked_at_again_only_where_they_may_win(monkeypatch):
    """The same batch as with all rows looked at, of far more than are looked at together."""
    pool = pool_of(draws=50, rows=300)
    lazy = batch_bald(pool, None, 4)
    monkeypatch.setattr("pyro_opu.joint.information.AT_ONCE", 300)
    assert torch.equal(lazy.indices, batch_bald(pool, None, 4).indices)


def test_repeated_rows_are_taken_by_bald_and_not_by_batch_bald():
    """Four rows that the posterior is unsure of in different ways, and ten copies of each."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(400, 4, 2, generator=generator, dtype=torch.float64)
    x = torch.diag(torch.tensor([30.0, 28, 26, 24], dtype=torch.float64)).repeat(10, 1)
    pool = joint_draws(lambda x: (x @ theta).softmax(-1), x)
    alone = uncertainty(pool.draws).epistemic.topk(4).indices
    assert len(set((alone % 4).tolist())) < 4
    batch = batch_bald(pool, None, 4)
    assert sorted((batch.indices % 4).tolist()) == [0, 1, 2, 3]
    # Nearly sure labels: four rows say nearly all that four bits can.
    assert float(batch.information[-1]) > 3.5 * math.log(2)


def test_sampled_batch_is_near_the_exact_one():
    pool = pool_of(draws=100, rows=30)
    exact = batch_bald(pool, None, 6)
    drawn = batch_bald(pool, None, 6, num_labellings=500, seed=0)
    assert torch.equal(drawn.indices[:5], exact.indices[:5])  # 3^5 labellings are counted
    told = [
        float(joint_information(pool, None, batch.indices, num_labellings=10**4).epistemic)
        for batch in (exact, drawn)
    ]
    assert told[1] > 0.99 * told[0]


def test_a_seed_repeats_the_batch():
    pool = pool_of(draws=100, rows=30)
    first, again, other = (
        batch_bald(pool, None, 8, num_labellings=30, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first.information, again.information)
    assert not torch.equal(first.information, other.information)


def test_float32_is_near_float64():
    pool = pool_of(draws=200, rows=30)
    exact, rounded = (_greedy(p, 5, 10**4) for p in (pool.draws, pool.draws.float()))
    assert torch.allclose(exact.information, rounded.information, atol=1e-5)


def test_rows_are_looked_at_some_together_and_most_only_once(monkeypatch):
    asked = []
    plain = _Labellings.entropy
    monkeypatch.setattr(
        _Labellings, "entropy", lambda self, rows: asked.append(len(rows)) or plain(self, rows)
    )
    batch_bald(pool_of(draws=50, rows=300), None, 4)
    assert asked[0] == 300 and len(asked) > 3
    assert 4 * (len(asked) - 1) < sum(asked[1:]) < 900 / 2


def test_no_tensor_of_all_labellings_and_rows_is_made(monkeypatch):
    """Of 512 labellings, 3,000 rows and 8 classes it would have 12 million numbers."""
    most, plain = [], torch.special.entr
    monkeypatch.setattr(torch.special, "entr", lambda p: most.append(p.numel()) or plain(p))
    labellings = _Labellings(torch.full((4, 3000, 8), 1 / 8), 512)
    for row in range(3):
        labellings.add(row)
    found = labellings.entropy(torch.arange(3000))
    assert torch.allclose(found, torch.tensor(8.0).double().log())
    assert 2**21 < max(most) <= 2**22


def test_labels_of_probabilities_that_rounding_keeps_off_a_sum_of_one():
    """A last class of probability zero gets nothing of what is missing."""
    labels = draw_labels(torch.tensor([0.2, 0.4, 0.0]).expand(20_000, 3))
    assert (labels < 2).all()
    assert float((labels == 0).double().mean()) == pytest.approx(1 / 3, abs=0.02)  # 6 deviations
