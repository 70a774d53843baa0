"""Reliability against the loop, and risk against coverage."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from plotted import labels
from torch.distributions import Dirichlet

from pyro_opu import plots
from pyro_opu.metrics.scores import expected_calibration_error


def test_reliability_equals_the_loop_and_the_ece(ax):
    probs = Dirichlet(torch.tensor([0.5, 1.0, 2.0])).sample((400,))
    y = torch.distributions.Categorical(probs).sample()
    named = {"one": probs, "two": probs.square() / probs.square().sum(-1, True)}
    plots.reliability(named, y, equal_mass=False, ax=ax)
    confidence, predicted = probs.double().max(-1)
    expected = []
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            right = (predicted == y)[inside].double().mean()
            expected.append([float(confidence[inside].mean()), float(right)])
    line = ax.lines[1]
    np.testing.assert_allclose(line.get_xydata(), expected, rtol=1e-12)  # rounding
    ece = expected_calibration_error(probs, y)
    share = (ax.collections[0].get_sizes() - 12) / 150
    gaps = np.abs(np.diff(line.get_xydata(), axis=1)[:, 0])
    assert (share * gaps).sum() == pytest.approx(ece, rel=1e-9)  # rounding
    assert labels(ax.get_legend())[1] == f"one (ECE {ece:.3f})"
    assert ax.lines[1].get_color() != ax.lines[2].get_color()


def test_reliability_by_bins_of_equal_mass_equals_the_loop(ax):
    probs = Dirichlet(torch.tensor([0.5, 1.0, 2.0])).sample((403,))
    y = torch.distributions.Categorical(probs).sample()
    plots.reliability(probs, y, bins=10, ax=ax)
    confidence, predicted = probs.double().max(-1)
    order = confidence.argsort()
    expected, ends, error = [], [], 0.0
    for b in range(10):
        part = order[[i for i in range(403) if i * 10 // 403 == b]]
        right = (predicted == y)[part].double()
        expected.append([float(confidence[part].mean()), float(right.mean())])
        interval = proportion(int(right.sum()), len(part))
        ends.append(interval)
        error += len(part) / 403 * abs(expected[-1][0] - expected[-1][1])
    np.testing.assert_allclose(ax.lines[1].get_xydata(), expected, rtol=1e-12)  # rounding
    drawn = [segment[:, 1] for segment in ax.collections[1].get_segments()]
    np.testing.assert_allclose(drawn, ends, rtol=1e-6, atol=1e-9)  # 1.959964 has seven digits
    assert labels(ax.get_legend())[1] == f"model (ECE {error:.3f})"


def proportion(right: int, count: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    found = binomtest(right, count).proportion_ci(0.95, "wilson")
    return found.low, found.high


def test_reliability_of_one_input(ax):
    plots.reliability(torch.tensor([[0.3, 0.7]]), torch.tensor([1]), bins=4, ax=ax)
    np.testing.assert_allclose(ax.lines[1].get_xydata(), [[0.7, 1.0]], rtol=1e-6)  # float32 input
    assert labels(ax.get_legend())[1] == "model (ECE 0.300)"


def aurc(legend_text: str) -> float:
    return float(re.search(r"AURC (.*)\)", legend_text).group(1))


def test_risk_coverage_equals_the_loop(ax):
    scores = torch.rand(50)
    wrong = torch.rand(50) < 0.3
    plots.risk_coverage({"random": scores}, wrong, ax=ax)
    order = scores.argsort()
    expected = [wrong[order[: n + 1]].double().mean().item() for n in range(50)]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), expected, rtol=1e-12)  # rounding
    np.testing.assert_allclose(ax.lines[0].get_xdata(), np.arange(1, 51) / 50)
    # 0.5 %: three digits in the legend.
    assert aurc(labels(ax.get_legend())[0]) == pytest.approx(np.mean(expected), rel=5e-3)


def test_risk_coverage_of_a_perfect_ranking_is_the_oracle(ax):
    wrong = torch.tensor([False, False, True, False, True])
    plots.risk_coverage({"perfect": torch.tensor([0.1, 0.3, 5.0, 0.2, 4.0])}, wrong, ax=ax)
    perfect, oracle = (line.get_ydata() for line in ax.lines)
    np.testing.assert_allclose(perfect, [0, 0, 0, 1 / 4, 2 / 5])
    np.testing.assert_allclose(oracle, perfect)
    assert [aurc(text) for text in labels(ax.get_legend())] == [0.13, 0.13]


def test_risk_coverage_of_two_classifiers_has_two_oracles(ax):
    scores = {"teacher": torch.rand(4), "student": torch.rand(4).numpy()}
    wrong = {"teacher": torch.tensor([0, 0, 0, 1]).bool(), "student": np.array([0, 0, 1, 1]) > 0}
    plots.risk_coverage(scores, wrong, ax=ax)
    assert [line.get_ydata()[-1] for line in ax.lines] == [0.25, 0.25, 0.5, 0.5]
    assert [re.sub(r" \(.*", "", text) for text in labels(ax.get_legend())] == [
        "teacher",
        "teacher, oracle",
        "student",
        "student, oracle",
    ]
