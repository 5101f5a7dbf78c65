"""A farm of real processes on this machine, for tests: a `FarmHarness` starts and kills the daemon, submits jobs,
runs agents and waits for states. Whatever it started is gone after `close`, found by a mark in its environment, or, as
some of Ray's processes write their title over that, by the folder it was started in."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import yaml

from muster.coordinator.api.driver import DriveOpen, DriveState
from muster.coordinator.api.requests import AgentsAsk, FailuresAsk, StatusAsk, Stop
from muster.coordinator.api.requests import Done as Answered
from muster.coordinator.api.status import Agents, AgentStatus, FailureRecord, Failures, JobStatus, Status
from muster.coordinator.commands.submit import submit
from muster.coordinator.daemon.store.statements import Store, StoredJob
from muster.coordinator.farm_root import ask_daemon as ask
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.protocol.values import Message
from muster.jobs.common import launch
from muster.jobs.common.errors import LinkError, NoDaemonError, RefusedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import ItemsSource, Layer, Plan, decode_plan
from muster.jobs.parts.part_file import check_body, read_index
from muster.jobs.results.merge import merge_layer
from muster.jobs.user_code.code_pack import unpack
from muster.jobs.workbench.serial import run_serially
from tests.support.simulated import SimulatedAgent

MARK = "MUSTER_TEST_FARM"
DEADLINE_SECONDS = 40.0  # for any one state; generous, as the machine may be busy
POLL_SECONDS = 0.02
DETACH_SECONDS = 3.0
OWN_FILES = frozenset(
    {"manifest.json", "shards.npy", "seconds.npy"}
)  # they say who computed what, and how long it took
CLUSTER = {"kind": "cluster", "params": {"n_clusters": 4}}

Array = np.ndarray[Any, Any]
_T = TypeVar("_T")


def until(ask_: Callable[[], _T | Literal[False] | None], what: str, seconds: float = DEADLINE_SECONDS) -> _T:
    """The first true answer of `ask_`; an AssertionError that says `what` was waited for if none comes in time."""
    deadline = time.monotonic() + seconds
    while not (answer := ask_()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}; last: {answer!r}"
        time.sleep(POLL_SECONDS)
    return answer


def arrays(layers: int = 1, rows: int = 48, width: int = 32, seed: int = 0) -> dict[str, Array]:
    """Small layers to cluster, called a, b, c, …"""
    rng = np.random.default_rng(seed)
    return {chr(ord("a") + i): rng.normal(size=(rows, width)).astype("f4") for i in range(layers)}


class FarmHarness:
    """One root, its daemon and its agents. `lease`, `heartbeat` and `tick` are seconds and may be changed between
    starts, as may `env`, what its processes' environment has more than ours, and `cwd`, where they are started."""

    def __init__(
        self, folder: Path, lease: float = 30.0, heartbeat: float = 0.5, tick: float = 0.1, pool: str = ""
    ) -> None:
        """`pool`: of its agents, where `join` does not say it; "": as the environment says, or as it comes."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.root = roots.find(folder / "root")
        self.lease, self.heartbeat, self.tick = lease, heartbeat, tick
        self.pool = pool
        self.env: dict[str, str] = {}
        self.cwd = Path("/")
        self.daemon: subprocess.Popen[bytes] | None = None
        self.agents: list[SimulatedAgent] = []
        self.real: dict[str, subprocess.Popen[bytes]] = {}
        self._mark = uuid.uuid4().hex
        self.temp = Path("/tmp") / f"mf-{self._mark[:8]}"  # its processes' temporary files; short, as Ray wants
        self._jobs = 0

    # --- the daemon --------------------------------------------------------------------------------------

    def start(self, prefix: Sequence[str] = ()) -> None:
        """Serve the root and wait until it answers. `prefix`: a command to run it under."""
        timing = ["--lease", str(self.lease), "--heartbeat", str(self.heartbeat), "--tick", str(self.tick)]
        self.daemon = self.run([*prefix, *roots.command("serve", self.root.path), *timing], "daemon.out")
        until(self._answers, "the daemon to answer")

    def _answers(self) -> bool:
        assert self.daemon is not None
        assert self.daemon.poll() is None, f"the daemon ended with {self.daemon.returncode}: {self.said()}"
        try:
            self.ask(StatusAsk(), Status)
        except (NoDaemonError, LinkError):
            return False
        return True

    def stop(self) -> int:
        """In good order; the exit code."""
        assert self.daemon is not None
        self.ask(Stop(), Answered)
        return self.daemon.wait(DEADLINE_SECONDS)

    def kill(self, with_signal: int = signal.SIGKILL) -> None:
        """The daemon alone, without a word; waits for its end unless it can be stopped only."""
        assert self.daemon is not None
        self.daemon.send_signal(with_signal)
        if with_signal == signal.SIGKILL:
            self.daemon.wait(DEADLINE_SECONDS)

    def await_death(self) -> int:
        """Until somebody else's doing ends the daemon; its exit code."""
        assert self.daemon is not None
        return self.daemon.wait(DEADLINE_SECONDS)

    def restart(self) -> None:
        """Killed if it lives, and served again."""
        if self.daemon is not None and self.daemon.poll() is None:
            self.kill()
        self.start()

    def ask(self, question: Message, answer: type[Any]) -> Any:
        return ask.ask(self.root, question, answer)

    def said(self) -> str:
        """The end of what the daemon logged and printed."""
        found = [path for path in (self.root.log, self.folder / "daemon.out") if path.exists()]
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in found)

    # --- processes ---------------------------------------------------------------------------------------

    def run(self, command: Sequence[str], log: str, **more: Any) -> subprocess.Popen[bytes]:
        """A process of this farm, in a session of its own, its output appended to a file of the farm's folder."""
        with (self.folder / log).open("ab") as out:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out, **more}
            return subprocess.Popen(command, env=self.environment(), start_new_session=True, cwd=self.cwd, **streams)

    def environment(self) -> dict[str, str]:
        """What processes of this farm get: the mark they are found by, and nothing that names another root, or agents
        of other farms on this machine."""
        own = {name: value for name, value in os.environ.items() if name != "MUSTER_ROOT"}
        return {**own, "HOME": str(self.folder / "home"), **self.marked, **self.env}

    @property
    def marked(self) -> dict[str, str]:
        """What it finds its processes by, for those that somebody else starts for it."""
        self.temp.mkdir(mode=0o700, exist_ok=True)
        pool = self.pool or os.environ.get("MUSTER_POOL")  # as `conftest` says
        return {MARK: self._mark, "TMPDIR": str(self.temp), **({"MUSTER_POOL": pool} if pool else {})}

    def coordinator(self, *args: str) -> subprocess.CompletedProcess[str]:
        """A `coordinator` command on this root, run to its end."""
        name, *rest = args
        command = [*roots.command(name, self.root.path), *rest]
        return subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )

    def agent_command(self, *args: str) -> subprocess.CompletedProcess[str]:
        """An `agent` command, run to its end."""
        command = launch.python("muster.agent.cli", *args)
        return subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )

    def close(self) -> None:
        """Everything it started is gone."""
        for agent in self.agents:
            agent.die()
        rays = self.processes("/gcs_server") if os.environ.get("MUSTER_POOL") == "processes" else []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert time.monotonic() < deadline, f"processes {pids} do not die"
            time.sleep(POLL_SECONDS)
        for process in [self.daemon, *self.real.values()]:
            if process is not None:
                process.wait(DEADLINE_SECONDS)
        shutil.rmtree(self.temp, ignore_errors=True)
        assert not rays, "a Ray in a test that is not marked `ray`"

    def processes(self, *words: str) -> list[int]:
        """Living processes of this farm whose command line has all of `words`."""
        return [pid for pid in self._processes() if all(word in command_line(pid) for word in words)]

    def _processes(self) -> list[int]:
        mark, temp = f"{MARK}={self._mark}".encode(), f"{self.temp}/"
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                marked = mark in (folder / "environ").read_bytes().split(b"\0")
                if marked or str((folder / "cwd").readlink()).startswith(temp):
                    found.append(int(folder.name))
        return found

    # --- jobs --------------------------------------------------------------------------------------------

    def submit(self, layers: Mapping[str, Array], shard_rows: int = 8, work: str = "", **fields: Any) -> str:
        """A job over these arrays, `cluster` unless `fields` say otherwise; its id."""
        return submit(self.root, self.job_file(layers, shard_rows, work, **fields))

    def job_file(
        self,
        layers: Mapping[str, Array],
        shard_rows: int = 8,
        work: str = "",
        files: Mapping[str, bytes] | None = None,
        **fields: Any,
    ) -> Path:
        """The job's folder: job.yaml, its arrays, `work` as work.py, and `files` as they are."""
        self._jobs += 1
        folder = self.folder / f"job-{self._jobs}"
        (folder / "arrays").mkdir(parents=True)
        for name, array in layers.items():
            path = folder / "arrays" / f"{name}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, array)
        if work:
            (folder / "work.py").write_text(work)
        for name, raw in (files or {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(raw)
        job: dict[str, Any] = {"name": "job", "shard": {"rows": shard_rows}, **({} if work else CLUSTER), **fields}
        if layers:
            job["source"] = {"path": "arrays"}
        elif "shard" not in fields:
            del job["shard"]
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
        return folder / "job.yaml"

    def status(self, job: str) -> JobStatus:
        status: JobStatus = self.ask(StatusAsk(job), Status).jobs[0]
        return status

    def jobs(self) -> list[JobStatus]:
        """All of them, without their layers."""
        jobs: list[JobStatus] = self.ask(StatusAsk(), Status).jobs
        return jobs

    def failures(self, job: str) -> list[FailureRecord]:
        items: list[FailureRecord] = self.ask(FailuresAsk(job), Failures).items
        return items

    def agent_status(self, name: str) -> AgentStatus | None:
        found = [one for one in self.ask(AgentsAsk(), Agents).agents if one.name == name]
        return found[0] if found else None

    def agents_now(self) -> list[AgentStatus]:
        """Those that are connected and take work."""
        agents: list[AgentStatus] = self.ask(AgentsAsk(), Agents).agents
        return [one for one in agents if one.state == "live"]

    def is_live(self, name: str) -> bool:
        """Whether an agent of that name is connected and takes work."""
        found = self.agent_status(name)
        return found is not None and found.state == "live"

    def wait(self, job: str, *states: str, seconds: float = DEADLINE_SECONDS) -> JobStatus:
        """Until the job is in one of `states`, "complete" if none is named."""
        wanted = states or ("complete",)
        try:
            until(lambda: self._is(job, wanted), f"{job} to be {' or '.join(wanted)}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{msgspec.to_builtins(self.status(job))}\n{self.said()}") from None
        return self.status(job)

    def _is(self, job: str, states: Sequence[str]) -> bool:
        for agent in self.agents:
            assert agent.error is None, f"{agent.name} broke: {agent.error!r}"
        return self.status(job).state in states

    def plan(self, job: str) -> Plan:
        return decode_plan(self.root.job(job).plan.read_bytes())

    def merged(self, job: str) -> dict[str, dict[str, bytes]]:
        """Per layer that has a manifest, the bytes of each array of its result."""
        return {
            layer.name: _arrays_in(folder)
            for layer in self.plan(job).layers
            if (folder := self.root.job(job).result / layer.name).joinpath("manifest.json").exists()
        }

    def serial(self, job: str, *names: str) -> dict[str, dict[str, bytes]]:
        """What the result of `job`, or of its layers named, must be: its shards run one after the other in this
        process, and merged."""
        plan = self.plan(job)
        code = self._unpacked(plan)
        wanted = [layer for layer in plan.layers if not names or layer.name in names]
        return {layer.name: self._serial_layer(job, plan, layer, code) for layer in wanted}

    def _serial_layer(self, job: str, plan: Plan, layer: Layer, code: str | None) -> dict[str, bytes]:
        folder = self.folder / f"serial-{uuid.uuid4().hex}"
        (folder / "out").mkdir(parents=True)
        model = str(self.root.model(plan.work.model.digest)) if plan.work.model is not None else None
        items = self.root.job(job).items if isinstance(layer.source, ItemsSource) else None
        part = run_serially(layer, plan.work_of(layer), folder, code, model=model, items=items)
        merge_layer(layer, [part], folder / "out", job="serial", items=items)
        return _arrays_in(folder / "out")

    def _unpacked(self, plan: Plan) -> str | None:
        if plan.work.code is None:
            return None
        target = self.folder / f"code-{plan.work.code}"
        if not target.exists():
            unpack(self.root.pack(plan.work.code).read_bytes(), target, plan.work.code)
        return str(target)

    def check_result(self, job: str, *names: str) -> None:
        """The promise: the merged arrays, of just the layers named if any is, are the serial run's, byte for byte."""
        assert self.merged(job) == self.serial(job, *names)

    # --- what is on disk ---------------------------------------------------------------------------------

    def stored(self) -> dict[str, StoredJob]:
        """The jobs in the store."""
        with self._store() as store:
            return {job.id: job for job in store.jobs()}

    def found(self, job: str) -> dict[str, RangeSet]:
        """Per layer's digest, the shards that are durably there: merged, or in bundles that are whole. Call it while no
        daemon runs. Asserts that each committed shard is in exactly one bundle with a row."""
        with self._store() as store:
            [stored] = [one for one in store.jobs() if one.id == job]
            return {layer.digest: self._found(store, job, layer.digest, layer.state) for layer in stored.layers}

    @contextlib.contextmanager
    def _store(self) -> Iterator[Store]:
        """A copy of the store: only the daemon may have its database open."""
        copy = self.folder / f"store-{uuid.uuid4().hex}"
        copy.mkdir()
        for path in self.root.path.glob("state.sqlite*"):
            shutil.copy(path, copy)
        with contextlib.closing(Store(copy / "state.sqlite")) as store:
            yield store

    def _found(self, store: Store, job: str, digest: str, state: str) -> RangeSet:
        [layer] = [layer for layer in self.plan(job).layers if layer.digest == digest]
        if state == "merged":
            assert (self.root.job(job).result / layer.name / "manifest.json").exists()
            return RangeSet([(0, layer.count)])
        there: list[int] = []
        for _, file, nbytes in store.bundles_of(job, digest):
            path = self.root.job(job).bundles / file
            assert path.stat().st_size == nbytes
            index = read_index(path)
            check_body(path, index)
            there += [entry.number for entry in index.entries]
        assert len(there) == len(set(there)), "a shard is committed twice"
        assert RangeSet.of(sorted(there)) == store.committed_of(job, digest)
        return RangeSet.of(sorted(there))

    def audit(self, job: str, *agents: SimulatedAgent) -> None:
        """Acknowledged is a part of found. Call it while no daemon runs."""
        found = self.found(job)
        for agent in agents:
            for digest, numbers in agent.acknowledged.items():
                if digest in found:
                    assert not numbers - found[digest], f"acknowledged and gone: {numbers - found[digest]}"

    # --- agents ------------------------------------------------------------------------------------------

    def agent(self, name: str = "one", **more: Any) -> SimulatedAgent:
        """A simulated agent; the same name comes back with the same spool. It has not said hello yet."""
        agent = SimulatedAgent(self.root, self.folder / "spools" / name, name, env=self.environment(), **more)
        self.agents.append(agent)
        return agent

    def join(
        self, name: str, *args: str, where: str | None = None, prefix: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """A real agent, by folder unless `where` says how, with a spool of its own below the farm's folder. `prefix`: a
        command to run it under."""
        spool = self.folder / "spools" / name
        spool.mkdir(parents=True, exist_ok=True)
        options = ["--name", name, "--spool", str(spool), *args]
        command = [*prefix, *launch.python("muster.agent.cli", "join", where or str(self.root.path)), *options]
        self.real[name] = self.run(command, f"agent-{name}.out")
        return self.real[name]


def usurp(line: ask.DaemonConnection, job: str, drivers: Sequence[int]) -> bool:
    """Kill a job's drivers and be its driver on `line`; whether that came before the next of them."""
    for pid in drivers:
        os.kill(pid, signal.SIGKILL)
    try:
        line.ask(DriveOpen(job), DriveState)
    except RefusedError:
        return False
    return True


@contextlib.contextmanager
def running(folder: Path, **more: Any) -> Iterator[FarmHarness]:
    """A farm that is served, and gone at the end."""
    farm = FarmHarness(folder, **more)
    try:
        farm.start()
        yield farm
    finally:
        farm.close()


def strace_obstacle() -> str:
    """Why processes cannot be traced here, or ""."""
    strace = shutil.which("strace")
    if strace is None:
        return "strace is not installed"
    tried = subprocess.run([strace, "-o", os.devnull, sys.executable, "-c", ""], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "strace may not trace here"


class Tracer:
    """strace on a running process, injecting faults such as "rename:signal=SIGKILL:when=2". A signal comes before its
    system call is carried out; each thread counts for itself, from when the constructor returns. `alone`: only the
    process's first thread is traced."""

    def __init__(self, farm: FarmHarness, pid: int, *faults: str, alone: bool = False) -> None:
        self._log = farm.folder / f"strace-{uuid.uuid4().hex}"
        calls = sorted({call for fault in faults for call in fault.split(":")[0].split(",")})
        injected = [word for fault in faults for word in ("-e", f"inject={fault}")]
        follow = [] if alone else ["-f"]
        target = ["-o", str(self._log), "-p", str(pid)]
        command = ["strace", *follow, *target, "-e", f"trace={','.join(calls)}", *injected]
        self._process = farm.run(command, "strace.out", stderr=subprocess.PIPE)
        assert self._process.stderr is not None
        first = self._process.stderr.readline()
        assert b"attached" in first, first

    def close(self) -> str:
        """Let the process go on untraced; what was traced."""
        assert self._process.stderr is not None
        self._process.terminate()
        self._process.stderr.close()
        try:
            self._process.wait(DETACH_SECONDS)
        except subprocess.TimeoutExpired:  # it may wait for good for a thread that died meanwhile
            self._process.kill()
            self._process.wait(DEADLINE_SECONDS)
        return self._log.read_text(errors="replace")

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _arrays_in(folder: Path) -> dict[str, bytes]:
    """What a layer's result has: its arrays and tables, and the files in its folders of files."""
    found = [path for path in folder.iterdir() if path.is_file() and path.name not in OWN_FILES]
    folders = [path.with_suffix("") for path in found if path.suffix == ".csv" and path.with_suffix("").is_dir()]
    found += [path for one in folders for path in one.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(found)}


def command_line(pid: int) -> str:
    """The words that a process was started with, or its title; "" where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
