"""The demo: a farm and two agents on this machine cluster sample layers; the result is checked against scikit-learn.

Everything lies in one folder, `.demo` unless another is named, and everything started is stopped again.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from jobs.writer import LayerWriter

JOB = """\
name: demo
kind: cluster
source: weights/          # each .npy below is a layer, its first axis the rows
shard: {size: 4MiB}
params: {n_clusters: 16}
"""
LAYERS = {"conv1": (384, 2048), "conv2": (192, 8192), "fc": (96, 16384)}  # rows, values a row
AGENTS = ("left", "right")
STOP_SECONDS = 60.0
BIN = Path(sys.executable).parent


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo").absolute()
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    write_layers(folder / "weights")
    job_file = folder / "job.yaml"
    job_file.write_text(JOB)
    root = folder / "farm"
    with coordinator(root), agents(root, folder):
        say(f"submitting {job_file}")
        code = subprocess.call(command("coordinator", "submit", str(job_file), "--wait", "--root", str(root)))
        if code == 0:
            show(root / "jobs" / "demo.1" / "result", folder / "weights")
    return code


def write_layers(folder: Path) -> None:
    """Three layers of normal weights, as a network's look."""
    random = np.random.default_rng(0)
    for name, (rows, values) in LAYERS.items():
        with LayerWriter(folder / f"{name}.npy", (values,), "<f4") as layer:
            layer.append(random.normal(0, 0.05, (rows, values)).astype("f4"))
    say(f"wrote {len(LAYERS)} layers to {folder}")


@contextmanager
def coordinator(root: Path) -> Iterator[None]:
    subprocess.run(command("coordinator", "serve", "--detach", "--root", str(root)), check=True)
    try:
        yield
    finally:
        subprocess.run(command("coordinator", "stop", "--root", str(root)), check=False)


@contextmanager
def agents(root: Path, folder: Path) -> Iterator[None]:
    """Two agents of one cpu each, their output in a file: the bar on the terminal is the job's."""
    with (folder / "agents.log").open("wb") as log:
        running = [subprocess.Popen(join(root, folder, name), stdout=log, stderr=log) for name in AGENTS]
        try:
            yield
        finally:
            for agent in running:
                agent.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            for agent in running:
                agent.wait(max(1.0, deadline - time.monotonic()))
            say("both agents left")


def join(root: Path, folder: Path, name: str) -> list[str]:
    spool = folder / f"spool-{name}"
    return command("agent", "join", str(root), "--name", name, "--cpus", "1", "--spool", str(spool))


def show(result: Path, weights: Path) -> None:
    """Where the result is, a few of its numbers, and what scikit-learn makes of the same rows."""
    from sklearn.cluster import KMeans

    say(f"the merged result is in {result}")
    for name in LAYERS:
        centers = np.load(result / name / "centers.npy", mmap_mode="r")
        inertia = np.load(result / name / "inertia.npy", mmap_mode="r")
        row = np.load(weights / f"{name}.npy", mmap_mode="r")[-1]
        fitted = KMeans(centers.shape[1], n_init=1, random_state=0).fit(np.asarray(row).reshape(-1, 1))
        ends = f"{centers[-1, 0]:+.4f} … {centers[-1, -1]:+.4f}"
        ratio = inertia[-1] / fitted.inertia_
        say(
            f"{name:6} {centers.shape[0]:4} rows × {centers.shape[1]} centers; last row: {ends},"
            f" inertia {inertia[-1]:.5f}, {ratio:.3f} of scikit-learn's"
        )
        if ratio > 1.05:
            raise SystemExit(f"{name}: the inertia is {ratio:.3f} times scikit-learn's")


def command(*words: str) -> list[str]:
    return [str(BIN / words[0]), *words[1:]]


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
