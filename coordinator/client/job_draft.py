"""A job before it is sent: from keyword arguments or a job file, checked here, its code packed. Sends nothing."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from muster.coordinator.client.arrays import Outgoing, OutgoingFile, Sendable, is_array, is_arrays, mapped, outgoing
from muster.coordinator.submission.client_job import ARRAYS, TABLE_LIMIT, ClientJob, check_layers, is_file_name
from muster.coordinator.submission.reuse import Wish, changed
from muster.jobs.common.errors import JobFileError, SourceError, UsageError
from muster.jobs.inference.model_file import find
from muster.jobs.job_file import yaml_text
from muster.jobs.job_file.read import JobFile, check_job, read_job_file
from muster.jobs.kinds import registry
from muster.jobs.sources.discover import SourceSpec, discover
from muster.jobs.user_code.code_pack import CodeBundle, collect, pack

ITEMS = ("files", "table")  # sources that are lists
NO_WISH = Wish()
ONE_LAYER = "array"  # what the only layer of a job over one array is called


@dataclass(frozen=True)
class JobDraft:
    """A job and what goes with it."""

    fields: dict[str, Any]
    code: CodeBundle | None = None
    arrays: Mapping[str, Outgoing] = field(default_factory=dict)
    model: tuple[str, OutgoingFile] | None = None
    table: tuple[str, bytes] | None = None

    @property
    def files(self) -> list[Sendable]:
        """All that has to be there before the job is."""
        return [*self.arrays.values(), *([self.model[1]] if self.model else [])]

    @property
    def text(self) -> str:
        """As a job file."""
        return yaml.safe_dump(self.fields, sort_keys=False, allow_unicode=True)

    def parcel(self) -> ClientJob:
        model = (self.model[0], self.model[1].digest) if self.model else None
        digests = {name: array.digest for name, array in self.arrays.items()}
        return ClientJob(self.text, pack(self.code) if self.code else None, digests, model, self.table)


def from_file(path: Path, here: bool, after: Sequence[str] = (), wish: Wish = NO_WISH) -> JobDraft:
    """A job file of this machine. `here`: so is the farm. `after`: jobs that it starts after, beside its own; `wish`:
    what is to be changed of its params."""
    read_job_file(path)  # its errors name the line
    fields = changed(yaml_text.load(path.read_text(encoding="utf-8"), path.name).value, wish)
    if after:
        fields = {**fields, "after": [*fields.get("after", []), *after]}
    return _finished(fields, path.absolute().parent, here, None)


def from_fields(fields: Mapping[str, Any], source: object, here: bool, code: CodeBundle | None = None) -> JobDraft:
    """Fields of a job file, its source perhaps an array or a mapping of arrays. Paths start at the current folder."""
    given = {name: _plain(value) for name, value in fields.items() if value is not None}
    if is_array(source):
        source = {ONE_LAYER: source}
    if is_arrays(source):
        check_layers(source)
        given["source"] = {"path": ARRAYS}
        return _checked(given, Path.cwd(), here, code, outgoing(source))
    if source is not None:
        given["source"] = _plain(source)
    return _finished(given, Path.cwd(), here, code)


def _finished(fields: dict[str, Any], base: Path, here: bool, code: CodeBundle | None) -> JobDraft:
    """A source that is a path: on this machine and in place, on this machine and to be sent, or on the server."""
    spec = fields.get("source")
    spec = {"path": spec} if isinstance(spec, str) else spec
    if isinstance(spec, dict) and spec.get("names") is not None:
        raise UsageError("source.names is for jobs submitted on the server", 'use a pattern: source: {files: "*.jpg"}')
    if isinstance(spec, dict) and (listed := next((key for key in ITEMS if isinstance(spec.get(key), str)), None)):
        return _listed(fields, spec, listed, base, here, code)
    if not isinstance(spec, dict) or not isinstance(path := spec.get("path"), str) or path.startswith("~"):
        return _checked(fields, base, here, code, {})
    if here:
        return _checked({**fields, "source": {**spec, "path": str(base / path)}}, base, here, code, {})
    if Path(path).is_absolute():
        return _checked(fields, base, here, code, {})
    source = check_job(fields).source
    assert source is not None
    return _checked({**fields, "source": {"path": ARRAYS}}, base, here, code, _found(source, base))


def _listed(
    fields: dict[str, Any], spec: dict[str, Any], key: str, base: Path, here: bool, code: CodeBundle | None
) -> JobDraft:
    """Files stay where they are: on this machine, or named as the server knows them. A table goes with the job."""
    text = spec[key]
    if text.startswith(("~", "/")):
        return _checked(fields, base, here, code, {})
    if here:
        return _checked({**fields, "source": {**spec, key: str(base / text)}}, base, here, code, {})
    if key != "table":
        hint = "name files of the server, by an absolute path or ~/…; arrays and tables alone are sent"
        raise UsageError(f"source.{key}: {text[:80]!r} is of this machine, but the farm is elsewhere", hint)
    table = _read_table(base / text)
    return replace(_checked({**fields, "source": {**spec, key: table[0]}}, base, here, code, {}), table=table)


def _read_table(path: Path) -> tuple[str, bytes]:
    try:
        with path.open("rb") as file:
            raw = file.read(TABLE_LIMIT + 1)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", "correct `source.table`; it is relative to the job") from None
    if len(raw) > TABLE_LIMIT:
        raise SourceError(f"{path} has more than {TABLE_LIMIT} bytes", "copy it to the server, and name it there")
    return (path.name if is_file_name(path.name) else f"table{path.suffix}"), raw


def _found(source: SourceSpec, base: Path) -> dict[str, Outgoing]:
    found = discover(source, base)
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    arrays = ((name, mapped(source), source) for name, source in found.layers)
    return {name: Outgoing(array, source.path, bool(source.stored)) for name, array, source in arrays}


def _checked(
    fields: dict[str, Any], base: Path, here: bool, code: CodeBundle | None, arrays: Mapping[str, Outgoing]
) -> JobDraft:
    """What a stranger's job file is checked for, before anything is sent."""
    job: JobFile = check_job(fields)
    if code is None and job.code is not None:
        code = collect(job.code.entry, job.code.include, base)
    named = job.params.get("model") if registry.load(job.kind).names_model else None
    if named is None or named.startswith("~") or (Path(named).is_absolute() and not here):
        return JobDraft(fields, code, arrays)
    path = find(named, base)
    if here:
        return JobDraft(_with_model(fields, str(path)), code, arrays)
    name = path.name if is_file_name(path.name) else f"model{path.suffix}"
    return JobDraft(_with_model(fields, name), code, arrays, (name, OutgoingFile(path)))


def _with_model(fields: dict[str, Any], model: str) -> dict[str, Any]:
    return {**fields, "params": {**fields["params"], "model": model}}


def _plain(value: object) -> Any:
    """As a job file has it: numpy's scalars, paths and tuples are written as plain ones."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {_key(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise JobFileError(f"a {type(value).__name__} cannot stand in a job", "use numbers, texts, lists and dicts")


def _key(name: object) -> str:
    if isinstance(name, str):
        return name
    raise UsageError(f"{name!r} cannot be the name of a field", "use text")
