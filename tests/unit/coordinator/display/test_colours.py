"""Colours of states: where they are, that they are worth no column, and that nobody else's text brings any."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from muster import VERSION
from muster.coordinator.api import requests, status
from muster.coordinator.display import agents, colours, jobs
from muster.coordinator.display.colours import Painted
from muster.coordinator.display.tables import table
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common import launch
from muster.jobs.contract.states import JobState
from tests.unit.coordinator.commands.test_commands import FixedDaemon

SGR = re.compile(r"\x1b\[\d+m")
STATES: tuple[JobState, ...] = ("waiting", "running", "halted", "complete")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def job(state: JobState, why: str = "") -> status.JobStatus:
    return status.JobStatus(f"{state}.1", "map", state, why, 1, 0.0, 0.0, None, status.Tally(shards=3, committed=1), 0)


def test_colours_take_no_column_of_a_table() -> None:
    listed = [job(state) for state in STATES]
    text = jobs.jobs_table(listed, 1.0)
    coloured = colours.shown(text, Terminal())
    assert len(SGR.findall(coloured)) == 2 * len(STATES)
    assert SGR.sub("", coloured) == text == colours.shown(text, io.StringIO())
    assert len({line.index("map") for line in text.splitlines()[1:]}) == 1
    rows = [("a", colours.state("live"), "1"), ("long", colours.state("left"), "")]
    right = table(("X", "STATE", "Y"), rows, " rr")
    assert right == "X     STATE  Y\na      live  1\nlong   left" and isinstance(right, Painted)
    assert SGR.sub("", right.coloured) == right


def test_a_silent_machine_is_no_live_one() -> None:
    made = [status.AgentStatus(name, "host", "live", 100.0, 1, 0, 0, 0, silent=silent) for name, silent in
            (("one", 0.0), ("two", 9.0))]  # fmt: skip
    text = agents.agents_table(made, 100.0)
    assert isinstance(text, Painted)
    assert f"{colours.GREEN}live{colours.PLAIN}" in text.coloured
    assert f"{colours.YELLOW}silent for 9 s{colours.PLAIN}" in text.coloured


def test_what_others_wrote_brings_no_colours() -> None:
    for why in ("\x1b[31mred\x1b[0m", "\x1b]0;title\x07"):
        shown = colours.shown(jobs.job_page(job("halted", why), 1.0), Terminal())
        assert set(SGR.findall(shown)) == {colours.RED, colours.PLAIN} and len(SGR.findall(shown)) == 2
        assert shown.count("\x1b") == 2 and "\x07" not in shown
    assert "\x1b" not in colours.shown("\x1b[31mred", Terminal())


@pytest.mark.parametrize(
    ("said", "at_terminal", "wanted"),
    [
        ({}, True, True), ({}, False, False), ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False), ({"NO_COLOR": ""}, True, True), ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
    ],
)  # fmt: skip
def test_the_user_says_whether_there_are_any(
    said: Mapping[str, str], at_terminal: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert colours.are_wanted(Terminal() if at_terminal else io.StringIO()) is wanted


def at_terminal(command: list[str], env: Mapping[str, str]) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env={**os.environ, **env}, stdout=theirs, stdin=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 4096):
                said += piece
        except OSError:  # as a terminal's end is told
            pass
        assert process.wait() == 0
    os.close(ours)
    return said.decode()


def test_a_command_has_them_at_a_terminal_alone(tmp_path: Path) -> None:
    root = roots.prepare(tmp_path / "farm")
    daemon = FixedDaemon(root)
    try:
        daemon.answers[requests.StatusAsk] = status.Status(1.0, VERSION, 1, [job("halted")])
        command = launch.python("muster.coordinator.cli", "status", "--root", str(root.path))
        assert f"{colours.RED}halted{colours.PLAIN}" in at_terminal(command, {})
        assert "\x1b[3" not in at_terminal(command, {"NO_COLOR": "1"})
        assert "\x1b[3" not in at_terminal([*command, "--json"], {"FORCE_COLOR": "1"})
        piped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "halted" in piped and "\x1b" not in piped
    finally:
        daemon.close()
