"""What a second person's key may run: some commands, about that person's own jobs. What it asked for is read as data,
and written anew with full ids; nothing of it is run as it came."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from muster import VERSION
from muster.coordinator.connect import forced_command
from muster.coordinator.farm_root import ask_daemon, people
from muster.coordinator.farm_root.paths import Root, find
from muster.jobs.common.errors import NotFoundError, RefusedError, UsageError
from muster.jobs.common.names import ALL_JOBS
from muster.jobs.common.program import exit_code, invoke

if TYPE_CHECKING:
    import click

JOB = "a job"  # what stands behind an option: one of the person's
ANY = "a value"
# The commands, and the options that they may have: None, or what stands behind one.
COMMANDS: dict[str, dict[str, str | None]] = {
    "submit": {"--parcel": None, "--json": None, "--after": JOB, "--from": JOB},
    "status": {"--json": None},
    "watch": {"--json": None},
    "wait": {"--json": None},
    "logs": {"--json": None, "--failed": None, "--follow": None, "-f": None, "--limit": ANY},
    "report": {"--json": None, "--timeline": None, "--curves": None, "--html": ANY},
    "result": {"--json": None, "--partial": None},
    "fetch": {"--partial": None},
    "stream": {"--after": ANY, "--shard": ANY},
    "upload": {"--json": None, "--size": ANY, "--from": ANY},
    "uploads": {"--json": None},
}
_HINT = f"it may {', '.join(COMMANDS)}"


def run(root: Root, person: str, original: str | None) -> int:
    """The exit code of what the holder of the key asked for."""
    people.checked(person)
    try:
        name, words = forced_command.command_of(original)
        if name == "--version":
            print(f"muster {VERSION}")
            return 0
        if name not in COMMANDS:
            raise RefusedError(f"{person}'s key may not run `coordinator {name[:64]}`", _HINT)
        options, named = _read(root, person, name, words)
    except (RefusedError, UsageError) as error:
        raise forced_command.refuse(root.path, person, original, error) from None
    return exit_code(lambda: _done(root, person, name, options, named), "--json" in options)


def _done(root: Root, person: str, name: str, options: list[str], named: list[str]) -> int:
    if name == "uploads":
        return _say_uploads(root, person)
    meant = _meant(root, person, name, named)
    if name == "status" and not meant:
        return _say_no_jobs(root, "--json" in options)
    if not meant and name != "submit":  # without one, commands mean jobs of others
        raise NotFoundError("you have no job here", "`muster submit job.yaml --at …` starts one")
    return _call(root, [name, "--root", str(root.path), *options, "--", *meant])


def _read(root: Root, person: str, name: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options, with the full ids of jobs, and other words; a RefusedError for an option that is not in the table."""
    options = ["--owner", person] if name in ("submit", "upload") else []
    named: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            named += rest
            break
        if not word.startswith("-"):
            named.append(word)
            continue
        option, equals, value = word.partition("=")
        known = COMMANDS[name]
        if option not in known and option != "--root":
            raise RefusedError(f"{person}'s key may not give {option[:64]} to `coordinator {name}`", _HINT)
        if option != "--root" and known[option] is None:
            if equals:
                raise UsageError(f"{option} takes no value", "leave that out")
            options.append(option)
            continue
        if not equals and not rest:
            raise UsageError(f"{option} wants a value", "give one")
        options += _with_value(root, person, name, option, value if equals else rest.pop(0))
    if name == "submit" and "--parcel" not in options:
        raise RefusedError(f"{person}'s key submits what our clients send", "muster submit job.yaml --at me@server")
    return options, named


def _with_value(root: Root, person: str, name: str, option: str, value: str) -> list[str]:
    if option == "--root":
        if find(Path(value)).path != root.path:
            raise RefusedError(f"{person}'s key is for the root {root.path} alone", "leave the root out of WHERE")
        return []
    if option == "--html" and value != "-":
        raise RefusedError("a report is printed, and written where you are", "muster report JOB --html FILE --at …")
    return [f"{option}={people.job_of(root, person, value) if COMMANDS[name][option] == JOB else value}"]


def _meant(root: Root, person: str, name: str, named: Sequence[str]) -> list[str]:
    """The words behind the options, each job by its full id, and all of them the person's own."""
    if name == "submit":
        return []
    if name == "upload":
        return list(named)
    if name == "logs" and named:
        job, slash, shard = named[0].partition("/")
        return [people.job_of(root, person, job), *([shard] if slash else []), *named[1:]]
    if not named and name in ("status", "watch"):
        own = people.jobs_of(root, person)
        return own if name == "status" else [people.job_of(root, person, "last")]
    if ALL_JOBS in named:
        return people.jobs_of(root, person)
    return [people.job_of(root, person, job) for job in named]


def _say_uploads(root: Root, person: str) -> int:
    """What of their own is here: the names of others' arrays would be enough to compute with them."""
    from muster.coordinator.commands.options import say_json

    say_json({"uploads": people.uploads_of(root, person)})
    return 0


def _say_no_jobs(root: Root, as_json: bool) -> int:
    from muster.coordinator.api.requests import StatusAsk
    from muster.coordinator.api.status import Status
    from muster.coordinator.commands.options import say, say_json

    answer = ask_daemon.ask(root, StatusAsk(), Status)
    if as_json:
        say_json(msgspec.structs.replace(answer, jobs=[], notes=[]))
    else:
        say("you have no job here; `muster submit job.yaml --at …` starts one")
    return 0


def _call(root: Root, words: list[str]) -> int:
    """A command of ours, by its own module and with nothing of a configuration."""
    from muster.jobs.common import configuration
    from muster.jobs.common.cli import LazyGroup

    os.environ[configuration.VARIABLE] = ""
    os.environ["MUSTER_ROOT"] = str(root.path)
    return invoke(LazyGroup("coordinator", "", {"": dict.fromkeys(COMMANDS, "")}, _load), words)


def _load(name: str) -> click.Command:
    command: click.Command = import_module(f"muster.coordinator.commands.{name}").command
    return command
