"""A layer run in this process, one shard after the other: what all results are judged by."""

from __future__ import annotations

from pathlib import Path

from muster.jobs.common.errors import SpaceError
from muster.jobs.contract.failure_codes import is_final, shard_code
from muster.jobs.contract.kind import ShardFailure
from muster.jobs.contract.plan import Layer, MadeSource, Work
from muster.jobs.sources.items import located
from muster.jobs.workbench.batch import Batch, Item, Outcome
from muster.jobs.workbench.workbench import Workbench


def run_serially(
    layer: Layer,
    work: Work,
    folder: Path,
    code: str | None = None,
    python: str | None = None,
    model: str | None = None,
    items: Path | None = None,
) -> Path:
    """Every shard of a layer, one after the other, in this process: the part all others are judged by. `items`: its
    list, where it has one."""
    assert not isinstance(layer.source, MadeSource), "a made layer has no shards of its own"
    batch = Batch(
        farm="serial",
        agent="serial",
        job="serial",
        layer=layer,
        work=work,
        items=tuple(Item(number, 0, 0, located(layer.window(number), items)) for number in range(layer.count)),
        tmp=str(folder / "serial.tmp"),
        done=str(folder / "serial.part"),
        mark=str(folder / "serial.mark"),
        scratch=str(folder),
        code=code,
        python=python,
        model=model,
    )
    bench = Workbench()
    try:
        outcome = bench.run(batch)
    finally:
        bench.close()
    _check_whole(layer, outcome)
    return Path(batch.done)


def _check_whole(layer: Layer, outcome: Outcome) -> None:
    """A serial run is whole, or an exception says what came between."""
    if outcome.full:
        raise SpaceError(outcome.full)
    for mishap in outcome.mishaps:
        code = "data" if is_final(mishap.code) else shard_code(mishap.code)
        raise ShardFailure(code, f"shard {mishap.number}: {mishap.message}", mishap.evidence)
    if outcome.changed:
        raise RuntimeError(f"{layer.name}: its source is not what was planned")
    if len(outcome.numbers) < layer.count:
        number = len(outcome.numbers)
        raise ShardFailure("output", f"shard {number}: its outputs are not what those before it gave")
