"""Ensembles of posteriors: which member gives which draws, blocks, and what is refused."""

from __future__ import annotations

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from torch import nn

import pyro_opu
from pyro_opu.teachers import (
    BaseTeacher,
    FunctionTeacher,
    MixtureTeacher,
    PredictiveTeacher,
    as_teacher,
)


def model(x, y=None):
    weight = pyro.sample("weight", dist.Normal(torch.zeros(3, 4), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        return pyro.sample("obs", dist.Categorical(logits=x @ weight), obs=y)


def finite(count, shift=0.0):
    return Predictive(model, {"weight": torch.randn(count, 3, 4) + shift})


def guide(x, y=None):
    pyro.sample("weight", dist.Normal(torch.zeros(3, 4), 2.0).to_event(2))


def dropout():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 4))


def constant(p):
    """A teacher that always says p for the first of two classes."""
    row = torch.tensor([p, 1 - p])
    return FunctionTeacher(lambda x, num_draws: row.expand(num_draws, len(x), 2))


def members_of(teacher, probs):
    """Which constant member each draw is from."""
    return (probs[:, 0, 0] * 10).round().long()


class TestDraws:
    def test_all_draws_of_finite_members(self):
        sources, x = [finite(6), finite(6, 1.0), finite(6, 2.0)], torch.randn(5, 3)
        teacher = as_teacher(sources)
        assert isinstance(teacher, MixtureTeacher) and teacher.max_draws == 18
        mine, each = teacher.probs(x), torch.cat([as_teacher(s).probs(x) for s in sources])
        assert mine.shape == (18, 5, 4) and teacher.num_classes == 4
        order = [int((draw - each).abs().sum((1, 2)).argmin()) for draw in mine]
        assert sorted(order) == list(range(18)) != order  # every draw once, in random order
        torch.testing.assert_close(mine, each[order])  # joint over the rows of x

    @pytest.mark.parametrize("draws", [1, 2, 3, 7, 9, 100])
    def test_each_member_gives_its_share(self, draws):
        teacher = MixtureTeacher([constant(0.1), constant(0.2), constant(0.3)])
        counts = torch.zeros(3)
        for _ in range(60):
            found = members_of(teacher, teacher.probs(torch.zeros(2, 1), draws))
            one = torch.bincount(found, minlength=4)[1:]
            assert one.sum() == draws and one.max() - one.min() <= 1
            counts += one
        # Who gives one more is random: five standard errors of 60 choices.
        assert ((counts / 60 - draws / 3).abs() < 5 * 0.5 / 60**0.5).all()

    def test_order_says_nothing_of_the_member(self):
        teacher = MixtureTeacher([constant(0.1), constant(0.9)])
        first = [members_of(teacher, teacher.probs(torch.zeros(1, 1), 20))[:10] for _ in range(50)]
        share = (torch.cat(first) == 1).float().mean()
        # Five standard errors of 500 draws (fewer, since without replacement).
        assert abs(share - 0.5) < 5 * 0.5 / 500**0.5

    def test_finite_and_infinite_members(self):
        sources = [finite(4), Predictive(model, guide=guide, num_samples=50), as_teacher(dropout())]
        teacher, x = as_teacher(sources), torch.randn(6, 3)
        assert teacher.max_draws == 12
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            probs = teacher.probs(x)
        assert probs.shape == (12, 6, 4) and len(probs[:, 0].unique(dim=0)) == 12
        with pytest.raises(ValueError, match="`num_draws` must be at most 12.*got 13"):
            teacher.probs(x, 13)

    def test_a_function_is_counted_before_the_draws_are_shared_out(self):
        held = torch.randn(4, 3, 4)
        x, function = torch.randn(6, 3), FunctionTeacher(lambda x: (x @ held).softmax(-1))
        assert as_teacher([as_teacher(dropout()), function]).probs(x).shape == (8, 6, 4)

    def test_infinite_members(self):
        nets, x = [dropout(), dropout()], torch.randn(6, 3)
        teacher = as_teacher([as_teacher(net) for net in nets])
        assert teacher.max_draws is None and teacher.probs(x).shape == (500, 6, 4)
        mine = teacher.probs(x, 2000)
        each = [as_teacher(net).probs(x, 2000) for net in nets]
        expected = (each[0].mean(0) + each[1].mean(0)) / 2
        # Five standard errors of 2,000 draws, stratified, and of the reference.
        error = (2 * mine.var(0) / 2000).sqrt()
        assert ((mine.mean(0) - expected).abs() < 5 * error).all()


class Blocks(BaseTeacher):
    """Gives its draws in blocks of given sizes; draw and row can be read off the number."""

    def __init__(self, sizes, first):
        self.sizes, self.first = sizes, first

    def stream(self, x, num_draws=None):
        draw = 0.5 / (self.first + torch.arange(num_draws))[:, None]
        for rows in x[:, 0].split(self.sizes):
            p = draw + 0.0001 * rows
            yield torch.stack([p, 1 - p], -1).log()


