"""Sizes and durations as people write them, "128MiB" and "1h30m", and back. Knows nothing of fields."""

from __future__ import annotations

import math
import re

SIZE_LIMIT = 1 << 60  # bytes
DURATION_LIMIT = 1e9  # seconds, as far as the wire carries them

_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)", re.ASCII)
_PIECE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([a-z]*)\s*", re.ASCII)
_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SIZES: dict[str, int] = {
    "": 1,
    "b": 1,
    **{unit.lower(): 1024 ** (i + 1) for i, unit in enumerate(_BINARY)},
    **{unit[0].lower() + "b": 1000 ** (i + 1) for i, unit in enumerate(_BINARY)},
}
_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def parse_size(given: str | int) -> int:
    """Bytes, at least 1. A ValueError says what is expected."""
    size = _scaled(given) if isinstance(given, str) else given
    if isinstance(size, bool) or not isinstance(size, int):
        raise ValueError(f"expected a size such as 128MiB or a number of bytes, got {_shown(given)}")
    if not 1 <= size <= SIZE_LIMIT:
        raise ValueError(f"expected a size from 1 byte to {format_size(SIZE_LIMIT)}, got {_shown(given)}")
    return size


def _scaled(text: str) -> int | None:
    match = _SIZE.fullmatch(text.strip())
    if not match or match[2].lower() not in _SIZES:
        return None
    factor = _SIZES[match[2].lower()]
    if match[1].isdigit():
        return int(match[1]) * factor
    return round(float(match[1]) * factor)


def format_size(size: int) -> str:
    """Three digits or so: "0 B", "1.5 GiB", "128 MiB"."""
    value, unit = float(size), "B"
    for larger in _BINARY:
        if value < 1023.5:  # from here on it would print as 1024
            break
        value, unit = value / 1024, larger
    digits = 0 if value >= 99.95 or value == int(value) else 1
    return f"{value:.{digits}f} {unit}"


def counted(number: int, noun: str) -> str:
    """ "1 shard", "2,000 shards"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortage(what: str, wanted: int, room: int, where: str, kept: int = 0) -> str:
    """Why `what` waits for room, as every machine says it. `kept`: bytes that are free and are to stay so."""
    beside = f" beside the {format_size(kept)} that are kept free" if kept else ""
    return f"{what} needs {format_size(wanted)} {where}, {format_size(max(room, 0))} are left{beside}"


def parse_duration(given: str | float) -> float:
    """Seconds, above 0. A ValueError says what is expected."""
    seconds = _summed(given) if isinstance(given, str) else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds):
        raise ValueError(f"expected a duration such as 90s, 30m or 1h30m, or a number of seconds, got {_shown(given)}")
    if not 0 < seconds <= DURATION_LIMIT:
        raise ValueError(f"expected a duration above 0 and up to {DURATION_LIMIT:.0f} seconds, got {_shown(given)}")
    return float(seconds)


def _summed(text: str) -> float | None:
    """A bare number is seconds; pieces with units add up, the larger unit first, each once."""
    rest, total, last = text.strip(), 0.0, math.inf
    while match := _PIECE.match(rest):
        alone = not match[2] and match[0] == text.strip()
        factor = 1.0 if alone else _SECONDS.get(match[2])
        if factor is None or factor >= last:
            return None
        total, last, rest = total + float(match[1]) * factor, factor, rest[match.end() :]
    return total if not rest and last < math.inf else None


def format_duration(seconds: float) -> str:
    """Two units at most: "40 µs", "3.5 ms", "350 ms", "9.4 s", "48 s", "3 h 12 min", "2 d 4 h"."""
    if 0 < seconds < 0.0009995:
        return f"{max(1, round(seconds * 1e6))} µs"
    if 0 < seconds < 0.00995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _pair(whole, 60, "min", 1, "s")
    if whole < 86370:  # from here on it rounds to a day
        return _pair(round(whole / 60) * 60, 3600, "h", 60, "min")
    return _pair(round(whole / 3600) * 3600, 86400, "d", 3600, "h")


def _pair(whole: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    """`whole` in two units; the smaller goes unsaid where it is 0."""
    rest = whole % large // small
    head = f"{whole // large} {large_unit}"
    return f"{head} {rest} {small_unit}" if rest else head


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 40 else text[:37] + "..."
