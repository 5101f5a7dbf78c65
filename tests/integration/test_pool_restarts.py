"""A real agent whose Ray dies while it starts: it says so, begins again, and works."""

from __future__ import annotations

import signal

import psutil
import pytest

from tests.support.farm import FarmHarness, arrays, until

pytestmark = pytest.mark.ray


def server_of(agent: int, name: str, but: int = 0) -> psutil.Process | None:
    """That server of Ray's among an agent's descendants."""
    found = [one for one in psutil.Process(agent).children(recursive=True) if _name(one) == name and one.pid != but]
    return found[0] if found else None


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def kill(farm: FarmHarness, name: str, but: int = 0, number: signal.Signals = signal.SIGKILL) -> int:
    """Kill that server of the agent's Ray as soon as there is one, another than `but`; its pid."""
    agent = farm.real["one"].pid
    server = until(lambda: server_of(agent, name, but), f"Ray's {name} to be there")
    server.send_signal(number)
    return server.pid


def test_an_agent_outlives_a_ray_that_dies_while_it_starts(farm: FarmHarness) -> None:
    job, spool = farm.submit(arrays()), farm.folder / "spools" / "one"
    agent = farm.join("one", "--cpus", "1")

    def is_said(name: str) -> bool:
        said = f"Ray's {name} died while Ray started"
        shown = farm.agent_command("status", "--spool", str(spool)).stdout
        return said in shown and said in (spool / "agent.log").read_text()

    for name in ("gcs_server", "raylet"):
        kill(farm, name)
        until(lambda name=name: is_said(name), f"the agent to say so of {name}")  # type: ignore[misc]
    farm.wait(job, seconds=120)
    farm.check_result(job)
    kill(farm, "raylet", number=signal.SIGABRT)  # of which it can say something
    until(lambda: "Ray said: raylet.err: *** SIGABRT" in (spool / "agent.log").read_text(), "Ray's own words for it")
    farm.wait(farm.submit(arrays(seed=1)), seconds=120)
    assert agent.poll() is None
