"""The cases of ``benchmarks.golden``: name -> what is digested, by item."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyro
import torch
from pyro.infer import MCMC, NUTS
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pyro_opu
from benchmarks.golden_digest import reported
from benchmarks.golden_posteriors import (
    IMAGES,
    NEW,
    OUTSIDE,
    POSTERIORS,
    QUICK,
    REAL,
    WEIGHTS,
    C,
    S,
    X,
    Y,
    drawn,
    ensemble,
    function,
    linear,
    logistic,
    logits,
    student,
    taught,
)
from pyro_opu import MomentMatching, OnePassPredictive, WassersteinELBO, rivals, transfer
from pyro_opu.models.logistic_regression import logistic_regression
from pyro_opu.training.fit import Phase

Items = dict[str, Any]


# Items -----------------------------------------------------------------------------------------


def weights(fast: OnePassPredictive) -> list[Tensor]:
    return list(fast.guide.state_dict().values())


def measures(fast: OnePassPredictive) -> Items:
    """What the student says of the posterior; its novelty is none of that."""
    return {k: v for k, v in fast.uncertainty(NEW).to_dict().items() if k != "novelty"}


def kept(fast: OnePassPredictive) -> Items:
    return {"weights": weights(fast), **reported("report", fast.report)}


def answers(fast: OnePassPredictive) -> Items:
    """What the student says: measures, draws, after a file and back."""
    with tempfile.TemporaryDirectory() as folder:
        fast.save(f"{folder}/student.safetensors")
        loaded = OnePassPredictive.load(f"{folder}/student.safetensors")
    torch.manual_seed(1)
    return {
        "draws": fast(NEW),
        "uncertainty": measures(fast),
        "loaded": [measures(loaded), weights(loaded)],
    }


def whole(name: str) -> Items:
    """A student and everything it says, beside its teacher."""
    fast, few = student(name), {"num_draws": S, "seed": 0}
    source = POSTERIORS[name][0]()
    if name in REAL:
        report = pyro_opu.regression_fidelity(fast, source, X, **few)
        return {**kept(fast), **answers(fast), **reported("fidelity", report.to_dict())}
    small = {**few, "wasserstein_inputs": 4, "wasserstein_draws": S}
    report = pyro_opu.fidelity(fast, source, X, extra={"outside": OUTSIDE}, **small)
    items = {**kept(fast), **answers(fast), **reported("fidelity", report.to_dict())}
    y, far = Y.clamp_max(fast.num_classes - 1), {"outside": OUTSIDE}
    found = pyro_opu.detection(fast, source, X, y, far, **few)
    items |= reported("detection", found.to_dict())
    apart = {
        "wrong": pyro_opu.misclassification(fast, X, y, **few),
        "outside": pyro_opu.out_of_domain(fast, X, OUTSIDE, **few),
    }
    items["scores"] = apart
    answer, sets = fast.dirichlet(NEW), pyro_opu.top_k(fast.dirichlet(NEW))
    items["dirichlet"] = answer.concentration
    items["top_k"] = [sets.ranking, sets.overlaps, sets.k]
    return items


class KilledError(Exception):
    """What ends a run in the middle."""


class Mortal:
    """Steps of a distillation; the one that brings ``left`` to zero raises."""

    def __init__(self) -> None:
        self.left, self.step = 0, Phase.step

    def __call__(self, phase: Phase, number: int) -> dict[str, float]:
        self.left -= 1
        if not self.left:
            raise KilledError
        return self.step(phase, number)


def resumed(name: str) -> Items:
    """A run that was killed after 25 of its 40 steps and started again; and one that was not."""
    unbroken, mortal = taught(name), Mortal()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(Phase, "step", lambda phase, number: mortal(phase, number)),
    ):
        again = partial(taught, name, checkpoint=f"{folder}/run.safetensors")
        mortal.left = 26
        try:
            again()
        except KilledError:
            mortal.left = 0
            fast = again()
            if not -30 < mortal.left < 0:
                raise RuntimeError(f"the run began again: it took {-mortal.left} steps") from None
        else:
            raise RuntimeError("the run was to be killed, and came to its end")
    pairs = zip(weights(fast), weights(unbroken), strict=True)
    if not all(torch.equal(one, other) for one, other in pairs):
        raise RuntimeError(f"{name}: the resumed run ends with other weights than the unbroken one")
    return {"weights": weights(fast)}


#: What two ranks do in one launch.
RANKS: dict[str, dict[str, Any]] = {
    "function": {}, "regression": {}, "function_wasserstein": {"loss": "wasserstein"},
}  # fmt: skip


@cache
def of_two_ranks() -> dict[str, list[Tensor]]:
    """Weights of the students of :data:`RANKS`, which both ranks must agree in."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "benchmarks.golden_cases"]
    outer = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    environment = {k: v for k, v in os.environ.items() if k not in outer}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, folder], capture_output=True, text=True, env=environment, timeout=300
        )
        if done.returncode:
            raise RuntimeError(f"the ranks failed: {done.stderr[-3000:]}")
        first, second = (load_file(Path(folder, f"{rank}.safetensors")) for rank in (0, 1))
    if any(not torch.equal(first[key], second[key]) for key in first):
        raise RuntimeError("two ranks end with different students")
    return {
        name: [first[key] for key in sorted(first) if key.split("/")[0] == name] for name in RANKS
    }


