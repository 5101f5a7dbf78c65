"""How the end of an item is written down: lines with its tag, its line of a joblog, its place in a results tree."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

JOBLOG_HEAD = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n"
NAME_BYTES = 255  # of a folder's name
_ESCAPED = str.maketrans({"\\": "\\\\", "/": "\\_", "\t": "\\t", "\0": "\\0"})


class Ended(NamedTuple):
    """One item that ran."""

    number: int  # from 0
    agent: str
    started: float  # wall clock
    seconds: float
    exit: int  # less than 0: died of that signal
    ok: bool  # it ended with 0, and left the file that it was to write
    stdout: bytes
    stderr: bytes


def tagged(text: bytes, tag: str) -> bytes:
    """Each line begun with the item's values."""
    begin = tag.encode() + b"\t"
    return b"".join(begin + line for line in text.splitlines(keepends=True)) if tag else text


def joblog_line(ended: Ended, command: str) -> str:
    """The nine columns that GNU Parallel has."""
    code, signal = (ended.exit, 0) if ended.exit >= 0 else (0, -ended.exit)
    shown = command.replace("\n", "\\n").replace("\t", "\\t")
    facts = (
        f"{ended.number + 1}",
        ended.agent,
        f"{ended.started:.3f}",
        f"{ended.seconds:10.3f}",
        "0",
        f"{len(ended.stdout)}",
        f"{code}",
        f"{signal}",
        shown,
    )
    return "\t".join(facts) + "\n"


def results_folder(columns: Sequence[str], values: Sequence[str]) -> list[str]:
    """The folders below `--results DIR`: a column's name, then its value, by name, as there."""
    pairs = sorted(
        zip(columns, values, strict=True), key=lambda pair: (int(pair[0]) if pair[0].isdecimal() else 0, pair[0])
    )
    parts = [part.translate(_ESCAPED) for pair in pairs for part in pair]
    return [_fitting(part) if part not in ("", ".", "..") else f"\\{part}" for part in parts]


def _fitting(name: str) -> str:
    """One that is too long is cut, where GNU Parallel has several items write the same: it ends in a digest of all."""
    raw = name.encode()
    if len(raw) <= NAME_BYTES:
        return name
    end = f"~{blake2b(raw, digest_size=8).hexdigest()}"
    return raw[: NAME_BYTES - len(end)].decode(errors="ignore") + end
