"""The words of `muster run` as GNU Parallel reads them: which are the command, which items they make. Reads no file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from muster.jobs.common.errors import UsageError

ITEMS_LIMIT = 1_000_000
STDIN = "-"
EACH_A_COMMAND = "sh -c {1}"  # where no command is given: the items are
_SEPARATORS = re.compile(r"(:{3,4})(\+?)")
_PLACE = re.compile(r"\{(-?[0-9]+)?(/\.|//|/|\.)?\}")
_NUMBERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?", re.ASCII)
_REFUSED = {
    "{%}": ("is the number of a slot, and each machine has its own", "name what must differ by {#}"),
    "{=": ("holds Perl, which is not read here", "let the command itself compute it"),
}

Row = tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """A source as it is written: values, or files (`-` is stdin) with a value in each line. `linked`: goes along with
    the one before it, and multiplies nothing."""

    words: tuple[str, ...]
    is_files: bool
    linked: bool


@dataclass(frozen=True)
class Words:
    """A command, "" for none, and its sources. `returned`: what `--return` says behind a command in quotes."""

    command: str
    groups: tuple[Group, ...]
    returned: str | None = None


@dataclass(frozen=True)
class Source:
    """What was read of one source: records in order."""

    rows: Sequence[Row]
    linked: bool
    names: Row = ()  # its header's


@dataclass(frozen=True)
class Joined:
    """All combinations, the last source the fastest."""

    columns: Row
    blocks: Sequence[Sequence[Row]]  # sources that are linked are one
    left_out: int  # records of linked sources that have none beside them

    def __len__(self) -> int:
        return prod(map(len, self.blocks))

    def rows(self) -> Iterator[Row]:
        for combination in product(*self.blocks):
            yield tuple(value for row in combination for value in row)


def split(words: Sequence[str]) -> Words:
    """The command is what stands before the first `:::`. One that is a single word in quotes may be followed by
    `--return NAME`."""
    first = next((i for i, word in enumerate(words) if _SEPARATORS.fullmatch(word)), len(words))
    command, rest = list(words[:first]), words[first:]
    returned = None
    if " " in "".join(command[:1]) and command[1:2] == ["--return"]:
        if len(command) != 3:
            raise UsageError(
                "one NAME alone follows --return behind a command", "other options stand before the command"
            )
        command, returned = command[:1], command[2]
    groups: list[Group] = []
    held: list[str] = []
    for word in reversed(rest):
        match = _SEPARATORS.fullmatch(word)
        if match is None:
            held.append(word)
            continue
        values, held = tuple(reversed(held)), []
        linked = bool(match[2])
        if match[1] == ":::":
            groups.append(Group(values, False, linked))
        elif not values:
            raise UsageError(f"{word} names no file", "`-` is stdin")
        else:
            groups += [Group((value,), True, linked) for value in reversed(values)]
    groups.reverse()
    if groups and groups[0].linked:
        raise UsageError("the first source cannot go along with another", "write ::: or :::: in its place")
    return Words(" ".join(command), tuple(groups), returned)


def source(records: Sequence[str], linked: bool, colsep: re.Pattern[str] | None, header: bool, where: str) -> Source:
    """Records as rows: each cut at `colsep`, the first one taken for names where there is a header."""
    rows = [tuple(colsep.split(record)) if colsep is not None else (record,) for record in records]
    width = len(rows[0]) if rows else 1
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            raise UsageError(f"{where}: record {number} has {len(row)} columns, the first has {width}", "look at it")
        if any("\0" in value for value in row):
            raise UsageError(f"{where}: record {number} has a NUL character", "with -0 it ends a record")
    if not header:
        return Source(rows, linked)
    if not rows:
        raise UsageError(f"{where}: no header", "with --header the first record names the columns")
    return Source(rows[1:], linked, rows[0])


def join(sources: Sequence[Source]) -> Joined:
    """All of them together, counted before any is made."""
    columns: list[str] = []
    blocks: list[Sequence[Row]] = []
    left_out = 0
    for one in sources:
        width = len(one.names) or (len(one.rows[0]) if one.rows else 1)
        columns += one.names or [str(len(columns) + n) for n in range(1, width + 1)]
        if not one.linked:
            blocks.append(one.rows)
            continue
        both = [before + row for before, row in zip(blocks[-1], one.rows, strict=False)]
        left_out += max(len(blocks[-1]), len(one.rows)) - len(both)
        blocks[-1] = both
    joined = Joined(tuple(columns), blocks, left_out)
    if len(joined) > ITEMS_LIMIT:
        lengths = " times ".join(f"{len(block):,}" for block in blocks)
        raise UsageError(
            f"{lengths} are {len(joined):,} items, a run has at most {ITEMS_LIMIT:,}", "run a part of them"
        )
    return joined


def template(command: str, columns: Row) -> str:
    """The command as the kind `command` has it, for items with these columns; none for files. What has no placeholder
    gets one at its end."""
    for text, (why, hint) in _REFUSED.items():
        if text in command:
            raise UsageError(f"{text} {why}", hint)
    if not (_PLACE.search(command) or "{#}" in command or any(f"{{{name}" in command for name in columns)):
        command += " {}"
    return placed(command, columns)


def placed(text: str, columns: Row) -> str:
    """Placeholders by number, and those of all values, as the kind has them: by column, as a value that is no file's
    name is taken as it is, even if it begins with `-`."""
    return _PLACE.sub(lambda match: _meant(match, columns or ("",)), text)


def _meant(match: re.Match[str], names: Row) -> str:
    form = match[2] or ""
    if match[1] is None:
        return " ".join(f"{{{name}{form}}}" for name in names)
    number = int(match[1])
    if not 1 <= abs(number) <= len(names):
        raise UsageError(f"{match[0]}: an item has {len(names)} values", "count them from 1, or from -1 at the end")
    return f"{{{names[number - (number > 0)]}{form}}}"


def array(text: str) -> tuple[list[str], int | None]:
    """The numbers of `--array 1-9:2,20%4`, as sbatch has it, and how many may run at once."""
    listed, percent, at_once = text.partition("%")
    numbers: list[str] = []
    for part in listed.split(","):
        match = _NUMBERS.fullmatch(part)
        first, last, step = (int(match[n] or default) for n, default in ((1, 0), (2, match[1]), (3, 1))) if match else (
            1, 0, 1,
        )  # fmt: skip
        if last < first or (percent and not (at_once.isascii() and at_once.isdigit() and int(at_once))):
            raise UsageError(f"--array {text}: not as sbatch has it", "such as --array 1-99, 1-99:2 or 1,5-9%4")
        if len(numbers) + len(range(first, last + 1, step)) > ITEMS_LIMIT:
            raise UsageError(f"--array {text}: a run has at most {ITEMS_LIMIT:,} items", "run a part of them")
        numbers += map(str, range(first, last + 1, step))
    return numbers, int(at_once) if percent else None