def be_a_rank(folder: Path) -> None:
    torch.set_num_threads(1)
    found = {
        f"{name}/{index:03}": value.contiguous()
        for name, changes in RANKS.items()
        for index, value in enumerate(weights(taught(name.split("_")[0], **changes)))
    }
    save_file(found, folder / f"{os.environ['RANK']}.safetensors")


def exported(name: str, suffix: str) -> Items:
    """The outputs of the exported program."""
    fast = student(name)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/student{suffix}"
        fast.export(path, NEW)
        if suffix == ".pt2":
            found = dict(torch.export.load(path).module()(NEW))
            return {suffix: {k: v for k, v in found.items() if k != "novelty"}}
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_outputs() if each.name != "novelty"]
        return {suffix: dict(zip(names, session.run(names, {"x": NEW.numpy()}), strict=True))}


def captured(name: str) -> Items:
    answer = student(name).capture(NEW)(NEW)
    if name in REAL:
        return {"answer": [answer.mean, answer.aleatoric, answer.epistemic]}
    return {"answer": answer.concentration}


GROUPS = ("posterior", "sample_stats", "log_likelihood", "posterior_predictive",
          "observed_data", "constant_data")  # fmt: skip


def inference_data(run: Any, *data: Tensor) -> Items:
    found = pyro_opu.to_inference_data(run, *data, probs=True, seed=0)
    return {
        group: {k: [list(v.dims), v.values] for k, v in getattr(found, group).data_vars.items()}
        for group in GROUPS
        if hasattr(found, group)
    }


def arviz() -> Items:
    both = {"teacher": inference_data(logistic(), X, Y)}
    both["student"] = inference_data(student("logistic"), X, Y)
    return both


def nuts() -> Items:
    pyro.set_rng_seed(0)
    mcmc = MCMC(NUTS(logistic_regression(C)), 12, 12, disable_progbar=True)
    mcmc.run(X, Y)
    items = reported("diagnose", pyro_opu.diagnose(mcmc).to_dict())
    items |= reported("diagnose_samples", pyro_opu.diagnose(logistic(), num_chains=2).to_dict())
    return {**items, "arviz": inference_data(mcmc), "samples": mcmc.get_samples()}


class Logits(nn.Module):
    """A normal law of the logits."""

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ WEIGHTS[0], (x @ WEIGHTS[1]).exp()


def online(form: str) -> OnePassPredictive:
    kernel = pyro_opu.SGLD(linear if form == "normal" else logistic_regression(C), step_size=1e-3)
    data = (X, X @ WEIGHTS[0, :, 0] if form == "normal" else Y)
    few = {"num_draws": 40, "warmup_steps": 5, "batch_size": 16, "seed": 0, "progress": False}
    return rivals.online_dark_knowledge(kernel, data, X, form=form, **few)


def rival(run: Callable[[], OnePassPredictive]) -> Items:
    fast = run()
    return {"weights": weights(fast), "mean": fast.distribution(NEW).mean}


# Cases -----------------------------------------------------------------------------------------

