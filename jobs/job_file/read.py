"""The job file: yaml into a typed `JobFile`, every value checked that can be checked without opening the source."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from muster.jobs.common import names, units
from muster.jobs.common.errors import JobFileError
from muster.jobs.common.validation import FieldError, convert, nearest
from muster.jobs.contract import requirements
from muster.jobs.contract.kind import Kind
from muster.jobs.contract.shard_size import AUTO
from muster.jobs.job_file import yaml_text
from muster.jobs.kinds import registry
from muster.jobs.sources.discover import PathText, SourceSpec
from muster.jobs.sources.formats import npy
from muster.jobs.sources.globs import matches

FILE_LIMIT = 1 << 20  # bytes

ERRORS_SHOWN = 20  # wrong fields of one file
REQUIRED = {"name": "job"}  # what stands in for a field that must be there while the others are looked at
VARIABLE_LIMIT = 64 << 10  # bytes of a variable's value, and of all
VARIABLES_LIMIT = 256 << 10
AFTER_LIMIT = 100  # jobs that one is to start after
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_STEP = re.compile(r"[^.\[\]]+")
_ENTRY = re.compile(r"(?P<file>[^:]+\.py):(?P<function>[^:]+)", re.DOTALL)


class ShardSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a layer is cut: at most one is given. What is not said is up to the plan: `shard: auto`."""

    size: int | None = None  # bytes
    rows: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None  # or lines of a table
    files: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None

    @property
    def is_auto(self) -> bool:
        return self.size is None and self.rows is None and self.files is None


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one running shard may use."""

    cpus: Annotated[int, Meta(ge=1, le=4096)] = 1
    memory: int | None = None  # bytes
    gpus: Annotated[int, Meta(ge=0, le=1024)] = 0
    threads: Annotated[int, Meta(ge=1, le=4096)] | None = None  # of the numeric libraries; None: as many as cpus
    disk: Annotated[int, Meta(ge=0)] = 0  # bytes of scratch space on local disk


class CodeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user's own code: "work.py:embed" and the files it needs beside it."""

    entry: str = ""  # none of kinds that call no function
    include: list[PathText] = []


class NotifySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who wants to know of the job's end: a shell command, with JSON on its stdin, in the job file's folder."""

    command: Annotated[str, Meta(min_length=1, max_length=4096)]


class Override(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Other values of some parameters, for some layers."""

    layers: Annotated[list[PathText], Meta(min_length=1)]  # globs
    params: dict[str, Any]

    def is_for(self, layer: str) -> bool:
        return any(matches(layer, glob) for glob in self.layers)


class JobFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job as its user describes it. Sizes are bytes, durations seconds, `params` complete with their defaults."""

    name: str
    kind: str
    source: SourceSpec | None = None
    shard: ShardSpec = ShardSpec()
    resources: Resources = Resources()
    params: dict[str, Any] = {}
    overrides: Annotated[list[Override], Meta(max_length=1000)] = []  # a later one wins
    code: CodeSpec | None = None
    env: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    packages: Annotated[list[PathText], Meta(max_length=100)] = []  # that the environment must have
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 3
    timeout: float | None = None  # per attempt
    max_failures: Annotated[int, Meta(ge=1, le=1_000_000)] = 20
    priority: Annotated[int, Meta(ge=1, le=1000)] = 1
    notify: NotifySpec | None = None
    same_kernels: Literal["any", "require"] = "any"  # whether all machines must compute the same bits
    variables: Annotated[dict[str, str], Meta(max_length=1000)] = {}  # more environment for the user's code
    at_once: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None  # shards that run at any moment, on all machines
    flush: float | None = None  # seconds that a result may wait for others before it is sent
    after: Annotated[list[str], Meta(max_length=AFTER_LIMIT)] = []  # jobs that are to be complete before it starts


def read_job_file(path: Path) -> JobFile:
    """The job in a file; whatever is wrong with it, a JobFileError says where."""
    return parse_job(read_text(path), path.name)


def read_text(path: Path) -> str:
    """What a job file says, of whatever kind it is."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_LIMIT + 1)
        text = raw.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        hint = "give the path of a job file"
        if isinstance(error, FileNotFoundError) and (near := nearest(path.name, _files_beside(path))):
            hint = f"did you mean {path.with_name(near)}?"
        raise JobFileError(f"{path}: cannot be read: {reason}", hint) from None
    if len(raw) > FILE_LIMIT:
        raise JobFileError(f"{path}: longer than {units.format_size(FILE_LIMIT)}", "is this the job file?")
    return text


