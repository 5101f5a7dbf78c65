"""`Farm`: where work is handed in. Decides what runs on this machine and what goes over ssh; does neither itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeGuard, TypeVar, overload

import numpy as np

from muster.coordinator.api.status import AgentStatus, Explained
from muster.coordinator.client import job_draft as drafts
from muster.coordinator.client.arrays import is_array
from muster.coordinator.client.backends.base import Backend
from muster.coordinator.client.backends.local import LocalBackend
from muster.coordinator.client.backends.remote import RemoteBackend
from muster.coordinator.client.backends.ssh import Ssh
from muster.coordinator.client.calls.executor import Executor
from muster.coordinator.client.calls.opening import check, listed, no_agent
from muster.coordinator.client.calls.opening import fields as opening_fields
from muster.coordinator.client.calls.session import Session
from muster.coordinator.client.calls.shipping import shipper_of
from muster.coordinator.client.function_source import ship as shipped
from muster.coordinator.client.hand_in import hand_in, planned_here
from muster.coordinator.client.job import Job, explained
from muster.coordinator.client.job_draft import JobDraft
from muster.coordinator.client.notebook import page
from muster.coordinator.client.python_words import python_words
from muster.coordinator.client.study import Study
from muster.coordinator.display.tables import short
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.uploads import Upload
from muster.coordinator.submission import try_shards
from muster.coordinator.submission.forecast import Forecast, forecast
from muster.coordinator.submission.try_shards import Tried
from muster.jobs.common.errors import MusterError, UsageError
from muster.jobs.common.locations import Folder, expand, parse
from muster.jobs.common.names import NAME_LIMIT
from muster.jobs.common.units import counted
from muster.jobs.common.validation import did_you_mean
from muster.jobs.job_file.read import JobFile
from muster.jobs.user_code.code_pack import collect

REPR_WIDTH = 70
OF_THE_SHARD = ("first_row", "shard")  # arguments that a function gets from the farm if it has them
Before = str | Job | Sequence[str | Job]  # jobs that another one starts after
OBJECTS_AHEAD = 10_000  # of an iterable, before the results of the first are taken
SESSION_FIELDS = frozenset({"ship", "results", "name", "packages", "include", "linger", "wait_for_agents"})
Objects = list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any] | range | Iterator[Any]
_T = TypeVar("_T")
JOB_FIELDS = frozenset(JobFile.__struct_fields__) - {"source", "params", "code", "kind"}


class Farm:
    """A farm: `Farm("/data/farm")` on the server itself, `Farm("user@host")` or `Farm("host:/root")` from elsewhere.

    `where` is what `agent join` takes; a Path is always a folder, and None is the default root of this machine.
    Downloaded results are kept in `cache`, by default `~/.cache/muster`. `ssh_config` is a file for `ssh -F`, and
    `command` is the program `coordinator` on the server, if it is not on the PATH there.
    """

    def __init__(
        self,
        where: str | Path | None = None,
        *,
        cache: str | Path | None = None,
        ssh_config: str | Path | None = None,
        command: str | None = None,
    ) -> None:
        self._place = _place(where, cache, ssh_config, command)

    def __repr__(self) -> str:
        return f"<Farm {short(str(self._place), REPR_WIDTH)}>"

    def __enter__(self) -> Farm:
        """From elsewhere, one connection for all that is asked within the block."""
        self._place.share()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._place.end_sharing()

    def _repr_html_(self) -> str:
        try:
            jobs, machines = self._place.status(None).jobs, self._place.agents()
        except MusterError as error:
            return page(repr(self), (), (), [error.message])
        rows = [(job.id, job.kind, job.state, job.totals.committed, job.totals.shards) for job in reversed(jobs)]
        live = sum(one.state == "live" for one in machines)
        notes = [f"{counted(live, 'machine')} at work"]
        return page(repr(self), ("job", "kind", "state", "committed", "shards"), rows, notes)

    # --- handing in --------------------------------------------------------------------------------------

    @python_words()
    def submit(
        self,
        job_file: str | Path | None = None,
        /,
        *,
        kind: str | None = None,
        source: object = None,
        name: str | None = None,
        after: Before = (),
        progress: bool = True,
        **fields: Any,
    ) -> Job:
        """Run a job: a job file, or its fields as keyword arguments.

        `source` may be an array or a dict of name → array, which are sent, each only once. It may also be a path, or
        the mapping that a job file has: a relative path names files of this machine, an absolute one of the server.
        `after` are jobs, or their names: it starts once they are complete, and is halted if one of them will not be.
        """
        given = {"kind": kind, "source": source, "name": name, **fields}
        return self._send(_draft(job_file, given, _ids(after), self._place.here), progress)

    @python_words()
    def plan(self, job_file: str | Path | None = None, /, **fields: Any) -> Forecast:
        """What a job would be, and take: its layers, shards, bytes and seconds. Takes what `submit` takes, and starts
        and sends nothing: its source is read on this machine."""
        with planned_here(_draft(job_file, fields, [], True)) as made:
            return forecast(made.plan, self._place.agents(), self._place.status(None).jobs, None)

    @python_words()
    def try_shards(
        self, job_file: str | Path | None = None, /, *, shards: int = 2, python: str | None = None, **fields: Any
    ) -> list[Tried]:
        """Run so many shards of a job on this machine, one after the other: what each put out and printed, its seconds
        and its memory, or what went wrong. Takes what `submit` takes, and starts nothing in the farm. `python` is the
        interpreter of the job's `env`."""
        with planned_here(_draft(job_file, fields, [], True)) as made:
            return list(try_shards.run(made, shards, python))

    @overload
    def map(self, function: Callable[..., _T], source: Objects, /, **more: Any) -> Iterator[_T]: ...
    @overload
    def map(self, function: Callable[..., Any], source: object, /, **more: Any) -> Job: ...
    def map(self, function: Callable[..., Any], source: object, /, **more: Any) -> Job | Iterator[Any]:
        """Call `function` with one block of rows after another, as `map_blocks`, or with each object of an iterable.

        A list, a range, a generator gives the results one by one, in their order, from a session that lasts for so long
        (`executor`). Keyword arguments are the function's, but for those of `executor`.
        """
        if not is_objects(source):
            return self.map_blocks(function, source, **more)
        session = {field: more.pop(field) for field in list(more) if field in SESSION_FIELDS | JOB_FIELDS}
        executor = self.executor(**{"name": _named(function), **session})

        def results(calls: Iterator[Any]) -> Iterator[Any]:
            with executor:
                yield from calls

        return results(executor.each(function, source, more, OBJECTS_AHEAD))

    @python_words()
    def map_blocks(
        self,
        function: Callable[..., Any],
        source: object,
        /,
        *,
        name: str | None = None,
        outputs: Mapping[str, Any] | None = None,
        progress: bool = True,
        **more: Any,
    ) -> Job:
        """Call `function` with one block of rows after another, until all rows of `source` are done.

        A block is an array of some rows, and the function returns one entry for each of them. `source` is an array or
        whatever else `submit` takes; of files or lines the function gets a list of some. Its source code is sent as
        text, with the functions, imports, literals and arrays it refers to; whatever else it refers to is refused. A
        library's function, such as `np.linalg.norm`, is imported there. `outputs` declares what it returns, `{"mean":
        {"dtype": "float32"}}`. Those of the other keyword arguments that are fields of a job file (`shard`,
        `resources`, `env`, `timeout`, …) are the job's, and all others are the function's.
        """
        fields = _job_fields(more)
        code = shipped(function)
        _check_arguments(function, more)
        params = {"args": more, **({"outputs": outputs} if outputs else {})}
        given = {"name": name or _named(function), "kind": "map", "code": code.entry, "params": params, **fields}
        return self._send(drafts.from_fields(given, source, self._place.here, code), progress)

    @python_words()
    def executor(
        self,
        *,
        ship: Literal["text", "pickle"] = "text",
        results: Literal["known", "any"] = "known",
        name: str = "calls",
        packages: str | Sequence[str] = (),
        include: str | Sequence[str] = (),
        linger: float = 60.0,
        wait_for_agents: float = 10.0,
        **fields: Any,
    ) -> Executor:
        """A session of calls: a `concurrent.futures.Executor` whose calls run on this farm's machines.

        Functions travel as source text, arguments and results as plain values and arrays. `ship="pickle"` pickles them:
        then machines need this minor version of Python, and each of `packages` in the version that is here. Results are
        builtin values and errors, dates, numbers and arrays; `results="any"` opens pickles of machines, which may
        run code here, as if you called what those machines like. `include` are files of yours that functions import.
        The other arguments are fields of a job file (`resources`, `env`, `timeout`, `attempts`, …); `timeout` is that
        of a batch.
        """
        check(ship, results, fields)
        included = listed(include)
        code = collect("", included, Path.cwd()) if included else None
        given = {"name": name, **opening_fields(ship, packages, linger, fields)}
        given |= {"code": {"include": included}} if included else {}
        draft, shipper = drafts.from_fields(given, None, self._place.here, code), shipper_of(ship, results)
        session = Session(self._place, lambda: self._place.submit(draft.parcel()), shipper)
        if not session.wait_for_slots(wait_for_agents):
            why = no_agent(self._place, session.job, wait_for_agents)
            session.close()
            raise why
        return Executor(session, shipper)

    @python_words()
    def tune(
        self,
        train: Callable[..., Any] | str | Mapping[str, str],
        space: Mapping[str, Any],
        /,
        *,
        metric: str,
        data: str | Mapping[str, Any] | None = None,
        name: str | None = None,
        progress: bool = True,
        **more: Any,
    ) -> Study:
        """Search `space` for the configuration with which `train` does best, by `metric`.

        `train` is a function `train(config, state, budget)` that returns `(metrics, state)`, a generator
        `train(config, state)` that yields these, "mlp", "conv1", or {"estimator":
        "sklearn.linear_model.SGDClassifier"}. `data` is "digits", {"name": "mnist"}, or paths as {"x": ..., "y": ...};
        where the farm is on this machine, these may be arrays. Those of the other keyword arguments that are fields of
        a job file are the job's; all others (`trials`, `stop`, `scheduler`, …) are `params` of `kind: tune`.
        """

        def again(**changes: Any) -> Study:
            given = {**more_given, "data": data, "name": name, "progress": progress, **changes}
            return self.tune(train, space, metric=metric, **given)

        more_given = dict(more)
        fields = _job_fields(more)
        code = shipped(train) if callable(train) else None
        if code is not None:
            fields["code"] = code.entry
        else:
            more["trial"] = train
        with TemporaryDirectory(prefix="muster-tune-") as folder:
            if data is not None:
                more["data"] = _data_files(data, Path(folder), self._place.here)
            params = {"space": space, "metric": metric, **more}
            called = name or (_named(train) if callable(train) else "tune")
            given = {"name": called, "kind": "tune", "params": params, **fields}
            return Study(self._send(drafts.from_fields(given, None, self._place.here, code), progress), again)

    def _send(self, draft: JobDraft, progress: bool) -> Job:
        return Job(self._place, hand_in(self._place, draft, progress))

    # --- looking -----------------------------------------------------------------------------------------

    @python_words()
    def jobs(self) -> list[Job]:
        """All jobs of the farm, oldest first."""
        return [Job(self._place, status.id) for status in self._place.status(None).jobs]

    @python_words()
    def job(self, name: str) -> Job:
        """One job by its id, `weights.1`, or the latest one of a name, `weights`."""
        return Job(self._place, self._place.status(name).jobs[0].id)

    @python_words()
    def agents(self) -> list[AgentStatus]:
        """The machines that have joined, sorted by name."""
        return self._place.agents()

    @python_words()
    def explain(self, agent: str | None = None) -> list[Explained]:
        """What a machine does, or why it is idle; of all machines, and jobs that have not ended, if none is named."""
        return explained(self._place, *([agent] if agent else []))

    @python_words()
    def drain(self, agent: str) -> None:
        """Let a machine finish what it has, and leave."""
        self._place.do("drain", "--", agent)

    @python_words()
    def drop(self, agent: str) -> None:
        """Give up a machine that will not come back."""
        self._place.do("drop", "--", agent)

    def uploads(self) -> list[Upload]:
        """The arrays that were sent and that jobs still need, and those that are on their way."""
        return self._place.uploads()


