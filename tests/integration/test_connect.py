"""`coordinator connect` as a process: it says who it is first, why it goes last, and believes nothing it is sent."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from muster import VERSION
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.protocol import control, transfer, values
from muster.coordinator.protocol.frames import AGENT_LIMIT, FRAME_LIMIT, HEAD, MAGIC, FrameReader, frame
from muster.jobs.parts.part_file import Index, decode_index, encode_index
from tests.support.farm import FarmHarness, arrays, running, until
from tests.support.processes import peak_bytes
from tests.support.simulated import Cut, Helper, SimulatedAgent

ROLES = ("control", "push")
TYPES = {"control": control.ToAgent, "push": transfer.ToPusher}
MEMORY_BYTES = 200 << 20  # a helper's peak, whatever it is sent
# The kernel counts what the process that started one took to its own peak, so a small one has to start it.
WATCHED = """
import os, sys
_, status, usage = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)
print(usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""
SAID = values.Decoder(control.Greeting | control.Bye | control.Rejected | transfer.Refused)

NOISE = {
    "half a head": b"mus",
    "a banner": b"Welcome to Debian\r\n" * 4,
    "a length above the limit": HEAD.pack(MAGIC, FRAME_LIMIT + 1),
    "the longest length": HEAD.pack(MAGIC, 0xFFFFFFFF) + b"x" * 100,
    "half a payload": HEAD.pack(MAGIC, 1000) + b"x" * 999,
    "no msgpack": frame(b"\xc1" * 100),
    "no message": frame(b"\x81\xa1t\xa5bogus"),
    "an empty payload": frame(b""),
    "nested without end": frame(b"\x91" * 1_000_000),
    "a long message of noise": frame(np.random.default_rng(0).bytes(FRAME_LIMIT)),
    "a helper's own message": frame(values.encode(transfer.Stored(1, 1))),
    "a command's message": frame(msgspec.msgpack.encode({"t": "stop"})),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("connect")) as farm:
        yield farm


@pytest.fixture
def offered(served: FarmHarness) -> Iterator[SimulatedAgent]:
    """An agent with a session and one finished part that it has not pushed."""
    served.submit(arrays())
    agent = served.agent()
    agent.join()
    until(lambda: agent.sync(wait=0.05) and agent.compute(), "a finished shard")
    agent.sync(hungry=False)
    yield agent
    agent.work(lambda: all(job.state == "complete" for job in served.jobs()))
    agent.die()
    served.agents.remove(agent)


def connect(root: roots.Root, role: str, *args: str) -> list[str]:
    return [*roots.command("connect", root.path), "--role", role, *args]


def talk(farm: FarmHarness, role: str, raw: bytes) -> tuple[int, list[values.Message], int]:
    """What a helper answers to these bytes and the end of its stdin: exit code, messages, peak memory."""
    watched = [sys.executable, "-c", WATCHED, *connect(farm.root, role)]
    done = subprocess.run(watched, input=raw, capture_output=True, env=farm.environment(), check=False)
    said = [SAID(payload) for payload in FrameReader().feed(done.stdout)]
    return done.returncode, said, int(done.stderr) * 1024


@pytest.mark.parametrize("role", ROLES)
def test_the_first_frame_says_who_is_there(served: FarmHarness, role: str) -> None:
    helper = Helper(served.root, role, TYPES[role], served.environment())
    assert helper.greeting == control.Greeting(values.PROTOCOL, VERSION, served.root.farm, AGENT_LIMIT, True)
    assert helper.close() == 0


def test_how_to_name_the_launcher_is_said_at_the_start(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        assert f"--command {farm.root.launcher}" in farm.said()
        assert farm.root.launcher.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("role", ROLES)
def test_without_a_coordinator_it_says_so(tmp_path: Path, role: str) -> None:
    root = roots.prepare(tmp_path / "root")
    done = subprocess.run(connect(root, role), input=b"", capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [SAID(payload) for payload in FrameReader().feed(done.stdout)] == [
        control.Greeting(values.PROTOCOL, VERSION, root.farm, AGENT_LIMIT, True),
        control.Bye("no coordinator serves this root now"),
    ]


def test_a_role_that_is_none_is_a_usage_error(served: FarmHarness) -> None:
    done = subprocess.run(connect(served.root, "root"), input=b"", capture_output=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith(b"error: --role is 'root'\nhint: ")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", NOISE)
def test_noise_ends_the_channel_with_a_reason(served: FarmHarness, role: str, name: str) -> None:
    code, said, peak = talk(served, role, NOISE[name])
    assert code == 0
    assert isinstance(said[0], control.Greeting)
    assert isinstance(said[-1], control.Bye | control.Rejected) and len(said) == 2, said
    assert peak < MEMORY_BYTES
    assert served.daemon is not None and served.daemon.poll() is None
    assert served.jobs() is not None


def test_a_daemon_that_dies_is_told_at_once(tmp_path: Path) -> None:
    """On idle channels too, before the agent says anything more."""
    with running(tmp_path) as farm:
        agent = farm.agent()
        agent.join()
        helpers = [agent.control, agent.push_link]
        assert isinstance(
            agent.push_link.ask(transfer.Offer(1, "0" * 32, [], [], b"", 0)), transfer.Refused
        )  # so it is attached
        farm.kill()
        for helper in helpers:
            with pytest.raises(Cut, match="went away"):
                helper.receive()
            assert helper.close() == 0


def test_a_daemon_that_dies_within_a_body_is_told_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as farm:
        farm.submit(arrays())
        agent = farm.agent()
        agent.join()
        until(lambda: agent.sync(wait=0.05) and agent.compute(), "a finished shard")
        bundle = agent.bundle_of(agent.parts[0])
        assert isinstance(agent.push_link.ask(agent.offer_of(bundle)), transfer.Accepted)
        agent.push_link.send(b"\0" * (bundle.nbytes // 2))
        farm.kill()
        with pytest.raises(Cut, match="went away"):
            agent.push_link.receive()
        assert list(farm.root.tmp.glob("*/push-*")) == []


@pytest.mark.parametrize("role", ROLES)
def test_an_agent_that_dies_leaves_no_helper(served: FarmHarness, role: str) -> None:
    helper = Helper(served.root, role, TYPES[role], served.environment())
    helper.process.send_signal(signal.SIGSTOP)  # it is in no hurry
    helper.process.send_signal(signal.SIGCONT)
    assert helper.close() == 0
    until(lambda: helper.pid not in served.processes("connect"), "the helper to be gone")


# --- bundles that are not what they say ---------------------------------------------------------------------


def change(agent: SimulatedAgent, **fields: Any) -> transfer.Offer:
    offer = agent.offer_of(agent.bundle_of(agent.parts[0]))
    return msgspec.structs.replace(offer, **fields)


def with_index(agent: SimulatedAgent, **fields: Any) -> transfer.Offer:
    """The offer of an index with these fields changed, its header changed alike."""
    index: Index = msgspec.structs.replace(agent.bundle_of(agent.parts[0]).index, **fields)
    return change(agent, index=encode_index(index), outputs=list(index.outputs), layer=index.layer)


def with_entry(agent: SimulatedAgent, **fields: Any) -> transfer.Offer:
    first, *rest = agent.bundle_of(agent.parts[0]).index.entries
    return with_index(agent, entries=(msgspec.structs.replace(first, **fields), *rest))


def renamed(agent: SimulatedAgent, name: str) -> transfer.Offer:
    first, *rest = agent.parts[0].index.outputs
    return with_index(agent, outputs=(msgspec.structs.replace(first, name=name), *rest))


LIES: dict[str, tuple[str, Callable[[SimulatedAgent], transfer.Offer]]] = {
    "no index": ("corrupt", lambda agent: change(agent, index=b"")),
    "noise for an index": ("corrupt", lambda agent: change(agent, index=b"\xdd\xff\xff\xff\xff" * 9)),
    "a longer body than the index says": ("corrupt", lambda agent: change(agent, nbytes=1 << 52)),
    "an index of another farm": ("corrupt", lambda agent: with_index(agent, farm="f" * 32)),
    "other numbers than the index": ("corrupt", lambda agent: change(agent, numbers=[(3, 5)])),
    "numbers without end": ("corrupt", lambda agent: change(agent, numbers=[(0, 1 << 53)] * 65_536)),
    "numbers out of order": ("corrupt", lambda agent: change(agent, numbers=[(5, 0), (0, 6)])),
    "rows the plan does not have": ("corrupt", lambda agent: with_entry(agent, rows=7)),
    "a path for an output's name": ("corrupt", lambda agent: renamed(agent, "../../../etc/passwd")),
    "the manifest's name for an output": ("corrupt", lambda agent: renamed(agent, "manifest")),
    "an output nobody declared": ("outputs", lambda agent: renamed(agent, "other")),
    "a layer nobody knows": ("gone", lambda agent: with_index(agent, layer="f" * 32)),
    "a session of nobody": ("no-session", lambda agent: change(agent, session=1)),
}


@pytest.mark.parametrize("name", LIES)
def test_a_header_that_lies_is_refused_before_its_body(offered: SimulatedAgent, name: str) -> None:
    code, lie = LIES[name]
    before = disk(offered)
    answer = offered.push_link.ask(lie(offered))
    assert isinstance(answer, transfer.Refused) and answer.code == code, answer
    assert disk(offered) == before
    assert peak_bytes(offered.push_link.pid) < MEMORY_BYTES
    assert isinstance(offered.push(offered.parts[0]), transfer.Settled), "the channel does not go on"


def test_a_shard_beyond_the_layer_is_refused(offered: SimulatedAgent) -> None:
    index = offered.bundle_of(offered.parts[0]).index
    moved = encode_index(
        msgspec.structs.replace(index, entries=(msgspec.structs.replace(index.entries[0], number=1 << 52),))
    )
    assert decode_index(moved).entries[0].number == 1 << 52
    answer = offered.push_link.ask(change(offered, index=moved, numbers=[(1 << 52, (1 << 52) + 1)]))
    assert isinstance(answer, transfer.Refused) and answer.code == "corrupt"


@pytest.mark.parametrize("at", [0, -1])
def test_a_body_with_a_wrong_bit_is_refused_and_the_channel_goes_on(offered: SimulatedAgent, at: int) -> None:
    before = disk(offered)
    bundle = offered.bundle_of(offered.parts[0])
    body = bytearray()
    bundle.write_body(body.extend)
    body[at] ^= 1
    assert isinstance(offered.push_link.ask(offered.offer_of(bundle)), transfer.Accepted)
    offered.push_link.send(bytes(body))
    answer = offered.push_link.receive()
    assert isinstance(answer, transfer.Refused) and answer.code == "corrupt" and "shard" in answer.message
    assert disk(offered) == before
    assert isinstance(offered.push(offered.parts[0]), transfer.Settled)


def test_a_body_that_is_cut_short_leaves_nothing(offered: SimulatedAgent) -> None:
    before = disk(offered)
    bundle = offered.bundle_of(offered.parts[0])
    assert isinstance(offered.push_link.ask(offered.offer_of(bundle)), transfer.Accepted)
    offered.push_link.send(b"\0" * (bundle.nbytes - 1))
    assert offered.push_link.close() == 0
    offered.hang_up()
    until(lambda: disk(offered) == before, "the half bundle to go")


def test_a_lost_acknowledgement_ends_well(offered: SimulatedAgent, served: FarmHarness) -> None:
    part = offered.parts[0]
    offered.push(part, lose_reply=True)
    assert part in offered.parts
    answer = offered.push(part)
    assert isinstance(answer, transfer.Refused) and answer.code == "committed"
    assert part not in offered.parts
    assert offered.acknowledged[part.index.layer].pairs() == answer.numbers


def disk(agent: SimulatedAgent) -> list[str]:
    """Bundles, committed or half there."""
    found = [*agent.root.tmp.glob("*/push-*"), *agent.root.jobs.glob("*/bundles/*")]
    return sorted(str(path) for path in found)


def test_a_bundle_that_comes_with_its_header_has_one_answer_and_leaves_the_channel_clean(farm: FarmHarness) -> None:
    job = farm.submit(arrays(), shard_rows=8)
    agent = farm.agent()
    agent.join()
    agent.sync()
    agent.compute()
    part = agent.parts[0]
    bundle = agent.bundle_of(part)
    offer = msgspec.structs.replace(agent.offer_of(bundle), eager=True)
    for answer in (transfer.Settled, transfer.Refused):
        agent.push_link.send(frame(values.encode(offer)))
        bundle.write_body(agent.push_link.send)
        assert isinstance(agent.push_link.receive(), answer)
    agent.push_link.send(frame(values.encode(msgspec.structs.replace(offer, index=b"nonsense"))))
    bundle.write_body(agent.push_link.send)
    assert agent.push_link.receive().code == "corrupt"
    agent.parts.clear()
    agent.work(lambda: farm.status(job).state == "complete")
    farm.check_result(job)
