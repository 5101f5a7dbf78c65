"""`coordinator explain`: what a machine, a job or a shard is at, and why."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import AgentsAsk, ExplainAgent, ExplainJob, ExplainShard, StatusAsk
from muster.coordinator.api.status import Agents, Explained, Status
from muster.coordinator.commands import complete_names
from muster.coordinator.commands.logs import split
from muster.coordinator.commands.options import farm_option, json_option, plain, say, say_json
from muster.coordinator.display import agents as display_agents
from muster.coordinator.display import tables
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.protocol.values import Message
from muster.jobs.common.cli import example
from muster.jobs.common.errors import MusterError, NotFoundError
from muster.jobs.common.names import parse_shard
from muster.jobs.common.units import format_duration, format_size
from muster.jobs.contract.states import ENDED


@click.command(
    epilog=example("coordinator explain", "coordinator explain lab3", "coordinator explain weights.1/conv1/17")
)
@click.argument("what", metavar="[AGENT|JOB|SHARD]", required=False, shell_complete=complete_names.agent_or_job)
@farm_option
@json_option
def command(what: str | None, root: Path | None, as_json: bool) -> None:
    """Say what a machine is doing, or why it is idle; why nothing of a job runs; or the whole story of a shard.

    Without a name it is about every machine and every job that has not ended.
    """
    found = roots.existing(root)
    answers = [_asked(found, what)] if what else _everything(found)
    if as_json:
        say_json({"explained": [plain(answer) for answer in answers]})
    elif answers:
        say("\n\n".join(page(answer) for answer in answers))
    else:
        say(display_agents.no_machines(found.path))


def _asked(root: Root, what: str) -> Explained:
    """Of a name that may be a machine's or a job's, the machine first."""
    if "/" in what:
        job, rest = split(what, None)
        layer, number = parse_shard(rest or "")
        name = ask_daemon.job_named(root, job)
        answer = ask_daemon.ask(root, ExplainShard(name, layer, number), Explained)
        return _with_table(root, name, layer, number, answer) if answer.merged else answer
    agents = {agent.name for agent in ask_daemon.ask(root, AgentsAsk(), Agents).agents}
    if what in agents:
        return ask_daemon.ask(root, ExplainAgent(what), Explained)
    try:
        name = ask_daemon.job_named(root, what)
    except MusterError:
        known = ", ".join(sorted(agents)[:5]) or "none"
        raise NotFoundError(f"there is no agent, job or shard {what!r}", f"agents: {known}") from None
    return ask_daemon.ask(root, ExplainJob(name), Explained)


def _everything(root: Root) -> list[Explained]:
    with ask_daemon.line(root) as line:
        jobs = [job.id for job in line.ask(StatusAsk(), Status).jobs if job.state not in ENDED]
        agents = [agent.name for agent in line.ask(AgentsAsk(), Agents).agents if agent.state != "left"]
        questions: list[Message] = [*map(ExplainJob, jobs), *map(ExplainAgent, agents)]
        return [line.ask(question, Explained) for question in questions]


def _with_table(root: Root, job: str, layer: str, number: int, answer: Explained) -> Explained:
    """What the table beside a merged layer says of the run that counts."""
    import msgspec

    from muster.jobs.results.open_result import open_result

    table = open_result(root.job(job).result / layer).shards
    lines = table[table["shard"] == number]
    if not len(lines):  # one that is not run
        return answer
    line = lines[0]
    when, took = tables.moment(float(line["started"])), format_duration(float(line["seconds"]))
    said = (
        f"was computed by {line['agent']} (attempt {line['boot']}.{line['attempt']}) at {when}, in {took},"
        f" peak {format_size(int(line['peak']))}, from {format_size(int(line['in_bytes']))}"
    )
    return msgspec.structs.replace(answer, lines=[*answer.lines, said])


def page(answer: Explained) -> str:
    """As people read it."""
    lines = [answer.about, *(f"  {line}" for line in answer.lines)]
    for one in answer.happenings:
        lines.append(f"  {tables.moment(one.when)}  {one.said}")
        lines += [f"      | {line}" for line in one.evidence.splitlines()]
    if answer.since and not answer.merged:
        lines.append(f"  (of the time before {tables.moment(answer.since)} only failures and commits are known)")
    return "\n".join(lines)
