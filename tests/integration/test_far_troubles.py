"""Agents at work behind a real sshd when something goes wrong there for longer: they say what, keep their work, and go
on by themselves once it is put right. Pauses are shorter than a user's: they are patched from outside.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from muster.coordinator.protocol.control import Greeting
from muster.coordinator.protocol.frames import frame
from muster.coordinator.protocol.values import PROTOCOL, encode
from tests.integration.test_remote import Remote
from tests.support import disks, sshd
from tests.support.farm import Array, FarmHarness, running, until
from tests.support.proxy import Proxy
from tests.support.sshd import Sshd

LEASE_SECONDS = 3.0
MIB = 1 << 20
# What a test waits for instead of a user's minutes; the second half is for a link on which nothing moves any more.
PATCHED = """
import sys
sys.path[:] = [p for p in sys.path if p]
from muster.agent.channels import base as bulk, control
from muster.agent.links import base as channel; from muster.agent.links.paramiko_ssh import connection
control.VERSION_PAUSE_SECONDS = control.ACCESS_PAUSE_SECONDS = 0.5
control.ANSWER_SECONDS = bulk.ANSWER_SECONDS = 2.0
channel.PACE_SECONDS = 2.0
channel.SEND_SECONDS = connection.OPEN_SECONDS = 2.0
from muster.agent.cli import main
sys.exit(main())
"""
WIDE = """
import time
import numpy as np

def wide(rows):
    time.sleep(0.1)
    return np.repeat(rows, 1 << 16, axis=1)
