"""A network is distilled when Lightning has trained it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_opu import OnePassPredictive
from pyro_opu.interop.lightning import distil_at_end

QUICK: dict[str, Any] = {"num_steps": 5, "seed": 0, "progress": False}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 3))


def loader() -> DataLoader:
    x = torch.randn(120, 2)
    return DataLoader(TensorDataset(x, x.argmax(-1)), 40)


@pytest.fixture
def standing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the callback asks of the package, which takes seconds to import."""
    monkeypatch.setitem(sys.modules, "lightning.pytorch", SimpleNamespace(Callback=object))


def test_the_student_is_of_the_trained_network(standing_in: None, tmp_path: Path) -> None:
    trainer = SimpleNamespace(train_dataloader=loader(), is_global_zero=True)
    at_end = distil_at_end(path=tmp_path / "fast.safetensors", **QUICK)
    assert at_end.student is None
    at_end.on_fit_end(trainer, network())
    x = torch.randn(4, 2)
    assert at_end.student.num_classes == 3
    again = OnePassPredictive.load(tmp_path / "fast.safetensors")
    assert torch.equal(again.dirichlet(x).mean, at_end.student.dirichlet(x).mean)


def test_inputs_and_source_of_ones_own(standing_in: None) -> None:
    x = torch.randn(80, 2)
    members = [network() for _ in range(3)]
    at_end = distil_at_end(x, source=lambda module: [module, *members], **QUICK)
    at_end.on_fit_end(SimpleNamespace(is_global_zero=False), network())
    assert "4 draws" in at_end.student.report["taught_by"]


def test_without_lightning_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="pip install lightning"):
        distil_at_end()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning advises on loaders and loggers
def test_a_trainer_calls_it(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x)

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 0.05)

    at_end, module = distil_at_end(**QUICK), Module()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(
        max_epochs=10, accelerator="cpu", callbacks=[at_end], default_root_dir=tmp_path, **quiet
    )
    trainer.fit(module, loader())
    x = torch.randn(200, 2)
    same = at_end.student.dirichlet(x).mean.argmax(-1) == module.network.eval()(x).argmax(-1)
    assert same.float().mean() > 0.9  # it begins at the network
