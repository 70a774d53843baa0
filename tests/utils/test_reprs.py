"""Printed forms: one line that says what a thing is, and never a wall of numbers."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyro_opu
from pyro_opu import as_teacher, transfer
from pyro_opu.distributions.normal import Components, PredictiveNormalMixture
from pyro_opu.objectives import as_objective
from pyro_opu.rivals import compact_approx
from pyro_opu.samplers import PolynomialDecay
from pyro_opu.samplers.tempering import Tempered
from pyro_opu.teachers.held import hold
from pyro_opu.utils.printing import averages, html_of, name_of

X = torch.linspace(-1.0, 1.0, 10).reshape(5, 2)


def model(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("label", dist.Bernoulli(logits=x @ w), obs=y)


def nine_draws(x):
    return torch.softmax(torch.linspace(-1.0, 1.0, 9)[:, None, None] * x, -1)


def any_draws(x, num_draws):
    return torch.full((num_draws, len(x), 2), 0.5)


def dropout():
    return nn.Sequential(nn.Linear(2, 3), nn.Dropout())


def guide():
    return AutoNormal(pyro.poutine.block(model, hide=["label"]))


def samples(draws=7):
    return Predictive(model, {"w": torch.zeros(draws, 2)})


TEACHERS = {
    "samples": (samples, "Predictive", "posterior samples, 7 draws, 2 classes"),
    "guide": (
        lambda: Predictive(model, guide=guide(), num_samples=3),
        "Predictive",
        "guide AutoNormal, fresh draws, 3 by default, 2 classes",
    ),
    "prior": (
        lambda: Predictive(model, num_samples=3),
        "Predictive",
        "the prior, fresh draws, 3 by default, 2 classes",
    ),
    "dropout": (dropout, "Dropout", "Sequential, fresh draws, 500 by default, 3 classes"),
    "ensemble": (
        lambda: [nn.Linear(2, 3), dropout()],
        "Ensemble",
        "Linear and Sequential, 2 draws, 3 classes",
    ),
    "mixture": (
        lambda: [as_teacher(dropout()), as_teacher(dropout())],
        "Mixture",
        "2 DropoutTeacher, fresh draws, 500 by default, 3 classes",
    ),
    "function": (lambda: nine_draws, "Function", "nine_draws, 9 draws, 2 classes"),
    "fresh function": (
        lambda: any_draws,
        "Function",
        "any_draws, fresh draws, 500 by default, 2 classes",
    ),
}


@pytest.mark.parametrize("name", TEACHERS)
def test_a_teacher_says_its_kind_its_draws_and_its_classes(name):
    source, kind, rest = TEACHERS[name]
    teacher = as_teacher(source())
    unseen = rest.rsplit(", ", 1)[0].replace("9 draws", "draws not counted yet")
    assert repr(teacher) == f"{kind}Teacher({unseen}, outcome unknown yet)"
    teacher.probs(X, 2)
    site = "site 'label', " if kind == "Predictive" else ""
    assert repr(teacher) == f"{kind}Teacher({site}{rest})"


def test_held_draws_name_their_teacher():
    held = hold(as_teacher(nine_draws), X, 4)
    inner = "of FunctionTeacher(nine_draws, 9 draws, 2 classes), 4 draws"
    assert inner in repr(held)
    fast = compact_approx(nine_draws, X, size=3, tries=20, progress=False)
    expected = "CompactGuide(3 draws of FunctionTeacher(nine_draws, 9 draws, 2 classes))"
    assert repr(fast.guide) == expected


def test_a_regressor_has_no_classes():
    def line(x):
        return torch.ones(4, 1) * x[:, 0], torch.ones(4, 1)

    teacher = as_teacher(line)
    assert repr(teacher) == "FunctionTeacher(line, draws not counted yet, outcome unknown yet)"
    teacher.draws(X)
    assert repr(teacher) == "FunctionTeacher(line, 4 draws, a real y)"


def test_samplers_show_their_settings():
    pytest.importorskip("polyagamma")
    assert repr(pyro_opu.PolyaGammaGibbs(model)) == "PolyaGammaGibbs(model)"
    assert repr(pyro_opu.SGLD(model, step_size=0.1)) == (
        "SGLD(model, step_size=Constant(value=0.1), batch_size=None, thinning=1, "
        "preconditioner=None, temperature=1.0)"
    )
    schedule = PolynomialDecay(0.1, 1.0, 0.55)
    kernel = pyro_opu.SGLD(
        nn.Linear(1, 1),
        step_size=schedule,
        batch_size=5,
        thinning=3,
        preconditioner="rmsprop",
        temperature=0.5,
    )
    assert repr(kernel) == (
        f"SGLD(Linear, step_size={schedule!r}, batch_size=5, thinning=3, "
        "preconditioner='rmsprop', temperature=0.5)"
    )
    assert repr(Tempered(2.0)) == "Tempered(likelihood=2.0, prior=1.0)"


@pytest.mark.parametrize(
    "policy", [transfer.HeldOut(), transfer.Jitter(0.5), transfer.default_transfer(X)]
)
def test_a_policy_is_written_as_it_is_made(policy):
    assert eval(repr(policy), vars(transfer)) == policy
    assert repr(policy.fit(X)) == repr(policy)  # without the rows it holds


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        ("moments", "MomentMatching(weights='share', concentration=0.1)"),
        ("energy", "EnergyDistance(num_samples=64, likelihood=0.0)"),
        ("likelihood", "DirichletLikelihood(smoothing=0.0001)"),
        ("cross_entropy", "CrossEntropy()"),
    ],
)
def test_objectives_keep_the_form_that_checkpoints_know(loss, text):
    assert repr(as_objective(loss)) == text


def test_answers_print_averages_not_tensors():
    alpha = torch.tensor([[1.0, 1.0], [3.0, 1.0]], requires_grad=True)
    u = pyro_opu.uncertainty(dist.Dirichlet(alpha))
    total, entropy = u.total.mean().item(), u.differential_entropy.mean().item()
    assert repr(u).startswith(f"Uncertainty(shape (2,), means: total {total:.4g}, aleatoric ")
    end = f"max_probability 0.625, differential_entropy {entropy:.4g}, concentration 3)"
    assert repr(u).endswith(end)
    sets = pyro_opu.top_k(dist.Dirichlet(torch.tensor([[60.0, 2.0, 1.0], [5.0, 4.0, 0.1]])))
    assert repr(sets) == "TopK(N: 2, C: 3, mean k: 1.5)"


def test_regression_answers():
    parts = Components(*(torch.zeros(5, 3) for _ in range(4)))
    assert repr(parts) == "Components(shape (5,), K: 3)"
    answer = PredictiveNormalMixture(parts)
    assert repr(answer) == "PredictiveNormalMixture(shape (5,), K: 3)"
    assert repr(answer.expand((2, 5))) == "PredictiveNormalMixture(shape (2, 5), K: 3)"


def test_names_and_averages():
    assert name_of(len) == "len" and name_of(nn.Linear(1, 1)) == "Linear"
    assert name_of(nn.Linear) == "Linear"
    assert averages({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3)}) == "a 1.5, b 3"


def test_text_for_a_notebook_is_bold_words_a_table_and_what_has_gaps_as_it_stands():
    text = (
        "Good & <new>.\nNext: use it.\n\n           a    b\nmean     0.2  0.3\n\nx   1\ny   2   3"
    )
    assert html_of(text) == (
        "<p><b>Good &amp; &lt;new&gt;.</b><br>Next: use it.</p>\n"
        "<table><tr><th></th><td>a</td><td>b</td></tr>\n"
        "<tr><th>mean</th><td>0.2</td><td>0.3</td></tr></table>\n<pre>x   1\ny   2   3</pre>"
    )


def test_a_notebook_shows_what_print_does():
    """Student, its report and its answers; other reports are shown in the tests of their own."""
    report = {"draws": 310.2, "kl_ratio": 3.2, "kl_attainable": 0.001}
    guide = pyro_opu.PredictiveGuide.for_inputs(X, 3)
    fast = pyro_opu.OnePassPredictive(guide, (2,), 3, report=report)
    row = "<tr><th>mean</th><td>errs as that of 310 draws, held out"
    assert row in fast.report._repr_html_() and row in fast._repr_html_()
    assert "<b>OnePassPredictive: input (2,) -&gt; 3 classes" in fast._repr_html_()
    answer = fast.distribution(X)
    assert f"<tr><th>epistemic</th><td>{answer.measures().epistemic.mean():.4g}</td></tr>" in (
        answer._repr_html_()
    )
    assert pyro_opu.OnePassPredictive(guide, (2,), 3).report._repr_html_() == "<p><b>{}</b></p>"


def test_completion_shows_what_a_student_can_do():
    fast = pyro_opu.OnePassPredictive(pyro_opu.PredictiveGuide.for_inputs(X, 3), (2,), 3)
    shown = {name for name in dir(fast) if not name.startswith("_")}
    assert {"uncertainty", "distribution", "save", "bound", "guide", "report", "to"} <= shown
    assert not {"register_buffer", "zero_grad", "requires_grad_", "add_module"} & shown
    assert len(shown) < 50 and all(hasattr(fast, name) for name in shown)
