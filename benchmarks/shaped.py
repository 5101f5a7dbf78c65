"""Machines of a benchmark's own, in network namespaces with links of a given rate to a server with an sshd. As root."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import give_up
from tests.support import netns, sshd
from tests.support.netns import Machine
from tests.support.sshd import Sshd

BURST = "256kb"  # what a network card sends at once; with less, waking up for each few packets is what is measured


@dataclass(frozen=True)
class Shaped:
    """A server and machines around it."""

    server: Machine
    machines: tuple[Machine, ...]
    sshd: Sshd


@contextmanager
def running(
    folder: Path,
    rate: str,
    names: Sequence[str],
    env: Mapping[str, str] | None = None,
    server_rate: str | None = None,
) -> Iterator[Shaped]:
    """Gone at the end. `env`: what sessions on the server get, too. `server_rate`: of its own link, which has else no
    limit. Ends the benchmark where there can be none."""
    if why := netns.obstacle() or sshd.obstacle():
        give_up(why)
    with netns.running() as net:
        server, *machines = [net.add(name) for name in ("server", *names)]
        for machine in machines:
            net.slow(machine, rate, BURST)
        if server_rate is not None:
            net.slow(server, server_rate, BURST)
        daemon = Sshd(folder, address=server.address, prefix=server.enter, env=env)
        try:
            yield Shaped(server, tuple(machines), daemon.start())
        finally:
            daemon.stop()
