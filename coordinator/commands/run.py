"""`coordinator run`, `muster run`: a command for each item, as GNU Parallel takes it, run by the farm."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import click

from muster.coordinator.api.requests import Cancel, Done, Pause, StatusAsk, Submit, Submitted
from muster.coordinator.api.status import JobStatus, Status
from muster.coordinator.commands import complete_names
from muster.coordinator.commands.farm_meant import handed_over
from muster.coordinator.commands.options import place_options, say, say_json
from muster.coordinator.display.jobs import holdups, incomplete
from muster.coordinator.farm_root import ask_daemon, local_farm
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.runs import arguments, halting, lines
from muster.coordinator.runs.lines import Ended
from muster.coordinator.runs.unsupported import instead
from muster.jobs.common.cli import example
from muster.jobs.common.errors import (
    INTERRUPTED_EXIT,
    IncompleteError,
    LinkError,
    MusterError,
    NoDaemonError,
    RefusedError,
    SourceError,
    UsageError,
)
from muster.jobs.common.locations import Host
from muster.jobs.common.printable import harmless
from muster.jobs.common.units import counted

if TYPE_CHECKING:
    from muster.coordinator.submission.run_job import RunItems

NAME = "run"
OUTPUT_LIMIT = "1MiB"
QUIET_SECONDS = 0.5  # without an item that ends, until we look at what holds it up
BLOCK = 1 << 20
RECORD_LIMIT = 64 << 20  # bytes
AWAY_SECONDS = 120.0  # of a coordinator that is started again


class _Run(click.Command):
    """Options stand before the command, as its own stand behind it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if (hint := instead(error.option_name)) is None:
                raise
            raise UsageError(f"`muster run` has no {error.option_name}, as GNU Parallel has", hint) from None


@click.command(
    cls=_Run,
    context_settings={"allow_interspersed_args": False},
    epilog=example(
        "coordinator run 'gzip -9 < {} > {out}' --return '{}.gz' ::: *.log",
        "seq 1000 | coordinator run -k ./simulate --seed {} > all.txt",
        "coordinator run --colsep , --header : 'train --lr {lr} --seed {seed}' :::: sweep.csv",
        "coordinator run --local -j 4 'convert {} {.}.png' ::: *.jpg",
    ),
)
@click.option("-a", "--arg-file", "files", multiple=True, metavar="FILE", help="Read items from a file; - is stdin.")
@click.option("-0", "--null", is_flag=True, help="Items of files and stdin end with NUL.")
@click.option("-C", "--colsep", metavar="REGEX", help="Cut each item into columns: {1} {2} …")
@click.option("--header", metavar=":", help="`:`: the first item of each source names its columns.")
@click.option("--array", metavar="1-99%4", help="Whole numbers as items, as sbatch has it; %4: four at once.")
@click.option("-j", "-P", "--jobs", "--max-procs", metavar="N", help="At most N at once, on all machines together.")
@click.option("-k", "--keep-order", is_flag=True, help="Print in the order of the items.")
@click.option("--tag", is_flag=True, help="Begin each line with the item's values and a tab.")
@click.option("--bar", is_flag=True, help="Show how far it is, on stderr.")
@click.option("--dry-run", is_flag=True, help="Print the commands and run none.")
@click.option("--joblog", metavar="FILE", help="Write a line for each item that ends: when, where, exit code, command.")
@click.option("--results", metavar="DIR", help="Keep stdout and stderr of each item as files below DIR.")
@click.option("--resume", is_flag=True, help="Leave out what ended well in an earlier run of the same command.")
@click.option("--retry-failed", is_flag=True, help="Run what did not end well in the latest run; give no command.")
@click.option("--halt", metavar="WHEN,fail=N", default="never", help="End early: now,fail=1 or soon,fail=10%.")
@click.option(
    "--retries", metavar="N", type=click.IntRange(1, 1000), help="Run an item up to N times until it is well."
)
@click.option("--timeout", metavar="SECONDS", help="End an item that takes longer.")
@click.option("--env", "envs", multiple=True, metavar="NAME", help="Give commands this variable of here; repeatable.")
@click.option("--return", "returned", metavar="NAME", help="What {out} is called here: '{}.gz'.")
@click.option("--workdir", "--wd", metavar="DIR", help="Start commands there: a folder that all machines have.")
@click.option(
    "--max-output", metavar="SIZE", default=OUTPUT_LIMIT, show_default=True, help="Of an item's stdout, or stderr."
)
@click.option("--name", metavar="NAME", default=NAME, show_default=True, help="Of the job, for --resume too.")
@click.option(
    "--after",
    multiple=True,
    metavar="JOB",
    shell_complete=complete_names.job,
    help="Start once this job is complete; may be given again.",
)
@click.option("--attach", metavar="JOB", help="Print all of an earlier run, and follow it to its end.")
@click.option("--local", is_flag=True, help="Where no coordinator serves, start one with this machine, for this run.")
@place_options
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each item, in place of its output.")
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
        wish = Wish(**{**options, "words": words})
        if not isinstance(place, Host):
            return _run(place, wish)
        is_typed = click.get_current_context().params["at"] is not None
        is_local = wish.dry_run or (wish.local and not is_typed)
        return _run(None, wish) if is_local else _run_far(place, wish)
    except MusterError as error:
        if options["as_json"]:
            say_json({"error": error.message, "hint": error.hint, "code": error.exit_code}, indent=0)
        raise