def _files_beside(path: Path) -> list[str]:
    try:
        return [one.name for one in path.absolute().parent.iterdir() if one.is_file()]
    except OSError:
        return []


def parse_job(text: str, where: str) -> JobFile:
    """The job in a text; `where` starts every error."""
    document = yaml_text.load(text, where)
    try:
        return _job_of(document.value)
    except FieldError as first:
        found = [first, *_more_errors(document.value, first)]
        lines = [document.line_of(error.place) for error in found]
        told = [f"{where}:{n}: {error}" if n else f"{where}: {error}" for n, error in zip(lines, found, strict=True)]
        raise _all_wrong(told, found[-1].hint) from None
    except JobFileError as error:
        raise JobFileError(f"{where}: {error.message}", error.hint) from None


def _all_wrong(told: Sequence[str], hint: str | None) -> JobFileError:
    """One error that says all, the last of them as its message."""
    error = JobFileError(told[-1], hint)
    error.earlier = tuple(told[:-1])
    error.__notes__ += error.earlier
    return error


def _more_errors(value: object, first: FieldError) -> Iterator[FieldError]:
    """What else is wrong with it, were it not for the field that is: that is left out, or called what was meant, and so
    on."""
    gone: set[str] = set()
    called: dict[str, str] = {}  # a field that was meant → what it is called in the file
    error = first
    for _ in range(ERRORS_SHOWN):
        value = deepcopy(value)
        left_out = _leave_out(value, error) if isinstance(value, dict) else None
        if left_out is None or left_out in gone:
            return
        gone.add(left_out)
        if error.meant:
            called[f"{left_out.rpartition('.')[0]}.{error.meant}".lstrip(".")] = left_out
        try:
            _job_of(value)
            return
        except FieldError as other:
            error = other
        except JobFileError as wrong:  # there is no such kind, and what else is wrong depends on it
            if "kind" not in gone and wrong.message.startswith("kind: "):
                yield FieldError("kind", wrong.message.removeprefix("kind: "), wrong.hint)
            return
        meant = next((path for path in called if error.path.startswith(path)), "")
        error.place = called.get(meant, "") + error.path[len(meant) :]
        guessed = bool(meant) and error.path == meant  # a value of another kind: something else was meant
        follows = any(path == error.path or path.startswith(f"{error.path}.") for path in gone)
        if not (guessed or follows):
            yield error


def _leave_out(value: dict[str, Any], error: FieldError) -> str | None:
    """Take away the field that is wrong, or the list around it; which that was. None where there is no such field."""
    inner: Any = value
    names = _STEP.findall(error.path)
    for depth, name in enumerate(names):
        if not isinstance(inner, dict):
            return None
        if depth == len(names) - 1 or not isinstance(inner.get(name), dict):
            if inner is value and name in REQUIRED:
                inner[name] = REQUIRED[name]
            elif (there := inner.pop(name, None)) is None:
                return None
            elif error.meant:
                inner.setdefault(error.meant, there)
            return ".".join(names[: depth + 1])
        inner = inner[name]
    return None


def check_job(fields: dict[str, Any]) -> JobFile:
    """The job of fields that came from no file."""
    try:
        return _job_of(fields)
    except FieldError as first:
        found = [first, *_more_errors(fields, first)]
        raise _all_wrong([str(error) for error in found], found[-1].hint) from None


def check_params(kind: Kind[Any], params: dict[str, Any]) -> Any:
    """The kind's typed parameters; a FieldError whose path starts with `params`."""
    return convert(params, kind.Params, "params", strict=False)


def _job_of(value: object) -> JobFile:
    if not isinstance(value, dict):
        raise FieldError("", "a job file is a mapping of fields", "start with `name:`, `kind:` and `source:`")
    job = convert(_spelled_out(value), JobFile)
    if not names.is_plain(job.name):
        raise FieldError("name", f"{_shown(job.name)} is not allowed", "use 1 to 64 letters, digits, `_` and `-`")
    if job.name in {names.LAST_JOB, names.ALL_JOBS}:
        raise FieldError("name", f"`{job.name}` stands for other jobs on the command line", "choose another name")
    _check_source(job.source)
    given = value.get("shard") not in (None, AUTO)
    if given:
        _check_shard(job)
    kind = registry.load(job.kind)
    _check_fit(job, kind)
    if kind.sourceless and given:
        raise FieldError("shard", f"kind `{job.kind}` makes its shards by itself", "leave it out")
    _check_variables(job)
    _check_after(job)
    packages = _checked_packages(job)
    return msgspec.structs.replace(job, params=_complete(kind, job.params), packages=packages)


