"""What the tables on Pima and Spambase claim of their inputs, scores and summaries."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

import pyro_opu
from papers import opu_table3, protocol, tables
from papers.datasets import Dataset, standardize
from papers.protocol import outside
from papers.summaries import (
    Paper,
    best,
    errors_table,
    less,
    nearness_table,
    outside_table,
)
from papers.tables import (
    Method,
    Split,
    Table,
    cell,
    either,
    judged,
    readings,
    run,
    student_name,
    trivial,
)
from pyro_opu.metrics.distances import kl_divergence
from pyro_opu.models.neural_network import dropout_network

ROWS, COLUMNS = 40, 5
FILE = "papers/made_up.py"


def rows(seed, count=ROWS):
    """Correlated columns."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(COLUMNS, COLUMNS, generator=torch.Generator().manual_seed(9))
    return torch.randn(count, COLUMNS, generator=generator) @ mixing


def a_split(data="pima", protocol="strict", seed=0, quick=False):
    train, test = (
        Dataset(x, (x[:, 0] > 0.2 * x[:, 1]).long(), "made up") for x in (rows(1, 400), rows(2))
    )
    train, test = standardize(train, test)
    return Split(train, test, outside(protocol, train.x, test.x, seed))


def student(x):
    return torch.distributions.Dirichlet(torch.stack([x[:, 0].exp(), (-x[:, 1]).exp()], -1) + 0.1)


def teacher(x, num_draws=20):
    noise = torch.linspace(-1, 1, num_draws)[:, None]
    return torch.stack([x[:, 0] + noise, x[:, 1] * noise], -1).softmax(-1)


def methods(split, data, seed, quick):
    calls = {"teacher": teacher, "student": student}
    return {
        name: Method(
            source, source, 0.5, source if not whose else None, 1.0, whose, name * bool(whose)
        )
        for (name, source), whose in zip(calls.items(), ("", "teacher"), strict=True)
    }


def made_up(how=methods, paper=None):
    return Table(FILE, ("pima",), ("strict",), a_split, how, paper or {"pima": {}}, {})


# What is outside


def test_shuffled_columns_keep_every_marginal_and_no_row():
    split = a_split()
    shuffled, x = split.outside["shuffled columns"], split.test.x
    assert torch.equal(shuffled.sort(0).values, x.sort(0).values)
    assert not (shuffled == x).all(-1).any()
    kept = (shuffled == x).float().mean(0)
    assert kept.max() < 0.3  # by chance one row in 40 keeps its value, in each of 5 columns
    orders = [[int((x[:, d] == value).nonzero()[0]) for value in shuffled[:, d]] for d in range(2)]
    assert orders[0] != orders[1]


def test_swapped_columns_are_one_order_that_moves_every_column():
    split = a_split()
    swapped, x = split.outside["swapped columns"], split.test.x
    order = [int((x == swapped[:, [d]]).all(0).nonzero()) for d in range(COLUMNS)]
    assert sorted(order) == list(range(COLUMNS))
    assert all(d != place for d, place in enumerate(order))


@pytest.mark.parametrize("singular", [False, True])
def test_the_matched_gaussian_has_the_training_rows_mean_and_covariance(singular):
    train = rows(1, 300) + 3.0
    if singular:
        train[:, 4] = train[:, 0] - train[:, 3]
    drawn = outside("strict", train, rows(2, 20_000), 0)["matched Gaussian"]
    # Monte Carlo error of 20,000 rows, 1/141 of deviations up to 4, at four deviations.
    torch.testing.assert_close(drawn.mean(0), train.mean(0), atol=0.12, rtol=0)
    found, wanted = drawn.T.cov(), train.T.cov(correction=0)
    # The same of second moments up to 16, twice as wide.
    torch.testing.assert_close(found, wanted, atol=0.9, rtol=0)
    assert float((found - wanted).abs().mean()) < 0.2
    if singular:
        # Rounding of float32 sums of 300.
        assert float((drawn[:, 4] - drawn[:, 0] + drawn[:, 3]).std()) < 1e-4


def test_the_paper_s_outside_is_a_unit_gaussian_whatever_the_rows():
    drawn = outside("paper", rows(1), rows(2, 20_000) / 50, 0)
    assert list(drawn) == ["unit Gaussian"]
    # Monte Carlo error of 20,000 rows, five deviations.
    torch.testing.assert_close(
        drawn["unit Gaussian"].T.cov(), torch.eye(COLUMNS), atol=0.05, rtol=0
    )


@pytest.mark.parametrize("protocol", ["paper", "strict"])
def test_outside_inputs_follow_the_seed_and_are_as_many_as_test_rows(protocol):
    drawn = [outside(protocol, rows(1), rows(2), seed) for seed in (0, 0, 1)]
    for name in drawn[0]:
        assert drawn[0][name].shape == (ROWS, COLUMNS)
        assert torch.equal(drawn[0][name], drawn[1][name])
        assert not torch.equal(drawn[0][name], drawn[2][name])


