"""The pictures of times: points, since a logarithmic axis has no zero for a bar to begin at."""

from __future__ import annotations

from matplotlib.figure import Figure

from benchmarks import main_job_picture, speed_picture


def test_times_of_the_main_job_are_points_where_they_belong() -> None:
    axes = Figure().subplots()
    main_job_picture.points(axes, {"one pass": 0.004, "Predictive": 0.2}, 497)
    assert axes.get_xscale() == "log" and not axes.patches
    assert [tuple(line.get_xydata()[0]) for line in axes.lines] == [(4.0, 0.0), (200.0, 1.0)]
    assert [line.get_marker() for line in axes.lines] == ["o", "o"]
    assert [text.get_text() for text in axes.texts] == ["4 ms", "200 ms"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one pass", "Predictive"]
    assert axes.get_title() == "50 times faster"
    low, high = axes.get_xlim()
    assert low < 4.0 and high > 200.0


def test_sweeps_are_points_on_logarithmic_axes() -> None:
    rows = [
        {"model": "m-10", "C": 10, "N": n, "way": "one pass", "ms": 2.0 * n}
        | {"draws": 5, "draws timed": 5}
        for n in (1, 100)
    ]
    axes = Figure().subplots()
    speed_picture.one_panel(axes, "N", rows)
    assert axes.get_xscale() == axes.get_yscale() == "log" and not axes.patches
    line, marks = axes.lines
    assert line.get_marker() == marks.get_marker() == "o"
    assert marks.get_xydata().tolist() == [[1.0, 2.0], [100.0, 200.0]]
