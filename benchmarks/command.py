"""Many tiny commands beside GNU Parallel, and small files through `map` over ssh beside `tar | ssh` plus GNU Parallel.

    python -m benchmarks.command [--commands 2000] [--runs 3]
    python -m benchmarks.command --ssh [--files 10000] [--runs 3]

Commands: a table of as many lines, `true {n}` for each; from submit to merged result, exit codes and times of all kept.
The peer is `parallel -j CORES true`, or `xargs -P` where GNU Parallel is not installed: `parts` says which, and has the
rate of `xargs -P` beside it, which keeps neither exit codes nor output nor order.

Files: 4 KiB each, a sha256 of each; from submit to merged result, one agent that joined over loopback ssh. The peer
streams them with `tar | ssh tar`, then runs `parallel sha256sum`; `parts` has `xargs sha256sum` on all cores with 500
files a call, which saves it a process for each file. `ratio`: our items per second over the peer's.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import CORES, alternate, machine, report
from benchmarks.served import Counted, finish, served
from muster.agent.links.far_command import CIPHERS
from muster.coordinator.commands.submit import submit
from muster.jobs.results.open_result import open_result
from tests.support import sshd
from tests.support.farm import FarmHarness, until
from tests.support.sshd import HOST, Sshd

FILE_BYTES = 4096
PER_CALL = 500
XARGS = ["xargs", "-P", str(CORES), "-n", "1", "true"]
WORK = """
import hashlib
import numpy as np

def digest(paths):
    return np.array([list(hashlib.sha256(path.read_bytes()).digest()) for path in paths], "u1")
"""


class Commands(Counted):
    """Lines of a table, a command each."""

    def _run(self, count: int) -> None:
        table = b"n\n" + b"".join(b"%d\n" % number for number in range(count))
        fields: dict[str, Any] = {"kind": "command", "params": {"run": "true {n}"}, "source": {"table": "t.csv"}}
        job = submit(self.farm.root, self.farm.job_file({}, files={"t.csv": table}, name="true", **fields))
        finish(self.farm, job)
        exits = open_result(self.farm.root.job(job).result / "items").outputs["exit"]
        assert len(exits) == count and not np.any(np.array(exits))
        self.farm.coordinator("rm", job)


def peer_command() -> list[str]:
    """What people would use here."""
    if shutil.which("parallel"):
        return ["parallel", "--will-cite", "-j", str(CORES), "true"]
    return XARGS


def peer_rate(command: list[str], count: int) -> float:
    numbers = "".join(f"{number}\n" for number in range(count))
    began = time.monotonic()
    subprocess.run(command, input=numbers, text=True, check=True, stdout=subprocess.DEVNULL)
    return count / (time.monotonic() - began)


class Files:
    """Small files, a farm with one agent over ssh, and what a person would do by hand."""

    def __init__(self, farm: FarmHarness, server: Sshd, folder: Path, count: int) -> None:
        self.farm, self.count, self.folder = farm, count, folder
        self.source = folder / "files"
        self._write()
        config = server.ssh_config(name="bench_config")
        self.ssh = ["ssh", "-F", str(config), "-c", CIPHERS[0], HOST]
        options = ("--cpus", str(CORES), "--ssh-config", str(config))
        farm.join("bench", *options, where=f"{HOST}:{farm.root.path}")
        until(lambda: farm.agent_status("bench"), "the agent to join", 60)
        self._run(f"{self.source}/00/*0.bin")  # the pool is up once it has run

    def _write(self) -> None:
        """All different; with new ones for each run no machine has them already."""
        rng = np.random.default_rng()
        for number in range(self.count):
            path = self.source / f"{number % 100:02}" / f"{number:06}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(rng.bytes(FILE_BYTES))

    def rate(self) -> float:
        self._write()
        began = time.monotonic()
        self._run(f"{self.source}/**/*.bin")
        return self.count / (time.monotonic() - began)

    def _run(self, pattern: str) -> None:
        fields: dict[str, Any] = {"kind": "map", "code": "work.py:digest", "source": {"files": pattern}}
        job = submit(self.farm.root, self.farm.job_file({}, work=WORK, name="digests", **fields))
        finish(self.farm, job)
        self.farm.coordinator("rm", job)

    def by_hand(self, command: str) -> float:
        """`tar | ssh tar` into an empty folder, then the command with the names on its stdin."""
        target = self.folder / "copy"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        began = time.monotonic()
        there = f"cd {shlex.quote(str(target))} && tar xf - && find . -name '*.bin' -print0 | {command}"
        here = f"tar cf - . | {shlex.join([*self.ssh, there])}"
        done = subprocess.run(here, shell=True, cwd=self.source, check=True, stdout=subprocess.PIPE)
        took = time.monotonic() - began
        digests = done.stdout.count(b"\n")
        assert digests == self.count, f"{digests} digests"
        return self.count / took


def each(words: str) -> str:
    """A process for each file."""
    if shutil.which("parallel"):
        return f"parallel --will-cite -0 -j {CORES} {words}"
    return f"xargs -0 -P {CORES} -n 1 {words}"


def local(folder: Path, count: int, runs: int) -> None:
    with served(folder / "farm") as farm:
        ours = Commands(farm, count, warm=10 * CORES)
        peers = {"peer": lambda: peer_rate(peer_command(), count), "xargs": lambda: peer_rate(XARGS, count)}
        rates = alternate(runs, ours=ours.rate, **peers)
    parts = {"peer": peer_command()[0], "xargs -P commands/s": round(max(rates["xargs"]))}
    report(max(rates["ours"]), max(rates["peer"]), parts, min(ours.cpu))


def over_ssh(folder: Path, count: int, runs: int) -> None:
    with sshd.running(folder / "sshd") as server, served(folder / "farm") as farm:
        ours = Files(farm, server, folder, count)
        bundled = f"xargs -0 -P {CORES} -n {PER_CALL} sha256sum"
        sides: dict[str, Callable[[], float]] = {
            "ours": ours.rate,
            "peer": lambda: ours.by_hand(each("sha256sum")),
            "bundled": lambda: ours.by_hand(bundled),
        }
        rates = alternate(runs, **sides)
    best = {name: max(found) for name, found in rates.items()}
    over = {"over tar and xargs with 500 files a call": round(best["ours"] / best["bundled"], 2)}
    report(best["ours"], best["peer"], {"peer": f"tar, ssh and {each('').split()[0]}", **over})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--commands", type=int, default=2000)
    options.add_argument("--files", type=int, default=10_000)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--ssh", action="store_true", help="small files over loopback ssh")
    given = options.parse_args()
    print(machine(), flush=True)
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        if given.ssh:
            over_ssh(Path(name), given.files, given.runs)
        else:
            local(Path(name), given.commands, given.runs)


if __name__ == "__main__":
    main()
