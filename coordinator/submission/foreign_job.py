"""What the job of a second person may ask of the server: the uploads, the code and the jobs of that person. It names no
file that lies there, and has nothing run there. On the machines it may do what any job may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from muster.coordinator.farm_root import people
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.submission.client_job import ARRAYS, ClientJob
from muster.jobs.common.errors import RefusedError
from muster.jobs.common.names import NAME_LIMIT, is_plain
from muster.jobs.contract.plan import Plan
from muster.jobs.job_file.read import JobFile, parse_job
from muster.jobs.kinds import registry

KINDS = frozenset({"cluster", "command", "infer", "map"})  # others read files and other jobs' results by their names
SWITCHES = ("trust_pickle", "trust_torchscript", "trusted")  # of files that act when they are opened, as here they are
_HINT = "ask who runs the farm to submit it"


def check(root: Root, person: str, sent: ClientJob) -> tuple[str, ...]:
    """The full ids of the jobs that it starts after; a RefusedError for what it may not ask."""
    job = parse_job(sent.job, "job")
    if not is_plain(called := people.named(person, job.name)):
        raise RefusedError(
            f"name: {called[:80]}, as it is called here, is too long", f"{NAME_LIMIT} characters at most"
        )
    if job.kind not in KINDS:
        raise _refused("kind", f"of {job.kind} jobs files of the server are read")
    if job.notify is not None:
        raise _refused("notify", "its command would run on the server")
    if job.env is not None and "/" in job.env:
        raise _refused("env", "it names a program of the server; a name is what `agent join --env` gave it")
    _check_source(job, sent)
    for params in (job.params, *(one.params for one in job.overrides)):
        _check_params(job, params, sent)
    people.check_sent(root, person, [*sent.arrays.values(), *([sent.model[1]] if sent.model else [])])
    return tuple(people.job_of(root, person, name) for name in job.after)


def _check_source(job: JobFile, sent: ClientJob) -> None:
    """Arrays that were sent, a table that was sent, or none."""
    source = job.source
    if source is None:
        return
    is_sent = bool(sent.arrays) and source.path == ARRAYS
    is_table = sent.table is not None and source.table == sent.table[0]
    if not (is_sent or is_table) or source.files is not None or source.names is not None:
        raise _refused("source", "arrays and a table that are sent with the job are its sources")


def _check_params(job: JobFile, params: Mapping[str, Any], sent: ClientJob) -> None:
    for switch in SWITCHES:
        if params.get(switch):
            raise _refused(f"params.{switch}", "such a file is opened on the server, and acts there")
    model = params.get("model") if registry.load(job.kind).names_model else None
    if model is not None and (sent.model is None or model != sent.model[0]):
        raise _refused("params.model", "a model that is sent with the job is its model")


def _refused(field: str, why: str) -> RefusedError:
    return RefusedError(f"{field}: a job of a second person may not say this: {why}", _HINT)


def owned(plan: Plan, person: str, after: tuple[str, ...]) -> Plan:
    """The plan as the person's."""
    return msgspec.structs.replace(plan, name=people.named(person, plan.name), owner=person, after=after)
