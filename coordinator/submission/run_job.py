"""The job of a `muster run`: planned with all items, or with those that earlier runs left, and submitted. Which items
those are. Follows none."""

from __future__ import annotations

import csv
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from muster.coordinator.api.requests import StatusAsk, Submit, Submitted
from muster.coordinator.api.status import Status
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.result_downloads.ended_items import EndedItems
from muster.coordinator.runs.wish import Wish
from muster.coordinator.submission.run_items import RunItems, stored
from muster.coordinator.submission.run_sources import Work, fields_of, params_of
from muster.coordinator.submission.submit import ItemsAt, Planned, plan_text, submission
from muster.jobs.common.errors import DamagedError, RefusedError, SourceError
from muster.jobs.common.names import split_job_id
from muster.jobs.common.ranges import RangeSet
from muster.jobs.common.units import SIZE_LIMIT
from muster.jobs.contract.kind import Site
from muster.jobs.contract.plan import CUT, ItemsSource, Plan
from muster.jobs.job_file.digest import layer_digest
from muster.jobs.job_file.make_plan import ITEMS_SHARDS_LIMIT
from muster.jobs.job_file.read import check_params
from muster.jobs.kinds import registry
from muster.jobs.kinds.command import CommandParams
from muster.jobs.sources import items as lists
from muster.jobs.sources.discover import stamp_of
from muster.jobs.sources.items import FileItem, ListedItems
from muster.jobs.user_code.code_pack import CodeBundle, collect, opened

SHARDS = 20_000  # as many as an item each; of more items, some share one
SHARDS_MOST = 100_000  # with those of items that are left out
# An item's output is at a terminal within a second of its end: an agent lets it wait so long for others, then for its
# own next look at the time; what is left is for the way and the commit, of which whoever prints is told at once.
FLUSH_SECONDS = 0.5
TABLE, NAMES = "items.csv", "items.names"


# --- what is submitted ---


def planned(name: str, work: Work) -> Planned:
    """All items of a command line."""
    with TemporaryDirectory(prefix="muster-run-") as folder:
        fields = _job_fields(name, _write_items(Path(folder), work.columns, work.rows), work)
        return plan_text(_job_text(fields), "run", Path.cwd())


def submitted(root: Root, given: Planned, after: Sequence[str]) -> str:
    """The job's id, once the daemon has it."""
    with submission(root, given, after=after) as taken:
        return ask_daemon.ask(root, Submit(taken), Submitted).job


