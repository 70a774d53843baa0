"""Ranks against sorting draw by draw, and Thompson sampling against the posterior of the best."""

from __future__ import annotations

import pytest
import torch

from pyro_opu.joint import PoolDraws, ranking, thompson


def real(f):
    return PoolDraws("real", torch.stack([f, torch.zeros_like(f)], -1))


@pytest.fixture
def scores():
    return torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("largest", [True, False])
def test_against_sorting_each_draw(scores, largest):
    found = ranking(real(scores), None, largest=largest)
    for score, ranks in zip(scores.tolist(), found.ranks.tolist(), strict=True):
        order = sorted(score, reverse=largest)
        assert ranks == [order.index(value) for value in score]


def test_probabilities(scores):
    found = ranking(real(scores), None)
    every = found.distribution
    assert torch.allclose(every.sum(0), torch.ones(6).double())
    assert torch.allclose(every.sum(1), torch.ones(6).double())
    best = torch.bincount(scores.argmax(1), minlength=6) / 50
    assert torch.allclose(found.best, best.double()) and torch.equal(found.best, every[:, 0])
    assert torch.allclose(found.top(2), every[:, :2].sum(1))
    assert torch.allclose(found.mean, every @ torch.arange(6).double())


def test_copies_share_the_rank():
    f = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0)).repeat(1, 2)
    found = ranking(real(f), None, seed=0)
    # 4,000 draws: 0.007 is a deviation.
    assert torch.allclose(found.best, torch.full((4,), 0.25).double(), atol=0.03)


def test_of_two_classes_it_is_the_probability_of_the_second():
    probs = torch.tensor([[[0.1, 0.9], [0.6, 0.4]], [[0.2, 0.8], [0.3, 0.7]]])
    assert ranking(PoolDraws("classes", probs), None).ranks.tolist() == [[0, 1], [0, 1]]


class TestThompson:
    def test_rows_are_chosen_as_often_as_they_are_the_best(self, scores):
        wide = real(scores[:, :3])
        first = torch.tensor([int(thompson(wide, None, 1, seed=seed)[0]) for seed in range(2000)])
        share = torch.bincount(first, minlength=3) / 2000
        # 0.011 is a deviation.
        assert torch.allclose(share.double(), ranking(wide, None).best, atol=0.045)

    def test_no_row_twice(self, scores):
        assert sorted(thompson(real(scores), None, 6, seed=0).tolist()) == list(range(6))

    def test_a_batch_by_the_loop(self):
        """Where all draws agree, the best rows in order."""
        f = torch.tensor([3.0, 9.0, 1.0, 5.0]).expand(10, 4)
        assert thompson(real(f), None, 3, seed=0).tolist() == [1, 3, 0]
        assert thompson(real(f), None, 3, largest=False, seed=0).tolist() == [2, 0, 3]

    @pytest.mark.parametrize("size", [7, 51, 0])
    def test_refused_sizes(self, scores, size):
        with pytest.raises(ValueError, match="`size` must be"):
            thompson(real(scores), None, size)
