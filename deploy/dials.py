"""What this server keeps at work for machines that cannot reach it: an ssh into each, by which its agent comes.

The far end is a socket below the account there, not a port, which everybody on that machine could use. A dial is put in
place as an agent is, by the same scripts, in a folder `dial.NAME` of this account; no agent's name has a dot.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from muster.deploy import bootstrap, services, steps
from muster.deploy.connection import Connections, OwnShell, command, target
from muster.deploy.inventory import Machine, MachineWish, ServerAddress
from muster.deploy.steps import MachineFacts, RunScript, WantedMachine
from muster.jobs.common.errors import RefusedError
from muster.jobs.common.ssh import last_line

PATIENCE_SECONDS = 10
REMOVE_SECONDS = 120.0


class Dials:
    """Those of one inventory."""

    def __init__(self, connections: Connections, server: ServerAddress) -> None:
        self._connections = connections
        self._server = server

    def look(self, wanted: WantedMachine, facts: MachineFacts) -> Literal["", "right", "wrong"]:
        """Whether there is one for this machine, and as it should be; `facts` are of the machine."""
        if not _folder(wanted.machine).exists():
            return ""
        mine = self._wanted(wanted, facts)
        here = _facts(mine)
        return "right" if all(look(mine, here).state == "ok" for _, look in steps.KEEPING) else "wrong"

    def put(self, wanted: WantedMachine, facts: MachineFacts) -> None:
        """As it should be, at work, and after a restart of this server too."""
        mine = self._wanted(wanted, facts)
        for name, look in steps.KEEPING:
            found = look(mine, _facts(mine))
            if found.state == "change":
                assert isinstance(found.order, RunScript)
                OwnShell().run(found.order.script, found.order.seconds)
                if look(mine, _facts(mine)).state != "ok":
                    raise RefusedError(f"this server: {name} of {mine.machine.name}: {found.said}, and is as before")

    def remove(self, machine: Machine) -> bool:
        """Take it away; whether there was one."""
        if not _folder(machine).exists():
            return False
        given = {"name": _name(machine), "program": "", "spool": "", "force": ""}
        OwnShell().run(bootstrap.script(bootstrap.REMOVE, **given, patience=str(PATIENCE_SECONDS)), REMOVE_SECONDS)
        return True

    def last_words(self, machine: Machine) -> str:
        """What its ssh said last."""
        said = _folder(machine) / "join.log"
        return last_line(said.read_text(errors="replace")) if said.exists() else "nothing"

    def _wanted(self, wanted: WantedMachine, facts: MachineFacts) -> WantedMachine:
        machine, here = wanted.machine, _folder(wanted.machine)
        alone = {"ClearAllForwardings": "no", "ControlPath": "none", "ExitOnForwardFailure": "yes"}
        ssh = [*command(machine, here / "ssh_config", **alone), "-N"]
        way = (steps.way_in(wanted, facts), self._server.own_sshd, target(machine))
        config = self._connections.configuration(machine, self._connections.known_hosts)
        # no interpreter: a dial wants none, and to look for one takes time
        return WantedMachine(
            Machine(_name(machine), machine.ssh, MachineWish(python=os.devnull)), wanted.version, wanted.stamp,
            wanted.wheel, wanted.where, "", dial=services.dial_script(machine.name, str(here), ssh, *way),
            dial_config=config,
        )  # fmt: skip


def _facts(mine: WantedMachine) -> MachineFacts:
    return steps.facts_of(OwnShell().run(steps.probe(mine)))


def _name(machine: Machine) -> str:
    return f"dial.{machine.name}"


def _folder(machine: Machine) -> Path:
    return Path.home() / bootstrap.BASE / "agents" / _name(machine)