def _run_far(host: Host, wish: Wish) -> int:
    """Handed over to where the farm is, unless it names what is here."""
    from muster.coordinator.submission.run_job import are_files

    said = arguments.split(wish.words)
    read = [*wish.files, *(group.words[0] for group in said.groups if group.is_files)]
    named = {
        "a file of items": [name for name in read if name != arguments.STDIN],
        "--joblog": wish.joblog,
        "--results": wish.results,
        "--return": wish.returned or said.returned,
        "--env": wish.envs,
        "--local": wish.local,
    }
    if odd := next((option for option, value in named.items() if value), None):
        raise UsageError(f"{odd} is of this machine, and --at is not", "give items as words or on stdin, or ssh there")
    for group in said.groups:
        if not group.is_files and are_files(group.words):
            wrong = f"{group.words[0]} is a file of this machine, and --at sends none"
            raise UsageError(wrong, "copy the files to the server and run it there; `farm.map` sends arrays")
    is_given = said.groups or wish.array or wish.attach or wish.retry_failed
    return handed_over(host, reads=arguments.STDIN in read or not is_given, last=len(wish.words))


def _run(root: Path | None, wish: Wish) -> int:
    if wish.dry_run:
        return _print_commands(wish)
    _check_places(wish)
    with ExitStack() as stack:
        work = _work(wish) if not (wish.attach or wish.retry_failed) else None
        if work is not None and not work.rows:
            return 0
        if wish.local:
            if work is not None and wish.workdir is None:
                work.in_folder(Path.cwd())
            found = stack.enter_context(local_farm.local_farm(root))
        else:
            found = _served(root)
        job = _job(found, wish, work)
        return _follow(found, job, wish) if job else 0


@dataclass(frozen=True)
class Wish:
    """The command line."""

    words: tuple[str, ...]
    files: tuple[str, ...]
    null: bool
    colsep: str | None
    header: str | None
    array: str | None
    jobs: str | None
    keep_order: bool
    tag: bool
    bar: bool
    dry_run: bool
    joblog: str | None
    results: str | None
    resume: bool
    retry_failed: bool
    halt: str
    retries: int | None
    timeout: str | None
    envs: tuple[str, ...]
    returned: str | None
    workdir: str | None
    max_output: str
    name: str
    after: tuple[str, ...]
    attach: str | None
    local: bool
    as_json: bool

    def __post_init__(self) -> None:
        if (self.retry_failed or self.attach) and self.words:
            which = "--attach" if self.attach else "--retry-failed"
            raise UsageError(f"{which} takes the commands of the earlier run", "leave the command and the items out")
        if self.attach and self.after:
            raise UsageError(f"--attach follows {self.attach}, which has begun", "--after is for what is to be run")
        if self.header not in (None, ":"):
            raise UsageError(f"--header {self.header}: only `:` is known", "--header :")
        if self.results is not None and Path(self.results).suffix in (".csv", ".tsv", ".json"):
            raise UsageError(f"--results {self.results}: only a folder is written", "--joblog FILE is a table")
        halting.parse(self.halt)


