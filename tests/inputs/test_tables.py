"""Data frames, series and arrays: what they are as numbers, and every place that takes them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, Predictive
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from torch import Tensor

import pyro_opu
from pyro_opu import Inputs, OnePassPredictive, as_teacher, joint
from pyro_opu.__main__ import main
from pyro_opu.inputs import PLAIN, Form, form_of
from pyro_opu.transfer import Jitter
from pyro_opu.transfer.default import transfer_for

pytestmark = pytest.mark.usefixtures("brief")

WARDS = ["A", "B", "ER", "ICU"]
BEGIN = pd.Timestamp("2024-01-01")


def hospital(rows: int, seed: int) -> tuple[pd.DataFrame, Tensor]:
    """Patients, of whom a fifth lack a measurement and a tenth a sex, and whether each was ill."""
    random = np.random.default_rng(seed)
    age, lactate = random.normal(60, 15, rows), random.gamma(2, 1, rows)
    ward, days = random.choice(WARDS, rows), random.uniform(0, 200, rows)
    sex = random.choice(["f", "m"], rows)
    logits = 0.05 * (age - 60) + 0.8 * (lactate - 2) + np.where(ward == "ICU", 1.5, 0.0)
    table = pd.DataFrame(
        {
            "age": age,
            "lactate": np.where(random.random(rows) < 0.2, np.nan, lactate),
            "ward": ward,
            "sex": pd.Categorical(np.where(random.random(rows) < 0.1, None, sex)),
            "admitted": (BEGIN + pd.to_timedelta(days, unit="D")).as_unit("us").floor("s"),
            "icu": random.random(rows) < 0.5,
        }
    )
    return table, torch.tensor(logits + random.logistic(size=rows) > 0).float()


def model(
    age: Tensor,
    lactate: Tensor,
    lactate_missing: Tensor,
    ward: Tensor,
    sex: Tensor,
    sex_missing: Tensor,
    admitted: Tensor,
    icu: Tensor,
    y: Tensor | None = None,
) -> None:
    level = pyro.sample("level", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    slope = pyro.sample("slope", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    unknown = pyro.sample("unknown", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    logits = level[ward] + slope[0] * (age - 60) / 15 + slope[3] * icu
    logits = logits + torch.where(lactate_missing, unknown[0], slope[1] * (lactate - 2))
    logits = logits + torch.where(sex_missing, unknown[1], 0.5 * sex)
    logits = logits + slope[2] * ((admitted - 19_800) / 60).float()
    with pyro.plate("data", len(age)):
        pyro.sample("ill", dist.Bernoulli(logits=logits), obs=y)


TABLE, _ = hospital(60, 0)
NEW, _ = hospital(20, 1)
MISSING = ("lactate", "sex")
INPUTS = Inputs.of(TABLE, missing=MISSING)


def posterior() -> Predictive:
    torch.manual_seed(0)
    sites = {"level": 4, "slope": 4, "unknown": 2}
    return Predictive(model, {name: torch.randn(40, size) for name, size in sites.items()})


@cache
def student() -> OnePassPredictive:
    return pyro_opu.distill(posterior(), INPUTS, num_steps=10, seed=0, progress=False)


# What a table is ---------------------------------------------------------------------------


def test_columns_are_numbers_by_name() -> None:
    given = INPUTS.kwargs
    gone = torch.tensor(TABLE["lactate"].isna().to_numpy())
    assert torch.equal(given["lactate_missing"], gone) and given["age"].dtype == torch.float32
    known = torch.tensor(TABLE["lactate"].to_numpy())[~gone]
    torch.testing.assert_close(given["lactate"][~gone], known.float())
    assert float(given["lactate"][gone].unique()) == pytest.approx(float(known.mean()), rel=1e-6)
    assert given["ward"].tolist() == [WARDS.index(ward) for ward in TABLE["ward"]]
    assert given["icu"].tolist() == TABLE["icu"].astype(int).tolist()
    days = (TABLE["admitted"] - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    assert given["admitted"].dtype == torch.float64
    np.testing.assert_allclose(given["admitted"], days, rtol=1e-14)  # a microsecond
    back, loose = INPUTS.form.table(INPUTS.tensor), {"check_dtype": False, "rtol": 1e-6}
    pd.testing.assert_frame_equal(back, TABLE, check_categorical=False, **loose)


def test_a_form_is_kept_in_plain_values() -> None:
    for x in (INPUTS, TABLE[["age"]], TABLE["ward"], {"x": TABLE[["age"]], "w": TABLE["ward"]}):
        form = form_of(x)
        assert Form.from_config(json.loads(json.dumps(form.describe()))) == form
    changes = ({"kind": "number"}, {"names": []}, {"fill": "x"}, {"kind": "?"}, {"other": "Z"})
    for part, change in [
        *((3, change) for change in changes),
        (1, {"fill": None}),
        (0, {"name": 1}),
    ]:
        plain = json.loads(json.dumps(INPUTS.form.describe()))
        plain["parts"][part]["source"][0] |= change
        with pytest.raises((ValueError, TypeError)):
            Form.from_config(plain)


X = np.random.default_rng(0).normal(size=(6, 2))
SERIES: dict[str, tuple[Any, Any]] = {
    "numbers": (pd.Series([1, 2, 3]), [1.0, 2.0, 3.0]),
    "nullable": (pd.Series([1, 2, 3], dtype="Int64"), [1.0, 2.0, 3.0]),
    "objects": (pd.Series([1, 2.5, 3], dtype=object), [1.0, 2.5, 3.0]),
    "text": (pd.Series(["b", "a", "b"]), [1, 0, 1]),
    "array of text": (np.array(["b", "a", "b"]), [1, 0, 1]),
    "truth": (pd.Series([True, True, False]), [1, 1, 0]),
    "all true": (pd.Series([True, True]), [1, 1]),
    "categories": (pd.Series(pd.Categorical(["a", "c", "a"], ["c", "b", "a"])), [2, 0, 2]),
    "numbered": (pd.Series(pd.Categorical([9, 7, 9])), [1, 0, 1]),
    "dates": (pd.Series(pd.to_datetime(["1970-01-02", "1970-01-03"])), [1.0, 2.0]),
    "array of dates": (np.array(["1970-01-02T12"], "datetime64[ns]"), [1.5]),
    "days": (pd.Series([datetime.date(1970, 1, 3)]), [2.0]),
    "zones": (pd.Series(pd.to_datetime(["1970-01-02 01:00"]).tz_localize("Europe/Paris")), [1.0]),
    "array of codes": (np.array([3, 1, 3]), [3, 1, 3]),
}


@pytest.mark.parametrize(("column", "expected"), SERIES.values(), ids=SERIES)
def test_every_kind_of_column(column: Any, expected: list[float]) -> None:
    found = Inputs.of({"a": column}).kwargs["a"]
    assert found.tolist() == expected
    assert found.is_floating_point() == isinstance(expected[0], float)


def test_a_matrix_is_one_tensor_whatever_holds_it() -> None:
    table = pd.DataFrame(X, columns=["a", "b"])
    for x in (torch.tensor(X).float(), X, table, table.astype("float32")):
        torch.testing.assert_close(Inputs.of(x).args[0], torch.tensor(X).float())
    assert form_of(X) is PLAIN
    first = Inputs.of(table)
    assert torch.equal(first.like(table[["b", "a"]]).tensor, first.tensor)  # by name
    both = Inputs.of({"x": table, "w": np.array(["u", "v"] * 3)}).kwargs
    assert both["x"].shape == (6, 2) and both["w"].tolist() == [0, 1] * 3
    stamps = 1.7e12 + 1e4 * X  # which float32 would round to equal numbers
    assert Inputs.of(stamps).tensor.dtype == torch.float64 == Inputs.of(stamps[:, 0]).tensor.dtype


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "undeclared": (
        lambda: Inputs.of(TABLE),
        ValueError,
        r"`x\['lactate'\]` must hold no missing values; .*missing=\('lactate',\)",
    ),
    "missing later": (
        lambda: INPUTS.like(NEW.assign(age=np.nan)),
        ValueError,
        r"`x\['age'\]` must hold no missing values; 20 of 20",
    ),
    "no such column": (
        lambda: Inputs.of(TABLE, missing=("agee",)),
        ValueError,
        r"`missing` must name columns of `x`, \['age', .*got \('agee',\)",
    ),
    "lacks": (lambda: INPUTS.like(NEW[["age"]]), ValueError, r"it lacks \['admitted', 'icu'"),
    "more": (lambda: INPUTS.like(NEW.assign(y=1)), ValueError, r"it has \['y'\] too"),
    "unknown": (
        lambda: INPUTS.like(NEW.assign(ward="Z")),
        ValueError,
        r"`x\['ward'\]` must hold names that are known, 'A', .*; got 'Z'",
    ),
    "other kind": (
        lambda: INPUTS.like(NEW.assign(age="old")),
        TypeError,
        r"`x\['age'\]` must hold a number, as it did first; got a category",
    ),
    "mixed": (
        lambda: Inputs.of({"a": pd.Series([1, "a"], dtype=object)}),
        TypeError,
        r"must hold numbers, truth values, text or dates; got 'int', 'str'",
    ),
    "durations": (
        lambda: Inputs.of({"a": pd.Series(pd.to_timedelta([1], unit="D"))}),
        TypeError,
        "dt.total_seconds",
    ),
    "intervals": (
        lambda: Inputs.of({"a": pd.Series(pd.cut([1, 5], 2))}),
        TypeError,
        "must have names that are text or numbers; got Interval",
    ),
    "a number": (lambda: Inputs.of(np.float64(3)), TypeError, "`x` must be .*; got float64"),
    "infinite": (
        lambda: Inputs.of(pd.DataFrame({"a": [1.0, np.inf]})),
        ValueError,
        "`x` must be finite",
    ),
    "other": (
        lambda: Inputs.of(TABLE[["ward"]], other={"ward": "none"}),
        ValueError,
        "`other` must be a name that .* holds",
    ),
    "twice": (
        lambda: Inputs.of(pd.DataFrame(X, columns=["a", "a"])),
        ValueError,
        r"\['a'\] are there twice",
    ),
    "text beside": (
        lambda: Inputs.of({"x": TABLE[["age", "ward"]]}),
        ValueError,
        r"must hold numbers alone.*got \['ward'\]",
    ),
    "other form": (
        lambda: student().dirichlet(Inputs.of(NEW[["age"]])),
        ValueError,
        "must be inputs of one form",
    ),
    "not taught": (
        lambda: student().dirichlet(
            Inputs.of(pd.concat([TABLE, NEW.assign(ward="Z")]), missing=MISSING).like(NEW)
        ),
        ValueError,
        "inputs.like",
    ),
    "batched": (
        lambda: pyro_opu.batched(posterior())(NEW.assign(lactate=1.0, sex="f")),
        ValueError,
        r"how the text in its columns \['ward', 'sex'\] is numbered",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_unknown_names_go_where_they_were_declared_to() -> None:
    inputs = Inputs.of(TABLE[["ward"]], other={"ward": "ER"})
    new = pd.DataFrame({"ward": ["Z", "A", "ER"]})
    assert inputs.like(new).kwargs["ward"].tolist() == [2, 0, 2]


def test_made_up_rows_have_the_one_value_that_stands_for_missing_ones() -> None:
    x, form = INPUTS.tensor, INPUTS.form
    for policy in (None, Jitter()):
        rows = transfer_for(x, policy, form).fit(x).sample(400)
        for value, gone, fill in form.blanks:
            missing = rows[:, gone] == 1
            assert missing.any() and bool((rows[missing, value] == fill).all())
            assert set(rows[:, gone].tolist()) == {0.0, 1.0}


# Who takes it ------------------------------------------------------------------------------


def as_command(folder: Path) -> bool:
    student().save(folder / "student")
    NEW.to_csv(folder / "new.csv", index=False)
    files = [str(folder / name) for name in ("student", "new.csv", "out.csv")]
    assert main(["answer", *files[:2], "--output", files[2]]) == 0
    found = pd.read_csv(files[2])["epistemic"]
    expected = student().uncertainty(NEW).epistemic
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    return True


TAKEN: dict[str, Callable[[Path], Any]] = {
    "call": lambda _: student()(NEW)["ill"].shape == (40, 20),
    "by name": lambda _: student()(**INPUTS.like(NEW).kwargs)["ill"].shape == (40, 20),
    "inputs": lambda _: torch.equal(
        student().dirichlet(INPUTS.like(NEW)).mean, student().dirichlet(NEW).mean
    ),
    "uncertainty": lambda _: student().uncertainty(NEW).epistemic.shape == (20,),
    "novelty": lambda _: student().novelty(NEW).shape == (20,),
    "probs": lambda _: student().probs(NEW, 3).shape == (3, 20, 2),
    "teacher": lambda _: as_teacher(posterior()).probs(INPUTS.like(NEW)).shape == (40, 20, 2),
    "batched": lambda _: pyro_opu.batched(posterior())(INPUTS.like(NEW))["ill"].shape == (40, 20),
    "fidelity": lambda _: pyro_opu.fidelity(student(), posterior(), NEW, seed=0).kl > 0,
    "sets": lambda _: (
        pyro_opu.fidelity(student(), posterior(), NEW, extra={"old": NEW.assign(age=99.0)}, seed=0)[
            "old"
        ].kl
        > 0
    ),
    "detection": lambda _: (
        pyro_opu.detection(
            student(), posterior(), NEW, torch.arange(20) % 2, {"old": NEW.assign(age=99.0)}, seed=0
        )["old"].num_inputs
        == 40
    ),
    "mixing": lambda _: pyro_opu.mixing(posterior(), INPUTS).num_draws == 40,
    "capture": lambda _: student().capture(NEW)(NEW).mean.shape == (20, 2),
    "command": as_command,
}


@pytest.mark.parametrize("name", TAKEN)
def test_every_place_takes_a_table(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda run, **options: run)
    assert TAKEN[name](tmp_path)


ROWS = np.random.default_rng(1).normal(size=(12, 2)).astype(np.float32)
SLOPES = torch.randn(8, 2, 3, generator=torch.Generator().manual_seed(0))


def draws(x: Tensor) -> Tensor:
    return torch.softmax(x @ SLOPES, -1)


def line(x: Tensor) -> tuple[Tensor, Tensor]:
    loc = (x @ SLOPES[..., 0].T).T
    return loc, torch.ones_like(loc)


@cache
def plain(source: Callable[[Tensor], Any] = draws) -> OnePassPredictive:
    return pyro_opu.distill(source, torch.tensor(ROWS), num_steps=4, seed=0, progress=False)


def taught(x: Any) -> list[Tensor]:
    """The weights of a student that is taught at these inputs."""
    return list(pyro_opu.distill(draws, x, num_steps=4, seed=0, progress=False).guide.parameters())


LABELS = torch.arange(12) % 3
#: Whatever takes ``x``, and numbers of its answer.
OF_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "distill": taught,
    "call": lambda x: plain()(x)["obs"],
    "dirichlet": lambda x: plain().dirichlet(x).mean,
    "distribution": lambda x: plain().distribution(x).mean,
    "uncertainty": lambda x: plain().uncertainty(x).epistemic,
    "probs": lambda x: plain().probs(x, 3, seed=0),
    "novelty": lambda x: plain().novelty(x),
    "normal": lambda x: plain(line).normal(x).mean,
    "teacher": lambda x: as_teacher(draws).probs(x),
    "log_probs": lambda x: as_teacher(draws).log_probs(x),
    "PredictiveGuide": lambda x: pyro_opu.PredictiveGuide.for_inputs(x, 3).state_dict(),
    "joint_information": lambda x: joint.joint_information(draws, x, torch.tensor([[0, 1]])).total,
    "batch_bald": lambda x: joint.batch_bald(draws, x, 2, seed=0).indices,
    "ranking": lambda x: joint.ranking(draws, x, weights=torch.arange(3.0)).best,
    "thompson": lambda x: joint.thompson(draws, x, 2, weights=torch.arange(3.0), seed=0),
    "total": lambda x: joint.total(draws, x, weights=torch.arange(3.0)).mean,
    "covariance": lambda x: joint.covariance(draws, x, weights=torch.arange(3.0)),
    "misclassification": lambda x: [
        torch.tensor(score) for score in pyro_opu.misclassification(plain(), x, LABELS).values()
    ],
    "fidelity": lambda x: torch.tensor(pyro_opu.fidelity(plain(), draws, x, seed=0).kl),
}


@pytest.mark.filterwarnings("ignore:The student has learned little")  # of a few steps
@pytest.mark.parametrize("name", OF_ARRAYS)
def test_every_place_answers_an_array_as_the_tensor(name: str) -> None:
    def answer(x: Any) -> Any:
        torch.manual_seed(0)
        return OF_ARRAYS[name](x)

    expected = answer(torch.tensor(ROWS))
    held = {"as it is": ROWS, "in float64": ROWS.astype(float), "big-endian": ROWS.astype(">f8")}
    for x in [*held.values(), ROWS.astype(np.longdouble), np.asfortranarray(ROWS)]:
        torch.testing.assert_close(answer(x), expected, rtol=0, atol=0)


def test_masked_entries_are_missing() -> None:
    masked = np.ma.array(ROWS[:, 0], mask=np.arange(12) == 3)
    for x in (masked, masked.astype(int), np.ma.array(ROWS, mask=ROWS == ROWS[3, 0])):
        with pytest.raises(ValueError, match="must be finite; got NaN"):
            Inputs.of(x)
    given = Inputs.of({"a": masked}, missing=("a",)).kwargs
    assert given["a_missing"].nonzero().tolist() == [[3]]
    assert float(given["a"][3]) == pytest.approx(float(masked.mean()))


def test_a_file_answers_a_table(tmp_path: Path) -> None:
    student().save(tmp_path / "student")
    again = OnePassPredictive.load(tmp_path / "student")
    assert again.form == student().form
    assert torch.equal(again.dirichlet(NEW).mean, student().dirichlet(NEW).mean)
    with pytest.raises(ValueError, match=r"`x\['ward'\]` must hold names .* got 'Z'"):
        again(NEW.assign(ward="Z"))


@pytest.mark.slow
def test_an_exported_program_says_the_names(tmp_path: Path) -> None:
    student().export(tmp_path / "student.pt2", outputs=["mean"])
    extra = {"pyro_opu": ""}
    program = torch.export.load(str(tmp_path / "student.pt2"), extra_files=extra).module()
    inputs = {each["name"]: each for each in json.loads(extra["pyro_opu"])["inputs"]}
    assert inputs["ward"]["columns"][0]["names"] == WARDS
    given = INPUTS.like(NEW).kwargs
    found = program(*(given[name] for name in inputs))["mean"]
    torch.testing.assert_close(found, student().dirichlet(NEW).mean, rtol=1e-4, atol=1e-6)
    NEW.to_csv(tmp_path / "new.csv", index=False)
    files = [str(tmp_path / name) for name in ("student.pt2", "new.csv", "out.csv")]
    assert main(["answer", *files[:2], "--output", files[2]]) == 0
    answers = pd.read_csv(files[2])[["p0", "p1"]]
    np.testing.assert_allclose(answers, student().dirichlet(NEW).mean, rtol=1e-4, atol=1e-6)


def test_text_is_numbered_aloud() -> None:
    def teacher(ward: Tensor) -> Tensor:
        p = torch.linspace(0.2, 0.8, 30)[:, None].expand(-1, len(ward))
        return torch.stack([1 - p, p], -1)

    with pytest.warns(UserWarning, match=r"`x` holds text in \['ward'\], which is numbered"):
        as_teacher(teacher).probs(TABLE[["ward"]])
    as_teacher(teacher).probs(Inputs.of(TABLE[["ward"]]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:num_chains")
def test_a_hospital_from_table_to_answers(tmp_path: Path) -> None:
    """Two chains of NUTS, a student, its file, and answers to patients that it has not seen."""
    table, y = hospital(300, 0)
    inputs = Inputs.of(table, missing=MISSING)
    torch.manual_seed(0)
    mcmc = MCMC(NUTS(model), 150, 150, num_chains=2, disable_progbar=True)
    mcmc.run(**inputs.kwargs, y=y)
    predictive = Predictive(model, mcmc.get_samples())
    fast = pyro_opu.distill(predictive, inputs, seed=0, progress=False, effort="quick")
    fast.save(tmp_path / "student")
    fast, (new, _) = OnePassPredictive.load(tmp_path / "student"), hospital(200, 1)
    truth = as_teacher(predictive).probs(inputs.like(new)).mean(0)
    assert (fast.dirichlet(new).mean - truth).abs().mean() < 0.01
    report = pyro_opu.fidelity(fast, predictive, new, seed=0)
    assert report.kl < 0.02 * report.kl_trivial
    assert report.mutual_information_spearman > 0.7


# Pipelines ---------------------------------------------------------------------------------


def shops(rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    random = np.random.default_rng(seed)
    table = pd.DataFrame({"a": random.normal(size=rows), "b": random.normal(size=rows)})
    table["shop"] = random.integers(0, 8, rows)
    table["town"] = random.choice(["north", "south"], rows)
    effect = np.array([-3, 2, -1, 3, 0, -2, 1.5, 2.5])[table["shop"]] + table["a"]
    table.loc[random.random(rows) < 0.15, "b"] = np.nan
    return table, (random.random(rows) < 1 / (1 + np.exp(-effect))).astype(int)


def forest(table: pd.DataFrame, y: np.ndarray, trees: int) -> Any:
    encoded = (OneHotEncoder(handle_unknown="ignore"), ["shop", "town"])
    columns = make_column_transformer(encoded, (SimpleImputer(), ["b"]), remainder="passthrough")
    trees_of = RandomForestClassifier(trees, min_samples_leaf=20, random_state=0)
    return make_pipeline(columns, trees_of).fit(table, y)


def test_a_pipeline_reads_tables() -> None:
    (table, y), (new, _) = shops(200, 0), shops(50, 1)
    pipeline, inputs = forest(table, y, 6), Inputs.of(table, missing=("b",))
    teacher = as_teacher(pipeline)
    np.testing.assert_allclose(
        teacher.probs(inputs.like(new)).mean(0), pipeline.predict_proba(new), atol=1e-6
    )
    assert [list(inputs.kwargs)[code] for code in teacher.codes(inputs.tensor)] == ["shop", "town"]
    x = inputs.tensor
    codes = teacher.codes(x)
    rows = transfer_for(x, None, inputs.form, in_steps=True, codes=codes).fit(x).sample(300)
    assert set(rows[:, codes[0]].tolist()) <= set(range(8))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["table", "tensor"])
def test_a_pipeline_with_a_forest_is_learnt(kind: str) -> None:
    (table, y), (new, _) = shops(1000, 0), shops(500, 1)
    pipeline = forest(table, y, 100)
    if kind == "tensor":
        columns = ["a", "b", "shop"]
        (table, new) = (each[columns].fillna(0.0) for each in (table, new))
        encoded = (OneHotEncoder(handle_unknown="ignore"), ["shop"])
        trees = RandomForestClassifier(100, min_samples_leaf=20, random_state=0)
        pipeline = make_pipeline(make_column_transformer(encoded, remainder="passthrough"), trees)
        pipeline.fit(table, y)
    x: Any = Inputs.of(table, missing=("b",))
    asked: Any = new
    if kind == "tensor":
        x, asked = (torch.tensor(each.to_numpy()).float() for each in (table, new))
    fast = pyro_opu.distill(pipeline, x, seed=0, progress=False, effort="quick")
    gap = np.abs(fast.dirichlet(asked).mean.numpy() - pipeline.predict_proba(new)).mean()
    assert gap < 0.005