class TestBlocks:
    @pytest.mark.parametrize("sizes", [([3, 3, 1], [2, 5]), ([7], [1] * 7), ([4, 3], [4, 3])])
    def test_of_different_sizes_are_joined(self, sizes):
        x = torch.arange(7.0)[:, None]
        teacher = MixtureTeacher([Blocks(sizes[0], 1), Blocks(sizes[1], 4)])
        blocks = list(teacher.stream(x, 6))
        assert sum(block.shape[1] for block in blocks) == 7
        probs = torch.cat(blocks, 1).exp()[..., 0]
        draws = 0.5 / (1 + torch.arange(6.0))  # the first member's 1, 2, 3 and the second's 4, 5, 6
        expected = draws[:, None] + 0.0001 * x[:, 0]
        order = probs[:, 0].argsort(descending=True)
        torch.testing.assert_close(probs[order], expected)

    def test_of_real_members(self):
        teacher, x = as_teacher([finite(5), as_teacher(dropout())]), torch.randn(50, 3)
        for member, size in zip(teacher.members, (100, 1000), strict=True):
            member.chunk_size = size
        torch.manual_seed(1)
        blocks = list(teacher.stream(x))
        torch.manual_seed(1)
        torch.testing.assert_close(torch.cat(blocks, 1).exp(), teacher.probs(x))
        assert len(blocks) > 3 and all(len(block) == 10 for block in blocks)


class TestWhatIsWhich:
    def test_site_and_inputs_are_for_the_members(self):
        def several(n, x, y=None, z=None):
            weight = pyro.sample("weight", dist.Normal(torch.zeros(3, 4), 1.0).to_event(2))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Categorical(logits=x @ weight), obs=y)
                pyro.sample("other", dist.Bernoulli(logits=(x @ weight)[:, 0]), obs=z)

        sources = [Predictive(several, {"weight": torch.randn(3, 3, 4)}) for _ in range(2)]
        for site, classes in (("obs", 4), ("other", 2)):
            teacher = as_teacher(sources, site, inputs=lambda n, x: x)
            assert all(isinstance(member, PredictiveTeacher) for member in teacher.members)
            assert teacher.probs(torch.zeros(5, 3)).shape == (6, 5, classes)

    def test_distilled(self):
        fast = pyro_opu.distill(
            [finite(5), finite(5)], torch.randn(40, 3), num_steps=5, seed=0, progress=False
        )
        assert fast.dirichlet(torch.randn(2, 3)).concentration.shape == (2, 4)

    def test_refused(self):
        with pytest.raises(ValueError, match="`members` must hold at least one teacher"):
            MixtureTeacher([])
        with pytest.raises(ValueError, match=r"must agree on the classes; got \[2, 4\] classes"):
            as_teacher([constant(0.5), as_teacher(dropout())]).probs(torch.zeros(1, 3), 4)
        with pytest.raises(TypeError, match="`source` must be .*; got int"):
            as_teacher([finite(2), 3])
        with pytest.raises(ValueError, match="`site` names a site of a Pyro model"):
            as_teacher([finite(2), dropout()], "obs")


def test_mean_of_the_bounds_is_a_bound():
    """Eq. 38 for a normal mean: the members' mean bound is below the evidence, and is that of the
    mixture with the augmented prior, by Monte Carlo over member and draw."""
    y = torch.tensor([0.3, -0.2, 1.1])
    evidence = torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3) + 1.0)
    members = [dist.Normal(torch.tensor(m), torch.tensor(s)) for m, s in ((0.2, 0.4), (0.6, 0.7))]
    prior = dist.Normal(torch.tensor(0.0), torch.tensor(1.0))

    def bound(q):  # in closed form
        likelihood = dist.Normal(y, 1.0).log_prob(q.loc).sum() - 1.5 * q.scale**2
        return likelihood - torch.distributions.kl_divergence(q, prior)

    mean = torch.stack([bound(q) for q in members]).mean()
    assert mean < evidence.log_prob(y)
    s = torch.arange(20_000) % 2
    theta = torch.stack([q.sample((20_000,)) for q in members])[s, torch.arange(20_000)]
    log_q = torch.stack([q.log_prob(theta) for q in members])[s, torch.arange(20_000)]
    log_p = dist.Normal(theta[:, None], 1.0).log_prob(y).sum(1) + prior.log_prob(theta)
    terms = log_p - log_q  # log p(s) is in both
    # Five standard errors of 20,000 draws.
    assert abs(terms.mean() - mean) < 5 * terms.std() / 20_000**0.5
