"""Teachers and transfer policies are checked at every call, arguments before any work."""

from __future__ import annotations

import math

import pytest
import torch
from flat import distill_flat
from torch import Tensor

from pyro_opu import PredictiveGuide, as_teacher
from pyro_opu.checks import ArgumentCallError
from pyro_opu.transfer import Gaussian, HeldOut, Mixture, TransferPolicy

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(8, 3, 4, generator=torch.Generator().manual_seed(1))
SHORT = {"num_steps": 4, "progress": False, "seed": 0, "batch_size": 16}


def draws(x: Tensor) -> Tensor:
    return (x @ WEIGHT).softmax(-1)


def later(change, after: int):
    """Draws that are right at first, and changed after so many calls."""
    calls = 0

    def source(x: Tensor):
        nonlocal calls
        calls += 1
        return draws(x) if calls <= after else change(draws(x))

    return source


def failing(_: Tensor) -> Tensor:
    raise KeyError("licence")


def like_ours(_: Tensor) -> Tensor:
    raise ValueError("`x` must be red.")


class Changed(TransferPolicy):
    """Rows of x, changed."""

    def __init__(self, change) -> None:
        super().__init__()
        object.__setattr__(self, "change", change)

    def _draw(self, n: int) -> Tensor:
        return self.change(self._rows(n))


class TestTeacher:
    # calls that are right: the next is asked about rows among others, rows alone, held-out inputs,
    # the student's own rows, while training, at last
    @pytest.mark.parametrize("after", range(1, 7))
    @pytest.mark.parametrize(
        "change, error, message",
        [
            (lambda p: p * math.nan, ValueError, "must return probabilities; got NaN"),
            (lambda p: 1.5 * p, ValueError, "sum to 1; got .* a sum off by 0.5"),
            (lambda p: p - p.new_tensor([2, -2, 0, 0]), ValueError, "smallest entry -"),
            (lambda p: p[..., :3] / p[..., :3].sum(-1, True), ValueError, "4 before and 3 now"),
            (lambda p: p[:5], ValueError, "same number of draws.*got 8 before and 5 now"),
            (lambda p: p[:, 1:], ValueError, r"of shape \(S, N, C\)"),
            (failing, RuntimeError, "it raised KeyError: 'licence'"),
        ],
    )
    def test_that_changes(self, change, error, message, after) -> None:
        with pytest.raises(error, match=rf"^`source`.*{message}.*at call {after + 1}, "):
            distill_flat(later(change, after), X, **SHORT)

    def test_the_source_is_named(self) -> None:
        with pytest.raises(RuntimeError, match=r"FunctionTeacher\(failing") as caught:
            as_teacher(failing).probs(X)
        assert isinstance(caught.value.__cause__, KeyError)

    def test_a_message_like_those_of_the_package_is_still_the_source_s(self) -> None:
        with pytest.raises(ArgumentCallError, match="`source`, a .*it raised ValueError: `x` must"):
            as_teacher(like_ours).probs(X)

    def test_errors_of_classes_of_their_own_are_not_wrapped(self) -> None:
        class Stopped(Exception):
            pass

        def stopping(_: Tensor) -> Tensor:
            raise Stopped

        with pytest.raises(Stopped):
            as_teacher(stopping).probs(X)

    def test_probabilities_outside_the_unit_interval(self) -> None:
        import pyro
        import pyro.distributions as dist
        from pyro.infer import Predictive

        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Bernoulli(probs=0.5 * w.abs() * x[:, 0]))

        teacher = as_teacher(Predictive(model, {"w": torch.ones(8)}))
        teacher.probs(torch.ones(5, 1))
        with pytest.raises(ValueError, match="rows that sum to 1; got a sum off by 0.5"):
            teacher.probs(torch.full((5, 1), 3.0))


class TestPolicy:
    @pytest.mark.parametrize("wrap", [lambda p: p, lambda p: Mixture([(1.0, p)])])
    @pytest.mark.parametrize(
        "change, error, message",
        [
            (lambda x: x * math.nan, ValueError, "finite inputs; got NaN or infinity in"),
            (lambda x: x[1:], ValueError, r"\(\d+, 3\) torch.float32 cpu; got \(\d+, 3\)"),
            (lambda x: torch.cat([x, x]), ValueError, "inputs like those of x"),
            (lambda x: x[:, :2], ValueError, "inputs like those of x"),
            (lambda x: x.double(), ValueError, "got .* torch.float64"),
            (lambda x: x.tolist(), TypeError, "torch.Tensor of .* got list"),
            (failing, RuntimeError, "it raised KeyError"),
            (like_ours, RuntimeError, "it raised ValueError: `x` must be red"),
        ],
    )
    def test_that_gives_other_inputs(self, change, error, message, wrap) -> None:
        with pytest.raises(error, match=rf"^`Changed\(\)`, a transfer policy, must .*{message}"):
            distill_flat(draws, X, transfer=wrap(Changed(change)), **SHORT)

    def test_overflow_names_the_policy(self) -> None:
        with pytest.raises(ValueError, match=r"`Gaussian\(scale=1e\+38.*Is its scale too large"):
            Gaussian(scale=1e38).fit(1e3 * X).sample(5)


@pytest.mark.parametrize(
    "name, value, error, message",
    [
        ("batch_size", "3", ValueError, "a positive integer; got '3'"),
        ("num_draws", "3", ValueError, "a positive integer; got '3'"),
        ("seed", 1.5, ValueError, "an integer from .* or None; got 1.5"),
        ("warm_start", "no", TypeError, "True or False; got 'no'"),
        ("progress", 1, TypeError, "True or False; got 1"),
        ("learning_rate", "a", ValueError, "a positive finite number; got 'a'"),
        ("device", "meta", ValueError, None),
        ("guide", lambda x: x, TypeError, "has no weights to train"),
        ("guide", PredictiveGuide, TypeError, "got the class PredictiveGuide"),
        ("transfer", lambda n: n, TypeError, "a pyro_opu.transfer.TransferPolicy; got function"),
        ("transfer", HeldOut, TypeError, "got the class HeldOut"),
        ("inputs", "x", TypeError, "a callable"),
        ("site", 3, TypeError, "the name of a site; got int"),
        ("checkpoint", ".", ValueError, "the path of a file; '.' is a folder"),
        ("checkpoint", 3, TypeError, "the path of a file; got 3"),
    ],
)
def test_argument(name, value, error, message) -> None:
    def unasked(x: Tensor) -> Tensor:
        raise AssertionError("the teacher was asked")

    expected = f"`{name}` is" if message is None else f"`{name}` must be .*{message}"
    with pytest.raises(error, match=expected):
        distill_flat(unasked, X, **{**SHORT, name: value})


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_distil_where_gradients_are_off(mode) -> None:
    expected = distill_flat(draws, X, **SHORT).dirichlet(X).mean
    with mode():
        made_inside = X + 0  # under inference_mode a tensor that no gradient may use
        fast = distill_flat(draws, made_inside, **SHORT)
        assert not torch.is_grad_enabled()
    torch.testing.assert_close(fast.dirichlet(X).mean, expected)
