"""Forecasts as text for people. Decides and fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.jobs.common.units import counted, format_duration, format_size

if TYPE_CHECKING:  # planning alone needs what this imports
    from muster.coordinator.submission.forecast import Forecast, LayerForecast
from muster.coordinator.display.agents import farm_line, payoff_lines
from muster.coordinator.display.jobs import LAYERS_SHOWN
from muster.coordinator.display.tables import count, short, spread, table

# --- forecasts and space ----------------------------------------------------------------------------------


def forecast_page(seen: Forecast) -> str:
    """What `plan` prints."""
    if seen.of_kind is not None:
        lines = [f"{seen.job}: {seen.kind}, {seen.of_kind.head}", *(f"  {line}" for line in seen.of_kind.lines)]
        return "\n".join([*lines, farm_line(seen)])
    lines = [
        f"{seen.job}: {seen.kind}, {counted(len(seen.layers), 'layer')}, {counted(seen.shards, 'shard')},"
        f" {counted(seen.rows, 'row')}",
        f"  cut      {seen.cut or 'as the job file says'}",
        f"  input    {format_size(seen.bytes_in)}",
        f"  output   {_size_or(seen.bytes_out, 'unknown until the first shards ran')}",
        f"  root     {_room(seen)}",
        farm_line(seen),
        f"  time     {_forecast_time(seen)}",
        *(f"  note     {note}" for note in seen.notes),
        *(f"  pays     {line}" for line in payoff_lines(seen.payoffs)),
    ]
    return "\n".join(lines) + "\n\n" + _forecast_layers(seen.layers)


def _size_or(size: int | None, otherwise: str) -> str:
    return otherwise if size is None else format_size(size)


def _room(seen: Forecast) -> str:
    free = "" if seen.root_free is None else f", {format_size(seen.root_free)} free"
    if seen.bytes_of_root is None:
        return f"twice the output of two layers, beside the result{free}"
    short_of = seen.root_free is not None and seen.bytes_of_root > seen.root_free
    return f"needs {format_size(seen.bytes_of_root)}{free}" + (": not enough" if short_of else "")


def _forecast_time(seen: Forecast) -> str:
    if seen.seconds is None or seen.low is None or seen.high is None:
        return f"unknown{'' if seen.basis.startswith('until') else ':'} {seen.basis}"
    return f"{format_duration(seen.seconds)} ({spread(seen.low, seen.high)}), bound by {seen.bottleneck}, {seen.basis}"


def _forecast_layers(layers: Sequence[LayerForecast]) -> str:
    rows = [
        (
            short(layer.name),
            f"{layer.dtype} {'x'.join(str(length) for length in layer.shape)}",
            count(layer.shards),
            format_size(layer.bytes_in),
            _size_or(layer.bytes_out, "?"),
        )
        for layer in layers[:LAYERS_SHOWN]
    ]
    text = table(("LAYER", "ARRAY", "SHARDS", "INPUT", "OUTPUT"), rows, "  rrr")
    hidden = len(layers) - len(rows)
    return f"{text}\n… and {counted(hidden, 'layer')} more; --json has all" if hidden else text
