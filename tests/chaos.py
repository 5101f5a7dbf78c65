"""Chaos: jobs on two real agents while a seeded schedule kills everything that can be killed.

    python -m tests.chaos --seed 7 --kills 200 [--ssh]

Each fault hits a living process: the daemon, an agent, a Ray worker, a runner, the merge helper or a `connect` with
SIGKILL; an agent or the daemon with a SIGSTOP, the agent's past its lease. What was killed is started again. In the end
every job is complete, its merged bytes are the serial run's, and no process, session folder or listener is left.
With --ssh the agents come over a real sshd, and its sessions and their links are struck too (tests/chaos_ssh.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import psutil

from muster.agent.pool import cleanup
from tests.support.farm import FarmHarness, arrays, until

AGENTS = ("left", "right")
LEASE_SECONDS = 5.0
PAUSE_SECONDS = (0.2, 1.4)  # between faults
REST_SECONDS = 300.0  # for all jobs to end after the last fault
BACK_SECONDS = 120.0  # for an agent to notice that its link is dead, and to come back
NAP = "MUSTER_CHAOS_NAP"  # how long a shard of the map jobs sleeps; the serial run does not
CODE = f"""
import os, time
def half(rows):
    time.sleep(float(os.environ.get("{NAP}", "0")))
    return {{"half": rows / 2, "total": rows.sum(axis=1)}}
