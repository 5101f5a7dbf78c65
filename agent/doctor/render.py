"""A sheet as text for people and as JSON for programs. Decides and tries nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muster.agent.doctor.checklist import Check
from muster.jobs.common.json_documents import json_text

OUTCOME_WIDTH = 9
NAME_WIDTH = 11


class Told(msgspec.Struct, frozen=True):
    """One check in JSON."""

    name: str
    outcome: str
    detail: str
    fix: str
    figures: dict[str, float]


class DoctorReport(msgspec.Struct, frozen=True):
    """All of it in JSON."""

    where: str
    exit_code: int
    checks: list[Told]


def line(check: Check) -> str:
    """One line; what to do, where there is something, on a second one below."""
    head = f"{check.outcome:<{OUTCOME_WIDTH}}  {check.name:<{NAME_WIDTH}}  "
    fix = f"\n{'':{len(head)}}fix: {_flat(check.fix)}" if check.fix else ""
    return f"{head}{_flat(check.detail)}{fix}"


def summary(checks: Sequence[Check], join: str) -> str:
    """The last line; `join`: the command that was looked into."""
    failed = [check.name for check in checks if check.outcome == "fail"]
    warned = [check.name for check in checks if check.outcome == "warn"]
    if failed:
        return f"{len(failed)} failed: put `{failed[0]}` right first"
    if warned:
        return f"nothing failed; look at {_listed(warned)} before `{join}`"
    untried = [check.name for check in checks if check.outcome == "not tried"]
    if untried:
        return f"nothing failed, {_listed(untried)} not tried: `{join}` should work"
    return f"all is well: `{join}` will work"


def as_json(checks: Sequence[Check], where: str, exit_code: int) -> str:
    told = [Told(check.name, check.outcome, check.detail, check.fix, check.figures) for check in checks]
    return json_text(msgspec.to_builtins(DoctorReport(where, exit_code, told)), indent=0)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _flat(text: str) -> str:
    return " ".join(text.split())
