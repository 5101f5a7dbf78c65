"""The demo: a farm and two agents on this machine cluster sample layers; the result is checked against scikit-learn.

Everything lies in one folder, `.demo` unless another is named. Everything it starts is stopped again, also by Ctrl-C.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import numpy as np

from jobs.writer import LayerWriter

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
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo").absolute()
    demo = Demo(folder)
    try:
        return demo.run()
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED_EXIT
    finally:
        demo.stop()


class Demo:
    """One run. A signal raises KeyboardInterrupt, but never between a process's start and our knowing of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "farm"
        self._running: list[subprocess.Popen[bytes]] = []  # in the order of their start
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
        for name in AGENTS:
            spool = str(self.folder / f"spool-{name}")
            self._start("agent", "join", str(self.root), "--name", name, "--cpus", "1", "--spool", spool)
        say("coordinator submit job.yaml --wait")
        code = self._follow("coordinator", "submit", str(self.folder / "job.yaml"), "--wait", "--root", str(self.root))
        if code == 0:
            show(self.root / "jobs" / "demo.1" / "result", self.folder / "weights")
        return code

    def _serve(self) -> None:
        daemon = self._start("coordinator", "serve", "--root", str(self.root))
        deadline = time.monotonic() + START_SECONDS
        while not (self.root / "control.sock").exists():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"demo: the coordinator did not start; see {self._log('coordinator')}")
            time.sleep(0.02)

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        """A process that Ctrl-C does not reach: it is ours to stop."""
        with self._log(words[0]).open("ab") as log:
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
        """Agents finish what runs, and leave; the coordinator goes last. Told twice, they stop at once."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        deadline = time.monotonic() + STOP_SECONDS
        daemon, others = self._running[:1], self._running[1:]
        for group in (others, daemon):
            for process in group:
                if process.poll() is None:
                    process.terminate()
                    if self._interrupted:
                        process.terminate()
            for process in group:
                _end(process, deadline)
        if self._running:
            say("everything is stopped")


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
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


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
