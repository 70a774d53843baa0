"""``python -m benchmarks.run``: what failed is counted, and quick ones are printed in order."""

from __future__ import annotations

import sys

import pytest

from benchmarks import run

SCRIPT = "import os, sys; print(f'{sys.argv[1:]}'); sys.exit(sys.argv[1] == 'second')"


@pytest.mark.parametrize("options", [[], ["--quick"]])
def test_failures_are_counted(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "NAMES", ("first", "second", "third"))
    monkeypatch.setattr(run, "ALONE", ("first",))
    monkeypatch.setattr(sys, "argv", ["run", *options])
    monkeypatch.setattr(
        run, "command", lambda name: [sys.executable, "-c", SCRIPT, name, *sys.argv[1:]]
    )
    assert run.main() == 1
    printed = capfd.readouterr().out
    order = ["second", "third", "first"] if options else ["first", "second", "third"]
    places = [printed.index(str([name, *options])) for name in order]
    assert places == sorted(places)
    assert "2 of 3 benchmarks ran; failed: ['second']" in printed
