"""Where numbers stand on an axis, and how they are written there: round ones in the unit that people count in. Pure."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, log2, log10

from muster.jobs.common.units import format_duration, format_size

_SMALL = [factor * 10.0**power for power in range(-6, 1) for factor in (1, 2, 5)]
_DAYS = [factor * 86_400.0 * 10**power for power in range(4) for factor in (1, 2, 5)]
SECONDS = [*_SMALL, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10_800, 21_600, 43_200, *_DAYS]
BYTES = [2.0**power for power in range(60)]


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, some `count` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    step = 10 ** floor(log10(raw))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= raw)
    return [i * step for i in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def time_ticks(until: float, count: int = 6) -> list[float]:
    """Seconds from 0 on that people count in, at most some `count` of them."""
    if until < count:
        return round_ticks(0, until, count)
    step = next((one for one in SECONDS if one >= 1 and one * count >= until), SECONDS[-1])
    return [i * step for i in range(floor(until / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, unit: str = "") -> list[float]:
    """Of a logarithmic axis: round numbers in this unit, nine at most."""
    decimal = [
        factor * 10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1) for factor in (1, 2, 5)
    ]
    for every in {"seconds": (SECONDS, decimal), "bytes": (BYTES,)}.get(unit, (decimal,)):
        inside = [i for i, one in enumerate(every) if low * 0.999 <= one <= high * 1.001]
        if len(inside) >= 3:
            step = next(one for one in (1, 3, 6, 12, 24) if len(inside) <= 9 * one)
            return [every[i] for i in inside if i % step == 0]
    whole = 2.0 ** (10 * floor(log2(high) / 10)) if unit == "bytes" else 1.0
    return [one * whole for one in round_ticks(low / whole, high / whole, 4)]


def plain(value: float) -> str:
    """A tick's number."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


UNITS: dict[str, Callable[[float], str]] = {  # of ticks
    "": plain,
    "seconds": format_duration,
    "bytes": lambda value: format_size(round(value)),
}