@dataclass
class Work:
    """What is to be run: the items, and the params of their job."""

    columns: tuple[str, ...]  # none: files
    rows: Sequence[Sequence[str]]
    params: dict[str, Any]
    more: dict[str, Any]  # other fields of the job
    base: Path = field(default_factory=Path.cwd)  # what names of files start at

    def in_folder(self, folder: Path) -> None:
        """Commands start there, and find files by the names they have there."""
        self.columns, self.params["workdir"] = self.columns or ("1",), str(folder)

    def items(self) -> RunItems:
        from muster.coordinator.submission.run_job import RunItems
        from muster.jobs.job_file.read import check_params
        from muster.jobs.kinds import registry

        return RunItems(check_params(registry.load("command"), self.params), self.columns, self.rows)


# --- what is to be run ---


def _work(wish: Wish) -> Work:
    """Of what the command line and its sources say."""
    from muster.coordinator.submission.run_job import are_files

    said = arguments.split(wish.words)
    joined, at_once = _joined(wish, said)
    if joined.left_out:
        click.echo(
            f"note: {counted(joined.left_out, 'value')} of a linked source left out: the other is shorter", err=True
        )
    columns, rows = joined.columns, list(joined.rows())
    if not rows:
        return Work(columns, [], {}, {})
    returned = wish.returned if wish.returned is not None else said.returned
    if not said.command:
        columns, rows = ("1",), [(" ".join(row),) for row in rows]
    elif len(columns) == 1 and not wish.header and not wish.workdir and not wish.array:
        plain = [row[0].removeprefix("./") for row in rows]
        if are_files(plain):
            columns, rows = (), [(name,) for name in plain]
    params: dict[str, Any] = {
        "run": arguments.template(said.command, columns) if said.command else arguments.EACH_A_COMMAND,
        "capture": wish.max_output,
    }
    if returned is not None:
        params["out"] = arguments.placed(returned, columns)
    if wish.retries is not None:
        params["tries"] = wish.retries
    if wish.timeout is not None:
        params["timeout"] = _seconds(wish.timeout)
    if wish.workdir is not None:
        params["workdir"] = os.path.abspath(wish.workdir)  # noqa: PTH100 - links stay as they are
    more: dict[str, Any] = {"at_once": _jobs(wish.jobs) or at_once, "variables": _variables(wish.envs)}
    return Work(columns, rows, params, more)


def _check_places(wish: Wish) -> None:
    """Before anything runs: what is to be written can be."""
    try:
        if wish.results is not None:
            Path(wish.results).mkdir(parents=True, exist_ok=True)
        if wish.joblog is not None:
            Path(wish.joblog).open("a").close()
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}", "name a place that you may write to") from None


def _joined(wish: Wish, said: arguments.Words) -> tuple[arguments.Joined, int | None]:
    if wish.array is not None:
        if said.groups or wish.files:
            raise UsageError("--array makes the items, and others are given too", "leave one of them out")
        numbers, at_once = arguments.array(wish.array)
        return arguments.join([arguments.source(numbers, False, None, False, "--array")]), at_once
    groups = [arguments.Group((name,), True, False) for name in wish.files] + list(said.groups)
    groups = groups or [arguments.Group((arguments.STDIN,), True, False)]
    if sum(group.is_files and group.words[0] == arguments.STDIN for group in groups) > 1:
        raise UsageError("stdin is named twice, and can be read once", "write it to a file first")
    try:
        colsep = re.compile(wish.colsep) if wish.colsep is not None else None
    except re.error as error:
        raise UsageError(f"--colsep {wish.colsep}: {error}", r"such as , or \t") from None
    sources = []
    for group in groups:
        where = group.words[0] if group.is_files else ":::"
        records = _read(where, b"\0" if wish.null else b"\n") if group.is_files else list(map(_text, group.words))
        sources.append(arguments.source(records, group.linked, colsep, wish.header is not None, where))
    return arguments.join(sources), None


def _text(word: str) -> str:
    try:
        word.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{word!r} is not UTF-8", "rename the file") from None
    return word


