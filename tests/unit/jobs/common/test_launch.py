"""Programs that are started to go on by themselves: they work, end with words of their own, or take too long."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from muster.jobs.common import launch
from muster.jobs.common.errors import LinkError, MusterError, SpaceError
from tests.support import disks

LATE = LinkError("it did not start", "wait longer")


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_a_detached_program_that_works_is_left_to_itself(tmp_path: Path) -> None:
    works = tmp_path / "works"
    text = f"import pathlib, time; print('said'); pathlib.Path({str(works)!r}).touch(); time.sleep(600)"
    pid, code = launch.detach(program(text), tmp_path / "words", lambda pid: works.exists(), LATE)
    try:
        assert code is None
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_the_words_of_one_that_ends_are_shown_with_its_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "import sys; print('out'); sys.exit('no root')"
    _, code = launch.detach(program(text), tmp_path / "words", lambda pid: False, LATE)
    assert code == 1
    assert sorted(capfd.readouterr().err.split("\n")) == ["", "no root", "out"]


def test_one_that_ends_without_a_word_is_told(tmp_path: Path) -> None:
    with pytest.raises(MusterError, match="ended with signal 9 and no word"):
        text = "import os; os.kill(os.getpid(), 9)"
        launch.detach(program(text), tmp_path / "words", lambda pid: False, LATE)


@pytest.mark.root
def test_a_full_disk_is_told_before_anything_starts(tmp_path: Path) -> None:
    disks.require("mount")
    with disks.small(tmp_path / "disk", 1) as disk:
        with pytest.raises(OSError, match="No space"), (disk / "rest").open("wb") as rest:
            while True:
                rest.write(bytes(4096))
                rest.flush()
        with pytest.raises(SpaceError, match="words"):
            launch.detach(program("print('here')"), disk / "words", lambda pid: False, LATE)


def test_one_that_takes_too_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "START_SECONDS", 0.2)
    seen: list[int] = []

    def works(pid: int) -> bool:
        seen.append(pid)
        return False

    with pytest.raises(LinkError, match="did not start"):
        launch.detach(program("import time; time.sleep(600)"), tmp_path / "words", works, LATE)
    os.kill(seen[0], signal.SIGKILL)
    os.waitpid(seen[0], 0)
