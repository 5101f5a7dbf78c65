"""Tries the way to a coordinator by the links that agents use, and writes down how far it gets. Joins nothing.

In the order in which one thing hides the next: what a shell prints comes before the word that a command is not found.
"""

from __future__ import annotations

import shlex
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster import VERSION
from muster.agent.doctor import link_probe
from muster.agent.doctor.checklist import Checklist, Rung
from muster.agent.links import Options, client_for, open_link
from muster.agent.links import errors as diagnosis
from muster.agent.links.base import Channel, Link, Role, greet
from muster.agent.links.far_command import DEFAULT_ROOT, FarLink
from muster.coordinator.protocol.control import Greeting
from muster.coordinator.protocol.values import PROTOCOL
from muster.jobs.common.errors import (
    MusterError,
    NoCommandError,
    NoDaemonError,
    ProtocolError,
    UsageError,
    VersionError,
)
from muster.jobs.common.locations import Folder, Host, check_root
from muster.jobs.common.units import format_size

if TYPE_CHECKING:
    from muster.agent.links.openssh import OpensshLink
    from muster.agent.links.paramiko_ssh.link import ParamikoLink

ROLES = 4  # channels of an agent: control, push and pull, and round where a job has them
AT_ONCE = 4  # connections made together
ADDRESSES_SHOWN = 3
SHARD_BYTES = 128 << 20

STEPS = ("jump", "port", "ssh banner", "host key", "login")
ROOM = (Rung("channels", ("login",)), Rung("connections", ("login",)))
THERE = (
    Rung("coordinator", ("version",)),
    Rung("round trip", ("coordinator",)),
    Rung("pull rate", ("coordinator",)),
)


@dataclass(frozen=True)
class Route:
    """Where the user's ssh configuration leads."""

    alias: str
    host: str
    port: str
    jump: str  # "" for none
    proxy: str

    def __str__(self) -> str:
        return f"{'' if self.alias == self.host else f'{self.alias} is '}{self.host} port {self.port}"


def visit_folder(sheet: Checklist, where: Folder) -> None:
    """A root on this machine."""
    try:
        check_root(where)
    except MusterError as error:
        return sheet.failed("root", error)
    sheet.passed("root", f"{where.path} is a farm's root")
    link = open_link(where)
    try:
        with _opened(link, "pull") as channel:
            greet(channel)
            sheet.passed("coordinator", f"answers in {_ms(link_probe.round_trip(channel))}")
    except NoDaemonError as error:
        sheet.warned(
            "coordinator", error.message, f"`coordinator serve --root {shlex.quote(str(where.path))} --detach`"
        )
    except MusterError as error:
        sheet.failed("coordinator", error)
    return None


def folder_rungs() -> list[Rung]:
    return [Rung("root"), Rung("coordinator", ("root",))]


