"""`coordinator run`, `muster run`: a command for each item, as GNU Parallel takes it, run by the farm and followed."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from muster.coordinator.api.requests import Cancel, Done, FailuresAsk, Pause, StatusAsk
from muster.coordinator.api.status import JobStatus, Status
from muster.coordinator.commands import complete_names
from muster.coordinator.commands.farm_meant import handed_over
from muster.coordinator.commands.options import place_options, say, say_json
from muster.coordinator.display.jobs import holdups, incomplete
from muster.coordinator.display.run_items import ItemsDisplay
from muster.coordinator.farm_root import ask_daemon, local_farm
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.runs import arguments, gnu_options, halting, wish
from muster.coordinator.runs.lines import Ended
from muster.coordinator.runs.wish import Wish
from muster.jobs.common.cli import example
from muster.jobs.common.durable import is_full
from muster.jobs.common.errors import (
    INTERRUPTED_EXIT,
    IncompleteError,
    JobFileError,
    LinkError,
    MusterError,
    NoDaemonError,
    RefusedError,
    SpaceError,
    UsageError,
)
from muster.jobs.common.locations import Host
from muster.jobs.common.printable import harmless
from muster.jobs.common.units import counted

if TYPE_CHECKING:
    from muster.coordinator.submission.run_items import RunItems
    from muster.coordinator.submission.run_sources import Work

QUIET_SECONDS = 0.5  # without an item that ends, until we look at what holds it up
AWAY_SECONDS = 120.0  # of a coordinator that is started again
COMPLETED = {"after": complete_names.job, "attach": complete_names.job}
NOT_TYPED = (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)

F = TypeVar("F", bound=Callable[..., Any])


class _Run(click.Command):
    """Options stand before the command, as its own stand behind it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if (hint := gnu_options.instead(error.option_name)) is None:
                raise
            raise UsageError(f"`muster run` has no {error.option_name}, as GNU Parallel has", hint) from None


def _run_options(function: F) -> F:
    for one in reversed(list(wish.options())):
        said = {**one.metadata["said"], "shell_complete": COMPLETED.get(one.name)}
        function = click.option(one.name, *one.metadata["names"], **said)(function)
    return function


@click.command(
    cls=_Run,
    context_settings={"allow_interspersed_args": False, "token_normalize_func": gnu_options.spelled},
    epilog=example(
        "coordinator run 'gzip -9 < {} > {out}' --return '{}.gz' ::: *.log",
        "seq 1000 | coordinator run -k ./simulate --seed {} > all.txt",
        "coordinator run --colsep , --header : 'train --lr {lr} --seed {seed}' :::: sweep.csv",
        "coordinator run --local -j 4 'convert {} {.}.png' ::: *.jpg",
    ),
)
@_run_options
@place_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND] [::: ITEM…] [:::: FILE…]")
def command(place: Host | Path | None, words: tuple[str, ...], **options: Any) -> int:
    """Run a command for each item, on the machines of the farm.

    Items are words behind `:::`, lines of files behind `::::`, or lines of stdin. Several sources make all
    combinations; `:::+` and `::::+` go along with the source before. Placeholders are {} {.} {/} {//} {/.} {#} {1} {2.}
    {name}; without one, the item comes last. Without a command, each item is one. Items that name files below the
    current folder are given to each machine under their names. Each command starts in a folder that is deleted: what
    is to stay goes to stdout or {out}, or --workdir names where.

    With --at me@server all of this is as if it were typed there, with stdin from here.

    A run is a job: Ctrl-C leaves it running. The exit code is 0 when all items ended with 0, and 11 when not.
    """
    try:
        asked = _asked({**options, "words": words})
        if not isinstance(place, Host):
            return _run(place, asked)
        is_typed = click.get_current_context().params["at"] is not None
        is_local = asked.dry_run or (asked.local and not is_typed)
        return _run(None, asked) if is_local else _run_far(place, asked)
    except MusterError as found:
        error = _of_the_line(found)
        if options["as_json"]:
            say_json({"error": error.message, "hint": error.hint, "code": error.exit_code}, indent=0)
        raise error from None


def _of_the_line(error: MusterError) -> MusterError:
    """There is no job file to correct: its fields are options."""
    if not isinstance(error, JobFileError):
        return error
    hint = "`muster run --help` says what each option takes" if error.hint == error.default_hint else error.hint
    return UsageError(wish.said_of_options(error.message), hint)


def _asked(options: dict[str, Any]) -> Wish:
    """What is configured is for runs that begin: an earlier one has it already."""
    context = click.get_current_context()
    again = wish.again_of(options["attach"], options["retry_failed"])
    for one in wish.set_by_the_run(again) if again else []:
        if context.get_parameter_source(one.name) in NOT_TYPED:
            options[one.name] = one.default
            context.set_parameter_source(one.name, ParameterSource.DEFAULT)
    return Wish(**options)