@pytest.mark.data
def test_the_papers_pair_is_solved_by_the_norm_and_the_strict_ones_are_not():
    wrong = torch.arange(77) < 9
    solved = trivial(wrong, protocol.prepared("pima", "paper", 0))
    assert solved["unit Gaussian"]["AUROC, input_norm"] == 100
    strict = protocol.prepared("pima", "strict", 0)
    assert len(strict.test) == 77 and len(strict.train) == 691
    for name, found in trivial(wrong, strict).items():
        if name in strict.outside:
            assert found["AUROC, input_norm"] < 65 and found["AUROC, input_mean"] < 65


# Scores


def test_the_trivial_row_knows_nothing_of_swapped_columns_and_takes_the_better_direction():
    split = a_split()
    found = trivial(split.test.x[:, 0] > 1, split)
    for what in ("norm", "mean"):
        assert found["swapped columns"][f"AUROC, input_{what}"] == pytest.approx(50, abs=1e-9)
    values, positive = torch.tensor([3.0, 2.0, 1.0, 0.0]), torch.tensor([False, False, True, True])
    assert either(values, positive) == (1.0, 1.0)
    assert either(-values, positive) == (1.0, 1.0)


def test_scores_are_those_of_the_library_in_percent():
    split = a_split()
    wrong = student(split.test.x).mean.argmax(-1) != split.test.y
    found = judged(readings(student, split, seed=0), wrong)
    entropy = pyro_opu.uncertainty(student(split.test.x)).entropy
    by_hand = 100 * roc_auc_score(wrong, entropy)
    assert found["misclassification"]["AUROC, entropy"] == pytest.approx(by_hand)
    other = split.outside["shuffled columns"]
    theirs = pyro_opu.out_of_domain(student, split.test.x, other)["mutual_information"]
    assert found["shuffled columns"]["AUPR, mutual_information"] == 100 * theirs.aupr
    assert set(found) == {"misclassification", *split.outside}


@pytest.mark.parametrize("held", [3, 20])
def test_repeated_and_thinned_draws_have_the_number_asked_for(held):
    draws = {"v": torch.arange(held), "w": torch.arange(2 * held).reshape(held, 2)}
    again = opu_table3.repeated(draws, 7)
    assert again["v"].tolist() == [k % held for k in range(7)]
    assert torch.equal(again["w"][:, 0], 2 * again["v"])
    fewer = opu_table3.thinned(draws, 10)
    assert fewer["v"].tolist() == list(range(0, held, 2 if held > 10 else 1))


# Tables


def scored(seed, method="student", task="shuffled columns", **values):
    head = {"data": "pima", "protocol": "strict", "seed": seed, "method": method, "task": task}
    return {**head, **{f"{kind}, {m}": v for kind in ("AUROC", "AUPR") for m, v in values.items()}}


def test_fixed_columns_hold_the_measures_named_in_advance_though_others_do_better():
    told = [
        scored(seed, entropy=50.0 + seed, mutual_information=60.0, concentration=90.0)
        for seed in range(2)
    ]
    (row,) = outside_table(told, {})
    assert row["AUROC by MI"] == "60 ± 0" and row["AUROC by CM"] == "90 ± 0"
    assert row["best AUROC"] == "90 ± 0 (CM)"
    answers = [
        {"method": "student", "teacher": "", "seed": s, "accuracy, %": 80.0, "NLL, nats": 0.5}
        for s in (0, 1)
    ]
    errors = [{**each, "task": "misclassification"} for each in told]
    (row,) = errors_table(answers, errors, {})
    assert row["AUROC by Ent"].startswith("50.5") and row["best AUPR"] == "90 ± 0 (CM)"


def test_the_best_measure_is_the_best_on_average_and_not_of_each_seed():
    told = [
        scored(0, entropy=100.0, variance=76.0, concentration=60.0),
        scored(1, entropy=50.0, variance=80.0, concentration=90.0),
    ]
    found = best(told, "AUROC")
    assert found.startswith("78 ") and found.endswith("(Var)")
    assert best(told, "AUPR").endswith("(Var)")


def test_differences_are_taken_within_splits():
    base = [scored(0, "teacher", entropy=10.0), scored(1, "teacher", entropy=30.0)]
    mine = [scored(1, entropy=31.0), scored(0, entropy=11.0)]
    assert less(mine, base, "AUROC, entropy") == "1 ± 0"
    assert less(base, [], "AUROC, entropy") == ""


# The run