def _draft(job_file: str | Path | None, given: Mapping[str, Any], after: list[str], here: bool) -> JobDraft:
    """Of a job file, or of its fields, and not of both."""
    said = {name: value for name, value in given.items() if value is not None}
    if job_file is None:
        source = said.pop("source", None)
        return drafts.from_fields({"name": said.get("kind"), **said, "after": after or None}, source, here)
    if said:
        raise UsageError("both a job file and fields of one are given", "give either the file or the fields")
    return drafts.from_file(Path(job_file), here, after)


def is_objects(source: object) -> TypeGuard[Iterable[Any]]:
    """Whether it has objects one after the other, and is no array, mapping or path."""
    return isinstance(source, Iterable) and not (isinstance(source, (str, bytes, Path, Mapping)) or is_array(source))


def _job_fields(more: dict[str, Any]) -> dict[str, Any]:
    """Those of the keyword arguments that are fields of a job file, taken out of `more`."""
    fields = {field: more.pop(field) for field in list(more) if field in JOB_FIELDS}
    return {**fields, "after": _ids(fields["after"])} if "after" in fields else fields


def _ids(after: Before) -> list[str]:
    """Jobs as a job file names them."""
    several = [after] if isinstance(after, (str, Job)) else after
    return [one.id if isinstance(one, Job) else one for one in several]