def _read(name: str, end: bytes) -> list[str]:
    """The records of a file, or of stdin, in which more than a run may have are not read to their end."""
    if name == arguments.STDIN and sys.stdin.isatty():
        click.echo("reading items from the terminal; Ctrl-D ends them, ::: gives some", err=True)
    try:
        with ExitStack() as stack:
            stream: BinaryIO = (
                sys.stdin.buffer if name == arguments.STDIN else stack.enter_context(Path(name).open("rb"))
            )
            return [record.decode() for record in _records(stream, end, name)]
    except OSError as error:
        raise SourceError(f"{name}: {error.strerror}", "name a file with an item in each line") from None
    except UnicodeDecodeError as error:
        raise SourceError(f"{name}: not UTF-8: {error.reason}", "convert it with iconv") from None


def _records(stream: BinaryIO, end: bytes, name: str) -> list[bytes]:
    found: list[bytes] = []
    held = b""
    while block := stream.read(BLOCK):
        *whole, held = (held + block).split(end)
        found += whole
        if len(found) > arguments.ITEMS_LIMIT + 1 or len(held) > RECORD_LIMIT:
            wrong = f"{name}: more than {arguments.ITEMS_LIMIT:,} items, or one of more than {RECORD_LIMIT} bytes"
            raise SourceError(wrong, "run a part of them; -0 is for items that end with NUL")
    return [*found, held] if held else found


def _jobs(text: str | None) -> int | None:
    if text is None or text == "0":
        return None
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"-j {text}: expected a whole number", "the agent says what a machine lends: `agent set cpus=…`"
        )
    return int(text)


def _seconds(text: str) -> str | float:
    """A number is of seconds, as there."""
    try:
        return float(text)
    except ValueError:
        return text


def _variables(names: Sequence[str]) -> dict[str, str]:
    if missing := [name for name in names if name not in os.environ]:
        raise UsageError(f"--env {missing[0]}: there is no such variable here", "`export` it first")
    return {name: os.environ[name] for name in names}


def _print_commands(wish: Wish) -> int:
    if wish.attach or wish.retry_failed:
        raise UsageError("--dry-run asks no coordinator", "`muster status` shows earlier runs")
    items = (work := _work(wish)).rows and work.items()
    for number in range(len(items)):
        say(items.command(number))  # type: ignore[union-attr]
    return 0


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


def _job(root: Root, wish: Wish, work: Work | None) -> str | None:
    """The job to follow; None where there is nothing to run."""
    from muster.coordinator.submission import run_job

    if wish.attach:
        return ask_daemon.job_named(root, wish.attach)
    if work is None:
        old = ask_daemon.job_named(root, wish.name)
        run_job.check_over(root, old)
        if not (numbers := run_job.failed(root, old)):
            click.echo(f"all items of {old} ended well", err=True)
            return None
        work = _again(root, old, numbers)
    elif wish.resume:
        if earlier := run_job.runs_named(root, wish.name):
            run_job.check_over(root, earlier[0])
        work = _rest(root, wish.name, work)
    return _submitted(root, wish.name, work, wish.after) if work.rows else None


def _again(root: Root, old: str, numbers: Sequence[int]) -> Work:
    """Some items of an earlier run, as that had them."""
    from muster.coordinator.farm_root import plans
    from muster.coordinator.submission.run_job import RunItems

    plan, items = plans.load(root.job(old)), RunItems.of_job(root, old)
    params = {name: value for name, value in plan.work.params.items() if name != "here"}
    more = {"at_once": plan.at_once or None, "variables": plan.work.variables}
    return Work(items.columns, [items.rows[number] for number in numbers], params, more, Path(plan.base))


def _rest(root: Root, name: str, work: Work) -> Work:
    """What has not ended well in an earlier run of the same command."""
    import msgspec

    from muster.coordinator.submission import run_job
    from muster.jobs.sources.discover import stamp_of

    items = work.items()
    if not work.columns:
        items.stamps = [msgspec.structs.astuple(stamp_of(Path(row[0]).stat())) for row in work.rows]
    done = run_job.ended_well(root, name, items.params)
    left = [row for number, row in enumerate(work.rows) if items.key(number) not in done]
    click.echo(f"{len(work.rows) - len(left):,} of {len(work.rows):,} items ended well before", err=True)
    return Work(work.columns, left, work.params, work.more)