"""
NAPPING = "import time\ndef nap(rows):\n    time.sleep(0.25)\n    return {'twice': rows * 2}\n"


class Hasty(Remote):
    """A real agent, its pauses short."""

    def join(self, *args: str) -> Hasty:
        self.spool.mkdir(parents=True, exist_ok=True)
        options = ["--name", self.name, "--spool", str(self.spool), "--cpus", "1", "--ssh-config", str(self._config)]
        where = f"{sshd.HOST}:{self.farm.root.path}"
        command = [sys.executable, "-c", PATCHED, "join", where, *options, *args]
        self.process = self.farm.real[self.name] = self.farm.run(command, f"agent-{self.name}.out")
        return self

    def said(self) -> str:
        return (self.farm.folder / f"agent-{self.name}.out").read_text(errors="replace")

    def parts(self) -> list[Path]:
        return list((self.spool / "done").rglob("*.part"))

    def computed(self) -> int:
        return int(self.state.get("done", 0))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    """Its own for each test: what is done to it stays done."""
    penalties = "PerSourcePenalties no"
    with sshd.running(tmp_path / "sshd", *([penalties] if sshd.knows(penalties) else [])) as daemon:
        yield daemon


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FarmHarness]:
    with running(tmp_path / "farm", lease=LEASE_SECONDS) as made:
        yield made


@pytest.fixture
def proxy(server: Sshd) -> Iterator[Proxy]:
    made = Proxy(server.port)
    yield made
    made.close()


def naps(farm: FarmHarness, count: int = 24) -> str:
    """A job of small shards that is under way for a while."""
    return farm.submit(rows(count, 64), 1, work=NAPPING, kind="map", code="work.py:nap", name="map")


def rows(count: int, width: int) -> dict[str, Array]:
    return {"x": np.arange(count * width, dtype="f4").reshape(count, width)}


def finish(farm: FarmHarness, far: Hasty, job: str) -> None:
    """To its end, each shard computed once."""
    farm.wait(job)
    farm.check_result(job)
    assert far.process.poll() is None, far.said()


def test_an_agent_whose_key_is_taken_away_works_on_and_comes_back_with_it(
    farm: FarmHarness, server: Sshd, proxy: Proxy
) -> None:
    far = Hasty(farm, server, proxy=proxy).join()
    job = naps(farm)
    until(lambda: far.computed() > 5 and far.parts(), "some of it to be done and not pushed yet")
    server.forbid_all()
    before = far.computed()
    proxy.reset()
    until(lambda: "does not let" in far.said(), "it to say why there is no link")
    assert "authorized_keys" in far.said() and "trying again" in far.said()
    until(lambda: far.computed() > before, "it to compute what it has")
    kept = len(far.parts())
    tried = len(proxy.seen)
    until(lambda: len(proxy.seen) > tried + 2, "it to try again")
    assert far.said().count("no link: ") == 1, "it says so once"
    assert far.process.poll() is None
    assert len(far.parts()) >= kept, "finished work was given up"
    server.authorize(server.key)
    finish(farm, far, job)
    assert far.leave() == 0, far.said()


def test_a_key_that_never_let_in_is_the_end(farm: FarmHarness, server: Sshd) -> None:
    server.forbid_all()
    far = Hasty(farm, server).join()
    assert far.process.wait(30) == 14
    assert far.said().count("error: ") == 1 and far.said().count("hint: ") == 1
    assert "trying again" not in far.said()


@pytest.mark.parametrize(("there", "older"), [(PROTOCOL + 1, "this machine"), (PROTOCOL - 1, "the coordinator's")])
def test_a_coordinator_of_another_protocol_is_asked_again_until_it_is_upgraded(
    farm: FarmHarness, server: Sshd, proxy: Proxy, tmp_path: Path, there: int, older: str
) -> None:
    """In the middle of its work: it says which side is to be upgraded, and keeps what it has finished."""
    switch, asked = tmp_path / "upgraded", tmp_path / "asked"
    program = other_version(tmp_path / "program", farm, there, switch, asked)
    switch.touch()
    far = Hasty(farm, server, proxy=proxy).join("--command", str(program))
    job = naps(farm)
    until(lambda: far.computed() > 5 and far.parts(), "some of it to be done and not pushed yet")
    switch.unlink()
    proxy.reset()
    until(lambda: f"upgrade muster on {older}" in far.said(), "it to name the side to upgrade")
    until(lambda: asked.exists() and asked.stat().st_size > 3, "it to ask again")
    kept = {path.name for path in far.parts()}
    assert far.process.poll() is None
    assert kept <= {path.name for path in far.parts()}
    switch.touch()
    finish(farm, far, job)
    assert far.said().count("no link: ") == 1, "it says so once"


def other_version(path: Path, farm: FarmHarness, protocol: int, switch: Path, asked: Path) -> Path:
    """A `coordinator` of another version, until `switch` is there; each control channel adds a byte to `asked`."""
    greeting = frame(encode(Greeting(protocol, "9.9", farm.root.farm)))
    path.with_suffix(".greeting").write_bytes(greeting)
    path.write_text(
        f'#!/bin/sh\n[ -e {switch} ] && exec {shlex.quote(str(farm.root.launcher))} "$@"\n'
        f"printf . >>{asked}\ncat {path.with_suffix('.greeting')}\nexec cat >/dev/null\n"
    )
    path.chmod(0o755)
    return path


def test_an_agent_of_another_protocol_is_told_which_side_to_upgrade(farm: FarmHarness, server: Sshd) -> None:
    """The other way round: an agent that does not look at the greeting."""
    import msgspec

    from muster.agent.links.base import greet
    from muster.coordinator.protocol.control import Rejected, ToAgent
    from muster.coordinator.protocol.values import Decoder
    from muster.jobs.common.locations import Host
    from tests.integration.test_ssh import hello, linked, opened

    host = Host(sshd.HOST, root=str(farm.root.path))
    for spoken, side in ((PROTOCOL + 1, "coordinator"), (PROTOCOL - 1, "agent")):
        with linked(server, "paramiko", host) as link, opened(link) as channel:
            greet(channel)
            channel.say(msgspec.structs.replace(hello("old"), protocol=spoken))
            answer = channel.hear(Decoder(ToAgent), 20.0)
        assert isinstance(answer, Rejected) and answer.code == "protocol"
        assert f"upgrade muster on the {side}'s machine" in answer.hint
    assert farm.agent_status("old") is None


def test_a_connection_that_is_half_open_is_given_up_by_the_agent_itself(
    farm: FarmHarness, server: Sshd, proxy: Proxy
) -> None:
    """Nothing moves on it and nobody is told; a new one is good."""
    far = Hasty(farm, server, proxy=proxy).join()
    job = naps(farm)
    until(lambda: far.computed() > 5 and far.parts(), "some of it to be done and not pushed yet")
    assert proxy.freeze()
    finish(farm, far, job)
    assert len(proxy.seen) > 1


def test_a_connection_that_trickles_is_given_up(farm: FarmHarness, server: Sshd, proxy: Proxy) -> None:
    """A byte a second, each in time; and an input of 4 MiB would take weeks."""
    far = Hasty(farm, server, proxy=proxy).join()
    until(far.is_at_work, "the agent to work")
    before, proxy.rate = proxy.moved, 2.0 * MIB
    job = farm.submit(rows(4, MIB), 1)
    until(lambda: proxy.moved - before > MIB, "an input to come")
    assert proxy.trickle(1.0)
    proxy.rate = None
    finish(farm, far, job)
    assert len(proxy.seen) > 1


def test_a_full_disk_of_the_server_is_said_and_waited_for(server: Sshd, tmp_path: Path) -> None:
    disks.require("mount")
    outputs = {"out": {"dtype": "float32", "shape": [1 << 16]}}
    with disks.small(tmp_path / "farm" / "root", 100) as disk, running(tmp_path / "farm") as farm:
        far = Hasty(farm, server).join()
        params = {"outputs": outputs}
        job = farm.submit({"x": np.arange(64, dtype="f4").reshape(64, 1)}, 2, WIDE, kind="map", code="work.py:wide",
                          params=params)  # fmt: skip
        until(lambda: farm.status(job).totals.committed, f"a shard to be committed: {far.said()}")
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        until(lambda: "are left" in far.said() or "No space" in far.said(), "the agent to say why")
        until(far.parts, "results that are kept meanwhile")
        until(lambda: "left" in farm.coordinator("agents").stdout or "No space" in farm.coordinator("agents").stdout,
              "`agents` to say it too")  # fmt: skip
        ballast.unlink()
        finish(farm, far, job)
        assert farm.status(job).failures == 0
