"""Students begin at networks of torchvision, and at modules as Hugging Face and timm write them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from input_forms import quick
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_opu.guides.beginning import Beginning, find_beginning
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.teachers.networks import EnsembleTeacher

pytestmark = pytest.mark.usefixtures("coarse")
STILL: dict[str, Any] = {"num_steps": 1, "learning_rate": 1e-9, "recalibrate": False}

#: One classifier of each family, by what the names of the others are like, and sides of its images.
FAMILIES = {
    "alexnet": ("alexnet", 64),
    "convnext_tiny": ("convnext_.*", 32),
    "densenet121": (r"densenet\d+", 32),
    "efficientnet_b0": (r"efficientnet_b\d", 32),
    "efficientnet_v2_s": ("efficientnet_v2_.", 32),
    "googlenet": ("googlenet", 64),
    "inception_v3": ("inception_v3", 75),
    "maxvit_t": ("maxvit_t", 224),
    "mnasnet0_5": (r"mnasnet\d_\d+", 32),
    "mobilenet_v2": ("mobilenet_v2", 32),
    "mobilenet_v3_small": ("mobilenet_v3_.*", 32),
    "regnet_x_400mf": ("regnet_x_.*", 32),
    "regnet_y_400mf": ("regnet_y_.*", 32),
    "resnet18": ("resnet(18|34)", 32),
    "resnet50": (r"(wide_)?resne(x)?t(50|101|152)(_.*)?", 32),
    "shufflenet_v2_x0_5": ("shufflenet_v2_.*", 32),
    "squeezenet1_0": ("squeezenet1_0", 64),
    "squeezenet1_1": ("squeezenet1_1", 64),
    "swin_t": ("swin_.", 32),
    "swin_v2_t": ("swin_v2_.", 32),
    "vgg11": (r"vgg\d+", 32),
    "vgg11_bn": (r"vgg\d+_bn", 32),
    "vit_b_32": ("vit_.*", 224),
}
QUICK = ("resnet18", "mobilenet_v3_small", "squeezenet1_1")


def begun(name: str) -> tuple[nn.Module, Beginning, Tensor]:
    """A classifier of torchvision, where its student begins, and images."""
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights that a later release sets otherwise
        network = torchvision.models.get_model(name, weights=None, num_classes=10).eval()
    x = torch.randn(3, 3, *2 * [FAMILIES[name][1]])
    with torch.no_grad():
        draws = network(x).softmax(-1)[None]
    (plug_in,) = EnsembleTeacher([network]).plug_ins(x)
    return network, find_beginning([plug_in], x, draws), x


@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES if n not in QUICK)],
)
def test_a_student_of_every_family_begins_at_its_network(name: str) -> None:
    network, start, x = begun(name)
    assert start.trunk is not None
    with torch.no_grad():
        expected = network(x).log_softmax(-1)
        features = start.trunk.run(x)
    logits = features @ start.head[:, :-1].mT + start.head[:, -1]
    # Weights that nobody has trained amplify, some to logits of 1e8.
    error = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(logits.log_softmax(-1), expected, rtol=1e-4, atol=max(1e-4, error))


def test_every_classifier_of_torchvision_is_of_a_family() -> None:
    models = pytest.importorskip("torchvision").models
    names = models.list_models(module=models)
    assert len(names) >= 80
    known = [pattern for pattern, _ in FAMILIES.values()]
    assert not [n for n in names if sum(bool(re.fullmatch(p, n)) for p in known) != 1]


# Modules as libraries write them -----------------------------------------------------------------


@dataclass
class Output:
    """What a classifier of Hugging Face returns."""

    logits: Tensor
    loss: Tensor | None = None


class Encoder(nn.Module):
    """Token ids and a mask to one vector, by attention and a mean over the tokens that are."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(6, 8)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.norm, self.drop = nn.LayerNorm(8), nn.Dropout(0.2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        h = self.drop(self.words(input_ids) + self.places(places))
        scores = self.query(h) @ self.key(h).transpose(1, 2) / 8**0.5
        hidden = (1.0 - attention_mask[:, None].float()) * torch.finfo(h.dtype).min
        h = self.norm(h + self.drop((scores + hidden).softmax(-1)) @ self.value(h))
        mask = attention_mask[..., None].to(h.dtype)
        return (h * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


class TextClassifier(nn.Module):
    """Returns its logits by name, as a dict or a dataclass."""

    def __init__(self, as_dict: bool) -> None:
        super().__init__()
        self.encoder, self.drop, self.head = Encoder(), nn.Dropout(0.3), nn.Linear(8, 3)
        self.as_dict = as_dict

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        logits = self.head(self.drop(self.encoder(input_ids, attention_mask)))
        return {"logits": logits} if self.as_dict else Output(logits)


class Recurrent(nn.Module):
    """An LSTM over several columns of a series."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 8, num_layers=2, batch_first=True)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        _, (state, _) = self.lstm(x)
        return self.head(self.drop(state[-1]))


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.two(F.dropout(F.relu(self.one(x)), 0.3, self.training)))
        return self.head(h)


class TimmLike(nn.Module):
    """Features and a head apart, and a normalisation that is left in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.head_drop, self.head = nn.Dropout(0.3), nn.Linear(8, 3)
        self.train()

    def forward_features(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.stem(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.head_drop(self.forward_features(x).mean((2, 3))))


def tokens() -> dict[str, Tensor]:
    torch.manual_seed(0)
    lengths = torch.randint(2, 7, (40,))
    mask = (torch.arange(6) < lengths[:, None]).long()
    return {"input_ids": torch.randint(1, 20, (40, 6)) * mask, "attention_mask": mask}


MODULES: dict[str, Any] = {
    "dict": (lambda: TextClassifier(as_dict=True), tokens),
    "dataclass": (lambda: TextClassifier(as_dict=False), tokens),
    "LSTM": (Recurrent, lambda: torch.randn(40, 5, 3)),
    "tied weights": (Tied, lambda: torch.randn(40, 4)),
    "left in training mode": (TimmLike, lambda: torch.randn(40, 3, 8, 8)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_student_begins_at_modules_as_libraries_write_them(name: str) -> None:
    torch.manual_seed(0)
    build, inputs = MODULES[name]
    network, x = build(), inputs()
    before = network.training
    fast = quick(network, x, num_samples=5, num_draws=8, **STILL)
    assert network.training is before
    assert fast.report["start"] in ("network", "moments"), fast.report["start_reason"]
    assert isinstance(fast.guide.trunk, NetworkTrunk)
    network.eval()
    with torch.no_grad():
        found = network(**x) if isinstance(x, Mapping) else network(x)
    logits = found["logits"] if isinstance(found, dict) else getattr(found, "logits", found)
    # A student is taught the average of networks: near, not equal.
    expected = logits.softmax(-1)
    torch.testing.assert_close(fast.distribution(x).mean, expected, rtol=0, atol=0.15)
