"""Teachers and transfer policies are checked at every call, arguments before any work."""

from __future__ import annotations

import pytest
import torch
from flat import distill_flat
from torch import Tensor

from pyro_opu import as_teacher
from pyro_opu.checks import ArgumentCallError

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(8, 3, 4, generator=torch.Generator().manual_seed(1))
SHORT = {"num_steps": 4, "progress": False, "seed": 0, "batch_size": 16}


def draws(x: Tensor) -> Tensor:
    return (x @ WEIGHT).softmax(-1)


def failing(_: Tensor) -> Tensor:
    raise KeyError("licence")


def like_ours(_: Tensor) -> Tensor:
    raise ValueError("`x` must be red.")


class TestTeacher:
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


def unasked(_: Tensor) -> Tensor:
    raise AssertionError("the teacher was asked")


WRONG = {
    "batch_size": "3",
    "num_draws": "3",
    "seed": 1.5,
    "warm_start": "no",
    "progress": 1,
    "learning_rate": "a",
    "device": "meta",
    "guide": lambda x: x,
    "transfer": lambda n: n,
    "inputs": "x",
    "site": 3,
    "checkpoint": ".",
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_are_checked_before_the_teacher_is_asked(name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^`{name}` (must be|is) "):
        distill_flat(unasked, X, **{**SHORT, name: WRONG[name]})


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_distil_where_gradients_are_off(mode) -> None:
    expected = distill_flat(draws, X, **SHORT).dirichlet(X).mean
    with mode():
        made_inside = X + 0  # under inference_mode a tensor that no gradient may use
        fast = distill_flat(draws, made_inside, **SHORT)
        assert not torch.is_grad_enabled()
    torch.testing.assert_close(fast.dirichlet(X).mean, expected)
