"""A root that version 0.1.0 left behind when its daemon was killed: made once by this script, and kept as an archive.

The archive was made by the modules of that version: `python -m tests.support.stored_root` at a later version makes a
root of that version, which shows nothing. It is to be made again, under another name, only where an older version is no
longer to be served.

Sources are files that were planned with their path, times and inode. None of these can be restored, so that `unpacked`
writes those of the files as they lie now into the stored plans, before any daemon has read them. Layers keep the
digests that they had. All numbers are such that every machine gets the same bits of them, whatever its kernels add up
first: bundles of one machine are merged with those of another.
"""

from __future__ import annotations

import shutil
import tarfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from muster import VERSION
from muster.coordinator.commands.submit import submit
from muster.coordinator.farm_root.paths import Root
from muster.jobs.kinds.registry import kernels
from tests.support.farm import FarmHarness, until
from tests.support.simulated import SimulatedAgent

ARCHIVE = Path(__file__).with_name("root-0.1.0.tar.gz")
MADE_AT = Path("/tmp/muster-0.1.0")  # what the stored plans' paths begin with
LEFT_OUT = ("*.log", "*.out", "connect", "coordinator", "control.sock", "spools", "__pycache__")  # said anew, or of us

COMPLETE, TRAINING, MERGE, CLUSTERING, LINES = "whole.1", "training.1", "merge.1", "clustering.1", "lines.1"
ROWS = 4  # a shard's
HALF = 5  # shards of each half
CLUSTERS: dict[str, Any] = {"kind": "cluster", "params": {"n_clusters": 4}}

SUMS = """
import numpy as np
def sums(rows, first_row):
    return {"sums": rows.sum(axis=1), "where": np.arange(first_row, first_row + len(rows))}
"""
PRODUCTS = """
import os, time
import numpy as np
def products(lines, first_row):
    while first_row >= 20 and os.path.exists("/tmp/muster-0.1.0/hold"):
        time.sleep(0.05)
    return np.array([int(line["a"]) * int(line["b"]) for line in lines])
"""


def unpacked(folder: Path) -> Root:
    """The root as the killed daemon left it, its sources beside it, in a folder of the test's own."""
    careful: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}  # the first of 3.10 and 3.11 had none
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, **careful)
    root = Root(folder / "root")
    for plan in root.jobs.glob("*/plan.msgpack"):
        plan.write_bytes(_moved(plan.read_bytes(), folder))
    return root


def _moved(plan: bytes, folder: Path) -> bytes:
    """A plan as if it had been made of the files below `folder`. Knows no types, as these may be called anything."""
    values = msgspec.msgpack.decode(plan)
    values["base"] = values["base"].replace(str(MADE_AT), str(folder))
    for source in [layer["source"] for layer in values["layers"]]:
        if "stamp" in source:
            path = Path(source["path"].replace(str(MADE_AT), str(folder)))
            found = path.stat()
            source["path"] = str(path)
            source["stamp"] = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
    return msgspec.msgpack.encode(values)


# --- making it -----------------------------------------------------------------------------------------------


def make(archive: Path = ARCHIVE) -> None:
    """Bring a farm to where there is some of everything, kill it all and pack what is left."""
    assert VERSION == "0.1.0", "the versions after it cannot make a root of it"
    MADE_AT.mkdir()
    farm = FarmHarness(MADE_AT)
    try:
        farm.start()
        _with_a_real_agent(farm)
        last = _halves(farm)
        last.push(last.parts[0])  # the last bundle: its merge begins at once
        farm.kill()
    finally:
        farm.close()
    assert not (farm.root.job(MERGE).result / "a" / "manifest.json").exists(), "it was merged already: try again"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(MADE_AT, ".", filter=_kept)
    shutil.rmtree(MADE_AT)


def _with_a_real_agent(farm: FarmHarness) -> None:
    """A job to its end, a training half way, a job over lines that is held in its midst."""
    agent = farm.join("real", "--cpus", "1")
    whole = {"a": np.arange(96).reshape(24, 4), "b": np.arange(48).reshape(12, 4)}
    job = farm.submit(whole, ROWS, SUMS, name="whole", kind="map", code="work.py:sums")
    assert job == COMPLETE
    farm.wait(job)
    job = farm.submit({}, name="training", kind="train", params=_training(farm.folder / "data"))
    assert job == TRAINING
    until(lambda: len(list(farm.root.job(job).checkpoints.glob("round-*"))) > 2, "checkpoints")
    table = "a,b\n" + "".join(f"{i},{i * 3}\n" for i in range(2 * HALF * ROWS))
    lines: dict[str, Any] = {
        "kind": "map",
        "code": "work.py:products",
        "source": {"table": "t.csv"},
        "shard": {"rows": ROWS},
    }
    (farm.folder / "hold").touch()
    given = farm.job_file({}, work=PRODUCTS, files={"t.csv": table.encode()}, name="lines", **lines)
    assert submit(farm.root, given) == LINES
    until(lambda: farm.status(LINES).totals.committed, "some of the lines")
    agent.kill()
    agent.wait()
    (farm.folder / "hold").unlink()
    assert farm.status(job).state == "running"


def _training(data: Path) -> dict[str, Any]:
    """Small rows of its own and few of them: a training of thousands of rounds is over in seconds."""
    data.mkdir()
    rng = np.random.default_rng(3)
    np.save(data / "x.npy", rng.integers(0, 9, (200, 12)).astype("f4"))
    np.save(data / "y.npy", rng.integers(0, 3, 200))
    given = {"x": str(data / "x.npy"), "y": str(data / "y.npy"), "test": 0.25}
    sizes = {"layers": [16], "workers": 6, "microbatch": 16, "rounds": 400, "eval_every": 20, "checkpoint_rounds": 10}
    return {"data": given, **sizes}


def _halves(farm: FarmHarness) -> SimulatedAgent:
    """A clustering of which half is committed; the agent that has the last shard of another one."""
    assert farm.submit({"a": _rows(HALF)}, ROWS, name="merge", **CLUSTERS) == MERGE
    last = _at_work(farm, "last", HALF)
    for part in last.parts[:-1]:
        last.push(part)
    assert farm.submit({"a": _rows(2 * HALF)}, ROWS, name="clustering", **CLUSTERS) == CLUSTERING
    half = _at_work(farm, "half", HALF)
    for part in list(half.parts):
        half.push(part)
    half.die()
    assert farm.status(CLUSTERING).totals.committed == HALF
    return last


def _at_work(farm: FarmHarness, name: str, shards: int) -> SimulatedAgent:
    """An agent that has computed so many shards of the only clustering that wants any, each a part of its own."""
    agent = farm.agent(name, kinds={"cluster": kernels()["cluster"]})
    agent.join()

    def enough() -> bool:
        agent.sync(wait=0.05, hungry=not agent.granted)
        agent.compute(1)
        return len(agent.computed) >= shards

    until(enough, f"{shards} shards")
    return agent


def _rows(shards: int) -> np.ndarray[Any, Any]:
    """Rows of four whole numbers, each as often as the others: their means are exact, whatever is added up first."""
    rng = np.random.default_rng(7)
    return np.stack([rng.permutation(np.repeat(rng.choice(100, 4, False), 8)) for _ in range(shards * ROWS)]).astype(
        "f4"
    )


def _kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """As the crash left it, without what names this machine: every daemon writes those anew."""
    if any(fnmatch(part, pattern) for part in Path(member.name).parts for pattern in LEFT_OUT):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


if __name__ == "__main__":
    make()
