"""A slot's worker on a node of somebody's Ray cluster: says what the node has, lays out there what a batch needs, and
hands the batch's part back in pieces.

Imports nothing but the standard library until the node was seen to have the packages that everything else needs.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.agent.pool.ray_actor import RayWorker
    from muster.jobs.workbench.batch import Batch, Item

PACKAGES = {  # that a worker cannot do without: module → what it is installed by
    "msgspec": "msgspec",
    "numpy": "numpy",
    "packaging": "packaging",
    "psutil": "psutil",
    "sklearn": "scikit-learn",
    "threadpoolctl": "threadpoolctl",
    "xxhash": "xxhash",
}
PIECE_BYTES = 64 << 10  # below Ray's bound for what comes with a call's answer, and lies in no dead node's store
LOCK = "lock"
CODE, MODEL = "code", "model"  # what a job gives to all its batches


def facts() -> dict[str, Any]:
    """What decides here which kinds there are, and their bits: what of it a node has otherwise, it may not compute."""
    from muster.jobs.contract.requirements import COMMON
    from muster.jobs.kinds.registry import kernels
    from muster.jobs.user_code import environments
    from muster.jobs.workbench.fingerprint import fingerprint

    packages = environments.own().packages
    common = [f"{name} {packages[name]}" for name in COMMON if name in packages]
    kinds = ", ".join(f"{kind} {kernel}" for kind, kernel in sorted(kernels().items()))
    return {"python": platform.python_version(), "kinds": kinds, "numerics": ", ".join([fingerprint(), *common])}


class FarWorker:
    """The actor. Its calls run one after the other, on the process's main thread."""

    def __init__(self, worker: str, seat: str) -> None:
        self._wanted = worker, seat
        self._worker: RayWorker | None = None  # from the first batch on
        self._scratch = Path()

    def hello(self) -> dict[str, Any]:
        """What there is on this node; without its packages, nothing else may be asked of it."""
        import ray

        said = {
            "host": ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
            "node": ray.get_runtime_context().get_node_id(),
            "pid": os.getpid(),
        }
        missing = [name for module, name in PACKAGES.items() if not _is_there(module)]
        if missing:
            return {**said, "python": platform.python_version(), "missing": missing}
        return {**said, "missing": [], **facts()}

    def is_there(self) -> None:
        """That it answers is all."""

    def sees(self, window: bytes) -> bool:
        """Whether a window's source is here as it was planned."""
        import msgspec

        from muster.jobs.contract.plan import ItemsWindow, Window
        from muster.jobs.sources.carried import is_here

        return is_here(msgspec.msgpack.decode(window, type=Window | ItemsWindow))

    def run(self, ticket: int, batch: bytes, names: list[str], *given: Any) -> Iterator[tuple[bool, bytes]]:
        """The pieces of a batch's part, where it has one, and, marked as last, what came of it. `given` has the bytes
        of what is named: inputs by their place in the batch, the code's pack, the model."""
        import msgspec

        from muster.agent.pool.worker import WorkerDone

        there = dict(zip(names, given, strict=True))
        outcome, broken = self._opened().run_batch(lambda: self._laid_out(batch, there))
        part = self._scratch / "part"
        if part.exists():
            yield from _pieces(part)
            part.unlink()
        yield True, msgspec.msgpack.encode(WorkerDone(ticket, outcome, broken))

    def _opened(self) -> RayWorker:
        if self._worker is None:
            from muster.agent.pool.ray_actor import RayWorker

            self._scratch = _scratch(self._wanted[1])
            self._worker = RayWorker(*self._wanted)
        return self._worker

    def _laid_out(self, raw: bytes, given: dict[str, Any]) -> Batch:
        """The batch with this node's paths in it."""
        import msgspec

        from muster.agent.pool.ray_actor import gpus_given
        from muster.jobs.workbench.batch import Batch

        batch = msgspec.msgpack.decode(raw, type=Batch)
        work, here = batch.work, self._scratch
        pack = self._kept(f"{CODE}-{work.code}", given.get(CODE)) if work.code is not None else None
        model = self._kept(f"{MODEL}-{work.model.digest}", given.get(MODEL)) if work.model is not None else None
        return msgspec.structs.replace(
            batch,
            items=tuple(self._with_input(i, item, given.get(str(i))) for i, item in enumerate(batch.items)),
            tmp=str(here / "part.tmp"),
            done=str(here / "part"),
            mark=str(here / "mark"),
            scratch=str(here / "scratch"),
            code=str(here / f"unpacked-{work.code}") if work.code is not None else None,
            pack=pack,
            model=model,
            gpus=None if batch.gpus is None else gpus_given(),
        )

    def _kept(self, name: str, given: Any) -> str:
        """A file of the job's, which comes with its first batch."""
        path = self._scratch / name
        if given is not None and not path.exists():
            path.with_suffix(".new").write_bytes(given)
            path.with_suffix(".new").rename(path)
        return str(path)

    def _with_input(self, place: int, item: Item, given: Any) -> Item:
        """Its input is in a file here where it came with the batch: the same file each time, whose memory is there."""
        import msgspec

        if given is None or item.window is None:
            return item
        path = self._scratch / f"in-{place}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            left = memoryview(given).cast("B")
            while left:
                left = left[os.pwrite(fd, left, len(given) - len(left)) :]
        finally:
            os.close(fd)
        return msgspec.structs.replace(item, window=item.window.copied(str(path), b""))


def _is_there(module: str) -> bool:
    """An empty folder of that name is none."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def _pieces(part: Path) -> Iterator[tuple[bool, bytes]]:
    with part.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield False, piece


def _scratch(seat: str) -> Path:
    """A folder of this worker's own, locked while it lives. Those that dead workers left on this node are removed, with
    what their users' code left running."""
    from muster.jobs.user_code import reaper

    root = Path(tempfile.gettempdir()) / f"muster-ray-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        raise PermissionError(f"{root} is another user's")
    mine = root / f"{seat}-{os.getpid()}"
    with (root / LOCK).open("ab") as turn:  # one that is not locked yet is no dead worker's
        fcntl.flock(turn, fcntl.LOCK_EX)
        for left in [path for path in root.iterdir() if path.is_dir()]:
            with suppress(OSError), (left / LOCK).open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                reaper.sweep(left)
                shutil.rmtree(left, ignore_errors=True)
        mine.mkdir(mode=0o700)
        fcntl.flock(os.open(mine / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX)
    return mine
