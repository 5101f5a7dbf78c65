"""Host keys of machines never seen: shown once, all together, and kept once somebody vouched for them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.deploy.connection import Connections, MachineConnection, fingerprint
from muster.deploy.inventory import Machine
from muster.jobs.common.durable import write_private
from muster.jobs.common.errors import MusterError, UsageError

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


@dataclass(frozen=True)
class ShownKeys:
    """A machine and the lines of known_hosts that it would have."""

    machine: Machine
    lines: tuple[str, ...]
    fingerprints: tuple[str, ...]


def shown_by(connections: Connections, machine: Machine) -> ShownKeys | MusterError:
    """What the machine shows now, or why it cannot be asked."""
    try:
        lines = tuple(MachineConnection(machine, connections).host_keys())
    except MusterError as error:
        return error
    return ShownKeys(machine, lines, tuple(fingerprint(line) for line in lines))


def vouched(shown: Sequence[ShownKeys], file: Path | None, ask: Callable[[str], bool]) -> list[ShownKeys]:
    """Those whose keys are good: by a file of fingerprints, else by the word of a person, asked once."""
    if file is not None:
        try:
            known = set(_FINGERPRINT.findall(file.read_text(errors="replace")))
        except OSError as error:
            raise UsageError(f"{file}: cannot be read: {error.strerror}", "see `--fingerprints`") from None
        return [one for one in shown if known & set(_FINGERPRINT.findall(" ".join(one.fingerprints)))]
    if not shown or not sys.stdin.isatty():
        return []
    table = "\n".join(f"  {one.machine.name}  {one.machine.ssh}  {mark}" for one in shown for mark in one.fingerprints)
    return list(shown) if ask(f"never seen before:\n{table}\nare these their own keys?") else []


def keep(known_hosts: Path, shown: Sequence[ShownKeys]) -> None:
    """Known from now on, to us alone."""
    if not shown:
        return
    old = known_hosts.read_bytes() if known_hosts.exists() else b""
    lines = "".join(f"{line}\n" for one in shown for line in one.lines)
    write_private(known_hosts, old + lines.encode())
