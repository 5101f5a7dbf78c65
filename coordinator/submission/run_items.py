"""The items of a run of `muster run`, by number from 0: their values, their command lines, and what they are known by.
Runs and submits none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from muster.coordinator.farm_root import plans
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.runs.arguments import EACH_A_COMMAND
from muster.coordinator.runs.lines import Ended
from muster.jobs.common.errors import RefusedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import ItemsSource, ItemsWindow, Plan, Stamp
from muster.jobs.kinds.command import CommandParams, ItemLine
from muster.jobs.sources.items import FileItem, Line, files_in, is_path, lines_in, records
from muster.jobs.user_code.command_template import CODE, OUT, line_values, values_of


def are_files(values: Iterable[str]) -> bool:
    """Whether each names another file below the current folder: then machines get them."""
    seen: set[str] = set()
    for value in values:
        if not is_path(value) or value in seen or not os.path.isfile(value):  # noqa: PTH113 - a million, perhaps
            return False
        seen.add(value)
    return bool(seen)


class StoredRun(NamedTuple):
    """A run as its root has it; one of the two lists is empty."""

    plan: Plan
    source: ItemsSource
    lines: list[Line]
    files: list[FileItem]


def stored(root: Root, job: str) -> StoredRun:
    """A RefusedError for a job of another sort."""
    folder = root.job(job)
    plan = plans.load(folder)
    source = plan.layers[0].source
    if plan.work.kind != "command" or not plan.work.params.get("capture") or not isinstance(source, ItemsSource):
        raise RefusedError(f"{job} is no job of `muster run`", f"`coordinator watch {job}` follows it")
    path = folder.items
    raw = records(ItemsWindow(str(path), source.digest, 0, path.stat().st_size, 0, 0, source.folder, source.columns))
    return StoredRun(plan, source, *((lines_in(raw), []) if source.columns else ([], files_in(raw))))


class RunItems:
    """All items that a command line made, of which the run may leave some out."""

    def __init__(
        self,
        params: CommandParams,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        stamps: Sequence[Stamp] = (),
        numbers: RangeSet | None = None,
    ) -> None:
        self.params, self.columns, self.rows = params, tuple(columns), rows  # without columns they are files
        self.numbers = RangeSet([(0, len(rows))]) if numbers is None else numbers  # of those that are run
        self._stamps = stamps  # of files
        self._line = ItemLine.of(params, self.columns)

    @staticmethod
    def of_job(root: Root, job: str) -> RunItems:
        """As its root has them. A RefusedError for a job of another sort."""
        plan, source, lines, files = stored(root, job)
        params = msgspec.convert(plan.work.params, CommandParams)
        rows = lines or [[file.name] for file in files]
        return RunItems(params, source.columns, rows, [file.stamp for file in files], plan.layers[0].run_rows)

    def command(self, number: int) -> str:
        """As a person would type it."""
        if self.params.run == EACH_A_COMMAND:
            return self.rows[number][0]
        values = self._values(number)
        values[CODE], values[OUT] = ".", self.out(number) or ""
        return self._line.run.shown(values)

    def out(self, number: int) -> str | None:
        """The name of its output file, if it has one."""
        return None if self._line.out is None else self._line.out.filled(self._values(number))

    def key(self, number: int) -> bytes:
        """What it is, wherever it stands: its command, and which file it was, where it is one."""
        stamp = self._stamps[number] if self._stamps else ()
        return blake2b(msgspec.msgpack.encode((self.command(number), stamp)), digest_size=16).digest()

    def failure(self, ended: Ended) -> str | None:
        """Why it counts as failed, where the command itself may have said nothing of it."""
        from muster.jobs.user_code.runner.spawner import LATE, TOO_LONG

        if ended.exit == TOO_LONG:
            return f"printed more than {self.params.capture} bytes (--max-output), and was ended there"
        if ended.exit == LATE and self.params.timeout is not None:
            return f"took longer than {self.params.timeout:g} s"
        return "wrote no {out}" if ended.exit == 0 and not ended.ok else None

    def _values(self, number: int) -> dict[str, str]:
        row = self.rows[number]
        if not self.columns:
            return values_of(row[0], number + 1)
        return line_values(dict(zip(self.columns, row, strict=True)), number + 1)
