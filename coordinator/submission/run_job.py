"""A job of the kind `command` that `muster run` makes: its fields, its items again as the root has them, and which of
them ended well in earlier ones. Submits nothing."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import Status
from muster.coordinator.farm_root import ask_daemon, plans
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.result_downloads.ended_items import EndedItems
from muster.coordinator.runs.arguments import EACH_A_COMMAND
from muster.jobs.common.errors import DamagedError, RefusedError
from muster.jobs.common.names import split_job_id
from muster.jobs.contract.plan import ItemsSource, ItemsWindow
from muster.jobs.kinds.command import CommandParams, ItemLine
from muster.jobs.sources.items import files_in, is_path, lines_in, records
from muster.jobs.user_code.command_template import CODE, OUT, line_values, values_of

SHARDS = 20_000  # as many as an item each; of more items, some share one
FLUSH_SECONDS = 0.5
TABLE, NAMES = "items.csv", "items.names"


def are_files(values: Iterable[str]) -> bool:
    """Whether each names another file below the current folder: then machines get them."""
    seen: set[str] = set()
    for value in values:
        if not is_path(value) or value in seen or not os.path.isfile(value):  # noqa: PTH113 - a million, perhaps
            return False
        seen.add(value)
    return bool(seen)


def write_items(folder: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> dict[str, str]:
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


def job_fields(name: str, source: dict[str, str], items: int, params: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A job file's. Items fail by themselves, and no other for it."""
    unit = "files" if "names" in source else "rows"
    return {
        "name": name,
        "kind": "command",
        "source": source,
        "shard": {unit: -(-items // SHARDS)},
        "params": {"on_item_error": "record", **params},
        "flush": FLUSH_SECONDS,
        **more,
    }


class RunItems:
    """The items of a run by number from 0: their values, their command lines, and what they are known by."""

    def __init__(self, params: CommandParams, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.params, self.columns = params, tuple(columns)
        self.rows = rows
        self.stamps: Sequence[tuple[Any, ...]] = ()  # of files
        self._line = ItemLine.of(params, self.columns)

    @staticmethod
    def of_job(root: Root, job: str) -> RunItems:
        """As its root has them. A RefusedError for a job of another sort."""
        folder = root.job(job)
        plan = plans.load(folder)
        source = plan.layers[0].source
        if plan.work.kind != "command" or not plan.work.params.get("capture") or not isinstance(source, ItemsSource):
            raise RefusedError(f"{job} is no job of `muster run`", f"`coordinator watch {job}` follows it")
        path = folder.items
        window = ItemsWindow(str(path), source.digest, 0, path.stat().st_size, 0, 0, source.folder, source.columns)
        params = msgspec.convert(plan.work.params, CommandParams)
        raw = records(window)
        if source.columns:
            return RunItems(params, source.columns, lines_in(raw))
        files = files_in(raw)
        items = RunItems(params, (), [[file.name] for file in files])
        items.stamps = [msgspec.structs.astuple(file.stamp) for file in files]
        return items

    def __len__(self) -> int:
        return len(self.rows)

    def command(self, number: int) -> str:
        """As a person would type it."""
        if self.params.run == EACH_A_COMMAND:
            return self.rows[number][0]
        values = self._values(number)
        values[CODE], values[OUT] = "code", self.out(number) or ""
        return self._line.run.shown(values)

    def out(self, number: int) -> str | None:
        """The name of its output file, if it has one."""
        return None if self._line.out is None else self._line.out.filled(self._values(number))

    def key(self, number: int) -> bytes:
        """What it is, wherever it stands: its command, and which file it was, where it is one."""
        stamp = self.stamps[number] if self.stamps else ()
        return blake2b(msgspec.msgpack.encode((self.command(number), stamp)), digest_size=16).digest()

    def _values(self, number: int) -> dict[str, str]:
        row = self.rows[number]
        if not self.columns:
            return values_of(row[0], number + 1)
        return line_values(dict(zip(self.columns, row, strict=True)), number + 1)


def runs_named(root: Root, name: str) -> list[str]:
    """The jobs of a name, the latest first."""
    known = ask_daemon.ask(root, StatusAsk(), Status).jobs
    found = [job.id for job in known if split_job_id(job.id)[0] == name and job.state != "damaged"]
    return sorted(found, key=lambda job: split_job_id(job)[1] or 0, reverse=True)


def check_over(root: Root, job: str) -> None:
    """A RefusedError while it goes on: what of it fails, or remains to be done, is not known yet."""
    if not ask_daemon.ask(root, StatusAsk(job), Status).jobs[0].is_over:
        raise RefusedError(
            f"{job} still runs", f"`muster run --attach {job}` follows it, `muster cancel {job}` ends it"
        )


def ended_well(root: Root, name: str, params: CommandParams) -> set[bytes]:
    """The keys of items that did in an earlier run of that name with the same command."""
    found: set[bytes] = set()
    for job in runs_named(root, name):
        try:
            items = RunItems.of_job(root, job)
        except (RefusedError, DamagedError):
            continue
        if (items.params.run, items.params.out) == (params.run, params.out):
            found.update(items.key(number) for number, ok in _ends(root, job) if ok)
    return found


def failed(root: Root, job: str) -> list[int]:
    """The numbers of its items that did not end well, in order."""
    ends = dict(_ends(root, job))
    return [number for number in range(len(RunItems.of_job(root, job))) if not ends.get(number)]


def _ends(root: Root, job: str) -> Iterator[tuple[int, bool]]:
    """Which items are known to have ended by now, and whether well."""
    for ended in EndedItems(root, job).follow(0.0):
        if ended is None:
            return
        yield ended.number, ended.ok
