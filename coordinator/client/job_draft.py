"""A job before it is sent: from keyword arguments or a job file, checked here, its code packed. Sends nothing."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from muster.coordinator.client.arrays import Outgoing, OutgoingFile, Sendable, is_array, is_arrays, mapped, outgoing
from muster.coordinator.submission.client_job import ARRAYS, ClientJob, check_layers, is_model_name
from muster.jobs.common.errors import JobFileError, UsageError
from muster.jobs.inference.model_file import find
from muster.jobs.job_file import yaml_text
from muster.jobs.job_file.read import JobFile, check_job, read_job_file
from muster.jobs.kinds import registry
from muster.jobs.sources.discover import SourceSpec, discover
from muster.jobs.user_code.code_pack import CodeBundle, collect, pack

ITEMS = ("files", "table")  # sources that are lists
ONE_LAYER = "array"  # what the only layer of a job over one array is called


@dataclass(frozen=True)
class JobDraft:
    """A job and what goes with it."""

    fields: dict[str, Any]
    code: CodeBundle | None = None
    arrays: Mapping[str, Outgoing] = field(default_factory=dict)
    model: tuple[str, OutgoingFile] | None = None

    @property
    def files(self) -> list[Sendable]:
        """All that has to be there before the job is."""
        return [*self.arrays.values(), *([self.model[1]] if self.model else [])]

    def parcel(self) -> ClientJob:
        model = (self.model[0], self.model[1].digest) if self.model else None
        digests = {name: array.digest for name, array in self.arrays.items()}
        text = yaml.safe_dump(self.fields, sort_keys=False, allow_unicode=True)
        return ClientJob(text, pack(self.code) if self.code else None, digests, model)


def from_file(path: Path, here: bool, after: Sequence[str] = ()) -> JobDraft:
    """A job file of this machine. `here`: so is the farm. `after`: jobs that it starts after, beside its own."""
    read_job_file(path)  # its errors name the line
    fields = yaml_text.load(path.read_text(encoding="utf-8"), path.name).value
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
        return _checked({**fields, "source": _placed(spec, listed, base, here)}, base, here, code, {})
    if not isinstance(spec, dict) or not isinstance(path := spec.get("path"), str) or path.startswith("~"):
        return _checked(fields, base, here, code, {})
    if here:
        return _checked({**fields, "source": {**spec, "path": str(base / path)}}, base, here, code, {})
    if Path(path).is_absolute():
        return _checked(fields, base, here, code, {})
    source = check_job(fields).source
    assert source is not None
    return _checked({**fields, "source": {"path": ARRAYS}}, base, here, code, _found(source, base))


def _placed(spec: dict[str, Any], key: str, base: Path, here: bool) -> dict[str, Any]:
    """Files and tables stay where they are: on this machine, or named as the server knows them."""
    text = spec[key]
    if text.startswith(("~", "/")):
        return spec
    if not here:
        hint = "name files of the server, by an absolute path or ~/…; arrays alone are sent"
        raise UsageError(f"source.{key}: {text[:80]!r} is of this machine, but the farm is elsewhere", hint)
    return {**spec, key: str(base / text)}


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
    name = path.name if is_model_name(path.name) else f"model{path.suffix}"
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
