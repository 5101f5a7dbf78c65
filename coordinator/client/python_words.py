"""What errors say to who calls from Python: of arguments and methods, and of no job files and shells. Raises nothing of
its own and changes no error's class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from muster.jobs.common.errors import JobFileError, MusterError, SourceError, UsageError
from muster.jobs.job_file.read import JobFile

_DEFAULTS = {  # whole hints
    JobFileError.default_hint: "correct the argument; nothing was started",
    SourceError.default_hint: "correct `source`; nothing was started",
    UsageError.default_hint: "see `help(Farm)` and `help(Job)`",
    "paths are relative to the job file's folder": "paths are relative to the current folder",
}
_COMMANDS = (  # of the command line, and the method that does it
    (r"coordinator logs \S+( --failed)?", "job.logs(failed=True)"),
    (r"coordinator retry \S+", "job.retry()"),
    (r"coordinator result \S+", "job.result()"),
    (r"coordinator status \S+", "job.status()"),
    (r"coordinator (status|watch)", "farm.jobs()"),
    (r"coordinator cancel \S+", "job.cancel()"),
    (r"coordinator kick \S+", "job.kick(shard)"),
    (r"coordinator explain .*", "job.explain()"),
    (r"coordinator verify \S+.*", "job.verify()"),
    (r"coordinator (pause|resume|rm) \S+", r"job.\1()"),
    (r"coordinator plan .*", "farm.plan(...)"),
    (r"coordinator agents", "farm.agents()"),
    (r"coordinator uploads", "farm.uploads()"),
    (r"coordinator submit --from \S+ --set extends=.*", "study.extend(trials=N)"),
    (r"coordinator submit .*", "farm.submit(...)"),
)
_QUOTED = re.compile(r"`([^`]+)`")
_FIELD = re.compile(r"[a-z_]+: .*", re.DOTALL)


@contextmanager
def python_words() -> Iterator[None]:
    """Errors that come out of it speak of Python."""
    try:
        yield
    except MusterError as error:
        error.hint = _hint(error.hint)
        error.__notes__ = [f"hint: {error.hint}", *error.__notes__[1:]]
        raise


def _hint(text: str) -> str:
    if text in _DEFAULTS:
        return _DEFAULTS[text]
    return _QUOTED.sub(lambda found: f"`{_said(found[1])}`", text) if "`" in text else _said(text)


def _said(text: str) -> str:
    """A command as the method that does the same, a field as an argument; all else as it is."""
    for command, method in _COMMANDS:
        if found := re.fullmatch(command, text):
            return found.expand(method)
    return _argument(text) if _FIELD.fullmatch(text) else text


def _argument(field: str) -> str:
    """`shard: {size: 128MiB}` as shard={'size': '128MiB'}."""
    try:
        given = yaml.safe_load(field)
    except yaml.YAMLError:
        return field
    if not isinstance(given, dict) or not given.keys() <= set(JobFile.__struct_fields__):
        return field
    return ", ".join(f"{name}={value!r}" for name, value in given.items())