def _run_far(host: Host, asked: Wish) -> int:
    """Handed over to where the farm is, unless it names what is here."""
    from muster.coordinator.submission.run_items import are_files
    from muster.jobs.user_code.command_template import local_files

    said = arguments.split(asked.words)
    read = [*asked.files, *(group.words[0] for group in said.groups if group.is_files)]
    named = {
        "a file of items": [name for name in read if name != arguments.STDIN],
        "--joblog": asked.joblog,
        "--results": asked.results,
        "--return": asked.returned or said.returned,
        "--env": asked.envs,
        "--local": asked.local,
    }
    if odd := next((option for option, value in named.items() if value), None):
        raise UsageError(f"{odd} is of this machine, and --at is not", "give items as words or on stdin, or ssh there")
    words = [group.words for group in said.groups if not group.is_files and are_files(group.words)]
    for name, *_ in [*words, *([name] for _, name in local_files(said.command) if are_files([name]))]:
        wrong = f"{name} is a file of this machine, and --at sends none"
        raise UsageError(wrong, "copy the files to the server and run it there; `farm.map` sends arrays")
    is_given = said.groups or asked.array or asked.again
    return handed_over(host, reads=arguments.STDIN in read or not is_given, last=len(asked.words))


def _run(root: Path | None, asked: Wish) -> int:
    work = _work(asked) if asked.again is None else None
    if asked.dry_run or (work is not None and not work.rows):
        return _print_commands(work) if work is not None else 0
    _check_places(asked)
    with ExitStack() as stack:
        found = stack.enter_context(local_farm.local_farm(root)) if asked.local else _served(root)
        job = _job(found, asked, work)
        return _follow(found, job, asked) if job else 0


def _work(asked: Wish) -> Work:
    from muster.coordinator.submission import run_sources

    work = run_sources.read(asked)
    if work.left_out:
        values = counted(work.left_out, "value")
        click.echo(f"note: {values} of a linked source left out: the other is shorter", err=True)
    return work


def _print_commands(work: Work) -> int:
    items = work.items() if work.rows else None
    for number in items.numbers if items else ():
        say(items.command(number))  # type: ignore[union-attr]
    return 0


def _check_places(asked: Wish) -> None:
    """Before anything runs: what is to be written can be."""
    try:
        if asked.results is not None:
            Path(asked.results).mkdir(parents=True, exist_ok=True)
        if asked.joblog is not None:
            Path(asked.joblog).open("a").close()
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}", "name a place that you may write to") from None


# --- the job ---


def _served(path: Path | None) -> Root:
    try:
        found = roots.existing(path)
        ask_daemon.connect(found).close()
    except NoDaemonError as error:
        hint = (
            "`muster run --local …` starts one, with this machine, for the run; `coordinator serve --detach` for good"
        )
        raise NoDaemonError(error.message, hint) from None
    return found


def _job(root: Root, asked: Wish, work: Work | None) -> str | None:
    """The job to follow; None where there is nothing to run."""
    from muster.coordinator.submission import run_job

    if asked.attach:
        return ask_daemon.job_named(root, asked.attach)
    if work is None:
        old = ask_daemon.job_named(root, asked.name)
        run_job.check_known(root, old)
        if not (numbers := run_job.failed(root, old)):
            click.echo(f"all items of {old} ended well", err=True)
            return None
        return run_job.submitted(root, run_job.again(root, old, numbers, asked), asked.after)
    planned = run_job.planned(asked.name, work)
    if asked.resume:
        numbers = run_job.left(root, asked.name, work)
        click.echo(f"{len(work.rows) - len(numbers):,} of {len(work.rows):,} items ended well before", err=True)
        if not numbers:
            return None
        planned = run_job.only(planned, numbers)
    return run_job.submitted(root, planned, asked.after)


# --- its items as they end ---


def _follow(root: Root, job: str, asked: Wish) -> int:
    """Print each item as it ends, and bring its output file here; the exit code."""
    from muster.coordinator.submission.run_items import RunItems

    if sys.stderr.isatty():
        click.echo(job, err=True)
    items = RunItems.of_job(root, job)
    display = ItemsDisplay(items, asked)
    try:
        with closing(display):
            status = _watched(root, job, items, asked, display)
        _bring_back(root, job, items, display.well)
    except KeyboardInterrupt:
        print(f"\n{job} {_goes_on(job, asked)}", file=sys.stderr)
        return INTERRUPTED_EXIT
    except OSError as error:
        if error.filename is None:
            raise
        kind = SpaceError if is_full(error) else RefusedError
        raise kind(f"{error.filename}: {error.strerror}", f"{job} {_goes_on(job, asked)}") from None
    if display.failed or display.missing:
        raise _incomplete(root, job, len(items.numbers), display, status)
    return 0


