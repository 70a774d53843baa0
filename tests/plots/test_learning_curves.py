"""Training curves: steps that count on, and the star at what was kept."""

from __future__ import annotations

import torch
from flat import distill_flat
from matplotlib import pyplot
from matplotlib.figure import Figure
from plotted import held_teacher, record

from pyro_opu import plots


def test_training_curves_count_steps_on_and_mark_what_was_kept():
    history = [
        record("start", 0, 1.0),
        record("warm start", 10, 0.2, moments=0.5),
        record("warm start", 15, 0.1, moments=0.4),
        record("objective", 5, 0.05, wasserstein=-0.1),
        record("objective", 10, 0.06, wasserstein=-0.2),
    ]
    above, below = plots.training_curves(
        {"history": history, "kept": "refinement kept: 0.1 -> 0.05"}, axes=Figure().subplots(2)
    )
    energy, kl, star = above.lines
    assert list(energy.get_xdata()) == [0, 10, 15, 20, 25]
    assert list(energy.get_ydata()) == [1.0, 0.2, 0.1, 0.05, 0.06]
    assert list(kl.get_ydata()) == [value / 2 for value in energy.get_ydata()]
    assert list(star.get_xydata()[0]) == [20, 0.05]
    moments, wasserstein = below.lines
    assert moments.get_xydata().tolist() == [[10, 0.5], [15, 0.4]]
    assert wasserstein.get_xydata().tolist() == [[20, -0.1], [25, -0.2]]
    (shade,) = above.patches
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (15, 25)
    assert above.get_yscale() == "log" and above.get_title() == "refinement kept\n0.1 -> 0.05"
    history.append(record("objective", 15, -1e-5, wasserstein=0.0))
    above, _ = plots.training_curves({"history": history}, axes=Figure().subplots(2))
    assert above.get_yscale() == "symlog" and above.lines[2].get_xydata()[0, 0] == 30
    history[3]["kept"] = history[4]["kept"] = True  # level, and the last of them is kept
    above, _ = plots.training_curves({"history": history}, axes=Figure().subplots(2))
    assert above.lines[2].get_xydata().tolist() == [[25, 0.06]]


def test_training_curves_of_a_distillation(agg):
    settings = {"num_steps": 20, "evaluate_every": 5, "seed": 0, "progress": False}
    # So slow a warm start leaves something to refine.
    fast = distill_flat(held_teacher, torch.randn(40, 2), learning_rate=1e-5, **settings)
    above, below = plots.training_curves(fast)
    assert above.lines[0].get_xdata()[-1] == fast.report["history"][-1]["step"]
    energies = [entry["energy_distance"] for entry in fast.report["history"]]
    assert above.lines[2].get_ydata()[0] == fast.report["energy_distance"] == min(energies)
    assert len(pyplot.get_fignums()) == 1 and above.figure is below.figure
