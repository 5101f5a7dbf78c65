"""The programs that a person would write for each peer: results are kept as they come, one file each, and a program
that is started again asks only for those that have no file.

    python -m tests.arena.programs ray|dask|joblib ADDRESS FOLDER ITEMS
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.arena.item import work

RETRIES = 3  # of Ray this is the default
SLOTS = 4


def missing(folder: Path, items: int) -> list[int]:
    return [number for number in range(items) if not path_of(folder, number).exists()]


def path_of(folder: Path, number: int) -> Path:
    return folder / f"{number}.bin"


def keep(folder: Path, number: int, block: bytes) -> None:
    """Whole under its name, or not at all."""
    written = folder / f"{number}.part"
    written.write_bytes(block)
    written.rename(path_of(folder, number))


def with_ray(address: str, folder: Path, items: int) -> None:
    import ray

    ray.init(address=address, log_to_driver=False)
    task = ray.remote(max_retries=RETRIES)(work)
    waiting = {task.remote(number): number for number in missing(folder, items)}
    while waiting:
        [done], _ = ray.wait(list(waiting), num_returns=1)
        keep(folder, waiting.pop(done), ray.get(done))


def with_dask(address: str, folder: Path, items: int) -> None:
    from distributed import Client, as_completed

    with Client(address) as client:
        numbers = missing(folder, items)
        futures = client.map(work, numbers, retries=RETRIES)
        known = {future.key: number for future, number in zip(futures, numbers, strict=True)}
        for future, block in as_completed(futures, with_results=True):
            keep(folder, known[future.key], block)
            future.release()


def with_joblib(_: str, folder: Path, items: int) -> None:
    """As joblib's own example of checkpoints: a cached function, and what was computed is read from the cache."""
    from joblib import Memory, Parallel, delayed

    cached = Memory(folder / "cache", verbose=0).cache(work)
    blocks = Parallel(n_jobs=SLOTS)(delayed(cached)(number) for number in range(items))
    for number, block in enumerate(blocks):
        keep(folder, number, block)


PROGRAMS = {"ray": with_ray, "dask": with_dask, "joblib": with_joblib}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
