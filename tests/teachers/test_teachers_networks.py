"""Dropout networks and ensembles as teachers: equal to the loop over masks and over members."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable

import pyro.contrib.gp as gp
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_opu.teachers import DropoutTeacher, EnsembleTeacher, as_teacher

# Rounding of float32 products summed in another order, on logits of size 1.
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}


def perceptron(inputs: int = 4, classes: int = 3, width: int = 16, p: float = 0.5) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Dropout(p),
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.Tanh(),
        nn.Dropout(p / 2),
        nn.Linear(width, classes),
    )


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.ReLU(),
        nn.Dropout2d(0.3),
        nn.Conv2d(6, 4, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(16, 3),
    )


class Functional(nn.Module):
    """Dropout called as a function, switched by the module's mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.first(x).relu(), p=0.4, training=self.training)
        h = torch.dropout(h, 0.2, self.training)
        return self.second(h)


NETWORKS = {
    "perceptron": (perceptron, (4,)),
    "convolutional": (convolutional, (1, 9, 9)),
    "functional": (Functional, (4,)),
}
networks = pytest.mark.parametrize(("build", "shape"), NETWORKS.values(), ids=NETWORKS)


class TestDropout:
    @networks
    def test_one_mask_for_all_rows_and_another_for_each_draw(
        self, build: Callable, shape: tuple[int, ...]
    ) -> None:
        probs = as_teacher(build()).probs(torch.randn(1, *shape).expand(5, *shape), 8)
        torch.testing.assert_close(probs, probs[:, :1].expand_as(probs), **ROUNDING)
        assert len(probs[:, 0].unique(dim=0)) == 8

    @networks
    def test_batched_equals_the_loop_over_draws(
        self, build: Callable, shape: tuple[int, ...]
    ) -> None:
        teacher, x = as_teacher(build()), torch.randn(6, *shape)
        torch.manual_seed(5)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # vmap runs it
            batched = teacher.log_probs(x, 7)
        torch.manual_seed(5)
        seeds = torch.randint(2**62, (7,))  # a draw is the seed of its masks
        with torch.no_grad():
            looped = torch.cat([teacher._evaluate(seed[None], x) for seed in seeds])
        torch.testing.assert_close(batched, looped, **ROUNDING)

    def test_masks_by_hand(self) -> None:
        net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
        x = torch.randn(6, 4)
        torch.manual_seed(5)
        probs = as_teacher(net).probs(x, 9)
        torch.manual_seed(5)
        expected = []
        for seed in torch.randint(2**62, (9,)).tolist():
            keep = torch.rand(1, 16, generator=torch.Generator().manual_seed(seed)) >= 0.3
            expected.append(net[3](net[0](x).relu() * keep / 0.7).softmax(-1).detach())
        torch.testing.assert_close(probs, torch.stack(expected), **ROUNDING)

    def test_layers_without_dropout_between_layers_with_it(self) -> None:
        net = nn.Sequential(
            nn.Dropout(0.0), nn.Linear(4, 8), nn.Dropout(1.0), nn.Dropout(0.0), nn.Linear(8, 3)
        )
        probs = as_teacher(net).probs(torch.randn(2, 4), 3)  # all hidden units dropped
        expected = net[4].bias.softmax(-1).detach().expand(3, 2, 3)
        torch.testing.assert_close(probs, expected, **ROUNDING)

    def test_batch_norm_uses_and_keeps_its_statistics(self) -> None:
        net = perceptron()
        net(torch.randn(50, 4))  # in training mode, so that they are not the initial ones
        before = {name: value.clone() for name, value in net.state_dict().items()}
        teacher, x = as_teacher(net), torch.randn(6, 4)
        torch.manual_seed(1)
        together = teacher.probs(x, 3)
        torch.manual_seed(1)
        alone = torch.cat([teacher.probs(row[None], 3) for row in x[:1]], 1)
        torch.testing.assert_close(together[:, :1], alone, **ROUNDING)
        assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())

    def test_modes_are_put_back(self) -> None:
        net = perceptron()
        net.train()
        net[4].eval()
        modes = [m.training for m in net.modules()]
        teacher = as_teacher(net)
        teacher.probs(torch.randn(2, 4), 2)
        assert [m.training for m in net.modules()] == modes
        for x in (torch.randn(2, 5), torch.randn(2, 4, 4, 4)):
            with pytest.raises((RuntimeError, ValueError)):
                teacher.probs(x, 2)
            assert [m.training for m in net.modules()] == modes
        assert all(p.requires_grad and p.grad is None for p in net.parameters())

    def test_inputs_of_other_shapes(self) -> None:
        teacher = as_teacher(convolutional())
        for size in (9, 12, 9):
            assert teacher.probs(torch.randn(3, 1, size, size), 4).shape == (4, 3, 3)

    def test_only_the_seeds_are_drawn(self) -> None:
        net, x = perceptron(), torch.randn(3, 4)
        teacher, after = as_teacher(net), []
        for _ in range(2):  # the first call does more, but draws no more
            torch.manual_seed(2)
            teacher.probs(x, 6)
            after.append(torch.rand(()))
        torch.manual_seed(2)
        torch.randint(2**62, (6,))
        assert after[0] == after[1] == torch.rand(())
        assert teacher.max_draws is None and teacher.probs(x).shape == (500, 3, 3)

    def test_control_flow_on_values_is_looped_over(self) -> None:
        class Branching(Functional):
            def forward(self, x: Tensor) -> Tensor:
                h = F.dropout(self.first(x))
                return self.second(h if h.sum() > 0 else -h)

        with pytest.warns(UserWarning, match="the dropout network is evaluated draw by draw"):
            probs = as_teacher(Branching()).probs(torch.randn(3, 4), 6)
        assert probs.shape == (6, 3, 3)

    def test_transformer_with_dropout_in_all_its_parts(self) -> None:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        net = nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3))
        probs = as_teacher(net).probs(torch.randn(1, 3, 8).expand(4, 3, 8), 5)
        torch.testing.assert_close(probs, probs[:, :1].expand_as(probs), **ROUNDING)
        assert len(probs[:, 0].unique(dim=0)) == 5