def _submitted(root: Root, name: str, work: Work, after: Sequence[str]) -> str:
    import yaml

    from muster.coordinator.submission.run_job import job_fields, write_items
    from muster.coordinator.submission.submit import plan_text, submission

    with TemporaryDirectory(prefix="muster-run-") as folder:
        source = write_items(Path(folder), work.columns, work.rows)
        more = {field: value for field, value in work.more.items() if value}
        fields = job_fields(name, source, len(work.rows), work.params, **more)
        text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)
        planned = plan_text(text, "run", work.base)
        with submission(root, planned, after=after) as taken:
            return ask_daemon.ask(root, Submit(taken), Submitted).job


# --- its items as they end ---


def _follow(root: Root, job: str, wish: Wish) -> int:
    """Print each item as it ends; the exit code."""
    from muster.coordinator.submission.run_job import RunItems

    if sys.stderr.isatty():
        click.echo(job, err=True)
    items = RunItems.of_job(root, job)
    try:
        with closing(Display(items, wish)) as display:
            status = _watched(root, job, items, wish, display)
    except KeyboardInterrupt:
        stays = "is kept, and goes on with" if wish.local else "goes on; its output is printed, from the beginning, by"
        local = " --local" if wish.local else ""
        print(f"\n{job} {stays} `muster run{local} --attach {job}`; `muster cancel {job}` ends it", file=sys.stderr)
        return INTERRUPTED_EXIT
    _bring_back(root, job, items, display)
    if display.failed or display.missing:
        raise _incomplete(job, len(items), display, status)
    return 0


def _incomplete(job: str, items: int, display: Display, status: JobStatus | None) -> MusterError:
    if not display.failed and status is not None:
        return incomplete(status)  # by the fault of no item
    said = [f"{len(display.failed):,} of {counted(items, 'item')} failed"] if display.failed else []
    if display.missing and status is not None:
        why = f": {status.why}" if status.why else ""
        said.append(f"{display.missing:,} did not run, as the job is {status.state}{why}")
    hint = (
        f"`muster run --retry-failed --name {job.rpartition('.')[0]}` runs them, --resume with the command all the rest"
    )
    return IncompleteError(f"{job}: {', '.join(said)}", hint)


def _watched(root: Root, job: str, items: RunItems, wish: Wish, display: Display) -> JobStatus | None:
    """Show its items until all have ended, or the job does. How that ended, where some have not."""
    rule = halting.parse(wish.halt)
    stopping = False
    for ended in _ended(root, job, display):
        if ended is not None:
            display.show(ended)
            if display.missing == 0 and items.params.out is None and not wish.local:
                return None  # what is left is to merge, which nobody here waits for
            if rule and not stopping and rule.is_met(len(display.failed), display.well, len(items)):
                stopping = True
                _end(root, job, rule.when == "now")
        elif stopping and _is_quiet(_status(root, job)):
            _end(root, job, True)
    return _status(root, job)


def _ended(root: Root, job: str, display: Display) -> Iterator[Ended | None]:
    """Each item once, through a coordinator that is away for a while; None where none ends for a moment."""
    import time

    from muster.coordinator.result_downloads.ended_items import EndedItems

    stream, heard = EndedItems(root, job), time.monotonic()
    while True:
        try:
            for ended in stream.follow(QUIET_SECONDS):
                heard = time.monotonic()
                if ended is None:
                    display.rest(root, job)
                yield ended
            return
        except (NoDaemonError, LinkError):
            if time.monotonic() - heard > AWAY_SECONDS:
                raise
            time.sleep(QUIET_SECONDS)


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


