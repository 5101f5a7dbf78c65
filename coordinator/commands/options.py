"""The options that commands share, and where their output goes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from muster.coordinator.commands import complete_names
from muster.coordinator.commands.farm_meant import farm_meant, handed_over
from muster.coordinator.display.colours import shown
from muster.jobs.common.json_documents import json_text
from muster.jobs.common.locations import Host

F = TypeVar("F", bound=Callable[..., Any])


def farm_option(function: F) -> F:
    """--at and --root of a command that runs where the farm is: there, if that is behind ssh. The function gets `root`
    as `root_option` gives it."""

    @wraps(function)
    def called(*, place: Host | Path | None, **given: Any) -> Any:
        return handed_over(place) if isinstance(place, Host) else function(root=place, **given)

    return place_options(called)  # type: ignore[return-value]


def place_options(function: F) -> F:
    """--at and --root of a command that knows what to do with a farm elsewhere: `place`, as `farm_meant` has it."""

    @wraps(function)
    def called(*, at: str | None, root: Path | None, **given: Any) -> Any:
        return function(place=farm_meant(at, root), **given)

    named = click.option(
        "--at", metavar="WHERE", default=None, help="A farm elsewhere, as me@server; default $MUSTER_FARM."
    )
    return named(root_option(called))  # type: ignore[return-value]


def root_option(function: F) -> F:
    """--root, as a Path or None for the default."""
    return click.option(
        "--root",
        type=click.Path(path_type=Path),
        default=None,
        metavar="DIR",
        help="The farm's root folder; default $MUSTER_ROOT, else ~/.muster.",
    )(function)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def job_argument(function: F) -> F:
    return click.argument("job", metavar="JOB", shell_complete=complete_names.job)(function)


def job_file_argument(function: F) -> F:
    return click.argument("job_file", metavar="job.yaml", type=click.Path(path_type=Path))(function)


def reuse_options(function: F) -> F:
    """--from an earlier job, and what to change of it."""
    for option in reversed(_REUSE):
        function = option(function)
    return function


_REUSE = (
    click.option(
        "--from",
        "old",
        metavar="JOB",
        default=None,
        shell_complete=complete_names.job,
        help="Run this earlier job again; layers that would come out the same are taken over.",
    ),
    click.option("--layers", multiple=True, metavar="GLOB", help="The layers for which --set holds; default all."),
    click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Another value for one of the params."),
)


def say(text: str) -> None:
    """A line, or several, on stdout, with its colours where they are wanted."""
    sys.stdout.write(shown(text, sys.stdout) + "\n")
    sys.stdout.flush()


def say_json(value: object, indent: int = 2) -> None:
    """A struct or a mapping of ours as a document, without the tags of the wire."""
    sys.stdout.write(json_text(plain(value), indent) + "\n")
    sys.stdout.flush()


def say_done(said: str, as_json: bool, **facts: object) -> None:
    """What was done, in a line, or as JSON with what it was done to."""
    if as_json:
        say_json({**facts, "said": said})
    else:
        say(said)


def plain(value: object) -> Any:
    """Structs as dicts, untagged."""
    made = msgspec.to_builtins(value)
    if isinstance(made, dict):
        made.pop("t", None)
    return made
