"""What a failure is called, and whose fault it is: the closed set of codes. Decides nothing else.

Codes travel and are stored as plain strings, so that one of a newer peer, or of a plug-in's kind, stays readable.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

ShardCode = Literal[
    "exception",  # the code raised one, or could not be imported
    "exit",  # it ended its process
    "signal",  # it died of one
    "timeout",  # it took longer than its job allows
    "memory",  # it takes more than there is, alone
    "output",  # what it gave is not what it may give
]
DataCode = Literal["data"]  # its own row or file is at fault, so that it fails on every machine and each time
CopyCode = Literal["code", "input", "model"]  # this machine's copy of it is not what was submitted
MachineCode = Literal["unfit"]  # it solves a problem of the kind with another answer than the known one
LossCode = Literal["killed", "lost"]  # its process was killed from outside; its worker died or was stopped
JobCode = Literal["driver", "merge"]  # the job's driver, which is of no shard; the merging of a layer
Whose = Literal["shard", "data", "machine", "nobody", "job"]

_WHOSE: dict[str, Whose] = {
    **dict.fromkeys(get_args(ShardCode), "shard"),
    **dict.fromkeys(get_args(DataCode), "data"),
    **dict.fromkeys(get_args(CopyCode), "machine"),
    **dict.fromkeys(get_args(MachineCode), "machine"),
    **dict.fromkeys(get_args(LossCode), "nobody"),
    **dict.fromkeys(get_args(JobCode), "job"),
}
CODES = frozenset(_WHOSE)


def whose_fault(code: str) -> Whose:
    """Whom it counts against. A code that is not known here was given by who ran the shard: its own fault."""
    return _WHOSE.get(code, "shard")


def is_loss(code: str) -> bool:
    """Whether a shard that ended so was lost, through no fault shown to be its own, rather than failed."""
    return whose_fault(code) in {"machine", "nobody"}


def is_final(code: str) -> bool:
    """Whether another try fails in the same way, wherever it runs: then there is none, and no machine is to blame."""
    return whose_fault(code) == "data"


def shard_code(code: str) -> ShardCode:
    """What another process called a shard's failure, as one of ours."""
    return cast("ShardCode", code) if code in get_args(ShardCode) else "exception"