def _goes_on(job: str, asked: Wish) -> str:
    if asked.local:
        return f"is kept, and goes on with `muster run --local --attach {job}`"
    again = f"`muster run --attach {job}`; `muster cancel {job}` ends it"
    return f"goes on; its output is printed, from the beginning, by {again}"


def _incomplete(root: Root, job: str, items: int, display: ItemsDisplay, status: JobStatus | None) -> MusterError:
    why = _why_given_up(root, status) or status.why if status is not None else ""
    if status is not None and not display.failed and not why:
        return incomplete(status)  # by the fault of no item
    said = [f"{len(display.failed):,} of {counted(items, 'item')} failed"] if display.failed else []
    if display.missing and status is not None:
        said.append(f"{display.missing:,} did not run, as the job is {status.state}{f': {why}' if why else ''}")
    hint = (
        f"`muster run --retry-failed --name {job.rpartition('.')[0]}` runs them, --resume with the command all the rest"
    )
    return IncompleteError(f"{job}: {', '.join(said)}", hint)


def _why_given_up(root: Root, status: JobStatus) -> str:
    """Of the first item that could not be run: no machine has the folder, say."""
    if not status.totals.quarantined:
        return ""
    answer, _ = ask_daemon.failures(root, FailuresAsk(status.id, None, None, True, 1))
    return answer.items[0].message if answer.items else ""


def _watched(root: Root, job: str, items: RunItems, asked: Wish, display: ItemsDisplay) -> JobStatus | None:
    """Show its items until all have ended, or the job does. How that ended, where some have not."""
    rule = halting.parse(asked.halt)
    stopping = False
    for ended in _ended(root, job, display):
        if ended is not None:
            display.show(ended)
            if display.missing == 0 and items.params.out is None and not asked.local:
                return None  # what is left is to merge, which nobody here waits for
            if rule and not stopping and rule.is_met(len(display.failed), len(display.well), len(items.numbers)):
                stopping = True
                _end(root, job, rule.when == "now")
        elif stopping and _is_quiet(_status(root, job)):
            _end(root, job, True)
    return _status(root, job)


def _ended(root: Root, job: str, display: ItemsDisplay) -> Iterator[Ended | None]:
    """Each item once, through a coordinator that is away for a while; None where none ends for a moment, after what
    holds them up was said."""
    from muster.coordinator.result_downloads.ended_items import EndedItems

    stream, heard, told = EndedItems(root, job), time.monotonic(), list[str]()
    while True:
        try:
            for ended in stream.follow(QUIET_SECONDS):
                heard = time.monotonic()
                if ended is None:
                    display.rest()
                    told = _say_holdups(root, job, told)
                yield ended
            return
        except (NoDaemonError, LinkError):
            if time.monotonic() - heard > AWAY_SECONDS:
                raise
            time.sleep(QUIET_SECONDS)


def _say_holdups(root: Root, job: str, told: list[str]) -> list[str]:
    """Once each; those of now."""
    found = holdups(ask_daemon.ask(root, StatusAsk(job), Status))
    for line in [one for one in found if one not in told]:
        click.echo(harmless(f"{job}: {line}"), err=True)
    return found


def _status(root: Root, job: str) -> JobStatus:
    return ask_daemon.ask(root, StatusAsk(job), Status).jobs[0]


def _is_quiet(status: JobStatus) -> bool:
    """Whether all that any machine had of it is handed in."""
    return not (status.totals.running or status.totals.finished)


def _end(root: Root, job: str, at_once: bool) -> None:
    """At once, or once what runs has ended. One that is over already stays as it is."""
    try:
        ask_daemon.ask(root, Cancel(job) if at_once else Pause(job), Done)
    except MusterError:
        if not _status(root, job).is_over:
            raise


def _bring_back(root: Root, job: str, items: RunItems, well: list[int]) -> None:
    """Output files to where `--return` wants them."""
    if items.params.out is None or not well:
        return
    for answer in ask_daemon.statuses(root, job):
        status = answer.jobs[0]  # in the end, it is merged
    if status.state != "complete":
        click.echo(f"{job} is {status.state}: `coordinator result {job} --partial` has the files", err=True)
        return
    for number in sorted(well):
        name = items.out(number)
        assert name is not None
        source, target = root.job(job).result / "items" / "files" / name, Path(name)
        part = target.with_name(f".{target.name}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, part)
            part.replace(target)
        except OSError as error:
            wrong = f"{error.filename or target}: {error.strerror}"
            raise RefusedError(wrong, f"`coordinator result {job} --to DIR` copies all of them") from None
