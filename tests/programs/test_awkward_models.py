"""Models as tutorials have them: labels closed over, plates of fixed size, flags, an MCMC run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import primitives
from pyro.infer import MCMC, NUTS, Predictive
from pyro.infer.autoguide import AutoNormal
from pyro.poutine.subsample_messenger import SubsampleMessenger
from pyro_models import assert_moments
from torch import Tensor

import pyro_opu
from pyro_opu import as_teacher

S, TRAIN, D = 6, 40, 2
generator = torch.Generator().manual_seed(0)
W = torch.randn(S, D, generator=generator)
X = torch.randn(TRAIN, D, generator=generator)
LABELS = (torch.arange(TRAIN) % 2).float()
NEW = {rows: torch.randn(rows, D, generator=generator) for rows in (1, 2, 7, 100)}


def weights() -> Tensor:
    return pyro.sample("w", dist.Normal(torch.zeros(D), 1.0).to_event(1))


def closed_over(x: Tensor) -> None:
    logits = x @ weights()
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=logits), obs=LABELS)


def fixed_plate(x: Tensor, y: Tensor | None = None) -> None:
    logits = x @ weights()
    with pyro.plate("data", TRAIN):
        pyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)


def fixed_plate_closed_over(x: Tensor) -> None:
    fixed_plate(x, LABELS)


def subsampled(x: Tensor, y: Tensor | None = None) -> None:
    logits = x @ weights()
    with pyro.plate("data", len(x), subsample_size=10) as rows:
        obs = None if y is None else y[rows]
        pyro.sample("obs", dist.Bernoulli(logits=logits[rows]), obs=obs)


def subsampled_closed_over(x: Tensor) -> None:
    with pyro.plate("data", TRAIN, subsample_size=10) as rows:
        pyro.sample("obs", dist.Bernoulli(logits=x[rows] @ weights()), obs=LABELS[rows])


def subsampled_by_pyro(x: Tensor, y: Tensor | None = None) -> None:
    w = weights()
    with pyro.plate("data", TRAIN, subsample_size=10):
        batch = pyro.subsample(x, event_dim=1)
        pyro.sample("obs", dist.Bernoulli(logits=batch @ w), obs=y)


def in_groups(x: Tensor, y: Tensor | None = None) -> None:
    """A plate of latents, whose size stays, beside that of the data."""
    w = weights()
    with pyro.plate("groups", 3):
        pyro.sample("unused", dist.Normal(0.0, 1.0))
    with pyro.plate("data", TRAIN):
        pyro.sample("obs", dist.Bernoulli(logits=x @ w), obs=y)


def two_dimensional(x: Tensor) -> None:
    """A plate on the left of another one."""
    logits = (x @ weights())[:, None]
    with pyro.plate("data", TRAIN, dim=-2), pyro.plate("once", 1, dim=-1):
        pyro.sample("obs", dist.Bernoulli(logits=logits), obs=LABELS[:, None])


def masked(x: Tensor, y: Tensor | None = None, obs_mask: Tensor | None = None) -> None:
    logits = x @ weights()
    with pyro.plate("data", len(x)):
        pyro.sample("obs", dist.Bernoulli(logits=logits), obs=y, obs_mask=obs_mask)


def masked_by_rows(x: Tensor) -> None:
    masked(x, LABELS, LABELS > 0)


def masked_closed_over(x: Tensor, y: Tensor | None = None) -> None:
    logits = x @ weights()
    with pyro.plate("data", len(x)), pyro.poutine.mask(mask=LABELS > 0):
        pyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)


def flags(x: Tensor, y: Tensor | None = None, train: bool = False, *, scale: float = 1.0) -> None:
    assert not train
    fixed_plate(scale * x, y)


def labels_needed(x_data: Tensor, y_data: Tensor | None) -> None:
    assert y_data is None
    fixed_plate(x_data, y_data)


MODELS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        closed_over,
        fixed_plate,
        fixed_plate_closed_over,
        subsampled,
        subsampled_closed_over,
        subsampled_by_pyro,
        in_groups,
        two_dimensional,
        masked,
        masked_by_rows,
        masked_closed_over,
        flags,
        labels_needed,
    )
} | {
    "conditioned": pyro.condition(fixed_plate, data={"obs": LABELS}),
    "conditioned, any rows": pyro.condition(masked, data={"obs": LABELS}),
}


def expected(x: Tensor) -> Tensor:
    return torch.sigmoid(W @ x.T)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_model_tied_to_its_rows_is_asked_about_others(model: Callable[..., Any]) -> None:
    teacher = as_teacher(Predictive(model, {"w": W, "unused": torch.zeros(S, 3)}))
    for rows, x in NEW.items():
        found = teacher.probs(x)
        assert found.shape == (S, rows, 2)
        torch.testing.assert_close(found[..., 1], expected(x))
    torch.testing.assert_close(teacher.probs(X)[..., 1], expected(X))


@pytest.mark.parametrize("name", ["closed_over", "subsampled_closed_over", "conditioned"])
def test_its_student_answers_any_rows(name: str) -> None:
    predictive = Predictive(MODELS[name], {"w": W})
    fast = pyro_opu.distill(predictive, X, num_steps=4, progress=False, seed=0)
    assert fast(NEW[7])["obs"].shape == (S, 7)
    assert fast(NEW[100])["obs"].unique().tolist() == [0, 1]


def test_a_guide_of_a_model_with_labels() -> None:
    guide = AutoNormal(fixed_plate_closed_over, init_scale=0.1)
    guide(X)
    teacher = as_teacher(Predictive(MODELS["conditioned"], guide=guide, num_samples=400))
    logits = teacher.probs(NEW[7])[..., 1].logit()
    size = NEW[7].square().sum(1).sqrt()  # of a logit's deviation, in those of a weight
    assert_moments(logits, NEW[7] @ guide.median()["w"], 0.1 * size)


def with_intercepts(x: Tensor, y: Tensor | None = None) -> None:
    """Each row has a latent of its own."""
    w = weights()
    with pyro.plate("data", len(x)):
        u = pyro.sample("u", dist.Normal(0.0, 0.5))
        pyro.sample("obs", dist.Bernoulli(logits=x @ w + u), obs=y)


@pytest.mark.parametrize("guided", [False, True])
def test_latents_of_the_training_rows_are_noise_at_other_rows(guided: bool) -> None:
    w = torch.zeros(3000, D)
    predictive = Predictive(with_intercepts, {"w": w, "u": torch.ones(3000, TRAIN)})
    if guided:
        guide = AutoNormal(pyro.poutine.block(with_intercepts, hide=["obs"]), init_scale=1e-4)
        guide(X)
        predictive = Predictive(with_intercepts, guide=guide, num_samples=3000)
    teacher = as_teacher(predictive)
    with pytest.warns(UserWarning, match=r"\['u'\] are latents of the rows .* as the model has"):
        found = teacher.probs(NEW[7])
    loc = NEW[7] @ guide.median()["w"] if guided else torch.zeros(7)
    noise = 0.5 * torch.linspace(-6, 6, 2001)  # as the model has it, not 1 as the posterior
    weights = torch.softmax(-2 * noise**2, 0)
    expected = (weights * (loc[:, None] + noise).sigmoid()).sum(1)
    torch.testing.assert_close(found[..., 1], expected.expand(3000, 7), rtol=0, atol=1e-3)
    assert teacher.probs(NEW[2], 5).shape == (5, 2, 2)


def covariate_closed_over(x: Tensor, y: Tensor | None = None) -> None:
    logits = x @ weights()
    with pyro.plate("data", len(x)):
        c = pyro.sample("c", dist.Normal(0.0, 2.0), obs=LABELS)
        pyro.sample("obs", dist.Bernoulli(logits=logits + c), obs=y)


def covariate_and_mask_closed_over(x: Tensor, y: Tensor | None = None) -> None:
    logits = x @ weights()
    with pyro.plate("data", len(x)):
        c = pyro.sample("c", dist.Normal(0.0, 2.0), obs=LABELS, obs_mask=LABELS > 0)
        pyro.sample("obs", dist.Bernoulli(logits=logits + c), obs=y)


def through_another(x: Tensor, y: Tensor | None = None) -> None:
    logits = x @ weights()
    with pyro.plate("data", len(x)):
        c = pyro.sample("c", dist.Normal(0.0, 2.0), obs=LABELS)
        d = pyro.sample("d", dist.Normal(c, 1e-3))
        pyro.sample("obs", dist.Bernoulli(logits=logits + d), obs=LABELS)


@pytest.mark.parametrize(
    "model", [covariate_closed_over, covariate_and_mask_closed_over, through_another]
)
def test_a_covariate_of_the_training_rows_is_drawn_at_any_number_of_rows(model: Any) -> None:
    """At as many rows as it was trained at, too: these may be others.

    It is drawn once for all values of a normal that is summed out.
    """
    teacher = as_teacher(Predictive(model, {"w": torch.zeros(3000, D)}))
    with pytest.warns(UserWarning, match=r"\['c'.*\].*observed at the training rows alone"):
        found = teacher.probs(NEW[7])
    assert_moments(found[..., 1].logit(), torch.zeros(7), 2.0)
    assert_moments(teacher.probs(X)[..., 1].logit(), torch.zeros(TRAIN), 2.0)


def test_a_covariate_of_the_training_rows_is_no_answer() -> None:
    """Although the ``Predictive`` returns it: the teacher says "obs" alone, and why is said."""
    source = Predictive(covariate_closed_over, {"w": W}, return_sites=["c", "obs"])
    teacher = as_teacher(source)
    with pytest.warns(
        UserWarning, match=r"\['c'\], behind \['obs'\], are observed at the training"
    ):
        assert teacher.probs(NEW[7]).shape == (S, 7, 2) and teacher.observed == ("obs",)
    with (
        pytest.warns(UserWarning, match="observed at the training rows alone"),
        pytest.raises(ValueError, match=r"asks for 'c', a latent site.*some of \['obs', 'probs'\]"),
    ):
        pyro_opu.distill(source, X, num_steps=2, progress=False)


def test_a_mask_as_an_input() -> None:
    predictive = Predictive(lambda x, obs_mask: masked(x, None, obs_mask), {"w": W})
    fast = pyro_opu.distill(predictive, (X, LABELS > 0), num_steps=4, progress=False, seed=0)
    assert {name: draws.shape for name, draws in fast(X, LABELS > 0).items()} == {"obs": (S, TRAIN)}


def observing(make: Callable[[Tensor, Tensor], Any], plate: bool = True) -> Callable[..., Any]:
    """A model that observes what is made of x and the linear predictor."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        fn = make(x, x @ weights())
        if not plate:
            pyro.sample("obs", fn, obs=y)
            return
        with pyro.plate("data", len(x)):
            pyro.sample("obs", fn, obs=y)

    return model