def _write_items(folder: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> dict[str, str]:
    """The items as a file; the job's `source`. Without columns they are files below the current folder."""
    if not columns:
        path = folder / NAMES
        path.write_bytes(b"".join(row[0].encode() + b"\0" for row in rows))
        return {"names": str(path)}
    path = folder / TABLE
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    return {"table": str(path)}


def _job_fields(name: str, source: dict[str, str], work: Work) -> dict[str, Any]:
    """A job file's. Items fail by themselves, and no other for it."""
    unit = "files" if "names" in source else "rows"
    return {
        "name": name,
        "kind": "command",
        "source": source,
        "shard": {unit: -(-len(work.rows) // SHARDS)},
        "params": {"on_item_error": "record", **work.params},
        "flush": FLUSH_SECONDS,
        **work.more,
    }


def _job_text(fields: dict[str, Any]) -> str:
    """Without those that say nothing."""
    import yaml

    return yaml.safe_dump({name: value for name, value in fields.items() if value}, sort_keys=False, allow_unicode=True)


# --- some of the items ---


def only(given: Planned, numbers: RangeSet) -> Planned:
    """The same plan, of which these items alone are run. All keep their numbers: placeholders, variables and names of
    outputs are made of them, and what an earlier run has under a number stays what it is."""
    source = given.plan.layers[0].source
    assert isinstance(source, ItemsSource), "a run has a list of items"
    listed = lists.read_list(given.items.path, source)
    return replace(given, plan=_restricted(given.plan, source, listed, numbers))


def again(root: Root, job: str, numbers: RangeSet, wish: Wish) -> Planned:
    """An earlier run once more, of which these items alone are run; the wish says what is otherwise. Files that are
    left out may be gone by now; the others, and those of the command, are taken as they are."""
    import yaml

    plan, source, lines, files = stored(root, job)
    kind, site = registry.load("command"), Site(Path(plan.base), (), plan.work.cpus, False, plan.work.env)
    before = {name: value for name, value in plan.work.params.items() if name not in CommandParams.RESOLVED}
    params = msgspec.to_builtins(kind.prepare(check_params(kind, {**before, **params_of(wish)}), site).params)
    said = fields_of(wish)
    fields = {"at_once": said.get("at_once", plan.at_once), "variables": {**plan.work.variables, **said["variables"]}}
    items = ItemsAt()
    now = [_as_it_is(source.folder, file) if n in numbers else file for n, file in enumerate(files)]
    listed = lists.write_list(items.path, lines or now)
    code = _code_of(root, plan)
    digest = code.digest if code is not None else None
    work = msgspec.structs.replace(plan.work, params=params, variables=fields["variables"], code=digest)
    plan = msgspec.structs.replace(plan, work=work, at_once=fields["at_once"], after=())
    plan = _restricted(plan, msgspec.structs.replace(source, digest=listed.digest), listed, numbers)
    document = {**yaml.safe_load(root.job(job).job_file.read_bytes()), "params": params, **fields}
    return Planned(plan, _job_text(document).encode(), code, Path(plan.base), items)


def _code_of(root: Root, plan: Plan) -> CodeBundle | None:
    """The files that its command names, as they are now."""
    if plan.work.code is None:
        return None
    before = opened(root.pack(plan.work.code).read_bytes())
    return collect("", list(before.files), Path(plan.base))


def _restricted(plan: Plan, source: ItemsSource, listed: ListedItems, numbers: RangeSet) -> Plan:
    """Cut so that each shard has items that are run, or none of them."""
    [layer] = plan.layers
    size = max(-(-len(numbers) // SHARDS), -(-len(listed) // SHARDS_MOST))
    cuts, most, in_bytes = lists.cut(listed, size, SIZE_LIMIT, apart=numbers)
    count = len(cuts) // CUT.size - 1
    if count > ITEMS_SHARDS_LIMIT:
        wrong = f"what is left of the {len(listed):,} items lies apart at {len(numbers.pairs()):,} places"
        raise RefusedError(wrong, "--resume with the command and a part of the items runs what is left of these")
    source = msgspec.structs.replace(source, cuts=cuts)
    run = tuple(RangeSet.of(n for n in range(count) if source.cut(n).item in numbers).pairs())
    ranges = run if len(numbers) < len(listed) else None
    digest = layer_digest(plan.work, layer.name, source, most, ranges)
    changed = {"source": source, "shard_rows": most, "count": count, "in_bytes": in_bytes, "only": ranges}
    return msgspec.structs.replace(plan, layers=(msgspec.structs.replace(layer, digest=digest, **changed),))


def _as_it_is(folder: str, file: FileItem) -> FileItem:
    """The file with its stamp of now: it may have been put right since."""
    try:
        status = Path(folder, file.name).stat()
    except OSError as error:
        raise SourceError(f"{file.name}: {error.strerror}", f"put it back into {folder}") from None
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(f"{file.name} is no file any more", f"put it back into {folder}")
    return FileItem(file.name, stamp_of(status))


# --- what ended well ---


def left(root: Root, name: str, work: Work) -> RangeSet:
    """The items that have not ended well in an earlier run of that name with the same command."""
    items, done = work.items(), set[bytes]()
    jobs = runs_named(root, name)
    for job in jobs[:1]:
        check_known(root, job)
    for job in jobs:
        try:
            earlier = RunItems.of_job(root, job)
        except (RefusedError, DamagedError):
            continue
        if (earlier.params.run, earlier.params.out) == (items.params.run, items.params.out):
            done.update(earlier.key(number) for number, ok in _ends(root, job) if ok)
    return RangeSet.of(number for number in items.numbers if items.key(number) not in done)


def failed(root: Root, job: str) -> RangeSet:
    """Those of a run's items that did not end well."""
    ends = dict(_ends(root, job))
    return RangeSet.of(number for number in RunItems.of_job(root, job).numbers if not ends.get(number))


def runs_named(root: Root, name: str) -> list[str]:
    """The jobs of a name, the latest first."""
    known = ask_daemon.ask(root, StatusAsk(), Status).jobs
    found = [job.id for job in known if split_job_id(job.id)[0] == name and job.state != "damaged"]
    return sorted(found, key=lambda job: split_job_id(job)[1] or 0, reverse=True)


def check_known(root: Root, job: str) -> None:
    """A RefusedError while it goes on: what of it fails, or remains to be done, is not known yet. To be merged alone
    does not count."""
    status = ask_daemon.ask(root, StatusAsk(job), Status).jobs[0]
    if not status.is_over and status.totals.committed < status.totals.shards:
        raise RefusedError(
            f"{job} still runs", f"`muster run --attach {job}` follows it, `muster cancel {job}` ends it"
        )


def _ends(root: Root, job: str) -> Iterator[tuple[int, bool]]:
    """Which items are known to have ended by now, and whether well."""
    for ended in EndedItems(root, job).follow(0.0):
        if ended is None:
            return
        yield ended.number, ended.ok
