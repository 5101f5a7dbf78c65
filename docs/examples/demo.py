"""The demo: a farm and two agents on this machine cluster sample layers; the result is checked against scikit-learn.

Everything lies in one folder, `.demo` unless another is named. Everything it starts is stopped again, also by Ctrl-C.
With --ssh the agents come over ssh, through an sshd of the demo's own on a port of 127.0.0.1, and pull their inputs.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import own_sshd

from muster.jobs.sources.layer_writer import LayerWriter

JOB = """\
name: demo
kind: cluster
source: weights/          # each .npy below is a layer, its first axis the rows
shard: {size: 1MiB}
params: {n_clusters: 16}
"""
LAYERS = {  # rows, values a row and, where they have several, features
    "conv1": (4096, 2048),
    "conv2": (1024, 8192),
    "fc": (512, 16384),
    "embeddings": (160, 2048, 8),
}
AGENTS = ("left", "right")
START_SECONDS = 60.0
STOP_SECONDS = 45.0  # for everything together; what is still there then is killed
WORST_RATIO = 1.05  # of the inertia of one row to that of scikit-learn
INTERRUPTED_EXIT = 130
BIN = Path(sys.executable).parent


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", nargs="?", type=Path, default=Path(".demo"))
    options.add_argument("--ssh", action="store_true", help="the agents come over ssh")
    given = options.parse_args()
    if given.ssh and (why := own_sshd.obstacle()):
        raise SystemExit(f"demo: it cannot run over ssh {why}")
    demo = Demo(given.folder.absolute(), given.ssh)
    try:
        return demo.run()
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED_EXIT
    finally:
        demo.stop()


class Demo:
    """One run. A signal raises KeyboardInterrupt, but never between a process's start and our knowing of it."""

    def __init__(self, folder: Path, ssh: bool) -> None:
        self.folder = folder
        self.root = folder / "farm"
        self.ssh = ssh
        self._running: list[subprocess.Popen[bytes]] = []  # in the order of their start
        self._servers = 0  # how many of them go last
        self._starting = False
        self._interrupted = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._signalled)

    def run(self) -> int:
        clear(self.folder)
        write_layers(self.folder / "weights")
        (self.folder / "job.yaml").write_text(JOB)
        say(f"starting a coordinator and two agents in {self.folder}")
        self._serve()
        where = self._serve_ssh() if self.ssh else [str(self.root)]
        self._servers = len(self._running)
        for name in AGENTS:
            spool = str(self.folder / f"spool-{name}")
            self._start("agent", "join", *where, "--name", name, "--cpus", "1", "--spool", spool)
        say("coordinator submit job.yaml --wait")
        code = self._follow("coordinator", "submit", str(self.folder / "job.yaml"), "--wait", "--root", str(self.root))
        if code == 0:
            show(self.root / "jobs" / "demo.1" / "result", self.folder / "weights")
        return code

    def _serve(self) -> None:
        daemon = self._start("coordinator", "serve", "--root", str(self.root))
        self._await(daemon, "coordinator", (self.root / "control.sock").exists)

    def _serve_ssh(self) -> list[str]:
        """What agents are told to find the farm by."""
        server = SshServer(self.folder / "ssh")
        daemon = self._start(*own_sshd.command(server.config))
        self._await(daemon, "sshd", lambda: server.listening in self._log("sshd").read_text(errors="replace"))
        say(f"started an sshd on 127.0.0.1 port {server.port}")
        return [f"{own_sshd.HOST}:{self.root}", "--ssh-config", str(server.client_config)]

    def _await(self, daemon: subprocess.Popen[bytes], name: str, serves: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not serves():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"demo: the {name} did not start; see {self._log(name)}")
            time.sleep(0.02)

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        """A process that Ctrl-C does not reach: it is ours to stop."""
        with self._log(Path(words[0]).name).open("ab") as log:
            return self._begin(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _follow(self, *words: str) -> int:
        """A process on our terminal; its exit code."""
        return self._begin(words).wait()

    def _begin(self, words: tuple[str, ...], **more: object) -> subprocess.Popen[bytes]:
        self._starting = True
        process = subprocess.Popen([str(BIN / words[0]), *words[1:]], **more)  # type: ignore[call-overload]
        self._running.append(process)
        self._starting = False
        if self._interrupted:
            raise KeyboardInterrupt
        return process

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        if not self._starting:
            raise KeyboardInterrupt

    def stop(self) -> None:
        """Agents finish what runs, and leave; the servers go last. Told twice, they stop at once."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        deadline = time.monotonic() + STOP_SECONDS
        servers = self._servers or len(self._running)
        for group in (self._running[servers:], self._running[:servers]):
            for process in group:
                if process.poll() is None:
                    process.terminate()
                    if self._interrupted:
                        process.terminate()
            for process in group:
                _end(process, deadline)
        if self._running:
            say("everything is stopped")


class SshServer:
    """The files of an sshd that lets this user in by a key of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        host_key, key = own_sshd.make_key(folder / "host_key"), own_sshd.make_key(folder / "key")
        authorized, known_hosts = folder / "authorized_keys", folder / "known_hosts"
        self.config, self.client_config = folder / "sshd_config", folder / "ssh_config"
        self.port = own_sshd.free_port()
        self.listening = own_sshd.listening(own_sshd.LOOPBACK, self.port)
        authorized.write_text(own_sshd.public_line(key) + "\n")
        name = own_sshd.name_of(own_sshd.LOOPBACK, self.port)
        known_hosts.write_text(f"{name} {own_sshd.public_line(host_key)}\n")
        env = {"PATH": f"{BIN}:{os.environ.get('PATH', os.defpath)}"}
        self.config.write_text(own_sshd.server_config(folder, host_key, authorized, self.port, env))
        self.client_config.write_text(own_sshd.client_config(self.port, getpass.getuser(), key, known_hosts))


def _end(process: subprocess.Popen[bytes], deadline: float) -> None:
    try:
        process.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def clear(folder: Path) -> None:
    """Away with what an earlier run left, and with what it left running if it was killed."""
    for spool in folder.glob("spool-*"):
        if (spool / "pid.json").exists():
            _quietly("agent", "leave", "--now", "--spool", str(spool))
    if (folder / "farm" / "control.sock").exists():
        _quietly("coordinator", "stop", "--root", str(folder / "farm"))
    end_sshd(folder / "ssh")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def end_sshd(folder: Path) -> None:
    """The one that was started with the configuration in that folder, if it still runs."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / "sshd.pid").read_text())
        shown = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
        if str(folder / "sshd_config") in shown.stdout:
            os.kill(pid, signal.SIGTERM)


def _quietly(*words: str) -> None:
    subprocess.run([str(BIN / words[0]), *words[1:]], capture_output=True, check=False)


def write_layers(folder: Path) -> None:
    """Normal weights, as a network's look."""
    random = np.random.default_rng(0)
    nbytes = 0
    for name, (rows, *row) in LAYERS.items():
        with LayerWriter(folder / f"{name}.npy", tuple(row), "<f4") as layer:
            layer.append(random.standard_normal((rows, *row), dtype="f4") * np.float32(0.05))
        nbytes += (folder / f"{name}.npy").stat().st_size
    say(f"wrote {len(LAYERS)} layers, {nbytes / 2**20:.0f} MiB, to {folder}")


def show(result: Path, weights: Path) -> None:
    """Where the result is, a few of its numbers, and what scikit-learn makes of the same rows."""
    from sklearn.cluster import KMeans

    say(f"the merged result is in {result}")
    for name in LAYERS:
        centers = np.load(result / name / "centers.npy", mmap_mode="r")
        inertia = np.load(result / name / "inertia.npy", mmap_mode="r")
        row = np.load(weights / f"{name}.npy", mmap_mode="r")[-1]
        points = np.asarray(row).reshape(len(row), -1)
        ratio = inertia[-1] / KMeans(centers.shape[1], n_init=1, random_state=0).fit(points).inertia_
        first, last = centers[-1].flat[0], centers[-1].flat[-1]
        say(
            f"{name:10} centers {centers.shape!s:14} the last row's: {first:+.4f} … {last:+.4f},"
            f" inertia {inertia[-1]:.5f}, {ratio:.3f} of scikit-learn's"
        )
        if ratio > WORST_RATIO:
            raise SystemExit(f"demo: {name}: the inertia is {ratio:.3f} times scikit-learn's")


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
