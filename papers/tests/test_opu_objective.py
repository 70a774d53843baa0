"""What the table of the paper's own objective claims of its students and of its columns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pyro_opu
from papers import opu_objective, opu_table2
from papers.held import held
from papers.opu_objective import (
    OBJECTIVE,
    PUBLISHED,
    cold,
    form,
    guide,
    printed,
    published,
    summary,
)
from papers.summaries import ERRORS
from papers.tables import Table, cell
from pyro_opu import MetaCritic


def sizes(network):
    """The layers of a network with its standardisation left out."""
    found = [m for m in network.modules() if isinstance(m, nn.Linear)]
    return [(layer.in_features, layer.out_features) for layer in found]


def rows(count, columns):
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(0))


def widths_of(kind, columns, classes):
    """Layers of h, of g, of the meta-network without its head, and of the witness."""
    x = rows(20, columns)
    paper = form(kind, x, classes)
    made = guide(paper, x, classes)
    critic = MetaCritic(x, classes, widths=paper.witness, hidden=paper.meta)
    mean, concentration = made.trunk, made.concentration_trunk
    assert not any(isinstance(m, nn.SiLU) for m in made.modules())
    return (
        sizes(mean) + sizes(made.mean_head),
        sizes(concentration) + sizes(made.concentration_head),
        sizes(critic.trunk),
        critic.sizes,
    )


def test_students_of_the_tables_on_pima_and_spambase_have_the_paper_s_networks():
    """CM d-2d-1, meta-network d-2d-2d, witness K-10K-2K-1; h is linear, as its posterior is."""
    mean, concentration, meta, witness = widths_of("PG", 8, 2)
    assert mean == [(8, 2)] and concentration == [(8, 16), (16, 1)]
    assert meta == [(8, 16), (16, 16)] and witness == [(2, 20), (20, 4), (4, 1)]
    mean, *others = widths_of("SGPMC", 8, 2)
    assert mean == [(8, 16), (16, 2)] and others == [concentration, meta, witness]


@pytest.mark.parametrize("kind", ["MCDP", "SGLD"])
def test_students_of_the_table_on_mnist_have_the_paper_s_networks(kind):
    """PM 784-400-400-10, CM 784-400-400-1, meta-network 784-1024-1024, witness 10-400-128-1."""
    mean, concentration, meta, witness = widths_of(kind, 784, 10)
    assert mean == [(784, 400), (400, 400), (400, 10)]
    assert concentration == [(784, 400), (400, 400), (400, 1)]
    assert meta == [(784, 1024), (1024, 1024)] and witness == [(10, 400), (400, 128), (128, 1)]


@pytest.mark.parametrize(("kind", "rate", "steps"), [("PG", 1e-3, 1100), ("SGLD", 1e-5, 100)])
def test_the_published_schedule_is_the_paper_s(monkeypatch, kind, rate, steps):
    """100 epochs at 1e-3 (691 rows are 11 batches of 64), or 100 iterations at 1e-5."""
    asked = []
    monkeypatch.setattr(pyro_opu, "distill", lambda source, x, **more: asked.append(more))
    x = rows(691, 8)
    for how in (published, cold):
        how(None, x, form(kind, x, 2), 2, 0, None)
    theirs, ours = asked
    assert theirs["training"].num_steps == steps and ours["training"].num_steps is None
    assert theirs["training"].learning_rate == theirs["loss"].critic_learning_rate == rate
    assert isinstance(theirs["transfer"], pyro_opu.transfer.HeldOut)
    assert isinstance(ours["transfer"], pyro_opu.transfer.Mixture)
    for each in asked:
        loss = each["loss"]
        assert each["training"].warm_start is False and loss.likelihood == 0
        assert loss.two_sided and not loss.residual


def test_a_posterior_is_made_once_for_its_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []

    def make():
        made.append(torch.full((2,), float(len(made))))
        return {"w": made[-1]}

    first, seconds = held("PG pima", {"draws": 5}, make, quick=False)
    again, the_same = held("PG pima", {"draws": 5}, make, quick=False)
    assert len(made) == 1 and torch.equal(first["w"], again["w"]) and seconds == the_same
    assert held("PG pima", {"draws": 6}, make, quick=False)[0]["w"][0] == 1
    assert held("PG pima", {"draws": 5}, make, quick=True)[0]["w"][0] == 2
    assert held("PG pima", {"draws": 5}, make, quick=False)[0]["w"][0] == 0


def test_mnist_has_one_protocol_and_no_other_cell():
    table = Table("", opu_objective.DATA, ("paper", "strict"), opu_objective.prepared, None, {}, {})
    assert cell(table, ("MCDP mnist", "strict", 0), True) == ([], [])


def answer(method, seed, accuracy):
    head = {"data": "PG pima", "protocol": "paper", "seed": seed, "method": method}
    return {**head, "accuracy, %": accuracy, "making it, CPU s": 2.0}


def score(method, seed, task, cm, **near):
    head = {"data": "PG pima", "protocol": "paper", "seed": seed, "method": method, "task": task}
    found = {"entropy": 60.0 + seed, "concentration": cm, "mutual_information": 50.0}
    return {**head, **{f"AUROC, {m}": v for m, v in found.items()}, **near}


def test_rows_stand_beside_the_paper_s_figures_and_their_posterior():
    answers, scores = [], []
    for seed, ratio in enumerate((0.95, 1.2, 0.4)):
        answers += [answer("PG", seed, 70.0), answer(OBJECTIVE, seed, 70.0 + seed)]
        for method in ("PG", OBJECTIVE):
            near = {"KL of the mean": 0.1, "mutual information / teacher's": ratio}
            near = near if method == OBJECTIVE else {}
            scores.append(score(method, seed, ERRORS, 50.0, **near))
            scores.append(score(method, seed, "unit Gaussian", 99.0, **near))
    found = summary(answers, scores, {"PG pima": printed("PG pima")})
    teacher, student = found["Answers"]
    assert teacher["paper, accuracy"] == student["paper, accuracy"] == 64.4
    assert teacher["collapsed"] == teacher["within a tenth"] == ""
    assert student["within a tenth"] == "1 of 3" and student["collapsed"] == "1 of 3"
    assert student["less the posterior's"].startswith("1 ")
    assert student["errors, AUROC by Ent"].startswith("61 ")
    assert student["paper, errors"] == "59.7 (Ent)" and teacher["paper, errors"] == "60.0 (Ent)"
    outside = {row["method"]: row for row in found["Outside inputs"]}
    assert outside[OBJECTIVE]["AUROC by CM"] == "99 ± 0"
    assert outside[OBJECTIVE]["paper"] == "100.0 (CM)" and outside["PG"]["paper"] == "87.0 (Ent)"


@pytest.mark.parametrize("name", opu_objective.DATA)
def test_every_posterior_has_the_paper_s_row_for_both_forms(name):
    kind = name.split()[0]
    assert set(printed(name)) == {kind, OBJECTIVE, PUBLISHED}
    assert kind in opu_objective.POSTERIORS and kind in opu_objective.TABLES
    assert opu_table2.PAPER["mnist"]["OPU-SGLD"].accuracy == 98.0