COLUMNS = {
    "Bernoulli": lambda x, z: dist.Bernoulli(logits=z[:, None]),
    "Categorical": lambda x, z: dist.Categorical(logits=torch.stack([z, -z], -1)[:, None]),
    "Normal": lambda x, z: dist.Normal(z[:, None], 1.0),
    "Poisson": lambda x, z: dist.Poisson(z[:, None].exp()),
    "scale alone": lambda x, z: dist.Normal(z, z[:, None].exp()),
}


@pytest.mark.parametrize("make", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("ask", [as_teacher, as_teacher, pyro_opu.distill])
def test_a_column_of_parameters_in_a_plate_of_rows(make: Any, ask: Any) -> None:
    """N numbers for each of N rows; ``logits.squeeze(-1)`` makes one."""
    source = Predictive(observing(make), {"w": W})
    message = r"'obs' must have one distribution for every row;.*pair of rows.*squeeze\(-1\)"
    with pytest.raises(ValueError, match=message):
        found = ask(source, X) if ask is pyro_opu.distill else ask(source)
        found.draws(X)
    right = Predictive(observing(lambda x, z: dist.Bernoulli(logits=z)), {"w": W})
    torch.testing.assert_close(as_teacher(right).probs(NEW[7])[..., 1], expected(NEW[7]))


OVER_ROWS = {
    "MultivariateNormal": lambda x, z: dist.MultivariateNormal(z, torch.eye(len(x)) + x @ x.T),
    "LowRankMultivariateNormal": lambda x, z: dist.LowRankMultivariateNormal(
        z, x, torch.ones(len(x))
    ),
    "Independent": lambda x, z: dist.MultivariateNormal(z[None], torch.eye(len(x))).to_event(1),
}


@pytest.mark.parametrize("make", OVER_ROWS.values(), ids=OVER_ROWS)
@pytest.mark.parametrize("ask", [as_teacher, as_teacher, pyro_opu.distill])
def test_one_normal_over_the_rows(make: Any, ask: Any) -> None:
    source = Predictive(observing(make, plate=False), {"w": W})
    with pytest.raises(
        ValueError, match=r"over all rows, which at new rows.*dist.Normal\(f, noise"
    ):
        found = ask(source, X) if ask is pyro_opu.distill else ask(source)
        found.draws(X)


def test_a_vector_of_one_number_is_answered() -> None:
    def make(x: Tensor, z: Tensor) -> Any:
        return dist.MultivariateNormal(z[:, None], torch.eye(1))

    fast = pyro_opu.distill(Predictive(observing(make), {"w": W}), X, num_steps=4, progress=False)
    assert fast(NEW[7])["obs"].shape == (S, 7, 1)


@pytest.mark.parametrize(
    "size",
    [
        lambda rows: {"size": rows, "subsample_size": min(5, rows)},
        lambda rows: {"size": rows, "subsample_size": max(1, rows // 2)},
        lambda rows: {"size": 1000, "subsample_size": rows},
    ],
)
def test_a_subsample_of_a_size_that_follows_the_rows(size: Any) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        logits = x @ weights()
        with pyro.plate("data", **size(len(x))) as rows:
            obs = None if y is None else y[rows]
            given = logits if len(rows) == len(x) else logits[rows]
            pyro.sample("obs", dist.Bernoulli(logits=given), obs=obs)

    teacher = as_teacher(Predictive(model, {"w": W}))
    for x in NEW.values():
        torch.testing.assert_close(teacher.probs(x)[..., 1], expected(x))
    assert teacher.max_rows is None


def test_a_given_subsample_stays() -> None:
    """Its rows are an input, of a table of the whole data."""
    table = torch.randn(50, generator=torch.Generator().manual_seed(0))

    def model(index: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        with pyro.plate("data", 50, subsample=index) as rows:
            pyro.sample("obs", dist.Bernoulli(logits=w * table[rows]), obs=y)

    index = torch.tensor([3, 40, 7])
    found = as_teacher(Predictive(model, {"w": W[:, :1]})).probs(index)[..., 1]
    torch.testing.assert_close(found, torch.sigmoid(W[:, :1] * table[index]))


def test_pyro_is_left_as_it_was() -> None:
    teacher = as_teacher(Predictive(subsampled, {"w": W}))
    teacher.probs(NEW[7])
    assert len(Predictive(subsampled, {"w": W})(X)["obs"][0]) == 10
    with pytest.raises(ValueError, match="Shape mismatch inside plate"):
        Predictive(fixed_plate, {"w": W})(NEW[7])
    kept = Predictive(masked, {"w": W})(X, LABELS, LABELS > 0)
    assert SubsampleMessenger._subsample.__module__ == "pyro.poutine.subsample_messenger"
    assert primitives._masked_observe.__module__ == "pyro.primitives"
    assert sorted(kept) == ["obs", "obs_observed", "obs_unobserved"]


def test_a_covariate_of_the_training_rows_cannot_be_known_at_others() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        fixed_plate(x + X, y)

    message = r"size of tensor.*size of the training rows:\n.*model\(x, y=None\):\n.*len\(x\)"
    with pytest.raises(ValueError, match=message):
        as_teacher(Predictive(model, {"w": W})).probs(NEW[7])


def test_an_mcmc_run_is_a_source() -> None:
    mcmc = MCMC(NUTS(closed_over), num_samples=S, warmup_steps=2, disable_progbar=True)
    mcmc.run(X)
    by_hand = Predictive(closed_over, mcmc.get_samples())
    assert torch.equal(as_teacher(mcmc).probs(NEW[7]), as_teacher(by_hand).probs(NEW[7]))
    fast = pyro_opu.distill(mcmc, X, num_steps=4, progress=False, seed=0)
    assert fast(NEW[7])["obs"].shape == (S, 7)
    assert pyro_opu.fidelity(fast, mcmc, X, seed=0).kl > 0


def test_a_run_of_a_regression_is_a_source() -> None:
    def model(x: Tensor) -> None:
        loc = x @ weights()
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Normal(loc, 0.5), obs=LABELS)

    mcmc = MCMC(NUTS(model), num_samples=S, warmup_steps=2, disable_progbar=True)
    mcmc.run(X)
    found = as_teacher(mcmc).draws(NEW[7])
    torch.testing.assert_close(found[..., 0], mcmc.get_samples()["w"] @ NEW[7].T)


def test_samples_grouped_by_chain_are_named() -> None:
    grouped = {"w": torch.randn(2, 5, D)}
    with pytest.raises(ValueError, match="got 2 chains of 5, grouped.*mcmc.get_samples"):
        as_teacher(Predictive(fixed_plate, grouped)).probs(X)


def test_tokens_are_indices() -> None:
    table = torch.randn(S, 9)

    def model(tokens: Tensor, y: Tensor | None = None) -> None:
        value = pyro.sample("table", dist.Normal(torch.zeros(9), 1.0).to_event(1))
        with pyro.plate("data", len(tokens)):
            pyro.sample("obs", dist.Bernoulli(logits=value[tokens].sum(-1)), obs=y)

    tokens = torch.randint(9, (30, 4))
    predictive = Predictive(model, {"table": table})
    found = as_teacher(predictive).probs(tokens)[..., 1]
    torch.testing.assert_close(found, torch.sigmoid(table[:, tokens].sum(-1)))
    fast = pyro_opu.distill(predictive, tokens, num_steps=4, progress=False, seed=0)
    assert fast(tokens[:3])["obs"].shape == (S, 3)


@pytest.mark.parametrize("in_training", [True, False])
def test_batch_normalisation_is_run_in_evaluation_mode(in_training: bool) -> None:
    """As SVI leaves it; no row depends on the others, and the statistics stay."""
    network = torch.nn.Sequential(torch.nn.Linear(D, 4), torch.nn.BatchNorm1d(4))
    network(3 * X + 1)  # statistics of their own
    network.train(in_training)
    before = {name: value.clone() for name, value in network.state_dict().items()}

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(4), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=network(x) @ w), obs=y)

    w = torch.randn(S, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        teacher = as_teacher(Predictive(model, {"w": w}))
        found = teacher.probs(X)[..., 1]
        pyro_opu.distill(teacher, X, num_steps=4, progress=False, seed=0)
    said = [str(each.message) for each in caught if "in training mode" in str(each.message)]
    assert len(said) == in_training and all("call .eval()" in each for each in said)
    assert all(module.training == in_training for module in network)
    after = network.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    with torch.no_grad():
        torch.testing.assert_close(found, torch.sigmoid(network.eval()(X) @ w.T).T)
