"""A farm of two real agents, and what may be struck of it: who is there to be, how each is struck, and how all of it
comes back. Knows neither when to strike nor what runs."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import psutil

from tests.support.farm import FarmHarness, command_line, until

AGENTS = ("left", "right")
LEASE_SECONDS = 5.0
BACK_SECONDS = 120.0  # for an agent to notice that its link is dead, and to come back
PYTHON = r"^\S*python\S*( -\S+)* \S*"
WHO = {  # of processes that are killed: what their command line looks like. Ray's helpers have a title once they are up
    "runner": r"jobs/user_code/runner/runner\.py",
    "connect": r"connect.* --role",  # however sshd started it
    # Ray titles one by the call that it runs: by our name for that, a job and its shards
    "worker": r"^ray::(?!DashboardAgent|RuntimeEnvAgent|IDLE)|muster\.agent\.pool\.worker ",
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
AGES = (2.0, 20.0, 120.0)  # seconds: who is struck before the first of them is struck while it starts


class Strikes:
    """The farm, its two agents, and what was struck so far. What was killed is started again by `revive`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.farm = FarmHarness(folder, lease=LEASE_SECONDS, heartbeat=0.5, tick=0.2)
        self.done: Counter[str] = Counter()
        self.ages: dict[str, list[int]] = {}  # kind → how many of them were so old: see AGES
        self.listeners: set[str] = set()  # beyond loopback
        self._there: dict[str, list[int]] = {}  # as `look` found it
        self._killed: set[int] = set()  # which may take a moment to be gone
        self._stopped: dict[int, float] = {}  # agents' processes, and when they go on

    def begin(self) -> None:
        self.farm.start()
        for name in AGENTS:
            self.join(name)
        until(lambda: all(self.farm.agent_status(name) for name in AGENTS), "both agents to join")

    def join(self, name: str) -> None:
        self.farm.join(name, "--cpus", "1")

    def close(self) -> None:
        self.farm.close()

    # --- who is there -----------------------------------------------------------------------------------

    def look(self) -> dict[str, list[int]]:
        """What can be killed now, and its processes: by name, and else by who started it. What a runner started is its
        user's."""
        lines = {pid: command_line(pid) for pid in sorted(self.farm.processes()) if pid not in self._killed}
        found = {kind: [pid for pid, line in lines.items() if re.search(what, line)] for kind, what in WHO.items()}
        known = {pid for pids in found.values() for pid in pids} | _below(found["runner"])
        agents = [process.pid for process in self.farm.real.values() if process.poll() is None]
        found[OTHER] = sorted(_below(agents) & lines.keys() - known)
        self._there = {kind: pids for kind, pids in found.items() if pids}
        return self._there

    def look_for_listeners(self) -> None:
        """Note what a process of this farm listens on beyond loopback."""
        for pid in self.farm.processes():
            with contextlib.suppress(psutil.Error):
                for connection in psutil.Process(pid).net_connections("inet"):
                    ip = connection.laddr.ip if connection.laddr else ""
                    if connection.status == psutil.CONN_LISTEN and not ip.startswith(("127.", "::1", "::ffff:127.")):
                        self.listeners.add(f"{ip}:{connection.laddr.port}")

    # --- strikes ----------------------------------------------------------------------------------------

    def strike(self, kind: str) -> bool:
        """One of what the last look found, or of what is known by other means; False where it was not there."""
        struck = self.ways().get(kind, partial(self._kill_one, kind))()
        self.done[kind] += struck
        return struck

    def ways(self) -> dict[str, Callable[[], bool]]:
        """How each kind is struck that is not one plain kill; False where there was nothing to strike."""
        return {
            "daemon": self._kill_daemon,
            "agent": self._kill_agent,
            "agent stopped past its lease": self._stop_agent,
            "daemon stopped": self._stop_daemon,
            "two at once": self._kill_two,
        }

    def _kill_one(self, kind: str) -> bool:
        there = self._there.get(kind)
        return bool(there) and self._signal(kind, self.random.choice(there or []), signal.SIGKILL)

    def _signal(self, kind: str, pid: int, number: int) -> bool:
        age = age_of(pid)
        if not send(pid, number):
            return False
        if number == signal.SIGKILL:
            self._killed.add(pid)
        ages = self.ages.setdefault(kind, [0] * (len(AGES) + 1))
        ages[sum(age >= limit for limit in AGES)] += 1
        return True

    def _kill_two(self) -> bool:
        """Whatever they are, one right after the other."""
        there = list(self._there)
        return len(there) > 1 and all(self._kill_one(kind) for kind in self.random.sample(there, 2))

    def daemon_lives(self) -> bool:
        return self.farm.daemon is not None and self.farm.daemon.poll() is None

    def _kill_daemon(self) -> bool:
        assert self.farm.daemon is not None
        killed = self.daemon_lives() and self._signal("daemon", self.farm.daemon.pid, signal.SIGKILL)
        self.farm.daemon.wait(BACK_SECONDS) if killed else None
        return killed

    def _kill_agent(self) -> bool:
        process = self.farm.real[self.random.choice(AGENTS)]
        return process.poll() is None and self._signal("agent", process.pid, signal.SIGKILL)

    def _stop_agent(self) -> bool:
        """Stopped, not killed: it comes back with what it had, and what it had was given to others."""
        process = self.farm.real[self.random.choice(AGENTS)]
        if process.pid in self._stopped or process.poll() is not None:
            return False
        if not self._signal("agent stopped past its lease", process.pid, signal.SIGSTOP):
            return False
        self._stopped[process.pid] = time.monotonic() + LEASE_SECONDS + 1.0
        return True

    def _stop_daemon(self) -> bool:
        if not self.daemon_lives():
            return False
        self.farm.kill(signal.SIGSTOP)
        time.sleep(2.0)
        self.farm.kill(signal.SIGCONT)
        return True

    # --- and back ---------------------------------------------------------------------------------------

    def revive(self) -> list[str]:
        """Start whatever ended, at once, as a supervisor does. Says who ended by itself, and how."""
        said = [] if self.daemon_lives() else [self._daemons_end()]
        if said:
            self.farm.start()
        for name in AGENTS:
            if self.farm.real[name].poll() is not None:
                said.append(self._agents_end(name))
                self.join(name)
        for pid in [pid for pid, until_then in self._stopped.items() if time.monotonic() >= until_then]:
            del self._stopped[pid]
            send(pid, signal.SIGCONT)
        return [one for one in said if one]

    def _daemons_end(self) -> str:
        code = self.farm.daemon.returncode if self.farm.daemon is not None else None
        return "" if code in {None, -signal.SIGKILL} else f"the daemon ended with {code}: {self.farm.said()}"

    def _agents_end(self, name: str) -> str:
        """One may end where its pool was lost again and again."""
        code = self.farm.real[name].returncode
        lines = (self.farm.folder / f"agent-{name}.out").read_text(errors="replace").splitlines()
        why = next((line for line in reversed(lines) if line.startswith("error:")), "without a word")
        why = why.replace(str(self.farm.folder), "…")
        return "" if code == -signal.SIGKILL else f"an agent ended with {code}: {why}"

    @property
    def nobody_is_stopped(self) -> bool:
        return not self._stopped

    def leave(self) -> None:
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


def send(pid: int, number: int) -> bool:
    """A signal; whether the process was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def age_of(pid: int) -> float:
    """In seconds; 0 of one that is gone."""
    with contextlib.suppress(psutil.Error):
        return time.time() - psutil.Process(pid).create_time()
    return 0.0


def _below(pids: Iterable[int]) -> set[int]:
    """All that these started, and what that started."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return found


def _describe(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return f"{pid} (parent {process.ppid()}, {process.status()}) {' '.join(process.cmdline())[:200]}"
    return f"{pid} (gone)"
