"""Asking the daemon: one question, one answer, over its unix socket. Never used by the daemon itself."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from muster.coordinator.api.requests import FailuresAsk, Looked, Problem, StatusAsk, ToCommand, Usage
from muster.coordinator.api.status import Failures, Status, Used
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.protocol.control import Bye, Rejected
from muster.coordinator.protocol.frames import FrameReader, frame
from muster.coordinator.protocol.values import Decoder, Message, encode
from muster.jobs.common.errors import LinkError, MusterError, NoDaemonError, NotFoundError, ProtocolError, RefusedError
from muster.jobs.common.names import split_job_id

ANSWER_SECONDS = 60.0  # the daemon answers within a tick; beyond this it is stuck or stopped
RECEIVE_BYTES = 1 << 18
POLL_SECONDS = 0.25  # between two questions about a job that is followed
AWAY_SECONDS = 120.0  # how long a coordinator may be away, being started again say
SILENCE_SECONDS = 2.0  # without an answer, until whoever follows a job is told

_decode = Decoder(ToCommand | Rejected | Bye)
_T = TypeVar("_T", bound=Message)


class DaemonConnection:
    """An open connection to the daemon."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = FrameReader()

    def ask(self, question: Message, answer: type[_T], wait: float = 0.0) -> _T:
        """The daemon's answer, of the type it must have. `wait`: how long the question lets it take."""
        self.begin(question)
        if (said := self.answered(answer, ANSWER_SECONDS + wait)) is None:
            raise LinkError("the coordinator does not answer", "daemon.log in its root may say why")
        return said

    def begin(self, question: Message) -> None:
        """Put a question whose answer is asked for by `answered`."""
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            self._socket.sendall(frame(encode(question)))
        except OSError as error:
            raise _gone(str(error)) from None

    def answered(self, answer: type[_T], within: float) -> _T | None:
        """The answer to the question that was put; None if there is none `within` so many seconds: it may yet come."""
        self._socket.settimeout(within)
        try:
            return _checked(_decode(self._receive()), answer)
        except TimeoutError:
            return None
        except OSError as error:
            raise _gone(str(error)) from None

    def looked(self, answer: type[_T], within: float) -> tuple[_T | MusterError, Looked] | None:
        """The answer to a `Look`, or the error that it is, with what it took; None as `answered` has it."""
        if (told := self.answered(Looked, within)) is None:
            return None
        try:
            return _checked(_decode(told.answer), answer), told
        except MusterError as error:
            return error, told

    def _receive(self) -> bytes:
        while True:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise _gone("it closed the connection")
            for payload in self._reader.feed(data):
                return payload

    def close(self) -> None:
        self._socket.close()


def ask(root: Root, question: Message, answer: type[_T]) -> _T:
    """One question on a connection of its own."""
    with line(root) as opened:
        return opened.ask(question, answer)


def failures(root: Root, question: FailuresAsk) -> tuple[Failures, bool]:
    """What failed, as was asked; and whether that is so, or no shard is given up and these are all that failed."""
    answer = ask(root, question, Failures)
    if answer.items or not question.quarantined:
        return answer, True
    return ask(root, msgspec.structs.replace(question, quarantined=False), Failures), False


def answers(root: Root) -> bool:
    """Whether a daemon serves this root now."""
    try:
        ask(root, StatusAsk(), Status)
    except (NoDaemonError, LinkError):
        return False
    return True


def room(root: Root) -> int:
    """Bytes that are free beside what is promised to jobs."""
    used = ask(root, Usage(), Used)
    return max(used.free - used.reserved, 0)


@contextmanager
def line(root: Root) -> Iterator[DaemonConnection]:
    """A connection for several questions."""
    opened = DaemonConnection(connect(root))
    try:
        yield opened
    finally:
        opened.close()


def connect(root: Root) -> socket.socket:
    """A socket to the daemon of `root`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(ANSWER_SECONDS)
    try:
        with roots.address(root.socket) as where:
            sock.connect(where)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        sock.close()
        raise _no_daemon(root) from None
    except OSError as error:
        sock.close()
        raise RefusedError(
            f"{root.socket} cannot be reached: {error.strerror or error}", "ask as the user it belongs to"
        ) from None
    return sock


def statuses(root: Root, job: str) -> Iterator[Status]:
    """The job's status, again and again, until one says that it does not go on by itself. While the daemon does not
    answer, the last one is repeated with the seconds of its silence."""
    last, heard = None, time.monotonic()
    while True:
        try:
            for answer in _asked(root, StatusAsk(job)):
                if answer is not None:
                    last, heard = answer, time.monotonic()
                    yield answer
                elif last is not None:
                    yield _repeated(last, heard)
        except (NoDaemonError, LinkError):
            if time.monotonic() - heard > AWAY_SECONDS:
                raise
            if last is not None and time.monotonic() - heard >= SILENCE_SECONDS:
                yield _repeated(last, heard)
        if last is not None and last.jobs[0].is_over:
            return
        time.sleep(POLL_SECONDS)


def _asked(root: Root, question: StatusAsk) -> Iterator[Status | None]:
    """The answer, behind a None for each SILENCE_SECONDS that it takes."""
    with line(root) as opened:
        opened.begin(question)
        for _ in range(int(ANSWER_SECONDS / SILENCE_SECONDS)):
            answer = opened.answered(Status, SILENCE_SECONDS)
            yield answer
            if answer is not None:
                return
    raise LinkError("the coordinator does not answer", "daemon.log in its root may say why")


def _repeated(last: Status, heard: float) -> Status:
    return msgspec.structs.replace(last, silent=time.monotonic() - heard)


def job_named(root: Root, text: str, for_good: bool = False) -> str:
    """The full id of a job that the daemon is to be asked about. Its folder may be gone, where the job is damaged.
    `for_good`: a name alone is looked up there in any case, as no other job than the latest must be meant."""
    name, number = split_job_id(text)
    try:
        found = roots.resolve_job(root, text)
    except NotFoundError:
        if number is not None:
            return text
        found = ""
    if number is None and (for_good or not found):
        ids = [split_job_id(job.id) for job in ask(root, StatusAsk(), Status).jobs if job.state == "damaged"]
        numbers = [n for one, n in [*ids, split_job_id(found or text)] if one == name and n]
        found = f"{name}.{max(numbers)}" if numbers else roots.resolve_job(root, text)
    return found


def _no_daemon(root: Root) -> NoDaemonError:
    shown = "" if root.path == roots.find(None).path else f" --root {root.path}"
    return NoDaemonError(f"no coordinator serves {root.path}", f"start it with `coordinator serve{shown} --detach`")


def _gone(why: str) -> LinkError:
    return LinkError(f"the coordinator went away: {why}", "ask again once `coordinator serve` runs")


def _checked(got: Message, answer: type[_T]) -> _T:
    if isinstance(got, answer):
        return got
    if isinstance(got, Problem):
        raise error_of(got)
    if isinstance(got, Rejected):
        raise RefusedError(got.message, got.hint or None)
    if isinstance(got, Bye):
        raise _gone(got.reason)
    raise ProtocolError(f"expected {answer.__name__}, got {type(got).__name__}")


def error_of(problem: Problem) -> MusterError:
    """The error the daemon had, again as its class."""
    found = {cls.exit_code: cls for cls in MusterError.__subclasses__()}
    return found.get(problem.exit_code, MusterError)(problem.message, problem.hint)
