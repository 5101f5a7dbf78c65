"""A network of a test's own: namespaces behind a router, each with its address, their links slowed or cut, as root on
Linux. All traffic stays within. Whatever was made is removed by name, also what a killed run left behind.

    with netns.running() as net:
        server, laptop = net.add("server"), net.add("laptop")
        net.slow(laptop, "20mbit")
        subprocess.run([*laptop.enter, "curl", server.address])
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.needs import skip_for

PREFIX = "muster-test-"
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
IP, TC, SS = (shutil.which(name, path=PATH) or name for name in ("ip", "tc", "ss"))
LINK = "eth0"  # what each machine calls its way to the router
ROUTER_SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "1",  # drops what comes from an address that leads nowhere: a cut is both ways
}
CLONE_NEWNET = 0x40000000
_numbers = itertools.count()


def obstacle() -> str:
    """Why there can be none here, or ""."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    missing = [name for name in (IP, TC, SS) if "/" not in name]
    if missing:
        return f"{', '.join(missing)} is not installed (iproute2)"
    try:
        with running() as net:
            net.slow(net.add("probe"), "20mbit")
    except subprocess.CalledProcessError as error:
        return f"network namespaces do not work here: {error.stderr.strip() or error}"
    return ""


def require() -> None:
    """Skip where there are none; in CI that is a failure."""
    skip_for(obstacle())


@dataclass(frozen=True)
class Machine:
    """A namespace with one address."""

    namespace: str
    address: str
    port: str  # the router's end of its link

    @property
    def enter(self) -> list[str]:
        """What to put before a command for it to run there; it keeps its pid."""
        return [IP, "netns", "exec", self.namespace]

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is there meanwhile, and what it starts stays there."""
        with Path("/proc/thread-self/ns/net").open() as ours, Path("/run/netns", self.namespace).open() as there:
            _set_namespace(there.fileno())
            try:
                yield
            finally:
                _set_namespace(ours.fileno())

    def listeners(self) -> list[str]:
        """Lines of `ss` on what listens there, on any address, over TCP."""
        return _run(*self.enter, SS, "-Hltnp").splitlines()


class Net:
    """One router, and the machines around it."""

    def __init__(self) -> None:
        self._tag = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        self._router = f"{self._tag}-router"
        self._machines: list[Machine] = []
        _add_namespace(self._router)
        for name, value in ROUTER_SETTINGS.items():
            _run(IP, "netns", "exec", self._router, "sh", "-c", f"echo {value} > /proc/sys/{name}")

    def add(self, name: str) -> Machine:
        """A machine in a subnet of its own, that reaches all the others through the router."""
        number = len(self._machines) + 1
        machine = Machine(f"{self._tag}-{name}", f"10.77.{number}.2", f"port{number}")
        self._machines.append(machine)
        _add_namespace(machine.namespace)
        there = ("name", machine.port, "netns", self._router)
        _run(IP, "link", "add", "name", LINK, "netns", machine.namespace, "type", "veth", "peer", *there)
        gateway = f"10.77.{number}.1"
        for namespace, link, address in (
            (machine.namespace, LINK, machine.address),
            (self._router, machine.port, gateway),
        ):
            _run(IP, "-n", namespace, "addr", "add", f"{address}/24", "dev", link)
            _run(IP, "-n", namespace, "link", "set", "dev", link, "up")
        _run(IP, "-n", machine.namespace, "route", "add", "default", "via", gateway)
        return machine

    def slow(self, machine: Machine, rate: str, burst: str = "32kb") -> None:
        """Its link carries no more than that, each way. `burst`: what may go at once; large for a fast link."""
        for namespace, link in ((machine.namespace, LINK), (self._router, machine.port)):
            shape = ("tbf", "rate", rate, "burst", burst, "latency", "100ms")
            _run(TC, "-n", namespace, "qdisc", "add", "dev", link, "root", *shape)

    def cut(self, machine: Machine) -> None:
        """Packets to and from it vanish in the router; nobody is told."""
        _run(IP, "-n", self._router, "route", "add", "blackhole", f"{machine.address}/32")

    def heal(self, machine: Machine) -> None:
        _run(IP, "-n", self._router, "route", "del", "blackhole", f"{machine.address}/32")

    def close(self) -> None:
        for namespace in [*(machine.namespace for machine in self._machines), self._router]:
            _remove(namespace)


@contextlib.contextmanager
def running() -> Iterator[Net]:
    """A network, gone at the end."""
    _sweep()
    net = Net()
    try:
        yield net
    finally:
        net.close()


def _sweep() -> None:
    """Remove what runs that are dead left behind."""
    for line in _run(IP, "netns", "list").splitlines():
        name = line.split()[0]
        pid = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            _remove(name)


def _set_namespace(fd: int) -> None:
    """As os.setns does from Python 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _add_namespace(name: str) -> None:
    _run(IP, "netns", "add", name)
    _run(IP, "-n", name, "link", "set", "dev", "lo", "up")


def _remove(name: str) -> None:
    """With what still runs there: a namespace lives as long as the last process in it."""
    with contextlib.suppress(subprocess.CalledProcessError):
        for pid in _run(IP, "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _run(IP, "netns", "delete", name)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
