"""The log: what is shown of peers that cause many lines, and the file that rotates."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.jobs.common import logs
from muster.jobs.common.logs import PEER_LINES, LinesPerPeer


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield logging.getLogger("muster.test")
    logs.close_log()
    root.handlers[:], root.level = handlers, level


def test_of_one_peer_only_so_many_lines_are_shown_and_then_how_many_more() -> None:
    lines = LinesPerPeer()
    assert sum(lines.may("loud", 1.0) for _ in range(1234 + PEER_LINES)) == PEER_LINES
    assert lines.may("calm", 2.0) and lines.may("", 2.0)
    assert lines.ended(60.9) == []
    assert lines.ended(61.0) == ["… and 1,234 more from loud in the last minute"]
    assert lines.may("loud", 61.0) and lines.ended(200.0) == []


def test_the_file_has_every_line_and_stderr_what_is_bounded(
    tmp_path: Path, log: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("muster.jobs.common.logs.time.monotonic", lambda: now)
    logs.open_log(tmp_path / "x.log", for_people=True)
    token = logs.PEER.set("loud")
    for number in range(PEER_LINES + 5):
        log.warning("line %d", number)
    logs.PEER.reset(token)
    now = logs.MINUTE_SECONDS
    log.info("later")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == PEER_LINES + 2
    assert said[-2].endswith("… and 5 more from loud in the last minute") and said[-1].endswith("later")
    assert len((tmp_path / "x.log").read_text().splitlines()) == PEER_LINES + 6
    assert (tmp_path / "x.log").stat().st_mode & 0o777 == 0o600


def test_the_file_is_bounded(tmp_path: Path, log: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES", 2_000)
    logs.open_log(tmp_path / "x.log")
    for _ in range(400):
        log.info("x" * 50)
    kept = sorted(path for path in tmp_path.iterdir() if path.name.startswith("x.log"))
    assert len(kept) == 1 + logs.LOG_FILES and all(path.stat().st_size < 2_200 for path in kept)


WRITER = """
import logging, sys
from pathlib import Path
from muster.jobs.common import logs
logs.LOG_BYTES = int(sys.argv[3])
logs.open_log(Path(sys.argv[1]))
for number in range(int(sys.argv[4])):
    logging.getLogger("muster.test").info("%s says %d", sys.argv[2], number)
"""


def test_processes_that_write_one_log_at_once_lose_no_line_where_it_rotates(tmp_path: Path) -> None:
    names, lines, size = ("daemon", "helper", "driver"), 100, 8_000
    command = [sys.executable, "-c", WRITER, str(tmp_path / "x.log")]
    writers = [subprocess.Popen([*command, name, str(size), str(lines)]) for name in names]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    files = [path for path in tmp_path.iterdir() if path.name.startswith("x.log")]
    said = [line.partition(": ")[2] for path in files for line in path.read_text().splitlines()]
    assert len(files) > 2 and sorted(said) == sorted(f"{name} says {n}" for name in names for n in range(lines))
