"""A run is gone on with by the same run only, whatever the difference is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from flat import distill_flat
from taught import X, teacher
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_opu import MomentMatching, Objective, OnePassPredictive, PredictiveGuide
from pyro_opu.distributed import differences
from pyro_opu.training.checkpoint import describe, digest, sketch, text
from pyro_opu.transfer import HeldOut, Jitter, Mixture, TransferPolicy

pytestmark = pytest.mark.usefixtures("brief")

QUICK: dict[str, Any] = {
    "num_steps": 4,
    "batch_size": 16,
    "num_draws": 4,
    "evaluate_every": 2,
    "seed": 0,
    "progress": False,
    "loss": "moments",
    "transfer": HeldOut(),
}


def quick(source: Any = teacher, x: Any = X, **changes: Any) -> OnePassPredictive:
    return distill_flat(source, x, **{**QUICK, **changes})


def narrow(x: Tensor) -> Tensor:
    """Draws of the same mean with 1/25 of the variance."""
    draws = teacher(x)
    return draws.mean(0) + (draws - draws.mean(0)) / 5


def small_guide(activation: nn.Module) -> PredictiveGuide:
    torch.manual_seed(0)
    return PredictiveGuide(nn.Sequential(nn.Linear(2, 4), activation), 4, 3)


def loader(size: int) -> DataLoader:
    return DataLoader(TensorDataset(X), batch_size=size)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (
            {"guide": lambda: "network"},
            {"guide": lambda: "network", "source": narrow},
            ["teacher"],
        ),
        ({}, {"transfer": Jitter(0.5)}, ["transfer"]),
        ({"transfer": Jitter(0.5)}, {"transfer": Jitter(0.6)}, ["transfer"]),
        (
            {"transfer": Mixture([(1, HeldOut()), (1, Jitter(0.5))])},
            {"transfer": Mixture([(1, HeldOut()), (1, Jitter(0.6))])},
            ["transfer"],
        ),
        ({"x": loader(20)}, {"x": loader(30)}, ["loader"]),
        (
            {"guide": lambda: small_guide(nn.ReLU())},
            {"guide": lambda: small_guide(nn.SiLU())},
            ["guide"],
        ),
    ],
    ids=["variance", "policy", "policy's settings", "mixture", "batches of a loader", "modules"],
)
def test_another_run_is_refused(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], named: list[str]
) -> None:
    def made(changes: dict[str, Any]) -> dict[str, Any]:
        return {k: v() if k == "guide" else v for k, v in changes.items()}

    path = tmp_path / "run.safetensors"
    quick(**made(before), checkpoint=path)
    message = rf"belongs to another run: \[{', '.join(map(repr, named))}\] differ"
    with pytest.raises(ValueError, match=message):
        quick(**made({**before, **after}), checkpoint=path)


def test_every_row_counts(tmp_path: Path) -> None:
    # A student of 60 rows is judged at nine of them, and taught at the others.
    path = tmp_path / "run.safetensors"
    quick(checkpoint=path)
    for row in range(2):
        other = X.clone()
        other[row] += 1e-6
        with pytest.raises(ValueError, match=r"another run: \[.*'x'\] differ"):
            quick(x=other, checkpoint=path)


def test_the_number_of_threads_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.safetensors"
    quick(checkpoint=path)
    own = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    message = rf"\['threads'\] differ \(threads \[{own}\] there, \[77\] here\).*set_num_threads"
    with pytest.raises(ValueError, match=message):
        quick(checkpoint=path)


def test_another_version_of_torch_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.safetensors"
    quick(checkpoint=path)
    monkeypatch.setattr(torch, "__version__", "2.4.0")
    with pytest.warns(UserWarning, match=r"was written by torch .* and this is 2\.4\.0"):
        quick(checkpoint=path)


def test_a_regressor_of_less_spread_is_refused(tmp_path: Path) -> None:
    slopes = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))

    def source(spread: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        return lambda x: (spread * (slopes - slopes.mean()) * x[:, 0], torch.ones(20, 1))

    settings = {**QUICK, "checkpoint": tmp_path / "run.safetensors"}
    distill_flat(source(1.0), X, **settings)
    distill_flat(source(1.0), X, **settings)
    with pytest.raises(ValueError, match=r"another run: \['teacher'\] differ"):
        distill_flat(source(0.2), X, **settings)


# The user's own objects ----------------------------------------------------------------------


@dataclass(frozen=True)
class By(TransferPolicy):
    """Inputs changed by a function, whose printed form has an address."""

    change: Callable[[Tensor], Tensor]
    scale: float = 1.0

    def _draw(self, n: int) -> Tensor:
        return self.scale * self.change(self._rows(n))


class Plain:
    """Printed with its address, as most objects are."""


class Own(MomentMatching):
    """An objective with a module that is printed with an address."""

    def __init__(self, strength: float = 1.0) -> None:
        super().__init__()
        self.strength, self.helper = strength, Plain()


class Activation(nn.Module):
    """Printed with a function in it."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def extra_repr(self) -> str:
        return repr(self.function)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_addresses_do_not_count_and_settings_do(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"

    def run(scale: float = 1.0, strength: float = 1.0) -> list[Tensor]:
        fast = quick(
            guide=small_guide(Activation(lambda x: x.tanh())),
            loss=Own(strength),
            transfer=By(lambda x: -x, scale),
            checkpoint=path,
        )
        return list(fast.guide.state_dict().values())

    first = run()
    assert all(map(torch.equal, run(), first))  # new objects, at other addresses
    with pytest.raises(ValueError, match=r"\['transfer'\] differ"):
        run(scale=2.0)
    with pytest.raises(ValueError, match=r"\['objective'\] differ"):
        run(strength=2.0)


def test_text_and_description() -> None:
    assert text(Plain()) == text(Plain()) == "<test_checkpoint.Plain object>"
    found = describe(By(torch.neg).fit(X))
    assert found["type"] == "By" and found["change"] == text(torch.neg)
    assert found["buffers"] == {"x": sketch(X)}
    assert describe((1, None, {"a": torch.arange(3)})) == [1, None, {"a": digest(torch.arange(3))}]
    assert isinstance(Own(), Objective)


# Sketches ------------------------------------------------------------------------------------


def unlike(one: Tensor, other: Tensor) -> bool:
    return bool(differences({"draws": sketch(one)}, {"draws": sketch(other)}))


def test_teachers_of_many_classes_are_told_apart() -> None:
    # No mean of a class in 5,000 has a digit in the first three.
    one, other = (torch.randn(4, 9, 5000).mul(0.1).softmax(-1) for _ in range(2))
    assert one.mean((0, 1)).max() < 5e-4
    assert unlike(one - one.mean(0), other - other.mean(0))


def test_a_sketch_is_as_far_as_the_tensor() -> None:
    x, y = torch.randn(2, 70_000)
    gaps = []
    for step in (0.01, 0.1):
        a, b = (torch.tensor(sketch(each)["sketch"][1:]) for each in (x, x + step * y))
        gaps.append(float((a - b).norm() / a.norm()))
    # 64 numbers: the norm of a difference is known to 1 / sqrt(128), 9 %; four deviations.
    assert gaps == pytest.approx([0.01, 0.1], rel=0.36)
