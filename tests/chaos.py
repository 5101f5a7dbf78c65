"""Chaos: jobs on two real agents while a seeded schedule kills everything that can be killed.

    python -m tests.chaos --seed 7 --kills 200 [--ssh]

Each fault hits a living process: the daemon, an agent, Ray's servers, helpers and workers, their host, a runner, a
driver, the merge helper, who tells of a job's end, a `connect` or whatever else an agent started with SIGKILL, two of
them at once too; an agent or the daemon with a SIGSTOP, the agent's past its lease. What was killed is started again.
In the end every job is complete, its merged bytes are the serial run's, and no process, temporary folder or listener is
left.
With --ssh the agents come over a real sshd, and its sessions and their links are struck too (tests/chaos_ssh.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

import psutil

from tests.support.farm import FarmHarness, arrays, command_line, until

AGENTS = ("left", "right")
LEASE_SECONDS = 5.0
REST_SECONDS = 300.0  # for all jobs to end after the last fault
BACK_SECONDS = 120.0  # for an agent to notice that its link is dead, and to come back
NAP = "MUSTER_CHAOS_NAP"  # how long a shard of the map jobs sleeps; the serial run does not
CODE = f"""
import os, time
def half(rows):
    time.sleep(float(os.environ.get("{NAP}", "0")))
    return {{"half": rows / 2, "total": rows.sum(axis=1)}}
