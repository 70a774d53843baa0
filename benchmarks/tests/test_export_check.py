"""Exported files against the student they were made from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pyro_opu
from benchmarks import (
    export_check,
)


class TestExportCheck:
    def test_differences(self) -> None:
        eager = {"mean": [[0.5, 0.5]], "concentration": [200.0], "total": [0.1], "entropy": [-4.0]}
        found = {"mean": [[0.5, 0.25]], "concentration": [201.0], "total": [0.3], "entropy": [-5.0]}
        arrays = [{name: np.array(value) for name, value in d.items()} for d in (found, eager)]
        result = export_check.differences(*arrays)
        assert result == {
            "mean, largest difference": 0.25,
            "concentration, largest relative difference": pytest.approx(0.005),
            "other outputs": 2,
            "their largest difference, relative above 1": pytest.approx(0.25),
        }

    @pytest.mark.slow
    def test_a_student(self) -> None:
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
        x = torch.randn(40, 6)
        guide = pyro_opu.PredictiveGuide.for_inputs(x, 3, hidden=(8,)).requires_grad_(False)
        fast = pyro_opu.OnePassPredictive(guide.eval(), (6,), 3)
        found = export_check.checked(export_check.Student("noise", fast, x))
        assert list(found) == ["ONNX Runtime", "torch.export", "Time of all rows, one thread"]
        for runtime in ("ONNX Runtime", "torch.export"):
            assert found[runtime]["mean, largest difference"] < 1e-5
            assert found[runtime]["concentration, largest relative difference"] < 1e-4
