"""Aligned tables, numbers and times as text within 80 columns. Knows no job and no machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from muster.coordinator.api.status import Tally
from muster.coordinator.display.colours import joined
from muster.coordinator.submission import eta as progress
from muster.coordinator.submission.eta import Eta, Speed
from muster.jobs.common.units import format_duration, format_size

NAME_WIDTH = 28  # columns a name may take in a table
GAP = "  "
NO_ETA = {  # in short, and in full
    "measuring": ("measuring", "measuring"),
    "no agents": ("no agents", "no machine works on it"),
    "push": ("push stalled", "unknown: nothing finished is being pushed"),
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: str = "") -> str:
    """Aligned columns. `right`: an `r` at each column that is aligned to the right, any other character elsewhere."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return joined("\n", (_line(row, widths, right) for row in cells))


def _line(row: Sequence[str], widths: Sequence[int], right: str) -> str:
    parts = []
    for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
        room = " " * (width - len(cell))
        parts.append(joined("", (room, cell) if right[i : i + 1] == "r" else (cell, room)))
    return joined(GAP, parts).rstrip()


def short(name: str, width: int = NAME_WIDTH) -> str:
    """A name that fits; its end, which tells layers apart, stays."""
    return name if len(name) <= width else "…" + name[1 - width :]


def count(number: int) -> str:
    return f"{number:,}"


def percent(tally: Tally) -> str:
    """Rounded down: 100% is only ever all of it."""
    return f"{int(progress.share(tally) * 100)}%"


def rate(speed: Speed) -> str:
    """Bytes a second, or shards a second where there are no bytes; "-" for neither."""
    if speed.bytes_in >= 1:
        return f"{format_size(round(speed.bytes_in))}/s"
    return f"{speed.shards:.1f} shards/s" if speed.shards > 0 else "-"


def rates(speed: Speed) -> str:
    """Rows a second too, where there is room for them and rows are what is computed."""
    if speed.rows <= 0:
        return rate(speed)
    return f"{speed.rows:,.0f} rows/s, {rate(speed)}" if speed.rows >= 10 else f"{speed.rows:.2g} rows/s, {rate(speed)}"


def moment(when: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when)) if when else "-"


def whole(seconds: float) -> str:
    """A time that is going on, to whole seconds."""
    return f"{int(seconds)} s" if seconds < 10 else format_duration(int(seconds))


def ago(when: float, now: float) -> str:
    return f"{whole(max(0.0, now - when))} ago"


def left(eta: Eta) -> str:
    """An ETA in a word or two."""
    if eta.likely is None or eta.low is None or eta.high is None:
        return NO_ETA[eta.bottleneck][0]
    return spread(eta.low, eta.high)


def spread(low: float, high: float) -> str:
    """ "3-4 min": one unit for both ends, the upper one's, where that says enough."""
    if high < 2:
        return "2 s at most"
    unit, name = next(((u, n) for u, n in ((86400, "d"), (3600, "h"), (60, "min")) if high >= 2 * u), (1, "s"))
    least, most = round(low / unit), max(1, round(high / unit))
    return f"{most} {name}" if least == most else f"{least}-{most} {name}"