"""
PYTHON = r"^\S*python\S*( -\S+)* \S*"
WHO = {  # of processes that are killed: what their command line looks like. Ray's helpers have a title once they are up
    "runner": r"jobs/user_code/runner/runner\.py",
    "connect": r"connect.* --role",  # however sshd started it
    "worker": r"^ray::RayWorker|muster\.agent\.pool\.worker ",
    "merger": r"muster\.coordinator\.daemon\.merge\.merge_process",
    "driver": r"muster\.coordinator\.drivers\.\w+\.main",
    "teller of an end": r"muster\.coordinator\.daemon\.notify\.sender",
    "pool's host": r"muster\.agent\.pool\.ray_host",
    "raylet": r"^\S*/raylet/raylet ",
    "gcs": r"^\S*/gcs_server ",
    "dashboard agent": r"^ray::(DashboardAgent)",
    "runtime env agent": r"^ray::(RuntimeEnvAgent)",
    "helper or worker of Ray": PYTHON + r"(dashboard/agent|runtime_env/agent/main|workers/\w+)\.py",
}
OTHER = "another process of an agent's"  # whatever its name
WEIGHTS = {  # what ends a pool costs most of the time: some seconds of a processor, until it is up again
    "runner": 32,
    "worker": 14,
    "connect": 10,
    "driver": 8,
    "merger": 6,
    "teller of an end": 8,
    "daemon": 3,
    "two at once": 4,
    "helper or worker of Ray": 3,
    OTHER: 2,
    "agent": 2,
    "agent stopped past its lease": 2,
    "pool's host": 1,
    "raylet": 1,
    "gcs": 1,
    "dashboard agent": 1,
    "runtime env agent": 1,
    "daemon stopped": 1,
}
YOUNG_SECONDS = 2.0  # a process that was killed before that was killed while it started
CHEAP = ("connect", "driver", "merger", "teller of an end")
AT_STARTS = 0.04  # of the faults that could be while no pool is up
LOOKS_EACH = 10  # faults


class Chaos:
    """One run."""

    weights: ClassVar[dict[str, int]] = WEIGHTS
    pause_seconds: ClassVar[tuple[float, float]] = (0.2, 1.4)  # between faults
    most_at_once: ClassVar[int] = 1

    def __init__(self, folder: Path, seed: int, kills: int, say: Callable[[str], None] = print) -> None:
        self.random = random.Random(seed)
        self.kills = kills
        self.say = say
        self.farm = FarmHarness(folder, lease=LEASE_SECONDS, heartbeat=0.5, tick=0.2)
        self.farm.env[NAP] = "0.05"
        self.done: Counter[str] = Counter()
        self.young: Counter[str] = Counter()  # of those, killed while they started
        self.jobs: list[str] = []
        self.listeners: set[str] = set()
        self._there: dict[str, list[int]] = {}  # as `_named` found it for the fault that is due
        self._killed: set[int] = set()  # which may take a moment to be gone
        self._stopped: dict[int, float] = {}  # agents' processes, and when they go on

    def run(self) -> None:
        try:
            self._begin()
            while sum(self.done.values()) < self.kills:
                self._keep_busy()
                self._revive()
                for _ in range(self.random.randint(1, self.most_at_once)):
                    self._fault()
                time.sleep(self.random.uniform(*self.pause_seconds))
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

    def _fault(self) -> bool:
        """One, if what it is to strike is there; whether it was. While no worker is there it is mostly one from which a
        farm is back at once: else nothing would ever get on."""
        self._there = self._named()
        up = "worker" in self._there or self.random.random() < AT_STARTS
        weights = {kind: weight for kind, weight in self.weights.items() if up or kind in CHEAP}
        kind = self.random.choices(list(weights), list(weights.values()))[0]
        if not self._strikes().get(kind, partial(self._kill_one, kind))():
            return False
        self.done[kind] += 1
        number = sum(self.done.values())
        self.say(f"{number:4} {kind}")
        if number % LOOKS_EACH == 0:
            self.listeners |= _foreign_listeners(self.farm)
        return True

    def _strikes(self) -> dict[str, Callable[[], bool]]:
        """What is done for each kind but the plain kills; False where there was nothing to strike."""
        return {
            "daemon": self._kill_daemon,
            "agent": self._kill_agent,
            "agent stopped past its lease": self._stop_agent,
            "daemon stopped": self._stop_daemon,
            "two at once": self._kill_two,
        }

    def _named(self) -> dict[str, list[int]]:
        """What can be killed now, and its processes: by name, and else by who started it. What a runner started is its
        user's."""
        lines = {pid: command_line(pid) for pid in sorted(self.farm.processes()) if pid not in self._killed}
        found = {kind: [pid for pid, line in lines.items() if re.search(what, line)] for kind, what in WHO.items()}
        known = {pid for pids in found.values() for pid in pids} | _below(found["runner"])
        agents = [process.pid for process in self.farm.real.values() if process.poll() is None]
        found[OTHER] = sorted(_below(agents) & lines.keys() - known)
        return {kind: pids for kind, pids in found.items() if pids}

    def _kill_one(self, kind: str) -> bool:
        pid = self.random.choice(self._there.get(kind, [0]))
        starts = _is_young(pid)
        if not pid or not _signal(pid, signal.SIGKILL):
            return False
        self._killed.add(pid)
        self.young[kind] += starts
        return True

    def _kill_two(self) -> bool:
        """Whatever they are, one right after the other."""
        there = list(self._there)
        return len(there) > 1 and all(self._kill_one(kind) for kind in self.random.sample(there, 2))

    def _daemon_lives(self) -> bool:
        return self.farm.daemon is not None and self.farm.daemon.poll() is None

    def _kill_daemon(self) -> bool:
        lives = self._daemon_lives()
        self.farm.kill()
        return lives

    def _kill_agent(self) -> bool:
        process = self.farm.real[self.random.choice(AGENTS)]
        return process.poll() is None and _signal(process.pid, signal.SIGKILL)

    def _stop_agent(self) -> bool:
        """Stopped, not killed: it comes back with what it had, and what it had was given to others."""
        process = self.farm.real[self.random.choice(AGENTS)]
        if process.pid in self._stopped or process.poll() is not None or not _signal(process.pid, signal.SIGSTOP):
            return False
        self._stopped[process.pid] = time.monotonic() + LEASE_SECONDS + 1.0
        return True

    def _stop_daemon(self) -> bool:
        if not self._daemon_lives():
            return False
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
        for pid in [pid for pid, until_then in self._stopped.items() if time.monotonic() >= until_then]:
            del self._stopped[pid]
            _signal(pid, signal.SIGCONT)

    def _all_go_on(self) -> bool:
        self._revive()
        return not self._stopped

    # --- the end -----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        until(self._all_go_on, "every agent to go on")
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
        left = sorted(path.name for path in self.farm.temp.iterdir())
        assert not left, f"temporary files left: {left}"


def _signal(pid: int, number: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def _below(pids: Iterable[int]) -> set[int]:
    """All that these started, and what that started."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return found


def _is_young(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return time.time() - psutil.Process(pid).create_time() < YOUNG_SECONDS
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
