"""What whoever sits at this machine wants of its agent: kept in the spool, changed while it runs. Does none of it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from muster.jobs.common.durable import read_json, write_private
from muster.jobs.common.errors import UsageError
from muster.jobs.common.validation import did_you_mean

FILE = "courtesy.json"
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_HOURS = re.compile(
    r"(?:(?P<first>{0})(?:-(?P<last>{0}))? +)?(\d\d?):([0-5]\d)-(\d\d?):([0-5]\d)".format("|".join(_DAYS)), re.ASCII
)
_DAY = 24 * 60
_WEEK = 7 * _DAY


class Courtesy(msgspec.Struct, frozen=True):
    """None: nothing is wanted."""

    paused: bool = False
    cpus: int | None = None  # processors to lend; None: as many as it joined with
    leave_cores: int | None = None  # of the machine's, that it never uses
    hours: str | None = None  # when it works, `20:00-08:00` or `Mon-Fri 20:00-08:00`, several with commas between
    nice: int | None = None  # of what computes, 0 to 19
    ionice: Literal["normal", "idle"] | None = None
    elsewhere: bool = False  # what the agent is granted runs on other machines, those of a cluster: no wish


OF_A_MACHINE = ("leave_cores", "nice", "ionice")  # wishes without effect where it runs elsewhere
SETTINGS = [name for name in Courtesy.__struct_fields__ if name not in ("paused", "elsewhere")]


def cores() -> int:
    """Processors this machine has for us."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def lent(wish: Courtesy, joined: int, every: int, minute: int) -> tuple[int, str]:
    """How many processors the agent may use at this minute of the week; of 0, why."""
    if wish.paused:
        return 0, "paused; `agent resume` goes on"
    if wish.hours and not _is_within(wish.hours, minute):
        return 0, f"paused: it works from {wish.hours}"
    cpus = wish.cpus or joined
    if wish.leave_cores:
        cpus = min(cpus, every - wish.leave_cores)
    return max(1, cpus), ""


def minute_of_week() -> int:
    """From Monday's first on."""
    now = time.localtime()
    return now.tm_wday * _DAY + now.tm_hour * 60 + now.tm_min


def checked(wish: Courtesy) -> Courtesy:
    """A UsageError for what makes no sense on this machine."""
    for name in OF_A_MACHINE if wish.elsewhere else ():
        if getattr(wish, name) is not None:
            said = name.replace("_", "-")
            why = f"{said} is of this machine, and the shards of a cluster's agent run on others"
            raise UsageError(why, f"leave {said} out")
    if wish.cpus is not None and not 1 <= wish.cpus <= 4096:
        raise UsageError(f"cpus={wish.cpus}: expected 1 to 4096", "to lend none, type `agent pause`")
    if wish.leave_cores is not None and not 0 <= wish.leave_cores < cores():
        raise UsageError(f"leave-cores={wish.leave_cores}: this machine has {cores()} cores", "leave one for the agent")
    if wish.nice is not None and not 0 <= wish.nice <= 19:
        raise UsageError(f"nice={wish.nice}: expected 0 to 19", "19 is the kindest")
    for span in (wish.hours or "").split(",") if wish.hours is not None else ():
        _span(span)
    return wish


def changed(wish: Courtesy, words: Mapping[str, str]) -> Courtesy:
    """With `cpus=4` and the like put into it; an empty value takes a wish back."""
    fields = {name.replace("-", "_"): value for name, value in words.items()}
    for name in fields:
        if name not in SETTINGS:
            shown = ", ".join(one.replace("_", "-") for one in SETTINGS)
            said = name.replace("_", "-")
            raise UsageError(
                f"there is no setting {said!r}{did_you_mean(said, shown.split(', '))}", f"settings: {shown}"
            )
    given = {name: value or None for name, value in fields.items()}
    try:
        made = msgspec.convert({**msgspec.to_builtins(wish), **given}, Courtesy, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{' '.join(f'{n}={v}' for n, v in words.items())}: {error}", "agent set cpus=4") from None
    return checked(made)


def read(spool: Path) -> Courtesy:
    return read_json(spool / FILE, Courtesy) or Courtesy()


def write(spool: Path, wish: Courtesy) -> int:
    """Atomic; the stamp of the file, by which the agent says that it has read it."""
    write_private(spool / FILE, msgspec.json.encode(wish))
    return stamp(spool)


def stamp(spool: Path) -> int:
    """Of the file as it is; another one is another wish."""
    try:
        info = (spool / FILE).stat()
    except OSError:
        return 0
    return info.st_mtime_ns ^ info.st_ino


def _is_within(hours: str, minute: int) -> bool:
    begun = [(minute - start, length) for starts, length in map(_span, hours.split(",")) for start in starts]
    return any(since % _WEEK < length for since, length in begun)


def _span(text: str) -> tuple[list[int], int]:
    """The minutes of the week at which it begins, and how many it has; it may go over midnight."""
    match = _HOURS.fullmatch(text.strip())
    if match is None:
        raise _bad_span(text)
    first, last, *numbers = match.groups()
    from_hour, from_minute, to_hour, to_minute = map(int, numbers)
    start, end = from_hour * 60 + from_minute, to_hour * 60 + to_minute
    length = (end - start) % _DAY or (_DAY if first and end > start else 0)
    if max(start, end) > _DAY or not length:
        raise _bad_span(text)
    begins = _DAYS.index(first or _DAYS[0])
    days = (_DAYS.index(last or first or _DAYS[-1]) - begins) % 7 + 1
    return [(begins + day) % 7 * _DAY + start for day in range(days)], length


def _bad_span(text: str) -> UsageError:
    hint = "write several with commas between: Mon-Fri 20:00-08:00,Sat-Sun 00:00-24:00"
    return UsageError(f"hours={text!r}: expected something like 20:00-08:00", hint)
