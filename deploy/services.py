"""The files of an agent on its machine: how it joins, what keeps it at work, what it trusts. Texts of given values."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from muster.agent.host.memory import of_unit
from muster.jobs.common import user_units

_JOIN = """#!/bin/sh
# Written by `muster deploy`, from the inventory: it is written anew at the next `up`.
cd / || exit 1
exec {command} >{at}/join.log 2>&1
"""
_KEEP = """#!/bin/sh
# Written by `muster deploy`: keeps the agent {name} at work until it leaves in good order, or is told to stop.
at={at}
read -r other child 2>/dev/null <"$at/keep.pid" && [ "$other" != $$ ] && kill -0 "$other" 2>/dev/null &&
  {{ tr '\\0' ' ' <"/proc/$other/cmdline" || ps -o args= -p "$other"; }} 2>/dev/null | grep -qF "$at/keep" && exit 0
told=
child=
note() {{ echo "$$ $child" >"$at/keep.pid.new" && mv -f "$at/keep.pid.new" "$at/keep.pid"; }}
note
trap 'told=yes; [ -z "$child" ] || kill -TERM "$child"' TERM INT
pause=1
while [ -z "$told" ]; do
  begun=$(date +%s)
  "$at/join" </dev/null &
  child=$!
  note
  wait "$child"
  code=$?
  while kill -0 "$child" 2>/dev/null; do
    wait "$child"
    code=$?
  done
  child=
  [ "$code" != 0 ] || break
  [ $(($(date +%s) - begun)) -lt 60 ] || pause=1
  [ -n "$told" ] || {{ sleep "$pause" & child=$!; wait "$child"; child=; }}
  pause=$((pause * 2))
  [ "$pause" -lt 60 ] || pause=60
done
rm -f "$at/keep.pid"
"""
_DIAL = """#!/bin/sh
# Written by `muster deploy`, from the inventory: the way by which agent {name} comes, under a new name at each dial.
cd / || exit 1
way={folder}/$(od -An -N4 -tx4 /dev/urandom | tr -d ' ')
exec {command} -R "$way":{sshd} -- {target} >{at}/join.log 2>&1
"""
_PROXY = "  ProxyCommand {program} -m muster.agent.links.way_in {folder}\n"
_CONFIG = """Host *
  IdentityFile {at}/key
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {at}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


def agent_command(program: str, *words: str) -> str:
    """A command line of the agent's, for sh."""
    return shlex.join([program, "-m", "muster.agent", *words])


def join_script(program: str, where: str, name: str, at: str, options: Sequence[str]) -> str:
    words = ("join", where, "--name", name, "--ssh-config", f"{at}/ssh_config", *options)
    return _JOIN.format(command=agent_command(program, *words), at=shlex.quote(at))


def keep_script(name: str, at: str) -> str:
    return _KEEP.format(name=name, at=shlex.quote(at))


def unit(name: str, at: str, memory: int | None) -> str:
    """A unit of systemd's user manager. `memory`: bytes that the agent lends to shards, where somebody said."""
    limit = of_unit(memory) if memory else None
    return user_units.text("muster deploy", f"Muster agent {name}", [f"{at}/join"], memory=limit)


def cron_line(*command: str) -> str:
    """What starts a command with its machine."""
    return f"@reboot {in_crontab(shlex.join(command))} >/dev/null 2>&1"


def in_crontab(command: str) -> str:
    """There a % would be the end of the line."""
    return command.replace("%", r"\%")


def dial_script(name: str, at: str, command: Sequence[str], folder: str, sshd: str, target: str) -> str:
    """What the server runs for a machine that cannot reach it: sshd there makes a socket in `folder`, which leads to
    the server's own sshd for as long as this lasts."""
    words = {"at": at, "folder": folder, "sshd": sshd, "target": target}
    quoted = {key: shlex.quote(word) for key, word in words.items()}
    return _DIAL.format(name=name, command=shlex.join(command), **quoted)


def ssh_config(at: str, program: str | None = None) -> str:
    """How the agent gets in. `program`: an interpreter that finds the way which the server keeps open."""
    found = _CONFIG.format(at=at)
    return found + _PROXY.format(program=program, folder=f"{at}/in").replace("%", "%%") if program else found
