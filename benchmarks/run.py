"""`muster run` as it is typed, beside GNU Parallel with its log and its results, and `xargs -P`.

    python -m benchmarks.run [--commands 2000] [--files 400] [--runs 3] [--no-peer]

From the shell's prompt to its return: the process `muster run -k true {} ::: 1 … 2000` on a farm that is up, one agent
by folder with a slot for each core; stdout and stderr, exit code and time of each item are kept, durably. The peer is
`parallel -k -j CORES --joblog FILE --results DIR true {}` over the same list. `ratio`: its seconds over ours.

`parts`: the seconds of 10 commands on an idle farm, the best of several; of `xargs -P`, which keeps nothing; and of
`gzip -9 < FILE > FILE.gz` over files of 64 KiB, by ours and by the peer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.measure import CORES, add_no_peer, alternate, give_up, machine, report
from benchmarks.served import processor_seconds, served
from muster.jobs.common import launch
from tests.support.farm import FarmHarness, until

FILE_BYTES = 64 << 10
FEW = 10
FEW_RUNS = 5
PARALLEL = ["parallel", "--will-cite", "-k", "-j", str(CORES)]


class Runs:
    """Process after process in a folder of their own, whose seconds count."""

    def __init__(self, farm: FarmHarness, folder: Path) -> None:
        self.farm, self.folder = farm, folder
        self.cpu: list[float] = []  # of each of our runs of many: processor seconds of daemon and agent an item
        folder.mkdir()
        farm.join("bench", "--cpus", str(CORES))
        until(lambda: farm.agent_status("bench"), "the agent to join", 60)
        self.ours(10 * CORES)  # the pool is up once it has run

    def seconds(self, command: list[str], given: str = "") -> float:
        began = time.monotonic()
        subprocess.run(
            command, cwd=self.folder, env=self.farm.environment(), input=given, text=True, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return time.monotonic() - began

    def _muster(self, *words: str) -> list[str]:
        return launch.python("muster.__main__", "run", "--root", str(self.farm.root.path), *words)

    def ours(self, count: int) -> float:
        before = processor_seconds(self.farm)
        took = self.seconds(self._muster("-k", "true", "{}", ":::", *numbers(count)))
        self.cpu.append((processor_seconds(self.farm) - before) / count)
        return took

    def peer(self, count: int) -> float:
        for name in ("log", "results"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        kept = ["--joblog", "log/all", "--results", "results"]
        (self.folder / "log").mkdir()
        return self.seconds([*PARALLEL, *kept, "true", "{}", ":::", *numbers(count)])

    def xargs(self, count: int) -> float:
        lines = "".join(f"{number}\n" for number in numbers(count))
        return self.seconds(["xargs", "-P", str(CORES), "-n", "1", "true"], lines)

    def gzips(self, count: int, with_peer: bool) -> dict[str, float]:
        rng = np.random.default_rng(0)
        names = [f"{number:04}.log" for number in range(count)]
        for name in names:
            (self.folder / name).write_bytes(rng.integers(0, 64, FILE_BYTES, np.uint8).tobytes())
        line = "gzip -9 < {} > {out}"
        found = {"muster": self.seconds(self._muster(line, "--return", "{}.gz", ":::", *names))}
        if with_peer:
            found["parallel"] = self.seconds([*PARALLEL, "gzip -9 < {} > {}.gz", ":::", *names])
        return {f"{count} gzips, s, {side}": round(took, 2) for side, took in found.items()}


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def measure(folder: Path, commands: int, files: int, runs: int, with_peer: bool) -> None:
    with served(folder / "farm") as farm:
        made = Runs(farm, folder / "here")
        sides: dict[str, Callable[[], float]] = {"ours": lambda: commands / made.ours(commands)}
        if with_peer:
            sides["peer"] = lambda: commands / made.peer(commands)
        sides["xargs"] = lambda: commands / made.xargs(commands)
        rates = alternate(runs, **sides)
        cpu = min(made.cpu[1:])
        few = min(made.ours(FEW) for _ in range(FEW_RUNS))
        parts = {f"{FEW} commands, s": round(few, 2), "xargs -P, s": round(commands / max(rates["xargs"]), 2)}
        parts |= made.gzips(files, with_peer)
    best = {name: max(found) for name, found in rates.items()}
    parts["muster, s"] = round(commands / best["ours"], 2)
    if with_peer:
        parts["parallel, s"] = round(commands / best["peer"], 2)
    report(best["ours"], best.get("peer"), parts, cpu)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--commands", type=int, default=2000)
    options.add_argument("--files", type=int, default=400)
    options.add_argument("--runs", type=int, default=3)
    add_no_peer(options)
    given = options.parse_args()
    print(machine(), flush=True)
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    if not given.no_peer and shutil.which("parallel") is None:
        give_up("GNU Parallel is not installed (Debian: parallel), and --no-peer was not asked for")
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        measure(Path(name), given.commands, given.files, given.runs, not given.no_peer)


if __name__ == "__main__":
    main()
