"""Peers of a real daemon that take more than their share: what they lose is their own."""

from __future__ import annotations

import resource
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.protocol import transfer, values
from muster.coordinator.protocol.frames import FrameReader, frame
from muster.jobs.workbench.fingerprint import fingerprint
from tests.support.farm import FarmHarness, arrays, running, until

DESCRIPTORS = 192


class Peer:
    """What a helper says to the daemon."""

    def __init__(self, farm: FarmHarness, role: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        with roots.address(farm.root.socket) as where:
            self.socket.connect(where)
        self._reader = FrameReader()
        if role:
            self.say(transfer.Attach(role))

    def close(self) -> None:
        self.socket.close()

    def say(self, message: values.Message) -> None:
        self.socket.sendall(frame(values.encode(message)))

    def ask(self, message: values.Message) -> Any:
        self.say(message)
        return self.hear()

    def hear(self) -> Any:
        """None where it has ended."""
        with suppress(ConnectionError):
            while data := self.socket.recv(1 << 16):
                if frames := self._reader.feed(data):
                    return msgspec.msgpack.decode(frames[0])
        return None


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("greedy"), lease=30.0) as made:
        made.submit(arrays())
        yield made


def offer(farm: FarmHarness, session: int, number: int, nbytes: int) -> transfer.Offer:
    layer = farm.plan(farm.jobs()[0].id).layers[0]
    numbers, outputs = [(number, number + 1)], list(layer.outputs or ())
    return transfer.Offer(session, layer.digest, numbers, outputs, b"", nbytes, fingerprint())


def test_room_that_one_bundle_was_given_is_not_given_again(farm: FarmHarness) -> None:
    one, two = farm.agent("one"), farm.agent("two")
    one.join()
    two.join()
    most = shutil.disk_usage(farm.root.path).free * 6 // 10
    with closing(Peer(farm, "push")) as first, closing(Peer(farm, "push")) as second:
        assert first.ask(offer(farm, one.session, 0, most))["t"] == "take"
        refused = second.ask(offer(farm, two.session, 1, most))
        assert (refused["t"], refused["code"]) == ("refused", "full"), refused
        assert "kept free" in refused["message"]
        assert first.ask(offer(farm, one.session, 2, 10))["code"] == "coming", "one bundle at a time on a channel"
        first.close()
        until(lambda: second.ask(offer(farm, two.session, 1, most))["t"] == "take", "the room to be free again")


def test_a_shard_comes_from_one_machine_until_its_channel_ends_or_a_newer_one_takes_its_place(
    farm: FarmHarness,
) -> None:
    one, two = farm.agent("one"), farm.agent("two")
    one.join()
    two.join()
    with ExitStack() as stack:
        first, second, newer = (stack.enter_context(closing(Peer(farm, "push"))) for _ in range(3))
        assert first.ask(offer(farm, one.session, 3, 10))["t"] == "take"
        assert second.ask(offer(farm, two.session, 3, 10))["code"] == "coming"
        assert newer.ask(offer(farm, one.session, 3, 10))["t"] == "take", "a channel that it had lost keeps it waiting"
        assert first.hear() is None
        newer.close()
        until(lambda: second.ask(offer(farm, two.session, 3, 10))["t"] == "take", "the shard to be free again")


@pytest.mark.parametrize("says", ["nothing", "attach", "status"])
def test_whoever_opens_connections_until_it_fails_keeps_nobody_else_out(tmp_path: Path, says: str) -> None:
    """The daemon has few descriptors, all of which this client would take."""
    farm = FarmHarness(tmp_path)
    with ExitStack() as stack:
        stack.callback(farm.close)
        farm.start(["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"])
        job = farm.submit(arrays())
        agent = farm.agent()
        agent.join()
        opened = []
        for _ in range(3 * DESCRIPTORS):
            with suppress(OSError):
                peer = stack.enter_context(closing(Peer(farm, "push" if says == "attach" else "")))
                opened.append(peer)
                if says == "status":
                    peer.say(StatusAsk())
        assert len(opened) > DESCRIPTORS
        assert farm.coordinator("status").returncode == 0
        agent.work(lambda: farm.status(job).state == "complete")
        farm.check_result(job)
        assert "Too many open files" not in farm.root.log.read_text()
        assert "connections are open, as many as there may be" in farm.root.log.read_text()


def test_the_daemon_may_open_as_many_files_as_the_system_lets_it(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = min(512, hard)
    farm = FarmHarness(tmp_path)
    try:
        farm.start(["sh", "-c", f'ulimit -Sn 128; ulimit -Hn {wanted}; exec "$@"', "sh"])
        assert farm.daemon is not None
        limits = Path(f"/proc/{farm.daemon.pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
        assert line.split()[3] == str(wanted)
    finally:
        farm.close()