def _spelled_out(value: dict[str, Any]) -> dict[str, Any]:
    """The long form of what may be written short, and numbers for sizes and durations."""
    value = dict(value)
    for name, first in (("source", "path"), ("code", "entry")):
        if isinstance(value.get(name), str):
            value[name] = {first: value[name]}
    if isinstance(value.get("shard"), str):
        if value["shard"] != AUTO:
            wrong = f"expected `{AUTO}`, or how a layer is cut, got {_shown(value['shard'])}"
            raise FieldError("shard", wrong, "write `shard: {size: 128MiB}`")
        del value["shard"]
    _measure(value, "timeout", "timeout", units.parse_duration)
    _measure(value, "flush", "flush", units.parse_duration)
    for outer, inner in (("shard", "size"), ("resources", "memory"), ("resources", "disk")):
        if isinstance(value.get(outer), dict):
            value[outer] = dict(value[outer])
            _measure(value[outer], inner, f"{outer}.{inner}", units.parse_size)
    return value


def _measure(fields: dict[str, Any], name: str, path: str, parse: Callable[[Any], float]) -> None:
    if fields.get(name) is None:
        return
    try:
        fields[name] = parse(fields[name])
    except ValueError as error:
        raise FieldError(path, str(error)) from None


def _check_source(source: SourceSpec | None) -> None:
    if source is None:
        return
    given = sum(one is not None for one in (source.path, source.files, source.names, source.table))
    if not given:
        raise FieldError("source.path", "missing: this field must be given, or `files`, `names` or `table`")
    if given > 1:
        wrong = "expected only one of `path` (arrays), `files` (a pattern), `names` (a list of files) and `table` (csv)"
        raise FieldError("source", wrong)
    _check_printable(source)
    if source.has_items and (source.layers or source.dtype or source.shape or source.pattern):
        raise FieldError("source", "`layers`, `pattern`, `dtype` and `shape` are of arrays", "leave them out")
    if (source.dtype is None) != (source.shape is None):
        missing = "source.shape" if source.shape is None else "source.dtype"
        raise FieldError(
            missing, "missing: raw binary needs both `dtype` and `shape`", "shape: [-1, 65536], dtype: <f4"
        )
    if source.dtype is not None and npy.canonical_dtype(source.dtype) is None:
        raise FieldError(
            "source.dtype", f"expected something like float32, <f4 or >i2, got {_shown(source.dtype)}", npy.DTYPES_HINT
        )
    if source.shape is not None:
        _check_shape(source.shape)


def _check_printable(source: SourceSpec) -> None:
    named = {"path": source.path, "files": source.files, "names": source.names, "table": source.table}
    named["pattern"] = source.pattern
    named |= {f"layers[{i}]": text for i, text in enumerate(source.layers or [])}
    for name, text in named.items():
        if text is not None and not text.isprintable():
            raise FieldError(f"source.{name}", f"{_shown(text)} holds a character that cannot be printed")


def _check_shard(job: JobFile) -> None:
    """One way of cutting, and one that there is for such a source."""
    shard, source = job.shard, job.source
    unit, other = ("files", "rows") if source is not None and (source.files or source.names) else ("rows", "files")
    if getattr(shard, other) is not None:
        raise FieldError(f"shard.{other}", f"the source has {unit}, and no {other}", f"write `shard: {{{unit}: N}}`")
    if (shard.size is None) == (getattr(shard, unit) is None):
        raise FieldError("shard", f"expected exactly one of `size` and `{unit}`", "write `shard: {size: 128MiB}`")


def _check_shape(shape: list[int]) -> None:
    """Only the first axis may be left open."""
    for i, length in enumerate(shape):
        if length < 1 and not (i == 0 and length == -1):
            wanted = "1 or more, or -1 for as many as there are" if i == 0 else "1 or more"
            raise FieldError(f"source.shape[{i}]", f"expected {wanted}, got {length}")
    if math.prod(shape[1:]) > units.SIZE_LIMIT:
        raise FieldError("source.shape", "a row is larger than any file", "shape: [rows, values per row]")