def _place(
    where: str | Path | None, cache: str | Path | None, config: str | Path | None, command: str | None
) -> Backend:
    found = None if where is None or isinstance(where, Path) or _is_root(where) else parse(where)
    if found is None or isinstance(found, Folder):
        return LocalBackend(roots.existing(Path(where) if where is not None else None))
    ssh = Ssh(found, Path(config) if config else None, command)
    ssh.find()
    return RemoteBackend(ssh, expand(cache).absolute() if cache else None)


def _is_root(where: str) -> bool:
    """Whether the name of a host happens to be that of a root in the current folder."""
    return (Path(where) / "farm.json").is_file()


def _data_files(data: str | Mapping[str, Any], folder: Path, here: bool) -> Any:
    """Arrays become files for as long as the job is planned; a relative path is of this machine."""
    if isinstance(data, str) or "name" in data:
        return data
    files: dict[str, Any] = {}
    for name, value in data.items():
        if not is_array(value):
            is_path = isinstance(value, (str, Path)) and not str(value).startswith("~")
            files[name] = str(Path(value).absolute()) if here and is_path else value
            continue
        if not here:
            raise UsageError(
                f"data: {name} is an array of this machine, but the farm is elsewhere", "name a file there"
            )
        files[name] = str(folder / f"{name}.npy")
        np.save(files[name], value)
    return files


def _named(function: Callable[..., Any]) -> str:
    """A function's name as a job's: what cannot be in one is left out."""
    name = getattr(function, "__name__", "")
    return "".join(letter for letter in name if letter.isascii())[:NAME_LIMIT] or "map"


def _check_arguments(function: Callable[..., Any], args: Mapping[str, Any]) -> None:
    """Before a machine finds out."""
    for name, value in args.items():
        if is_array(value):
            hint = (
                f"let the function refer to it as a variable around it, `{name}`: such arrays travel with the function"
            )
            raise UsageError(f"argument {name!r} is an array, and arguments travel as text", hint)
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C: the machine finds out by calling it
        return
    theirs = {name: 0 for name in OF_THE_SHARD if name in list(signature.parameters)[1:]}
    try:
        signature.bind(None, **{**theirs, **args})
    except TypeError as error:
        near = next(filter(None, (did_you_mean(one, JOB_FIELDS) for one in args)), "")
        hint = (
            f"keyword arguments that are no field of a job ({', '.join(sorted(JOB_FIELDS))}) are the function's{near}"
        )
        raise UsageError(f"{getattr(function, '__name__', 'the function')}: {error}", hint) from None
