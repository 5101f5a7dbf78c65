"""Every error a user can cause: what happened, what to do next, the exit code. Never decides what to retry."""

from __future__ import annotations

import contextlib
import sys
from typing import ClassVar

from muster.jobs.common.printable import harmless, joined

INTERNAL_EXIT = 70  # a bug of ours
INTERRUPTED_EXIT = 130


class MusterError(Exception):
    """Something a person can put right. Shown as one `error:` line and one `hint:` line, without a traceback."""

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    default_hint: ClassVar[str] = "see `--help`"

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(harmless(message))
        self.message = harmless(message)
        self.hint = harmless(hint or self.default_hint)
        self.earlier: tuple[str, ...] = ()  # what else is wrong, before what the message says, a line each
        self.document: dict[str, object] = {}  # what was found all the same: under --json it stands beside the error
        self.__notes__ = [f"hint: {self.hint}"]  # shown below the message where nobody catches it, from Python 3.11 on


class UsageError(MusterError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class JobFileError(MusterError):
    """The job file says something that cannot be run."""

    exit_code = 3
    default_hint = "correct the job file; `coordinator plan job.yaml` checks it without starting anything"


class SourceError(MusterError):
    """The input arrays cannot be read as the job file describes them."""

    exit_code = 4
    default_hint = "correct the source, then `coordinator plan job.yaml`"


class NoDaemonError(MusterError):
    """No coordinator serves this root."""

    exit_code = 5
    retryable = True
    default_hint = "start it with `coordinator serve`"


class NotFoundError(MusterError):
    """There is no such job, shard or agent."""

    exit_code = 6
    default_hint = "`coordinator status` lists the jobs, `coordinator agents` the machines"


class RefusedError(MusterError):
    """What was asked for does not fit the state things are in."""

    exit_code = 7


class SpaceError(MusterError):
    """A disk, a quota or a budget is full."""

    exit_code = 8
    retryable = True
    default_hint = "make room; work goes on by itself once there is some"


class LinkError(MusterError):
    """The other end cannot be reached, or went away."""

    exit_code = 9
    retryable = True
    default_hint = "check the host and that `coordinator serve` runs there"


class AccessError(LinkError):
    """The other end is there and does not let us in: a host key, a login, an account. Trying again changes nothing."""

    exit_code = 14
    retryable = False
    default_hint = "`ssh HOST true` should work without a question; `--ssh openssh` lets the system's ssh do it"


class NoCommandError(LinkError):
    """The other end lets us in, but `coordinator connect` does not start there."""

    exit_code = 15
    default_hint = "install muster there, or name what `coordinator serve` wrote: `--command ROOT/connect`"


class ProtocolError(MusterError):
    """The other end said something that is not the protocol: its bug, another version, or noise on stdout."""

    exit_code = 10
    default_hint = "run the same version of muster at both ends, and let no profile print on stdout"


class VersionError(ProtocolError):
    """The other end speaks another version of the protocol: one of the two has to be upgraded."""

    retryable = True
    default_hint = "upgrade muster on the older of the two machines"


class IncompleteError(MusterError):
    """A job ended, or stands, without all of its shards. `shard` is one that failed, LAYER/NUMBER, `cause` what its
    code raised there, and `evidence` the traceback or the last lines of output; each is "" where nobody knows."""

    exit_code = 11
    default_hint = "`coordinator logs JOB --failed` has the evidence; `coordinator retry JOB` runs them again"
    shard = cause = evidence = ""

    def caused_by(self, shard: str, cause: str, evidence: str) -> IncompleteError:
        """The same with what failed first in its message, and the evidence below it."""
        made = type(self)(f"{self.message}; {shard}: {cause}", self.hint)
        made.shard, made.cause, made.evidence = shard, harmless(cause), harmless(evidence)
        made.__notes__ += made.evidence.splitlines()
        return made


class StillRunningError(IncompleteError, TimeoutError):
    """Whoever waits for a job has waited for as long as was said; the job goes on."""

    default_hint = "wait for it again, or end it"


class DamagedError(MusterError):
    """Bytes on disk are not what their digest says."""

    exit_code = 12
    default_hint = "`coordinator retry JOB --layers LAYER` computes the layer again"


class TrainingError(MusterError):
    """A model cannot be trained further: its loss is no number."""

    exit_code = 16
    default_hint = "lower `lr`, or `momentum`: `coordinator submit --from JOB --set lr=0.01`; good checkpoints are kept"


class DifferenceError(MusterError):
    """What was computed again came out otherwise."""

    exit_code = 17
    default_hint = "code that draws random numbers or reads the clock does that, other kernels, or a machine at fault"


class FencedError(MusterError):
    """Another process took this agent's name and spool."""

    exit_code = 13
    default_hint = "let one process own a name and a spool; give this one another `--name`"


def error_class(exit_code: int) -> type[MusterError]:
    """Of a program of ours that ended so."""
    waiting: list[type[MusterError]] = [MusterError]
    while waiting:
        kind = waiting.pop(0)
        if kind.exit_code == exit_code:
            return kind
        waiting += kind.__subclasses__()
    return MusterError


def report(error: MusterError, as_json: bool = False) -> int:
    """Show `error` as its two lines on stderr, and on stdout as JSON where that is asked for; its exit code."""
    for line in error.earlier:
        print(f"error: {joined(line)}", file=sys.stderr)
    document = {**error.document, **({"earlier": list(error.earlier)} if error.earlier else {})}
    return _shown(joined(error.message), joined(error.hint), error.exit_code, document if as_json else None)


def _shown(message: str, hint: str, code: int, document: dict[str, object] | None) -> int:
    print(f"error: {message}\nhint: {hint}", file=sys.stderr, flush=True)
    if document is not None:
        from muster.jobs.common.json_documents import json_text

        with contextlib.suppress(OSError):  # nobody reads it any more
            said = {**document, "error": message, "hint": hint, "code": code}
            print(json_text(said, indent=2 if document else 0), flush=True)
    return code


def report_bug(error: BaseException, as_json: bool = False) -> int:
    """Show an exception nobody foresaw as two lines, its traceback in a file; the exit code of a bug."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="muster-", suffix=".txt", delete=False) as file:
        traceback.print_exception(type(error), error, error.__traceback__, file=file)
    shown = joined(f"{type(error).__name__}: {error}")[:300]
    return _shown(shown, f"this is a bug; its traceback is in {file.name}", INTERNAL_EXIT, {} if as_json else None)