def _check_fit(job: JobFile, kind: Kind[Any]) -> None:
    """What a kind needs of a job file, or has no use for."""
    if job.source is None and not kind.driven:
        raise FieldError("source", f"missing: kind `{job.kind}` computes on rows", "source: {path: weights/}")
    if job.source is not None and kind.sourceless:
        raise FieldError("source", f"kind `{job.kind}` has none: what it works on is in `params`", "leave it out")
    if job.at_once is not None and kind.driven:
        raise FieldError("at_once", f"kind `{job.kind}` makes its shards as results arrive", "leave it out")
    if job.code is None and kind.wants_code:
        raise FieldError("code", f"missing: kind `{job.kind}` runs code of yours", "code: work.py:function")
    if job.code is not None and not (kind.wants_code or kind.may_have_code):
        raise FieldError("code", f"kind `{job.kind}` runs no code of yours", "leave `code` out")
    if job.code is not None:
        if kind.has_entry and not job.code.entry:
            raise FieldError("code.entry", "missing: this field must be given")
        if kind.has_entry:
            _check_entry(job.code.entry)
        elif job.code.entry or not job.code.include:
            raise FieldError("code", f"kind `{job.kind}` calls no function", "code: {include: [tools/]}")


def _check_variables(job: JobFile) -> None:
    """What an environment can hold."""
    for name, value in job.variables.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value or len(value.encode()) > VARIABLE_LIMIT:
            wrong = f"{_shown(name)} cannot be a variable of an environment"
            raise FieldError("variables", wrong, f"use letters, digits and `_`, and values of {VARIABLE_LIMIT} bytes")
    if sum(len(name) + len(value.encode()) for name, value in job.variables.items()) > VARIABLES_LIMIT:
        raise FieldError(
            "variables", f"more than {VARIABLES_LIMIT} bytes", "put large ones into a file of the job's code"
        )


def _check_after(job: JobFile) -> None:
    """Names and ids of jobs, each once. Whether there are such jobs is known where it is submitted."""
    for i, text in enumerate(job.after):
        if not (names.is_plain(text) or names.is_job(text)):
            raise FieldError(
                f"after[{i}]", f"{_shown(text)} is not a job", "write `after: [prepare]`, or `[prepare.2]`"
            )
        if text in job.after[:i]:
            raise FieldError(f"after[{i}]", f"{text} is there twice", "name it once")


def _checked_packages(job: JobFile) -> list[str]:
    """In one spelling. An environment is named as agents declare it; a path is as good only where nothing is asked."""
    is_path = job.env is not None and "/" in job.env
    if job.env is not None and not is_path and not names.is_environment(job.env):
        raise FieldError("env", f"{_shown(job.env)} is not allowed", "name it as in `agent join --env NAME=PYTHON`")
    if job.packages and is_path:
        hint = "name it at `agent join --env NAME=PYTHON`, and here"
        raise FieldError("packages", "what an environment given by its path has is not known", hint)
    found = []
    for i, text in enumerate(job.packages):
        try:
            found.append(requirements.checked(text))
        except ValueError as error:
            raise FieldError(f"packages[{i}]", str(error)) from None
    return found


def _check_entry(entry: str) -> None:
    match = _ENTRY.fullmatch(entry)
    good = match is not None and entry.isprintable() and match["function"].isidentifier()
    if not match or not good:
        raise FieldError(
            "code.entry", f"expected something like work.py:embed, got {_shown(entry)}", "name a file and a function"
        )
    file = PurePosixPath(match["file"])
    if file.is_absolute() or ".." in file.parts:
        raise FieldError(
            "code.entry", f"{_shown(match['file'])} is not below the job file", "keep code beside the job file"
        )


def _complete(kind: Kind[Any], params: dict[str, Any]) -> dict[str, Any]:
    """Parameters with every default, in one spelling: 1 and 1.0 for the same field become the same."""
    typed = check_params(kind, params)
    typed = check_params(kind, msgspec.to_builtins(typed))
    complete: dict[str, Any] = msgspec.to_builtins(typed)
    try:
        msgspec.msgpack.encode(complete)
    except OverflowError:
        raise FieldError("params", "a whole number beyond 64 bits", "use a smaller number") from None
    return complete


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
