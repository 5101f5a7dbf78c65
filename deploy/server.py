"""This server's coordinator, kept at work as the inventory says. Knows no machine of the farm.

By a unit of systemd, which `coordinator service` makes; or by a line of this account's crontab, which starts it with
the server. Both are put right by the coordinator's own commands.
"""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import msgspec

from muster import VERSION
from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import Status
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.deploy import bootstrap, services
from muster.deploy.connection import OwnShell
from muster.deploy.inventory import Service
from muster.jobs.common import user_units
from muster.jobs.common.errors import LinkError, RefusedError

SERVER = "(server)"  # among machines, none of which can be called so
SECONDS = 180.0
AT_WORK = ("active", "activating", "reloading")


class KeptCoordinator:
    """One farm's coordinator, and what is to bring it back after a restart of the server."""

    def __init__(self, root: Root, service: Service) -> None:
        self._root = root
        self._service = service

    @property
    def by(self) -> str:
        """What keeps it; "" where that is its user's own affair."""
        if self._service == "none":
            return ""
        return "systemd" if self._service == "user" and user_units.has_manager() else "cron"

    def wrong(self) -> str:
        """What is to be changed; "" for nothing."""
        unit = self._unit()
        if self.by == "systemd":
            good = unit is not None and unit["state"] in AT_WORK and unit["enabled"] and not self._lines()
        else:
            good = unit is None and self._lines() == [self._line] and ask_daemon.answers(self._root)
        return "" if good or not self.by else f"have {self.by} keep the coordinator at work"

    def put_right(self) -> None:
        """As `wrong` says; a RefusedError or LinkError where that fails."""
        if self.by == "systemd":
            self._install()
            self._put_line("")
            return
        if self._unit() is not None:
            self._run("service", "remove")
        self._put_line(self._line)
        if not ask_daemon.answers(self._root):
            self._run("serve", "--detach")

    def restart(self) -> bool:
        """As the version of this command, by systemd where that keeps it at work; False where it is of it already."""
        if ask_daemon.ask(self._root, StatusAsk(), Status).version == VERSION:
            return False
        if self._unit() is not None:
            self._install()
        else:
            self._run("stop")
            self._run("serve", "--detach")
        if self._lines():
            self._put_line(self._line)  # it names the program of a version
        return True

    # --- systemd ---

    def _unit(self) -> dict[str, Any] | None:
        """What systemd says of its unit, if there is one."""
        shown = _run([*roots.command("service", self._root.path), "show", "--json"])
        return dict(msgspec.json.decode(shown.stdout)["unit"]) if shown.returncode == 0 else None

    def _install(self) -> None:
        """Its limit of memory stays."""
        memory = str((self._unit() or {}).get("memory_max", ""))
        self._run("service", "install", *(["--memory", memory] if memory.isdecimal() else []))

    # --- cron ---

    @property
    def _line(self) -> str:
        return services.cron_line(*roots.command("serve", self._root.path), "--detach")

    @property
    def _mark(self) -> str:
        """Also of the line of another version's program."""
        return services.in_crontab(f"--root {shlex.quote(str(self._root.path))} --detach")

    def _lines(self) -> list[str]:
        """Those of the crontab that start this coordinator."""
        said = OwnShell().run(bootstrap.script(bootstrap.CRON_LINES, mark=self._mark, name=""))
        return [line.removeprefix("cron ") for line in said]

    def _put_line(self, line: str) -> None:
        """Into the crontab, in place of those that there are; "": none."""
        try:
            OwnShell().run(bootstrap.script(bootstrap.CRON, mark=self._mark, cron=line, name=""))
        except RefusedError as error:
            hint = "`service: none` below `server:` leaves the coordinator to you"
            raise RefusedError(f"`crontab` here: {error.message}", hint) from None

    # --- both ---

    def _run(self, name: str, *words: str) -> None:
        """A command of the coordinator's; what it says, where it fails."""
        done = _run([*roots.command(name, self._root.path), *words])
        if done.returncode:
            why = " ".join(done.stderr.split()) or f"it ended with {done.returncode}"
            raise RefusedError(f"`coordinator {name}` here: {why}", f"{self._root.log} may say more")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input="", capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LinkError(f"`{' '.join(command)}` did not end within {SECONDS:.0f} s") from None
