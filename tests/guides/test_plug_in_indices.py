"""Students that begin at the network of a model with indices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from input_forms import FORMS, GROUP, NUMBERS, G, N, TwoInputs, posterior, quick
from pyro.infer import Predictive
from torch import Tensor, nn
from torch.nn.functional import embedding

import pyro_opu
from pyro_opu import OnePassPredictive
from pyro_opu.guides import beginning, products
from pyro_opu.guides.affine import AffineTrunk
from pyro_opu.guides.networks import Indexed
from pyro_opu.guides.plug_in import NetworkTrunk
from pyro_opu.guides.products import with_products
from pyro_opu.guides.recording import record
from pyro_opu.inputs import form_of
from pyro_opu.programs.plug_in import PlugIn

pytestmark = pytest.mark.usefixtures("coarse")

STILL: dict[str, Any] = {"num_steps": 1, "learning_rate": 1e-9, "recalibrate": False}


@pytest.mark.parametrize(
    ("read", "shape", "rewritten"),
    [
        (lambda table, group: table[group], (G,), True),
        (lambda table, group: table[group].sum(-1), (G, 3), True),
        (lambda table, group: embedding(group, table).sum(-1), (G, 3), True),
        (lambda table, group: table.index_select(0, group), (G,), True),
        (lambda table, group: table.exp()[group], (G,), True),
        (lambda table, group: table[group, group], (G, G), False),
        (lambda table, group: table[group.flip(0)], (G,), False),  # depends on the other rows
        (lambda table, group: table[group[:, None]].sum(1), (G,), False),
    ],
)
def test_a_lookup_as_a_product(
    read: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], rewritten: bool
) -> None:
    form, table = form_of(FORMS["tuple"]), torch.randn(shape)

    def log_probs(weights: Any, x: Tensor) -> Tensor:
        numbers, group = form.unpack(x)
        logit = read(weights["table"], group) + numbers[:, 0]
        return torch.stack([-logit, logit], -1)

    x = form.pack(FORMS["tuple"])
    plug_in = PlugIn(log_probs, [{"table": table}])
    try:
        found = record(plug_in, {"table": table}, x)
    except Exception:  # noqa: BLE001 - of the third last alone
        assert not rewritten
        return
    products = with_products(found, x[:2])
    torch.testing.assert_close(products.run(x), log_probs({"table": table}, x))
    names = [step.name for step in products.steps]
    assert ("matmul.default" in names) == rewritten


def test_a_varying_intercept_begins_at_what_is_attainable(tmp_path: Path) -> None:
    """The moments of the logit are known, and no step is taken."""
    x = FORMS["dict"]
    fast = quick(posterior(), x, **STILL)
    assert isinstance(fast.guide.trunk, NetworkTrunk) and fast.guide.trunk.outputs == 1
    report = pyro_opu.fidelity(fast, posterior(), x, seed=0)
    # A normal law of the logit, in the place of 30 draws that are normal.
    assert report.kl_ratio < 1.2
    fast.save(tmp_path / "student")
    again = OnePassPredictive.load(tmp_path / "student")
    assert torch.equal(again.dirichlet(x).mean, fast.dirichlet(x).mean)
    double = {"x": NUMBERS.double(), "group": GROUP}
    close = again.double().dirichlet(double).mean.float()
    torch.testing.assert_close(close, fast.dirichlet(x).mean, rtol=1e-4, atol=1e-6)


def crossed(x: Tensor, first: Tensor, second: Tensor, y: Tensor | None = None) -> None:
    """Two factors, the second not centred, and a slope."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("firsts", 4):
        one = pyro.sample("one", dist.Normal(0.0, 1.0))
    with pyro.plate("seconds", 3):
        other = pyro.sample("other", dist.Normal(0.0, 1.0))
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        logits = one[first] + scale * other[second] + slope * x
        pyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)


def test_two_factors_of_which_one_is_not_centred() -> None:
    torch.manual_seed(0)
    draws = {"scale": (40,), "one": (40, 4), "other": (40, 3), "slope": (40,)}
    source = Predictive(crossed, {name: 0.6 * torch.randn(shape) for name, shape in draws.items()})
    x = (torch.randn(N), torch.arange(N) % 4, torch.arange(N) // 7 % 3)
    fast = quick(source, x, **STILL)
    assert isinstance(fast.guide.trunk, NetworkTrunk) and fast.guide.trunk.outputs == 1
    assert pyro_opu.fidelity(fast, source, x, seed=0).kl_ratio < 1.5  # 40 draws


def test_a_networks_embedding_is_read() -> None:
    network = TwoInputs()
    fast = quick(network, FORMS["tuple"], num_steps=1, num_samples=20)
    assert isinstance(fast.guide.trunk, NetworkTrunk)
    assert any(value.shape == (G, 3) for value in fast.guide.trunk.network.state_dict().values())


def test_otherwise_two_classes_have_a_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MOST_ROWS", G - 1)
    stamps = (1e9 + NUMBERS.double(), GROUP)  # which a recorded network would round
    for source, x in ((posterior(), FORMS["dict"]), (TwoInputs().double(), stamps)):
        fast = quick(source, x, num_steps=1, num_samples=20)
        assert isinstance(fast.guide.trunk, AffineTrunk) and fast.report["start"] == "closed form"


def test_otherwise_indices_are_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    network = TwoInputs()
    network.layer = nn.Linear(5, 3)
    monkeypatch.setattr(beginning, "MOST_TOLD", 0)  # as of more classes
    with pytest.warns(UserWarning, match="begins from scratch.*too few digits for column 0"):
        stamps = (1e9 + NUMBERS.double(), GROUP)
        fast = quick(network.double(), stamps, num_steps=1, num_samples=20)
    reason = "float32, in which its network is read, has too few digits"
    assert isinstance(fast.guide.trunk, Indexed)
    assert fast.report["start"] == "scratch" and reason in fast.report["start_reason"]
    assert f"start     from scratch: {reason[:20]}" in str(fast.report)
