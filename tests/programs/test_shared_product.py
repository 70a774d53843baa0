"""Thin matrix products of shared inputs are one product, with the numbers of the loop."""

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_opu.programs.vmap import loop, vectorized
from pyro_opu.programs.vmap_rewrites import MOST_COLUMNS, SharedProduct

S, N, D = 7, 5, 3


class Products(TorchDispatchMode):
    """Counts batched matrix products."""

    def __init__(self):
        super().__init__()
        self.batched = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.batched += func is torch.ops.aten.bmm.default
        return func(*args, **(kwargs or {}))


def double(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X = double(N, D)
#: Name -> what a model computes of X, the weights' shape, whether it is one product.
CASES = {
    "operator": (lambda w: X @ w, (D, 2), True),
    "one column": (lambda w: X @ w, (D, 1), True),
    "vector": (lambda w: X @ w, (D,), True),
    "torch.matmul": (lambda w: torch.matmul(X, w), (D, 4), True),
    "mm": (lambda w: X.mm(w), (D, 4), True),
    "linear": (lambda w: functional.linear(X, w), (4, D), True),
    "linear with a bias": (lambda w: functional.linear(X, w, bias=w[:, 0]), (4, D), True),
    "weights moved": (lambda w: X @ w.T, (2, D), True),
    "inputs of each draw": (lambda w: (X + w[0, 0]) @ w, (D, 2), False),
    "inputs alone of each draw": (lambda w: w @ X[:2], (4, 2), None),
    "two layers": (lambda w: (X @ w).tanh() @ w.T, (D, 2), False),
    "many columns": (lambda w: X @ w, (D, MOST_COLUMNS + 1), False),
    "more axes": (lambda w: X[None] @ w, (D, 2), None),
    "half of it": (lambda w: X.float() @ w.float(), (D, 2), True),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_loop(name):
    fn, shape, _ = CASES[name]
    draws = {"w": double(S, *shape, seed=1)}
    got = vectorized(lambda draw: fn(draw["w"]), draws)
    expected = loop(lambda draw: fn(draw["w"]), draws)
    assert got.shape == expected.shape and got.dtype == expected.dtype
    eps = torch.finfo(got.dtype).eps  # sums of D numbers of size 1, in another order
    assert torch.allclose(got, expected, rtol=100 * eps, atol=100 * eps)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][2] is not None])
def test_thin_products_of_shared_inputs_are_one(name):
    fn, shape, one = CASES[name]
    with Products() as products:
        vectorized(lambda draw: fn(draw["w"]), {"w": double(S, *shape, seed=1)})
    assert (products.batched == 0) is one


def test_gradients_through_vmap_are_those_of_the_loop():
    weights = double(S, D, 2, seed=1).requires_grad_()
    inputs = X.clone().requires_grad_()
    found = {}
    for way in (vectorized, loop):
        way(lambda draw: (inputs @ draw["w"]).square(), {"w": weights}).sum().backward()
        found[way] = weights.grad, inputs.grad
        weights.grad = inputs.grad = None
    for mine, expected in zip(found[vectorized], found[loop], strict=True):
        assert torch.allclose(mine, expected, rtol=1e-12)


def test_gradcheck():
    pair = (X.clone().requires_grad_(), double(D, 2, seed=1).requires_grad_())
    assert torch.autograd.gradcheck(SharedProduct.apply, pair)