class Answering(nn.Module):
    """A network whose answer is made from logits by a function."""

    def __init__(self, answer: Callable) -> None:
        super().__init__()
        self.layer, self.answer = nn.Linear(4, 3), answer

    def forward(self, x: Tensor) -> object:
        return self.answer(self.layer(F.dropout(x)))


class TestOutput:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_logits_log_probs_and_probs(self, dtype: torch.dtype) -> None:
        x, answers = torch.randn(5, 4, dtype=dtype), []
        for answer in (
            lambda z: z,
            lambda z: z + 100,
            lambda z: z.log_softmax(-1),
            lambda z: z.softmax(-1),
        ):
            torch.manual_seed(1)
            answers.append(as_teacher(Answering(answer).to(dtype)).probs(x, 6))
            assert answers[-1].dtype == dtype
        # Adding 100 to logits costs them two digits; bfloat16 has two (three bits after 100).
        tolerance = {torch.float32: 1e-4, torch.float64: 1e-12, torch.bfloat16: 0.3}[dtype]
        for other in answers[1:]:
            torch.testing.assert_close(other, answers[0], rtol=0.0, atol=tolerance)

    def test_probabilities_of_zero(self) -> None:
        sure = as_teacher(Answering(lambda z: F.one_hot(z.argmax(-1), 3).float())).log_probs(
            torch.randn(5, 4), 6
        )
        assert torch.isfinite(sure).all() and torch.equal(sure.exp().sum(-1), torch.ones(6, 5))

    def test_logits_at_infinity(self) -> None:
        mask = torch.tensor([0.0, 0.0, -torch.inf])
        log_probs = as_teacher(Answering(lambda z: z + mask)).log_probs(torch.randn(5, 4), 6)
        assert torch.isfinite(log_probs).all()
        assert torch.equal(log_probs.exp()[..., 2], torch.zeros(6, 5))


