"""`coordinator set`: what a job may use and how often it may fail, changed while it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from muster.coordinator.api.requests import Done, SetJob
from muster.coordinator.commands.options import farm_option, job_argument, json_option, say_done
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common import units
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError
from muster.jobs.common.validation import did_you_mean

SETTINGS: dict[str, Callable[[str], float]] = {
    "memory": units.parse_size,
    "timeout": units.parse_duration,
    "attempts": int,
    "max_failures": int,
}
TAKEN_BACK = ("memory", "timeout")  # which an empty value takes away


@click.command(epilog=example("coordinator set weights memory=4GiB timeout=1h", "coordinator set weights timeout="))
@job_argument
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
@farm_option
@json_option
def command(job: str, settings: tuple[str, ...], root: Path | None, as_json: bool) -> None:
    """Change what a job's shards may use, or how often they may fail, while it runs.

    NAME=VALUE is memory=SIZE, timeout=DURATION, attempts=N or max_failures=N, each as in the job file. With an empty
    memory or timeout there is none, whatever the job file says. A change holds for shards that begin from now on, until
    the job is removed. A shard that is already given up needs `coordinator retry`. `coordinator priority` sets the
    job's share, `agent set` what a machine lends.
    """
    asked = dict(map(_parsed, settings))
    found = roots.existing(root)
    name = ask_daemon.job_named(found, job)
    try:
        question = msgspec.convert({"t": "setjob", "job": name, **asked}, SetJob)
    except msgspec.ValidationError as error:
        raise UsageError(f"{' '.join(settings)}: {error}", "coordinator set JOB attempts=5") from None
    say_done(ask_daemon.ask(found, question, Done).said, as_json, job=name, **asked)


def _parsed(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r}: expected NAME=VALUE", "coordinator set JOB timeout=1h")
    if name not in SETTINGS:
        hint = f"settings: {', '.join(SETTINGS)}; all else is fixed at submit"
        raise UsageError(f"there is no setting {name!r}{did_you_mean(name, SETTINGS)}", hint)
    if not value and name in TAKEN_BACK:
        return name, 0
    try:
        return name, SETTINGS[name](value)
    except ValueError as error:
        why = str(error) if name in TAKEN_BACK else "expected a whole number"
        raise UsageError(f"{text!r}: {why}", f"coordinator set JOB {name}=…") from None
