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
from muster.jobs.common.errors import AccessError, MusterError, UsageError

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


@dataclass(frozen=True)
class ShownKeys:
    """A machine, and the lines of known_hosts of the first on the way to it that is not known."""

    machine: Machine
    lines: tuple[str, ...]
    fingerprints: tuple[str, ...]
    hop: str = ""  # the jump host whose they are, if they are not the machine's own

    @property
    def whose(self) -> str:
        return self.hop or f"{self.machine.name}  {self.machine.ssh}"

    def refusal(self) -> AccessError:
        """Where nobody vouches for them."""
        whose = f"the host key of {self.hop}, on the way to it," if self.hop else "its host key"
        place = self.hop or self.machine.ssh
        hint = f"compare it with `ssh-keygen -lf` there, then `ssh {place}` once, or --fingerprints FILE"
        return AccessError(f"{whose} is not known here: {', '.join(self.fingerprints)}", hint)


def shown_by(connections: Connections, machine: Machine) -> ShownKeys | MusterError:
    """What is shown now, or why it cannot be asked."""
    try:
        hop, lines = MachineConnection(machine, connections).host_keys()
    except MusterError as error:
        return error
    return ShownKeys(machine, tuple(lines), tuple(map(fingerprint, lines)), hop)


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
    table = dict.fromkeys(f"  {one.whose}  {mark}" for one in shown for mark in one.fingerprints)
    return list(shown) if ask("never seen before:\n{}\nare these their own keys?".format("\n".join(table))) else []


def keep(known_hosts: Path, shown: Sequence[ShownKeys]) -> None:
    """Known from now on, to us alone, a machine's own lines with its name."""
    if not shown:
        return
    old = known_hosts.read_bytes() if known_hosts.exists() else b""
    lines = dict.fromkeys(line if one.hop else f"{line} {one.machine.name}" for one in shown for line in one.lines)
    write_private(known_hosts, old + "".join(f"{line}\n" for line in lines).encode())


def forget(known_hosts: Path, gone: Sequence[Machine], stay: Sequence[Machine]) -> None:
    """No longer known, but for those of a host which also has a machine that stays."""
    names = {one.name for one in gone} - {one.name for one in gone for other in stay if _place(one) == _place(other)}
    old = known_hosts.read_text(errors="surrogateescape").splitlines() if known_hosts.exists() else []
    kept = [line for line in old if line.rpartition(" ")[2] not in names]
    if kept != old:
        write_private(known_hosts, "".join(f"{line}\n" for line in kept).encode(errors="surrogateescape"))


def _place(machine: Machine) -> tuple[str, int | None]:
    return machine.host.host.lower(), machine.host.port