"""
WEIGHTS = {
    "runner": 5,
    "worker": 4,
    "connect": 4,
    "daemon": 3,
    "agent": 3,
    "merger": 2,
    "agent stopped past its lease": 1,
    "daemon stopped": 1,
}
WORDS = {
    "runner": ("jobs/user_code/runner/runner.py",),
    "connect": ("connect", "--role"),  # however sshd started it
    "merger": ("muster.coordinator.daemon.merge.merge_process",),
    "worker": ("ray::Worker",),
}


class Chaos:
    """One run."""

    weights: ClassVar[dict[str, int]] = WEIGHTS

    def __init__(self, folder: Path, seed: int, kills: int, say: Callable[[str], None] = print) -> None:
        self.random = random.Random(seed)
        self.kills = kills
        self.say = say
        self.farm = FarmHarness(folder, lease=LEASE_SECONDS, heartbeat=0.5, tick=0.2)
        self.farm.env[NAP] = "0.05"
        self.done: Counter[str] = Counter()
        self.jobs: list[str] = []
        self.listeners: set[str] = set()
        self.folders: set[Path] = set()  # of the pools' sessions

    def run(self) -> None:
        try:
            self._begin()
            while sum(self.done.values()) < self.kills:
                self._keep_busy()
                self._revive()
                self._fault()
                self._look()
                time.sleep(self.random.uniform(*PAUSE_SECONDS))
            self._finish()
        finally:
            self.farm.close()

    def _begin(self) -> None:
        self.farm.start()
        for name in AGENTS:
            self._join(name)
        until(lambda: all(self.farm.agent_status(name) for name in AGENTS), "both agents to join")

    def _join(self, name: str) -> None:
        self.farm.join(name, "--cpus", "1")

    # --- work --------------------------------------------------------------------------------------------

    def _keep_busy(self) -> None:
        """There is always a job under way; one of each kind by turns."""
        if not self._daemon_lives() or any(self.farm.status(job).state == "running" for job in self.jobs):
            return
        seed = len(self.jobs)
        self.jobs.append(
            self.farm.submit(arrays(4, 160, 64, seed), 2, CODE, kind="map", code="work.py:half", name="map")
        )
        self.jobs.append(self.farm.submit(arrays(3, 96, 4096, seed), 4, name="cluster"))

    # --- faults ------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        kind = self.random.choices(list(self.weights), list(self.weights.values()))[0]
        strike = self._strikes().get(kind, lambda: self._kill_one(*WORDS[kind]))
        if strike():
            self.done[kind] += 1
            self.say(f"{sum(self.done.values()):4} {kind}")

    def _strikes(self) -> dict[str, Callable[[], bool]]:
        """What is done for each kind but the plain kills; False where there was nothing to strike."""
        return {
            "daemon": self._kill_daemon,
            "agent": self._kill_agent,
            "agent stopped past its lease": self._stop_agent,
            "daemon stopped": self._stop_daemon,
        }

    def _kill_one(self, *words: str) -> bool:
        pids = sorted(self.farm.processes(*words))
        return bool(pids) and _signal(self.random.choice(pids), signal.SIGKILL)

    def _daemon_lives(self) -> bool:
        return self.farm.daemon is not None and self.farm.daemon.poll() is None

    def _kill_daemon(self) -> bool:
        self.farm.kill()
        return True

    def _kill_agent(self) -> bool:
        process = self.farm.real[self.random.choice(AGENTS)]
        return process.poll() is None and _signal(process.pid, signal.SIGKILL)

    def _stop_agent(self) -> bool:
        """Stopped, not killed: it comes back with what it had, and what it had was given to others."""
        process = self.farm.real[self.random.choice(AGENTS)]
        if process.poll() is not None or not _signal(process.pid, signal.SIGSTOP):
            return False
        time.sleep(LEASE_SECONDS + 1.0)
        return _signal(process.pid, signal.SIGCONT)

    def _stop_daemon(self) -> bool:
        self.farm.kill(signal.SIGSTOP)
        time.sleep(2.0)
        self.farm.kill(signal.SIGCONT)
        return True

    def _revive(self) -> None:
        if not self._daemon_lives():
            self.farm.start()
        for name in AGENTS:
            if self.farm.real[name].poll() is not None:
                self._join(name)

    # --- the end -----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._revive()
        for job in self.jobs:
            self.farm.wait(job, "complete", "incomplete", "halted", seconds=REST_SECONDS)
        for job in self.jobs:
            status = self.farm.status(job)
            assert status.state == "complete", (status, self.farm.failures(job))
            self.farm.check_result(job)
        self._leave()
        assert not self.listeners, f"listened beyond loopback: {self.listeners}"
        self.say(f"{len(self.jobs)} jobs complete and equal to the serial run after {dict(self.done)}")

    def _leave(self) -> None:
        """Everyone goes in good order, and nothing is left."""
        for name in AGENTS:
            until(partial(self.farm.is_live, name), f"{name} to be back", BACK_SECONDS)
            self.farm.real[name].send_signal(signal.SIGTERM)
        for name in AGENTS:
            code = self.farm.real[name].wait(BACK_SECONDS)
            assert code == 0, f"{name} left with {code}: {(self.farm.folder / f'agent-{name}.out').read_text()[-2000:]}"
        assert self.farm.stop() == 0
        try:
            until(lambda: not self.farm.processes(), "every process to be gone")
        except AssertionError as error:
            raise AssertionError(f"{error}: {[_describe(pid) for pid in self.farm.processes()]}") from None
        left = [str(folder) for folder in self.folders if folder.exists()]
        assert not left, f"session folders left: {left}"

    def _look(self) -> None:
        """Note what must not be there, or must be gone in the end."""
        self.listeners |= _foreign_listeners(self.farm)
        for name in AGENTS:
            pool = cleanup.read(self.farm.folder / "spools" / name / "run")
            if pool and pool.temp:
                self.folders.add(Path(pool.temp))


def _signal(pid: int, number: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def _describe(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return f"{pid} (parent {process.ppid()}, {process.status()}) {' '.join(process.cmdline())[:200]}"
    return f"{pid} (gone)"


def _foreign_listeners(farm: FarmHarness) -> set[str]:
    """Addresses beyond loopback that a process of this farm listens on."""
    found = set()
    for pid in farm.processes():
        with contextlib.suppress(psutil.Error):
            for connection in psutil.Process(pid).net_connections("inet"):
                ip = connection.laddr.ip if connection.laddr else ""
                if connection.status == psutil.CONN_LISTEN and not ip.startswith(("127.", "::1", "::ffff:127.")):
                    found.add(f"{ip}:{connection.laddr.port}")
    return found


def _kind(ssh: bool) -> type[Chaos]:
    if not ssh:
        return Chaos
    from tests.chaos_ssh import ChaosOverSsh

    return ChaosOverSsh


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--kills", type=int, default=30)
    options.add_argument("--ssh", action="store_true", help="the agents come over a real sshd")
    options.add_argument("--keep", action="store_true", help="keep the folder")
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="muster-chaos-"))
    print(f"seed {given.seed}, {given.kills} faults, in {folder}", flush=True)
    _kind(given.ssh)(folder, given.seed, given.kills, lambda text: print(text, flush=True)).run()
    if not given.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
