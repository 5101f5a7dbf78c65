"""The command line of `muster run` as a value: each option once, what it is for, and what contradicts itself. Reads no
file, and knows no parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from pathlib import PurePath
from typing import Any, Literal

from muster.coordinator.runs import halting
from muster.jobs.common.errors import UsageError

NAME = "run"
OUTPUT_LIMIT = "1MiB"
TRIES_LIMIT = 1000
TABLES = (".csv", ".tsv", ".json")

_OPTIONS = {  # by the field of the job that is made of it
    "params.run": "the command",
    "code.include[0]": "the command",
    "params.out": "--return",
    "params.timeout": "--timeout",
    "params.capture": "--max-output",
    "params.workdir": "--workdir",
    "name": "--name",
    "at_once": "-j",
    "variables": "--env",
    "source.table": "--header",
}
_FIELD = re.compile(rf"(?:run:\d+: )?({'|'.join(map(re.escape, _OPTIONS))})(?!\w)")

# What an option is about: which items there are and what is run of each, how they are run, or what is shown of them.
Of = Literal["items", "job", "shown"]
Again = Literal["--attach", "--retry-failed"]  # those that take an earlier run


def _option(of: Of, *names: str, default: Any = None, **said: Any) -> Any:
    """One that may be left out. `said`: what its help says, and its form."""
    if said.get("multiple"):
        default = ()
    if said.get("is_flag"):
        default = False
    return field(default=default, metadata={"of": of, "names": names, "said": {**said, "default": default}})


@dataclass(frozen=True)
class Wish:
    """What was asked for."""

    words: tuple[str, ...] = ()  # the command and its sources
    files: tuple[str, ...] = _option(
        "items", "-a", "--arg-file", multiple=True, metavar="FILE", help="Read items from a file; - is stdin."
    )
    null: bool = _option("items", "-0", "--null", is_flag=True, help="Items of files and stdin end with NUL.")
    colsep: str | None = _option(
        "items", "-C", "--colsep", metavar="REGEX", help="Cut each item into columns: {1} {2} …"
    )
    header: str | None = _option(
        "items", "--header", metavar=":", help="`:`: the first item of each source names its columns."
    )
    array: str | None = _option(
        "items", "--array", metavar="1-99%4", help="Whole numbers as items, as sbatch has it; %4: four at once."
    )
    jobs: str | None = _option(
        "job", "-j", "-P", "--jobs", "--max-procs", metavar="N", help="At most N at once, on all machines together."
    )
    keep_order: bool = _option("shown", "-k", "--keep-order", is_flag=True, help="Print in the order of the items.")
    tag: bool = _option("shown", "--tag", is_flag=True, help="Begin each line with the item's values and a tab.")
    bar: bool = _option("shown", "--bar", is_flag=True, help="Show how far it is, on stderr.")
    dry_run: bool = _option("shown", "--dry-run", is_flag=True, help="Print the commands and run none.")
    joblog: str | None = _option(
        "shown",
        "--joblog",
        metavar="FILE",
        help="Write a line for each item that ends: when, where, exit code, command.",
    )
    results: str | None = _option(
        "shown", "--results", metavar="DIR", help="Keep stdout and stderr of each item as files below DIR."
    )
    resume: bool = _option(
        "items", "--resume", is_flag=True, help="Leave out what ended well in an earlier run of the same command."
    )
    retry_failed: bool = _option(
        "shown", "--retry-failed", is_flag=True, help="Run what did not end well in the latest run; give no command."
    )
    halt: str = _option(
        "shown",
        "--halt",
        metavar="WHEN,fail=N",
        default="never",
        help="End early: now,fail=1 or soon,fail=10%.",
    )
    retries: int | None = _option(
        "job", "--retries", metavar="N", type=int, help="Run an item up to N times until it is well."
    )
    timeout: str | None = _option("job", "--timeout", metavar="SECONDS", help="End an item that takes longer.")
    envs: tuple[str, ...] = _option(
        "job", "--env", multiple=True, metavar="NAME", help="Give commands this variable of here; repeatable."
    )
    returned: str | None = _option("items", "--return", metavar="NAME", help="What {out} is called here: '{}.gz'.")
    workdir: str | None = _option(
        "items", "--workdir", "--wd", metavar="DIR", help="Start commands there: a folder that all machines have."
    )
    max_output: str | None = _option(
        "job", "--max-output", metavar="SIZE", help=f"Of an item's stdout, or stderr; default {OUTPUT_LIMIT}."
    )
    name: str = _option(
        "job", "--name", metavar="NAME", default=NAME, help=f"Of the job, for --resume too; default {NAME}."
    )
    after: tuple[str, ...] = _option(
        "job",
        "--after",
        multiple=True,
        metavar="JOB",
        help="Start once this job is complete; may be given again.",
    )
    attach: str | None = _option(
        "shown", "--attach", metavar="JOB", help="Print all of an earlier run, and follow it to its end."
    )
    local: bool = _option(
        "shown",
        "--local",
        is_flag=True,
        help="Where no coordinator serves, start one with this machine, for this run.",
    )
    as_json: bool = _option(
        "shown", "--json", is_flag=True, help="Print a line of JSON for each item, in place of its output."
    )

    @property
    def again(self) -> Again | None:
        return again_of(self.attach, self.retry_failed)

    def __post_init__(self) -> None:
        if self.attach and self.retry_failed:
            raise UsageError("--attach follows a run, and --retry-failed starts one", "leave one of them out")
        if self.again:
            self._check_again(self.again)
        if self.header not in (None, ":"):
            raise UsageError(f"--header {self.header}: only `:` is known", "--header :")
        if self.results is not None and PurePath(self.results).suffix in TABLES:
            raise UsageError(f"--results {self.results}: only a folder is written", "--joblog FILE is a table")
        if self.retries is not None and not 1 <= self.retries <= TRIES_LIMIT:
            raise UsageError(f"--retries {self.retries}: 1 to {TRIES_LIMIT:,}", "it counts the first time too")
        halting.parse(self.halt)

    def _check_again(self, again: Again) -> None:
        """An earlier run has its items; one that is followed has begun."""
        if self.dry_run:
            raise UsageError("--dry-run asks no coordinator", "`muster status` shows earlier runs")
        if self.words:
            raise UsageError(f"{again} takes the commands of the earlier run", "leave the command and the items out")
        for option in set_by_the_run(again):
            if getattr(self, option.name) == option.default:
                continue
            if option.metadata["of"] == "items":
                hint = "leave it out; --resume with the command and the items runs what is left of them otherwise"
                raise UsageError(
                    f"{long_name(option)} is for new items, and {again} takes those of the earlier run", hint
                )
            hint = "leave it out; --retry-failed takes it, once that run is over"
            raise UsageError(
                f"{long_name(option)} comes too late: --attach follows {self.attach}, which has begun", hint
            )


Option = Field[Any]


def again_of(attach: str | None, retry_failed: bool) -> Again | None:
    return "--attach" if attach else "--retry-failed" if retry_failed else None


def options() -> Iterator[Option]:
    """Those of the fields that are options, as they stand in the help."""
    return (one for one in fields(Wish) if one.metadata)


def set_by_the_run(again: Again) -> list[Option]:
    """What the earlier run has settled already."""
    settled = {"items"} if again == "--retry-failed" else {"items", "job"}
    return [one for one in options() if one.metadata["of"] in settled]


def long_name(option: Option) -> str:
    name: str = next(name for name in option.metadata["names"] if name.startswith("--"))
    return name


def said_of_options(message: str) -> str:
    """What is wrong with the job that was made of a command line, by what it says there."""
    match = _FIELD.match(message)
    return _OPTIONS[match[1]] + message[match.end() :] if match else message
