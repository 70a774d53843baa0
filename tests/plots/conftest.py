"""Axes and a backend for tests of plots."""

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure


@pytest.fixture
def ax():
    """Axes of a figure that pyplot does not know; a plot on them must not make another."""
    before = pyplot.get_fignums()
    yield Figure().subplots()
    assert pyplot.get_fignums() == before


@pytest.fixture
def agg():
    """Pyplot without a screen and without figures before and after, for plots that make theirs."""
    before = pyplot.get_backend()
    pyplot.switch_backend("Agg")
    pyplot.close("all")
    yield
    pyplot.close("all")
    pyplot.switch_backend(before)