def test_one_cell_scores_all_methods_on_all_tasks():
    answers, scores = cell(made_up(), ("pima", "strict", 0), quick=True)
    assert [row["method"] for row in answers] == ["teacher", "student", "trivial"]
    assert len(scores) == 3 * 4
    majority = a_split().train.y.mode().values
    rate = 100 * (a_split().test.y == majority).float().mean()
    assert answers[2]["accuracy, %"] == pytest.approx(float(rate), abs=1e-4)  # float32 mean
    ratio = answers[0]["answer, ms"] / answers[1]["answer, ms"]
    assert answers[1]["speed-up"] == pytest.approx(ratio)
    ratio = answers[0]["batched, ms"] / answers[1]["answer, ms"]
    assert answers[1]["speed-up over batched"] == pytest.approx(ratio)


def test_a_student_is_named_and_compared_with_its_teacher():
    """Nearness of every student, by hand, at the test rows and at what is outside."""
    answers, scores = cell(made_up(), ("pima", "strict", 0), quick=True)
    assert [row["student"] for row in answers] == ["", "student", ""]
    split = a_split()
    near = {row["task"]: row for row in scores if row["method"] == "student"}
    for task, x in {"misclassification": split.test.x, **split.outside}.items():
        mine, theirs = student(x), teacher(x, 500)
        kl = kl_divergence(theirs.mean(0), mine.mean).mean()
        # Float32 rounding of sums of a few numbers.
        assert near[task]["KL of the mean"] == pytest.approx(float(kl), rel=1e-4)
        told = [pyro_opu.uncertainty(each).epistemic for each in (mine, theirs)]
        ratio = float(told[0].mean() / told[1].mean())
        assert near[task]["mutual information / teacher's"] == pytest.approx(ratio, rel=1e-4)
        ranks = spearmanr(*told).statistic
        assert near[task]["its rank correlation"] == pytest.approx(ranks, abs=1e-3)
    assert not any("KL of the mean" in row for row in scores if row["method"] != "student")
    table = nearness_table(scores)
    assert [row["inputs"] for row in table] == ["test rows", *split.outside]
    assert {row["method"] for row in table} == {"student"}


def test_the_default_student_is_named_after_its_widths():
    x = rows(1, 60)
    found = tables.default_student(teacher, x, 0, "teacher", 2)
    widths = found.source.guide.config["trunk"]["hidden"]
    assert found.student == f"default ({'-'.join(map(str, widths))})"
    assert found.teacher == "teacher" and found.answer(x).shape == (60, 2)


def test_a_resumed_run_makes_only_the_missing_cells(monkeypatch, tmp_path):
    made = []

    def counted(split, data, seed, quick):
        made.append(seed)
        return methods(split, data, seed, quick)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tables, "BUDGETS", (0.0, 0.0))
    file = tmp_path / "made_up.py"
    file.write_text('"""Made up."""')
    threads = torch.get_num_threads()
    paper = {"pima": {"student": Paper(("1 (Ent)", "2 (Ent)"), ("3 (CM)", "4 (CM)"), 5.0, 6.0)}}
    table = made_up(counted, paper)._replace(file=str(file))
    try:
        for seeds, more in ((1, []), (3, ["--resume", "--write"])):
            asked = ["--data", "pima", "--protocols", "strict", "--seeds", str(seeds), *more]
            run(table, tables.options("", table).parse_args(asked))
    finally:
        torch.set_num_threads(threads)
    assert made == [0, 1, 2]
    assert "| student | student | 3 |" in (tmp_path / "results" / "made_up.md").read_text()


def test_times_of_a_share_of_the_draws_are_those_of_all(monkeypatch):
    monkeypatch.setattr(tables, "timed", lambda calls, budget: dict.fromkeys(calls, 2.0))
    x = torch.zeros(3, COLUMNS)
    whole = {"teacher": Method(teacher, teacher, 0.0, teacher)}
    tenth = {"teacher": Method(teacher, teacher, 0.0, teacher, share=0.1)}
    student_ = {"student": Method(student, student, 0.0, teacher="teacher")}
    slow = tables.clock(tenth | student_, x, (0.0, 0.0))
    fast = tables.clock(whole | student_, x, (0.0, 0.0))
    assert slow["teacher"]["answer, ms"] == pytest.approx(10 * fast["teacher"]["answer, ms"])
    assert slow["student"]["speed-up"] == pytest.approx(10 * fast["student"]["speed-up"])
    assert slow["student"]["answer, ms"] == fast["student"]["answer, ms"]


def test_names_of_students() -> None:
    x = torch.randn(20, 3)
    short = pyro_opu.Training(num_steps=1, recalibrate=False)
    made = pyro_opu.distill(dropout_network((3, 8, 8, 3)), x, training=short, progress=False)
    name = student_name("", made.guide)
    assert name == "default (the posterior's network, 64-64 on it)"
    wide = pyro_opu.PredictiveGuide.for_inputs(x, 2, hidden=(8,))
    assert student_name(", teacher's widths", wide) == "teacher's widths (8)"