def ensemble_loop(modules: list[nn.Module], x: Tensor) -> Tensor:
    return torch.stack([module.eval()(x).softmax(-1).detach() for module in modules])


class TestEnsemble:
    @networks
    def test_of_one_architecture_equals_the_loop(
        self, build: Callable, shape: tuple[int, ...]
    ) -> None:
        modules = [build() for _ in range(6)]
        for module in modules:  # other statistics of batch norm in each
            module.train()(torch.randn(20, *shape))
        teacher, x = as_teacher(modules), torch.randn(9, *shape)
        probs = teacher.probs(x)
        assert teacher._stackable and teacher.max_draws == 6
        torch.testing.assert_close(probs, ensemble_loop(modules, x), **ROUNDING)

    def test_of_several_architectures(self) -> None:
        modules = [perceptron(), perceptron(width=9), nn.Linear(4, 3), Functional()]
        x = torch.randn(5, 4)
        teacher = as_teacher(modules)
        torch.testing.assert_close(teacher.probs(x), ensemble_loop(modules, x), **ROUNDING)
        assert not teacher._stackable

    def test_members_that_differ_in_what_is_not_printed(self) -> None:
        class Scaled(nn.Module):
            def __init__(self, temperature: float) -> None:
                super().__init__()
                self.layer, self.temperature = nn.Linear(4, 3), temperature

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(x) / self.temperature

        modules, x = [Scaled(t) for t in (1.0, 1.0, 1.0, 0.1)], torch.randn(5, 4)
        torch.testing.assert_close(
            as_teacher(modules).probs(x), ensemble_loop(modules, x), **ROUNDING
        )

    def test_members_that_cannot_be_copied(self) -> None:
        class Uncopied(Functional):
            def __deepcopy__(self, memo: dict) -> None:
                raise NotImplementedError

        modules, x = [Uncopied() for _ in range(3)], torch.randn(5, 4)
        torch.testing.assert_close(
            as_teacher(modules).probs(x), ensemble_loop(modules, x), **ROUNDING
        )

    def test_members_without_parameters(self) -> None:
        probs = as_teacher([nn.Softmax(-1), nn.Softmax(-1)]).probs(torch.zeros(2, 4))
        assert torch.equal(probs, torch.full((2, 2, 4), 0.25))

    def test_control_flow_on_values_is_looped_over(self) -> None:
        class Branching(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                h = super().forward(x)
                return h if h.sum() > 0 else 3 * h

        modules, x = [Branching(4, 3) for _ in range(6)], torch.randn(5, 4)
        with pytest.warns(UserWarning, match="the ensemble is evaluated draw by draw"):
            probs = as_teacher(modules).probs(x)
        torch.testing.assert_close(probs, ensemble_loop(modules, x), **ROUNDING)

    @pytest.mark.parametrize("kind", [list, tuple, nn.ModuleList, collections.deque])
    def test_sequences(self, kind: Callable) -> None:
        teacher = as_teacher(kind([nn.Linear(4, 3), nn.Linear(4, 3)]))
        assert isinstance(teacher, EnsembleTeacher)
        assert teacher.probs(torch.zeros(1, 4)).shape == (2, 1, 3)

    def test_a_single_network_is_one_draw(self) -> None:
        assert as_teacher([nn.Linear(4, 3)]).probs(torch.randn(2, 4)).shape == (1, 2, 3)


def test_what_is_which() -> None:
    assert isinstance(as_teacher(perceptron()), DropoutTeacher)
    assert isinstance(as_teacher([perceptron()]), EnsembleTeacher)


def test_a_process_is_refused_with_the_model_to_write() -> None:
    process = gp.models.GPRegression(torch.randn(5, 2), torch.randn(5), gp.kernels.RBF(2))
    with pytest.raises(TypeError, match=r"(?s)GPRegression.*def model\(x, y=None\):.*process\(x\)"):
        as_teacher(process)