class Visit(ABC):
    """A host. What differs by the link is in the two classes below."""

    def __init__(self, host: Host, options: Options, name: str) -> None:
        self._host = host
        self._options = options
        self._name = name
        self._farm = ""  # as its root says; "" where there is none

    @abstractmethod
    def rungs(self) -> list[Rung]:
        """The checks to be made, in their order."""

    def go(self, sheet: Checklist) -> None:
        """All of it; whatever was opened is closed."""
        try:
            link = open_link(self._host, self._options)
        except MusterError as error:  # a configuration that cannot be read
            return sheet.failed("name", error)
        assert isinstance(link, FarLink)
        try:
            self._try(sheet, link)
        finally:
            link.close()
        return None

    @abstractmethod
    def _try(self, sheet: Checklist, link: FarLink) -> None:
        """All of it, on a link that is closed afterwards."""

    # --- what both have ---

    def _look_up(self, sheet: Checklist, route: Route) -> None:
        if route.jump or route.proxy:
            through = f"ProxyJump {route.jump}" if route.jump else f"ProxyCommand {route.proxy}"
            return sheet.passed("name", f"{route}, by {through}, which has to find it")
        try:
            found = socket.getaddrinfo(route.host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            return sheet.failed("name", diagnosis.no_such_host(route.host, why or str(error)))
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))[:ADDRESSES_SHOWN]
        known = "" if addresses == [route.host] else f", {' or '.join(addresses)}"
        return sheet.passed("name", f"{route}{known}")

    def _hear(self, link: FarLink) -> Greeting:
        """The first frame there."""
        with _opened(link, "control") as channel:
            return greet(channel)

    def _greeted(self, sheet: Checklist, link: FarLink, hello: Greeting) -> None:
        self._ran(sheet, link)
        self._farm = hello.farm
        theirs = f"muster {hello.version}{'' if hello.version == VERSION else f', here {VERSION}'}"
        sheet.passed("version", f"{theirs}; protocol {PROTOCOL} at both ends")

    def _ran(self, sheet: Checklist, link: FarLink) -> None:
        sheet.passed("quiet shell", "nothing is printed before the first message")
        sheet.passed("command", f"`{link.program} connect` starts there")

    def _not_greeted(self, sheet: Checklist, link: FarLink, error: MusterError) -> None:
        if isinstance(error, VersionError):
            self._ran(sheet, link)
            sheet.failed("version", error)
        elif isinstance(error, ProtocolError):
            sheet.failed("quiet shell", error)
        else:
            if isinstance(error, NoCommandError):
                sheet.passed("quiet shell", "nothing is printed before the first message")
            sheet.failed("command", error)

    def _knock(self, sheet: Checklist, link: FarLink) -> None:
        """Several connections at once, as machines that come back together make them."""
        errors = _together(link)
        if errors:
            text = f"of {AT_ONCE} at once {len(errors)} were not let in: {errors[0].message}"
            sheet.warned("connections", text, "raise MaxStartups in sshd_config there; agents try again by themselves")
        else:
            sheet.passed("connections", f"{AT_ONCE} at once were let in")

    def _measure(self, sheet: Checklist, link: FarLink) -> None:
        """Whether a coordinator answers, how soon, and how fast bytes come."""
        at = "coordinator"
        try:
            with _opened(link, "pull") as channel:
                greet(channel)
                link_probe.probe(channel, 0, self._name)
                sheet.passed(at, "answers")
                at = "round trip"
                seconds = link_probe.round_trip(channel)
                sheet.passed(at, _ms(seconds), seconds=seconds)
                at = "pull rate"
                self._rate(sheet, channel)
        except NoDaemonError as error:
            self._not_served(sheet, at, error)
        except MusterError as error:
            sheet.failed(at, error)

    def _rate(self, sheet: Checklist, channel: Channel) -> None:
        nbytes, seconds = link_probe.rate(channel)
        per_second = nbytes / seconds
        shard = f"a shard of {format_size(SHARD_BYTES)} comes in {SHARD_BYTES / per_second:.1f} s"
        text = f"{per_second / (1 << 20):.1f} MiB/s, measured over {format_size(nbytes)}; {shard}"
        sheet.passed("pull rate", text, mib_per_second=per_second / (1 << 20), bytes=nbytes)

    def _not_served(self, sheet: Checklist, at: str, error: NoDaemonError) -> None:
        root = f" --root {shlex.quote(self._host.root)}" if self._host.root else ""
        text = f"{error.message} ({self._host.root or f'~/{DEFAULT_ROOT}'})"
        start = f"on {self._host.host}: `coordinator serve{root} --detach`"
        if not self._farm:
            text = f"there is no farm in {self._host.root or f'~/{DEFAULT_ROOT}'}"
            start = f"correct the root in WHERE, if a farm is elsewhere there; else, for a new and empty one, {start}"
        sheet.warned(at, text, start, stops=True)


