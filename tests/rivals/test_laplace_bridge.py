"""The Laplace bridge as a student of normal logits, and of any teacher."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pyro_opu import OnePassPredictive
from pyro_opu.distributions.bridge import inverse_laplace_bridge, laplace_bridge
from pyro_opu.rivals import LaplaceBridgeGuide, laplace_bridge_predictive

DOUBLE = torch.float64


class Given:
    """Gaussian logits that are the same function of the input for everybody."""

    def __init__(self, full: bool, classes: int = 3) -> None:
        self.full = full
        self.weight = torch.randn(2, classes)
        self.root = torch.randn(classes, classes)

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale = 0.2 + x.square().sum(-1, keepdim=True)
        covariance = self.root @ self.root.mT + torch.eye(len(self.root))
        whole = scale.unsqueeze(-1) * covariance
        return x @ self.weight, whole if self.full else whole.diagonal(dim1=1, dim2=2)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_student_of_gaussian_logits(full, normalize, classes) -> None:
    source = Given(full, classes)
    x = torch.randn(20, 2)
    state = torch.get_rng_state()
    fast = laplace_bridge_predictive(source, x, normalize=normalize, num_draws=7, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    expected = laplace_bridge(*source.logits(x), normalize=normalize)
    torch.testing.assert_close(fast.dirichlet(x).concentration, expected)
    assert fast.num_classes == classes and fast.report["one_pass"]
    assert fast(x[:1])["obs"].shape == (7, 1)
    assert laplace_bridge_predictive(source, x).probs(x).shape == (500, 20, classes)


def test_a_module_is_copied_saved_and_loaded(tmp_path) -> None:
    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.spread = nn.Linear(2, 3), nn.Linear(2, 3)

        def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.mean(x), self.spread(x).exp()

    source, x, path = Logits().train(), torch.randn(6, 2), tmp_path / "fast.safetensors"
    fast = laplace_bridge_predictive(source, x, num_draws=20)
    assert source.training  # what was passed is copied, as the student is frozen
    expected = laplace_bridge(*source.logits(x)).detach()
    torch.testing.assert_close(fast.dirichlet(x).concentration, expected)
    fast.save(path)
    with pytest.raises(ValueError, match="`guide` must be given"):
        OnePassPredictive.load(path)
    with pytest.raises(ValueError, match="must have the parameters of the file"):
        OnePassPredictive.load(path, guide=nn.Linear(2, 3))
    loaded = OnePassPredictive.load(path, guide=LaplaceBridgeGuide(Logits()))
    assert torch.equal(loaded.dirichlet(x).concentration, fast.dirichlet(x).concentration)


def test_moments_of_a_teacher_against_loop() -> None:
    torch.manual_seed(0)
    draws = torch.randn(40, 5, 4, dtype=DOUBLE).softmax(-1)
    fast = laplace_bridge_predictive(lambda x: draws[:, : len(x)], torch.zeros(5, 1).double())
    z = draws.log()
    alpha = fast.dirichlet(torch.zeros(5, 1).double()).concentration
    for n in range(5):
        rows = [z[s, n] - z[s, n].sum() / 4 for s in range(40)]
        mean = sum(rows) / 40
        variance = sum((row - mean) ** 2 for row in rows) / 39
        expected = laplace_bridge(mean, variance, project=False)
        torch.testing.assert_close(alpha[n], expected)
    assert not fast.report["one_pass"]


def test_a_dirichlet_that_the_bridge_knows_is_found_again() -> None:
    """A teacher whose logits are the bridge's own Gaussian: alpha comes back."""
    alpha = torch.tensor([[8.0, 3.0, 1.0], [30.0, 30.0, 90.0]], dtype=DOUBLE)
    mean, covariance = inverse_laplace_bridge(alpha, full=True)
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)

    def teacher(x: Tensor, num_draws: int) -> Tensor:
        noise = torch.randn(num_draws, 2, 3, dtype=DOUBLE)
        return (mean + (root @ noise.unsqueeze(-1)).squeeze(-1))[:, : len(x)].softmax(-1)

    x = torch.zeros(2, 1, dtype=DOUBLE)
    fast = laplace_bridge_predictive(teacher, x, num_draws=40_000)
    # Standard error of a variance by 40,000 draws is 0.7 %; four of them.
    torch.testing.assert_close(fast.dirichlet(x).concentration, alpha, rtol=0.03, atol=0.0)


def test_draws_that_rule_out_a_class_or_all_agree() -> None:
    x = torch.zeros(2, 1)
    sure = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]).expand(9, 2, 3)
    fast = laplace_bridge_predictive(lambda x: sure[:, : len(x)], x)
    answer = fast.dirichlet(x)
    assert answer.concentration.isfinite().all()
    torch.testing.assert_close(answer.mean, sure[0], rtol=0.0, atol=1e-4)


def test_a_layer_named_logits_is_a_layer() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.logits = nn.Dropout(0.5), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.logits(self.drop(x))

    network = Net().train()
    fast = laplace_bridge_predictive(network, torch.randn(6, 4), num_draws=50)
    assert not fast.report["one_pass"]
    assert fast.dirichlet(torch.randn(6, 4)).batch_shape == (6,)
    assert network.training and all(p.requires_grad for p in network.parameters())