SHORT = {"num_steps": 40, "batch_size": 16, "seed": 0, "progress": False}
LOSSES: dict[str, Any] = {
    "wasserstein": "wasserstein", "energy": "energy", "likelihood": "likelihood", "endd": "endd",
    "proxy": "proxy", "moments": "moments",
    "cross_entropy": "cross_entropy",
    "wasserstein_direct": partial(WassersteinELBO, residual=False),
    "moments_variance": partial(MomentMatching, "variance"),
}  # fmt: skip
GUIDES = ("dirichlet", "single_head", "point", "mixture", "logistic_normal")
POLICIES: dict[str, Callable[[], transfer.TransferPolicy]] = {
    **{name: getattr(transfer, name) for name in
       ("HeldOut", "Jitter", "Mixup", "Stretch", "Box", "Gaussian", "Shuffle", "Permute")},
    "Mixture": lambda: transfer.Mixture([(0.5, transfer.HeldOut()), (0.5, transfer.Jitter(0.5))]),
    "default": lambda: transfer.default_transfer(X),
}  # fmt: skip
RIVALS: dict[str, Callable[[], OnePassPredictive]] = {
    "compact_approx": lambda: rivals.compact_approx(
        logistic(), X, size=6, pool=12, tries=50, seed=0, progress=False),
    "compact_random": lambda: rivals.compact_approx(
        logistic(), X, size=6, method="random", tries=50, seed=0, progress=False),
    "dark_knowledge": lambda: rivals.dark_knowledge(logistic(), X, **SHORT),
    "dark_knowledge_dirichlet": lambda: rivals.dark_knowledge(
        function, X, form="dirichlet", **SHORT),
    "online_dark_knowledge": lambda: online("point"),
    "online_dark_knowledge_normal": lambda: online("normal"),
    "endd": lambda: rivals.endd(ensemble(), X, **SHORT),
    "proxy_dirichlet": lambda: rivals.proxy_dirichlet(ensemble(), X, **SHORT),
    "prior_network": lambda: rivals.prior_network(function, X, outside=OUTSIDE, y=Y, **SHORT),
    "laplace_bridge_predictive": lambda: rivals.laplace_bridge_predictive(Logits(), X, seed=0),
    "laplace_bridge_of_draws": lambda: rivals.laplace_bridge_predictive(function, X, seed=0),
}  # fmt: skip


def variant(name: str, **changes: Any) -> Items:
    """A student taught otherwise; its report has the loss, if what it started from is kept."""
    made = {k: v() if callable(v) and k in ("loss", "transfer") else v for k, v in changes.items()}
    return kept(taught(name, **made))


def loader() -> DataLoader:
    return DataLoader(TensorDataset(X), batch_size=8, shuffle=True)


def images() -> Items:
    corrupted = transfer.ImageCorruption(image_shape=(1, 8, 8))
    probs = lambda x: (x.flatten(1)[:, ::8] @ drawn(S, 8, C, seed=8)).softmax(-1)  # noqa: E731
    run = partial(pyro_opu.distill, probs, IMAGES, **QUICK)
    return {"default": weights(run()), "corrupted": weights(run(transfer=corrupted))}


def told(classes: int, **options: Any) -> Items:
    """A student that is told its logit, or how far 1,200 of them vary, by default settings."""
    return kept(pyro_opu.distill(logits(classes), X, seed=0, progress=False, **options))


CASES: dict[str, Callable[[], Items]] = {
    **{name: partial(whole, name) for name in POSTERIORS},
    **{f"resumed/{name}": partial(resumed, name) for name in ("function", "mixture", "regression")},
    **{f"ranks/{name}": lambda name=name: {"weights": of_two_ranks()[name]}
       for name in RANKS},
    **{f"loss/{name}": partial(variant, "function", loss=loss, num_steps=80)
       for name, loss in LOSSES.items()},
    **{f"guide/{name}": partial(variant, "function", guide=name) for name in GUIDES},
    **{f"transfer/{name}": partial(variant, "function", transfer=policy)
       for name, policy in POLICIES.items()},
    "told/two_classes": partial(told, 2),
    "told/many_classes": partial(told, 1200, num_steps=20, batch_size=32),
    "transfer/images": images,
    "loader/function": lambda: variant("function", x=loader()),
    "loader/regression": lambda: variant("regression", x=loader()),
    "accumulate": partial(variant, "function", accumulate=2),
    "cold_start": partial(variant, "function", loss="energy", warm_start=False),
    "no_recalibration": partial(variant, "function", recalibrate=False),
    "regression/loss_crps": partial(variant, "regression", loss="crps"),
    "regression/guide_mixture": partial(variant, "regression", guide="mixture"),
    "regression/guide_gaussian": partial(variant, "regression", guide="gaussian"),
    **{f"rivals/{name}": partial(rival, run) for name, run in RIVALS.items()},
    **{f"export/{name}": partial(exported, name, ".pt2")
       for name in ("function", "mixture", "regression")},
    "export/onnx": partial(exported, "function", ".onnx"),
    **{f"capture/{name}": partial(captured, name) for name in ("function", "regression")},
    "uncertainty_of_draws": lambda: {"all": pyro_opu.uncertainty(function(NEW)).to_dict()},
    "arviz": arviz,
    "nuts": nuts,
}  # fmt: skip


if __name__ == "__main__":
    be_a_rank(Path(sys.argv[1]))
