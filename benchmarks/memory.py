"""How flat the memory of agent and coordinator stays while a source far larger than any budget goes through them.

    python -m benchmarks.memory [--ssh] [--gib 20] [--shard 16MiB] [--disk 1GiB]

One sparse .npy file, of whose shards `map` makes a sum, so that hardly anything is kept; with --ssh the agent pulls it
through an sshd on loopback into a spool of the disk budget given. Some times a second the proportional set size of
every process is read, for three sides: the coordinator is the daemon, its helpers, sshd and `connect`; the agent its
own process; the pool all of Ray, workers and their runners. A sample belongs to a tenth of the source by how many
shards were computed. `ours`: MiB of a side in the second tenth (in the first, processes still start), as the median of
its samples; `peer`: the highest median of a later tenth; both of the side that grew most. `parts`: of each side all
tenths, and what each kind of process had in the second and in the highest.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.measure import CORES, machine, report
from benchmarks.served import served
from tests.support import sshd
from tests.support.farm import FarmHarness, until
from tests.support.sshd import HOST, Sshd

ROW_BYTES = 1 << 20
SAMPLE_SECONDS = 0.2
TENTHS = 10
SIDES = ("coordinator", "agent", "pool")
EARLY = 1  # the tenth that the later ones are compared with
WORK = 'def total(rows):\n    return {"sum": rows.sum(axis=0, dtype="i8")[:8]}\n'
PARAMS = {"outputs": {"sum": {"dtype": "int64", "shape": [8], "form": "sum"}}}
KINDS = {  # by what is in the command line
    "raylet": "raylet/raylet",
    "gcs": "gcs_server",
    "ray's agents": "ray/dashboard",
    "worker": "ray::",
    "runner": "jobs/user_code/runner/runner",
    "merger": "muster.coordinator.daemon.merge.merge_process",
    "daemon": " serve ",
    "connect": " connect ",
    "agent": " join ",
    "sshd": "sshd",
}
OF_COORDINATOR = frozenset({"daemon", "connect", "merger", "sshd"})  # by folder the agent starts `connect`


@dataclass
class Side:
    """What it weighed in each tenth, MiB by kind of process."""

    tenths: list[list[Counter[str]]] = field(default_factory=lambda: [[] for _ in range(TENTHS)])

    @property
    def early(self) -> float:
        return self.medians()[EARLY]

    @property
    def late(self) -> float:
        return max(self.medians()[EARLY + 1 :])

    def medians(self) -> list[float]:
        return [statistics.median(map(Counter.total, those or [Counter()])) for those in self.tenths]

    def parts(self) -> dict[str, Any]:
        medians = self.medians()
        highest = medians.index(self.late)
        kinds = sorted({kind for those in self.tenths for one in those for kind in one})
        found = {kind: [self._median(kind, EARLY), self._median(kind, highest)] for kind in kinds}
        return {"tenths": [round(one) for one in medians], **found}

    def _median(self, kind: str, tenth: int) -> float:
        return round(statistics.median(one[kind] for one in self.tenths[tenth]), 1)


def weigh(roots: list[int]) -> dict[str, Counter[str]]:
    """Of each side MiB by kind of process, of these and all below them."""
    found = {side: Counter[str]() for side in SIDES}
    for process in families(roots):
        with contextlib.suppress(psutil.NoSuchProcess, OSError):
            kind = kind_of(process)
            side = "coordinator" if kind in OF_COORDINATOR else "agent" if kind == "agent" else "pool"
            found[side][kind] += proportional_mib(process.pid)  # type: ignore[assignment]
    return found


def families(roots: list[int]) -> Iterator[psutil.Process]:
    """These, and all below them."""
    for pid in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield from [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def kind_of(process: psutil.Process) -> str:
    words = " ".join(process.cmdline())
    return next((kind for kind, sign in KINDS.items() if sign in words), process.name())


def proportional_mib(pid: int) -> float:
    """Pages that several processes share count but once in a sum of these."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def write_source(path: Path, gib: float) -> None:
    """A file of zeros that takes no disk."""
    rows = int(gib * 2**30) // ROW_BYTES
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (rows, ROW_BYTES)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + rows * ROW_BYTES)


def measure(farm: FarmHarness, server: Sshd | None, source: Path, given: argparse.Namespace) -> dict[str, Side]:
    """A job over the source, weighed until its last commit."""
    assert farm.daemon is not None
    roots = [farm.daemon.pid, join(farm, server, given), *([server.pid] if server is not None else [])]
    work: dict[str, Any] = {"kind": "map", "code": "work.py:total", "params": PARAMS}
    job = farm.submit({}, work=WORK, source=str(source), shard={"size": given.shard}, **work)
    sides = {name: Side() for name in SIDES}
    began = time.monotonic()
    while (status := farm.status(job)).state == "running":
        [tally] = [layer.tally for layer in status.layers]
        tenth = TENTHS * (tally.committed + tally.finished) // tally.shards
        for name, found in weigh(roots).items():
            sides[name].tenths[min(tenth, TENTHS - 1)].append(found)
        time.sleep(SAMPLE_SECONDS)
    farm.wait(job)
    print(f"  {tally.shards:,} shards in {time.monotonic() - began:.1f} s", flush=True)
    return sides


def join(farm: FarmHarness, server: Sshd | None, given: argparse.Namespace) -> int:
    options = ["--cpus", str(CORES), "--disk", given.disk]
    if server is not None:
        options += ["--ssh-config", str(server.ssh_config())]
    where = f"{HOST}:{farm.root.path}" if server is not None else None
    process = farm.join("bench", *options, where=where)
    until(lambda: farm.agent_status("bench"), "the agent to join", 60)
    return process.pid


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ssh", action="store_true", help="the agent comes through an sshd on loopback")
    options.add_argument("--gib", type=float, default=20, help="of the source")
    options.add_argument("--shard", default="16MiB")
    options.add_argument("--disk", default="1GiB", help="the agent's budget")
    given = options.parse_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        write_source(folder / "source.npy", given.gib)
        server = stack.enter_context(sshd.running(folder / "sshd")) if given.ssh else None
        farm = stack.enter_context(served(folder / "farm"))
        sides = measure(farm, server, folder / "source.npy", given)
    if not all(those for side in sides.values() for those in side.tenths[EARLY:]):
        raise SystemExit("a tenth of the source went by without a sample: take more --gib")
    worst = min(sides.values(), key=lambda side: side.early / side.late)
    report(worst.early, worst.late, {name: side.parts() for name, side in sides.items()})


if __name__ == "__main__":
    main()
