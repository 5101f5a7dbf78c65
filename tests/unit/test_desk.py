"""The desk's decisions, one at a time."""

from __future__ import annotations

from agent.talk import Who


def who(cpus: int = 2, memory: int = 1 << 30, disk: int = 1 << 30) -> Who:
    """An agent for tests."""
    return Who(
        name="one",
        spool="s" * 32,
        process="p" * 32,
        host="here",
        pid=1,
        cpus=cpus,
        memory=memory,
        disk=disk,
        kernels={"cluster": 1},
        fingerprint="f",
        python="3.11",
        version="0",
        in_place=True,
    )
