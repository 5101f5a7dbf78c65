"""What a call of a session may end with, beside what its function raised. Raises nothing itself."""

from __future__ import annotations

from muster.jobs.common.errors import IncompleteError, NotFoundError
from muster.jobs.common.printable import harmless


class FarTraceback(Exception):
    """Where on its machine a call raised: the cause of what its future raises."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = harmless(text)

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class CallFailed(IncompleteError):
    """A call that gave nothing: it ended its process, took too long or too much memory, or what it gave cannot travel.
    `code` is that of docs/endings.md, `machine` where it ran last, and `evidence` what was printed there."""

    default_hint = "the code says what became of it: docs/endings.md"

    def __init__(self, code: str, message: str, machine: str = "", evidence: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.code, self.machine, self.evidence = code, machine, harmless(evidence)
        self.__notes__ += self.evidence.splitlines()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.message, self.machine, self.evidence, self.hint)


class RemoteError(CallFailed):
    """The function raised an exception that does not travel itself: `type_name` and the message are what it was."""

    default_hint = "the traceback of its machine is the cause of this error"

    def __init__(self, type_name: str, message: str, machine: str = "") -> None:
        super().__init__("exception", f"{type_name}: {message}" if message else type_name, machine)
        self.type_name = type_name

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.type_name, self.message.partition(": ")[2], self.machine)


class NoAgentError(NotFoundError):
    """No machine that is here suits a session."""

    default_hint = "join a machine: `agent join`; `coordinator agents` says what each lacks"
