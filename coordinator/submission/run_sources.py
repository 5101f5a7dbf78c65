"""What a command line of `muster run` names, read: the records of its sources, and the work that they make. Starts and
submits nothing."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from muster.coordinator.runs import arguments
from muster.coordinator.runs.wish import OUTPUT_LIMIT, Wish
from muster.coordinator.submission.run_items import RunItems, are_files
from muster.jobs.common.errors import SourceError, UsageError
from muster.jobs.sources.discover import stamp_of
from muster.jobs.sources.items import is_path
from muster.jobs.user_code.command_template import CODE, local_files

BLOCK_BYTES = 1 << 20
RECORD_LIMIT = 64 << 20  # bytes


@dataclass(frozen=True)
class Work:
    """What is to be run: the items, and what their job has."""

    columns: tuple[str, ...]  # none: files
    rows: Sequence[Sequence[str]]
    params: Mapping[str, Any]
    more: Mapping[str, Any]  # other fields of the job
    left_out: int = 0  # values of linked sources that have none beside them

    def items(self) -> RunItems:
        from muster.jobs.job_file.read import check_params
        from muster.jobs.kinds import registry

        params = check_params(registry.load("command"), dict(self.params))
        stamps = [] if self.columns else [stamp_of(Path(row[0]).stat()) for row in self.rows]
        return RunItems(params, self.columns, self.rows, stamps)


def read(wish: Wish) -> Work:
    """Of what the command line and its sources say."""
    said = arguments.split(wish.words)
    joined, at_once = _joined(wish, said)
    columns, rows = joined.columns, list(joined.rows())
    if not rows:
        return Work(columns, [], {}, {}, joined.left_out)
    folder = str(Path.cwd()) if wish.local and wish.workdir is None else wish.workdir
    if not said.command:
        columns, rows = ("1",), [(" ".join(row),) for row in rows]
    elif len(columns) == 1 and not wish.header and folder is None and not wish.array:
        plain = [row[0].removeprefix("./") for row in rows]
        if are_files(plain):
            columns, rows = (), [(name,) for name in plain]
    command, files = (said.command, []) if folder is not None else _with_files(said.command)
    params: dict[str, Any] = {
        "run": arguments.template(command, columns) if command else arguments.EACH_A_COMMAND,
        "capture": OUTPUT_LIMIT,
    }
    returned = wish.returned if wish.returned is not None else said.returned
    if returned is not None:
        params["out"] = arguments.placed(returned, columns)
    if folder is not None:
        params["workdir"] = os.path.abspath(folder)  # noqa: PTH100 - links stay as they are
    more = {"at_once": at_once, "code": {"include": files} if files else None, **fields_of(wish)}
    return Work(columns, rows, {**params, **params_of(wish)}, more, joined.left_out)


def _with_files(command: str) -> tuple[str, list[str]]:
    """The command, with files of the current folder where they will be on a machine; and their names."""
    found = [(at, name) for at, name in local_files(command) if is_path(name) and Path(name).is_file()]
    for at, name in reversed(found):
        command = f"{command[:at]}{{{CODE}}}/{name}{command[at + len('./') + len(name) :]}"
    return command, list(dict.fromkeys(name for _, name in found))


def params_of(wish: Wish) -> dict[str, Any]:
    """Those of the params that an option gives, of items whoever made them."""
    said = {
        "tries": wish.retries,
        "timeout": None if wish.timeout is None else _seconds(wish.timeout),
        "capture": wish.max_output,
    }
    return {name: value for name, value in said.items() if value is not None}


def fields_of(wish: Wish) -> dict[str, Any]:
    """The same of the job's other fields."""
    said = {"at_once": None if wish.jobs is None else _jobs(wish.jobs), "variables": _variables(wish.envs)}
    return {name: value for name, value in said.items() if value is not None}


def _joined(wish: Wish, said: arguments.Words) -> tuple[arguments.Joined, int | None]:
    if wish.array is not None:
        if said.groups or wish.files:
            raise UsageError("--array makes the items, and others are given too", "leave one of them out")
        numbers, at_once = arguments.array(wish.array)
        return arguments.join([arguments.source(numbers, False, None, False, "--array")]), at_once
    groups = [arguments.Group((name,), True, False) for name in wish.files] + list(said.groups)
    groups = groups or [arguments.Group((arguments.STDIN,), True, False)]
    if sum(group.is_files and group.words[0] == arguments.STDIN for group in groups) > 1:
        raise UsageError("stdin is named twice, and can be read once", "write it to a file first")
    try:
        colsep = re.compile(wish.colsep) if wish.colsep is not None else None
    except re.error as error:
        raise UsageError(f"--colsep {wish.colsep}: {error}", r"such as , or \t") from None
    sources = []
    for group in groups:
        where = group.words[0] if group.is_files else ":::"
        records = _read(where, b"\0" if wish.null else b"\n") if group.is_files else list(map(_text, group.words))
        sources.append(arguments.source(records, group.linked, colsep, wish.header is not None, where))
    return arguments.join(sources), None


def _text(word: str) -> str:
    try:
        word.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{word!r} is not UTF-8", "rename the file") from None
    return word


def _read(name: str, end: bytes) -> list[str]:
    """The records of a file, or of stdin, in which more than a run may have are not read to their end."""
    if name == arguments.STDIN and sys.stdin.isatty():
        print("reading items from the terminal; Ctrl-D ends them, ::: gives some", file=sys.stderr)
    try:
        with ExitStack() as stack:
            stream: BinaryIO = (
                sys.stdin.buffer if name == arguments.STDIN else stack.enter_context(Path(name).open("rb"))
            )
            return [record.decode() for record in _records(stream, end, name)]
    except OSError as error:
        raise SourceError(f"{name}: {error.strerror}", "name a file with an item in each line") from None
    except UnicodeDecodeError as error:
        raise SourceError(f"{name}: not UTF-8: {error.reason}", "convert it with iconv") from None


def _records(stream: BinaryIO, end: bytes, name: str) -> list[bytes]:
    found: list[bytes] = []
    held = b""
    while block := stream.read(BLOCK_BYTES):
        *whole, held = (held + block).split(end)
        found += whole
        if len(found) > arguments.ITEMS_LIMIT + 1 or len(held) > RECORD_LIMIT:
            wrong = f"{name}: more than {arguments.ITEMS_LIMIT:,} items, or one of more than {RECORD_LIMIT} bytes"
            raise SourceError(wrong, "run a part of them; -0 is for items that end with NUL")
    return [*found, held] if held else found


def _jobs(text: str) -> int:
    """0: as many as there is room for."""
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"-j {text}: expected a whole number", "the agent says what a machine lends: `agent set cpus=…`"
        )
    return int(text)


def _seconds(text: str) -> str | float:
    """A number is of seconds, as there."""
    try:
        return float(text)
    except ValueError:
        return text


def _variables(names: Sequence[str]) -> dict[str, str]:
    if missing := [name for name in names if name not in os.environ]:
        raise UsageError(f"--env {missing[0]}: there is no such variable here", "`export` it first")
    return {name: os.environ[name] for name in names}
