"""Where nobody watches, a bar is a line of a log now and then, and not seven in a second."""

from __future__ import annotations

import sys
import time

import pytest

from muster.coordinator.client import bars


def drawn(capsys: pytest.CaptureFixture[str]) -> int:
    with bars.bar(True, desc="features.1", total=200) as bar:
        for _ in range(40):
            time.sleep(0.01)
            bar.set_postfix_str("still", refresh=bars.is_watched())
            bar.update(5)
    return capsys.readouterr().err.count("features.1")


def test_a_bar_in_a_file_is_drawn_seldom(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # other tests may have loaded it
    assert not bars.is_watched() and drawn(capsys) <= 3


def test_a_bar_on_a_terminal_moves(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "is_watched", lambda: True)
    assert drawn(capsys) > 10


def test_no_progress_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with bars.bar(False, total=3) as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""