class ParamikoVisit(Visit):
    """Each step of the way is told apart."""

    def rungs(self) -> list[Rung]:
        steps = ("name", *(step for step in STEPS if step != "jump" or self._jumps()))
        ladder = [Rung(step, steps[i : i + 1]) for i, step in enumerate(steps[1:])]
        there = [Rung("quiet shell", ("channels",)), Rung("command", ("quiet shell",)), Rung("version", ("command",))]
        return [Rung("name"), *ladder, *ROOM, *there, *THERE]

    def _jumps(self) -> bool:
        try:
            return bool(self._route().jump)
        except UsageError:
            return False  # it is told when the link is made

    def _route(self) -> Route:
        from muster.agent.links.ssh_config import Config

        target = Config(self._options.config).target(self._host)
        jump = ", ".join(map(str, target.jumps))
        return Route(target.alias, target.host, str(target.port), jump, target.proxy or "")

    def _try(self, sheet: Checklist, link: FarLink) -> None:
        from muster.agent.links.paramiko_ssh.link import ParamikoLink

        assert isinstance(link, ParamikoLink)
        self._look_up(sheet, self._route())
        if sheet.may(sheet.next_of(STEPS)):
            self._connect(sheet, link)
        if sheet.may("channels"):
            self._room(sheet, link)
            self._knock(sheet, link)
        if sheet.may("quiet shell"):
            self._greet(sheet, link)
        if sheet.may("coordinator"):
            self._measure(sheet, link)

    def _connect(self, sheet: Checklist, link: ParamikoLink) -> None:
        try:
            link.prepare(sheet.passed)
        except MusterError as error:
            sheet.failed(sheet.next_of(STEPS), error)

    def _room(self, sheet: Checklist, link: ParamikoLink) -> None:
        try:
            room = link.room(ROLES)
        except MusterError as error:
            return sheet.failed("channels", error)
        if room == ROLES:
            return sheet.passed("channels", f"{ROLES} share one connection", channels=room)
        text = f"only {room} to a connection: the agent makes a connection for each role then"
        return sheet.warned("channels", text, f"it works so; MaxSessions {ROLES} in sshd_config there spares logins")

    def _greet(self, sheet: Checklist, link: ParamikoLink) -> None:
        try:
            hello = self._hear(link)
        except MusterError as error:
            self._not_greeted(sheet, link, error)
        else:
            self._greeted(sheet, link, hello)


class OpensshVisit(Visit):
    """From the port to the login it is ssh's own affair: one check, with what ssh said."""

    def rungs(self) -> list[Rung]:
        names = ("name", "ssh", "quiet shell", "command", "version", "connections")
        return [Rung("name"), *(Rung(name, names[i : i + 1]) for i, name in enumerate(names[1:])), *THERE]

    def _try(self, sheet: Checklist, link: FarLink) -> None:
        from muster.agent.links.openssh import OpensshLink

        assert isinstance(link, OpensshLink)
        said = link.resolved()
        if said:
            self._look_up(sheet, _route_of(said, self._host))
        else:
            sheet.passed("name", f"{self._host}, as ssh will find it")
        if sheet.may("ssh"):
            self._greet(sheet, link)
        if sheet.may("connections"):
            self._knock(sheet, link)
        if sheet.may("coordinator"):
            self._measure(sheet, link)

    def _greet(self, sheet: Checklist, link: OpensshLink) -> None:
        try:
            hello = self._hear(link)
        except MusterError as error:
            if error is link.failure or isinstance(error, UsageError):
                return sheet.failed("ssh", error)
            sheet.passed("ssh", "the system's ssh is let in")
            return self._not_greeted(sheet, link, error)
        sheet.passed("ssh", "the system's ssh is let in; each channel has a connection of its own")
        return self._greeted(sheet, link, hello)


def visit(host: Host, options: Options, name: str) -> Visit:
    """`name`: of the agent that would join; "" if that is not known."""
    try:
        chosen = client_for(host, options)
    except UsageError:
        chosen = "paramiko"  # it is told when the link is made
    return (OpensshVisit if chosen == "openssh" else ParamikoVisit)(host, options, name)


def _route_of(said: Mapping[str, str], host: Host) -> Route:
    """From what `ssh -G` prints."""
    alias = host.host.strip("[]")
    jump, proxy = ("" if said.get(key) in (None, "none") else said[key] for key in ("proxyjump", "proxycommand"))
    return Route(alias, said.get("hostname", alias), said.get("port", "22"), jump, proxy)


@contextmanager
def _opened(link: Link, role: Role) -> Iterator[Channel]:
    channel = link.open(role)
    try:
        yield channel
    finally:
        channel.close()


def _together(link: FarLink) -> list[MusterError]:
    """What kept connections made at once from being let in."""
    errors: list[MusterError] = []
    start = threading.Barrier(AT_ONCE)

    def one() -> None:
        start.wait()
        try:
            link.knock()
        except MusterError as error:
            errors.append(error)

    threads = [threading.Thread(target=one, name=f"knock {i}", daemon=True) for i in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