def _bring_back(root: Root, job: str, items: RunItems, display: Display) -> None:
    """Output files to where `--return` wants them."""
    if items.params.out is None or not display.written:
        return
    for answer in ask_daemon.statuses(root, job):
        status = answer.jobs[0]  # in the end, it is merged
    if status.state != "complete":
        click.echo(f"{job} is {status.state}: `coordinator result {job} --partial` has the files", err=True)
        return
    for number in sorted(display.written):
        name = items.out(number)
        assert name is not None
        source, target = root.job(job).result / "items" / "files" / name, Path(name)
        part = target.with_name(f".{target.name}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, part)
            part.replace(target)
        except OSError as error:
            where = f"`coordinator result {job} --to DIR` copies all of them"
            raise RefusedError(f"{error.filename}: {error.strerror}", where) from None


class Display:
    """What is shown of items as they end, and written of them."""

    def __init__(self, items: RunItems, wish: Wish) -> None:
        self.failed: list[int] = []
        self.written: list[int] = []
        self.well = 0
        self._items, self._wish = items, wish
        self._held: dict[int, Ended] = {}  # with -k, those whose turn has not come
        self._next = 0
        self._log = self._opened_log()
        self._told: list[str] = []
        self._bar: Any = None
        if wish.bar:
            from tqdm import tqdm

            self._bar = tqdm(total=len(items), unit="item", file=sys.stderr, dynamic_ncols=True)

    @property
    def missing(self) -> int:
        """How many have not ended."""
        return len(self._items) - self.well - len(self.failed)

    def show(self, ended: Ended) -> None:
        if ended.ok:
            self.well += 1
            self.written.append(ended.number)
        else:
            self.failed.append(ended.number)
        if self._log is not None:
            self._log.write(lines.joblog_line(ended, self._items.command(ended.number)))
            self._log.flush()
        if self._wish.results is not None:
            self._keep(ended, Path(self._wish.results))
        if self._bar is not None:
            self._bar.clear()
        self._held[ended.number] = ended
        for number in [ended.number] if not self._wish.keep_order else []:
            self._print(self._held.pop(number))
        while self._next in self._held:
            self._print(self._held.pop(self._next))
            self._next += 1
        if self._bar is not None:
            self._bar.update()

    def rest(self, root: Root, job: str) -> None:
        """Nothing ends for a moment: say once what holds it up."""
        sys.stdout.flush()
        told = holdups(ask_daemon.ask(root, StatusAsk(job), Status))
        for line in [one for one in told if one not in self._told]:
            click.echo(harmless(f"{job}: {line}"), err=True)
        self._told = told

    def close(self) -> None:
        """Also where it was left: print what was waiting for its turn."""
        for number in sorted(self._held):
            self._print(self._held[number])
        self._held.clear()
        sys.stdout.flush()
        if self._bar is not None:
            self._bar.close()
        if self._log is not None:
            self._log.close()

    def _print(self, ended: Ended) -> None:
        if self._wish.as_json:
            facts: dict[str, Any] = ended._asdict()
            texts = {name: facts[name].decode(errors="replace") for name in ("stdout", "stderr")}
            values, shown = list(self._items.rows[ended.number]), self._items.command(ended.number)
            say_json({**facts, **texts, "number": ended.number + 1, "values": values, "command": shown}, indent=0)
            return
        tag = " ".join(self._items.rows[ended.number]) if self._wish.tag else ""
        out, err = (lines.tagged(text, tag) for text in (ended.stdout, ended.stderr))
        if out:
            sys.stdout.buffer.write(out)
        if out and (err or sys.stdout.isatty()):
            sys.stdout.buffer.flush()
        if err:
            sys.stderr.buffer.write(err)
            sys.stderr.buffer.flush()
        if (why := self._failure(ended)) is not None:
            click.echo(harmless(f"item {ended.number + 1} {why}: {self._items.command(ended.number)}"), err=True)

    def _failure(self, ended: Ended) -> str | None:
        """Of what the command itself may have said nothing."""
        from muster.jobs.user_code.runner.spawner import LATE, TOO_LONG

        if ended.exit == TOO_LONG:
            return f"printed more than {self._items.params.capture} bytes (--max-output), and was ended there"
        if ended.exit == LATE and self._items.params.timeout is not None:
            return f"took longer than {self._items.params.timeout:g} s"
        return "wrote no {out}" if ended.exit == 0 and not ended.ok else None

    def _keep(self, ended: Ended, folder: Path) -> None:
        number = ended.number
        columns = self._items.columns or ("1",)
        place = folder.joinpath(*lines.results_folder(columns, self._items.rows[number]))
        place.mkdir(parents=True, exist_ok=True)
        for name, text in (("stdout", ended.stdout), ("stderr", ended.stderr), ("seq", b"%d" % (number + 1))):
            (place / name).write_bytes(text)

    def _opened_log(self) -> TextIO | None:
        if self._wish.joblog is None:
            return None
        path, more = Path(self._wish.joblog), self._wish.resume or self._wish.retry_failed
        begun = more and path.exists() and path.stat().st_size > 0
        file = path.open("a" if more else "w", encoding="utf-8")
        if not begun:
            file.write(lines.JOBLOG_HEAD)
        return file
