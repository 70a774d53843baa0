"""Transfer policies: what holds of every one."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from posteriors import POLICIES, smooth_images
from torch import Tensor

from pyro_opu.transfer import ImageCorruption, Permute, TransferPolicy


def inputs(policy: TransferPolicy) -> Tensor:
    return smooth_images() if isinstance(policy, ImageCorruption) else torch.randn(30, 5)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
class TestEveryPolicy:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
    def test_shape_dtype_and_no_gradient(
        self, policy: TransferPolicy, dtype: torch.dtype, device: torch.device
    ) -> None:
        x = inputs(policy).to(device, dtype).requires_grad_()
        fitted = policy.fit(x)
        for n in (1, 2, 33):
            drawn = fitted.sample(n)
            assert drawn.shape == (n, *x.shape[1:])
            assert (drawn.dtype, drawn.device) == (x.dtype, x.device)
            assert torch.isfinite(drawn).all()
            assert not drawn.requires_grad

    def test_the_global_generator_fixes_the_draws(self, policy: TransferPolicy) -> None:
        fitted = policy.fit(inputs(policy))
        torch.manual_seed(5)
        state = torch.get_rng_state()
        first, second = fitted.sample(20), fitted.sample(20)
        torch.set_rng_state(state)
        assert torch.equal(fitted.sample(20), first)
        assert not torch.equal(first, second)

    def test_fit_uses_no_randomness_and_changes_nothing(self, policy: TransferPolicy) -> None:
        x = inputs(policy)
        kept, state = x.clone(), torch.get_rng_state()
        fitted = policy.fit(x)
        assert torch.equal(state, torch.get_rng_state())
        fitted.sample(20)
        assert torch.equal(x, kept)
        assert fitted.fitted
        assert not policy.fitted
        assert fitted == policy
        assert repr(fitted) == repr(policy)

    def test_unfitted_policy_says_what_to_call(self, policy: TransferPolicy) -> None:
        with pytest.raises(RuntimeError, match=r"Call policy\.fit\(x\) first"):
            policy.sample(3)

    def test_one_row(self, policy: TransferPolicy) -> None:
        x = inputs(policy)[:1]
        drawn = policy.fit(x).sample(4)
        if not isinstance(policy, ImageCorruption | Permute):
            torch.testing.assert_close(drawn, x.expand_as(drawn))

    def test_pickle(self, policy: TransferPolicy) -> None:
        fitted = policy.fit(inputs(policy))
        restored = pickle.loads(pickle.dumps(fitted))
        torch.manual_seed(1)
        expected = fitted.sample(7)
        torch.manual_seed(1)
        assert torch.equal(restored.sample(7), expected)

    @pytest.mark.parametrize(
        ("x", "error", "message"),
        [
            (torch.ones(3, 8, 8, dtype=torch.long), TypeError, r"convert it with x\.float\(\)"),
            ([[1.0, 2.0]], TypeError, r"got list\. Convert it with torch\.as_tensor"),
            (torch.empty(0, 8, 8), ValueError, r"at least one input.*\(0, 8, 8\)"),
            (torch.empty(3, 0), ValueError, r"at least one feature.*got shape \(3, 0\)"),
            (torch.tensor(1.0), ValueError, r"must have shape \(N, D\).*got \(\)"),
            (torch.full((3, 8, 8), math.nan), ValueError, r"NaN or infinity in 3 of 3 rows"),
            (
                torch.eye(8).expand(2, 8, 8) * torch.tensor([1.0, math.inf])[:, None, None],
                ValueError,
                r"must be finite",
            ),
        ],
    )
    def test_refused_inputs(
        self, policy: TransferPolicy, x: Tensor, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=f"(?i){message}"):
            policy.fit(x)

    def test_refused_count(self, policy: TransferPolicy) -> None:
        with pytest.raises(ValueError, match="`n` must be a positive integer; got 0"):
            policy.fit(inputs(policy)).sample(0)
