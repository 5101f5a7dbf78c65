"""`coordinator enqueue`: another configuration for a search that runs, or its end."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import msgspec

from muster.coordinator.commands.options import farm_option, job_argument, json_option, say_done
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError


@click.command(
    epilog=example(
        "coordinator enqueue digits lr=0.05 hidden=256",
        "coordinator enqueue digits lr=1 --id a",
        "coordinator enqueue digits --end",
    )
)
@job_argument
@click.argument("values", nargs=-1, metavar="NAME=VALUE...")
@click.option("--id", "name", metavar="ID", help="Sent again under the same id, it is tried once.")
@click.option("--end", is_flag=True, help="End the search instead, with the best of what it has as its result.")
@farm_option
@json_option
def command(job: str, values: tuple[str, ...], name: str | None, end: bool, root: Path | None, as_json: bool) -> None:
    """Have a search that runs try another configuration.

    It is a trial of its own, before those that have not begun. Parameters that are not named are drawn. Once this
    command has ended, the configuration outlives whatever is killed.

    With --end no more is taken and what runs is dropped, as when a budget is spent; `coordinator cancel` leaves no
    result.
    """
    from muster.coordinator.submission import enqueue

    found = roots.existing(root)
    if end:
        if values or name:
            raise UsageError("--end adds no configuration", "coordinator enqueue JOB --end")
        full = ask_daemon.job_named(found, job)
        heard = enqueue.end(found, full)
        when = f", once `coordinator retry {full}` goes on with it" if heard == "halted" else ""
        said = f"{full} ends with what it has{when}" if heard else f"{full} ends already"
        say_done(said, as_json, job=full, ends=heard is not None)
        return
    config: dict[str, Any] = {}
    for text in values:
        parameter, value = _parsed(text)
        if parameter in config:
            raise UsageError(f"{parameter} is given twice", "give each parameter once")
        config[parameter] = value
    full, called = ask_daemon.job_named(found, job), name or uuid4().hex
    place = enqueue.enqueue(found, full, config, called)
    said = f"{full} tries it next" if name is None else f"{full} tries {called} next"
    say_done(said, as_json, job=full, id=called, place=place)


def _parsed(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"{text!r}: expected NAME=VALUE", "coordinator enqueue JOB lr=0.05")
    return name, _value(value)


def _value(text: str) -> Any:
    """As JSON has it, or as Python has a number; else the text itself."""
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(text)
    with suppress(ValueError):
        return float(text)
    return text
