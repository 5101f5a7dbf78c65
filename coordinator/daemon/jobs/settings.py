"""What of a job may be changed while it runs: kept beside its plan, which stays as it was submitted. Nothing of it is
in a layer's digest."""

from __future__ import annotations

import msgspec

from muster.coordinator.api.requests import SetJob
from muster.jobs.common.units import format_duration, format_size
from muster.jobs.contract.plan import Plan


class JobSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """None: as the plan has it. A memory or a timeout of 0 takes away what the plan says."""

    attempts: int | None = None
    max_failures: int | None = None
    memory: int | None = None  # bytes of a running shard
    timeout: float | None = None  # seconds of an attempt

    def changed(self, asked: SetJob) -> JobSettings:
        """With what was asked for in the place of what was there."""
        given = {name: getattr(asked, name) for name in self.__struct_fields__ if getattr(asked, name) is not None}
        return msgspec.structs.replace(self, **given)

    def applied(self, plan: Plan) -> Plan:
        """The plan with them. They are taken over whole: `plan` is the one that was submitted, or one of these."""
        work = plan.work
        if self.memory is not None:
            work = msgspec.structs.replace(work, memory=self.memory or None)
        if self.timeout is not None:
            work = msgspec.structs.replace(work, timeout=self.timeout or None)
        return msgspec.structs.replace(
            plan,
            work=work,
            attempts=plan.attempts if self.attempts is None else self.attempts,
            max_failures=plan.max_failures if self.max_failures is None else self.max_failures,
        )

    def __str__(self) -> str:
        said = []
        if self.memory is not None:
            said.append(f"memory {format_size(self.memory) if self.memory else 'as the first shards take'}")
        if self.timeout is not None:
            said.append(f"timeout {format_duration(self.timeout) if self.timeout else 'none'}")
        said += [f"attempts {self.attempts}"] if self.attempts is not None else []
        said += [f"max_failures {self.max_failures}"] if self.max_failures is not None else []
        return ", ".join(said)
