"""`coordinator try`: run a few shards of a job here, in the foreground."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.coordinator.commands.options import job_file_argument, json_option, plain, root_option, say, say_json
from muster.coordinator.commands.plan import ask_farm
from muster.coordinator.display import forecasts
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example
from muster.jobs.common.errors import IncompleteError, RefusedError, UsageError
from muster.jobs.common.units import counted, format_duration, format_size
from muster.jobs.contract.plan import Output, Work
from muster.jobs.contract.requirements import lacking, pip_line
from muster.jobs.user_code import environments

if TYPE_CHECKING:
    from muster.coordinator.submission.try_shards import Tried


@click.command(epilog=example("coordinator try job.yaml", "coordinator try job.yaml --shards 5 --env nlp=~/venvs/nlp"))
@job_file_argument
@click.option("--shards", type=click.IntRange(1, 1000), default=2, show_default=True, help="How many to run.")
@click.option("--env", "env", metavar="NAME=PYTHON", default=None, help="The job's environment, as for `agent join`.")
@root_option
@json_option
def command(job_file: Path, shards: int, env: str | None, root: Path | None, as_json: bool) -> None:
    """Run a few shards of a job here, in the foreground, one after the other, and show what comes of them.

    It shows what the code prints, the shapes it gives, and for each shard the seconds and the peak memory; then the
    forecast of the whole job. No result is kept, nothing is started in the farm, and no coordinator is needed. If there
    is a root, it keeps what a row took, and `shard: auto` cuts by that.
    """
    from muster.coordinator.submission import try_shards
    from muster.coordinator.submission.forecast import forecast
    from muster.coordinator.submission.submit import plan_file

    farm = roots.find(root)
    planned = plan_file(job_file, farm)
    python = _python(planned.plan.work, env)
    tried = []
    for one in try_shards.run(planned, shards, python):
        tried.append(one)
        if not as_json:
            say(page(one))
    kept = try_shards.keep(farm, planned.plan, tried)
    if kept and planned.plan.cut:
        planned = plan_file(job_file, farm)
    known = ask_farm(farm)
    plan, pace = try_shards.measured(planned.plan, tried), try_shards.pace_of(tried)
    seen, here = forecast(plan, known.agents, known.jobs, known.free, pace), try_shards.seconds_here(plan, pace)
    document = {"shards": [plain(one) for one in tried], "forecast": plain(seen), "seconds_here": here}
    if tried[-1].mishap:
        failed = IncompleteError(f"{tried[-1].layer}/{tried[-1].number} failed", "correct it, and try again")
        failed.document = document
        raise failed
    if as_json:
        say_json(document)
    else:
        alone = f"all of it would take one slot of this machine {format_duration(here)}" if here is not None else ""
        say("\n".join(["", *([alone] if alone else []), forecasts.forecast_page(seen)]))


def _python(work: Work, env: str | None) -> str | None:
    """The interpreter for the job's code."""
    name, python = environments.parse(env) if env else (None, None)
    if work.env is None and name is None:
        there, shown = environments.own(), "this Python"
    elif work.env is not None and "/" in work.env:
        return work.env
    elif work.env != name or python is None:
        raise UsageError(f"the job's environment is {work.env}", f"--env {work.env}=PYTHON says where it is here")
    else:
        there, shown = environments.probe(work.env or "", python), python
    if missing := lacking(there, work.packages):
        hint = pip_line(" ".join(map(repr, missing)), python or sys.executable)
        raise RefusedError(f"{shown} has no {', '.join(missing)}", hint)
    return python


def page(one: Tried) -> str:
    """A shard as people read it."""
    lines = [f"{one.layer}/{one.number}: {_head(one)}"]
    width = max((len(output.name) for output in one.outputs), default=0)
    lines += [f"  {output.name.ljust(width)}  {_shape(output, one.rows)}" for output in one.outputs]
    if one.mishap:
        lines += [f"  | {line}" for line in one.mishap.evidence.splitlines()]
    else:
        lines += [f"  | {line}" for line in one.printed.splitlines()]
    return "\n".join(lines)


def _head(one: Tried) -> str:
    cost = f"{format_duration(one.seconds)}, peak {format_size(one.peak)}"
    if one.mishap:
        return f"{one.mishap.code}: {one.mishap.message}; after {cost}"
    return f"{counted(one.rows, 'row')}, {format_size(one.bytes_in)} in, {format_size(one.bytes_out)} out, {cost}"


def _shape(output: Output, rows: int) -> str:
    inner = ", ".join(str(length) for length in output.shape)
    if output.form == "rows":
        return f"{output.dtype} ({', '.join(part for part in (str(rows), inner) if part)})"
    if output.form == "ragged":
        return f"{output.dtype}, any number of values{f' of ({inner})' if inner else ''} per row"
    if output.form == "sum":
        return f"{output.dtype} ({inner}), summed over all shards"
    return "files"
