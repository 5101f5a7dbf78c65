"""`agent join`: an agent, in the foreground or detached."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from muster import VERSION
from muster.agent.channels.bandwidth import LEAST
from muster.agent.commands.options import check_ray_options, is_typed, place_of, ray_token_option, ssh_options
from muster.agent.host import cpu_shares, lending, taken_kinds
from muster.agent.host.cpu_shares import CpuShare
from muster.agent.host.lending import Courtesy
from muster.agent.host.taken_kinds import Takes
from muster.agent.links import Options, Ssh, open_link
from muster.agent.pool.interface import POOL_KINDS, PoolKind
from muster.agent.spool import owner as owners
from muster.agent.spool import paths as spools
from muster.agent.spool import register
from muster.jobs.common import filesystems, launch, units
from muster.jobs.common.cli import example
from muster.jobs.common.errors import AccessError, LinkError, RefusedError, UsageError
from muster.jobs.common.locations import Folder, Host, check_root, expand
from muster.jobs.common.printable import joined
from muster.jobs.common.processes import identify, kill_tree
from muster.jobs.contract.plan import Environment
from muster.jobs.user_code import environments

if TYPE_CHECKING:
    from muster.agent.pool.ray_cluster import Cluster
    from muster.agent.process import AgentSettings

LINK_SECONDS = 15.0  # for a detached agent to have a link; then it is told why there is none
MEMORY_SHARE = 0.8  # of the machine's, by default
NODE_MEMORY = 4 << 30  # for each cpu, of a cluster that has no nodes yet
DISK_SHARE = 0.9  # of what is free, by default, where it is for results alone
HAVE_SHOWN = 64  # characters of the copy's folder that the farm is told, for people
PULL_DISK_SHARE = 0.5  # where inputs are pulled: what is not needed of it is filled with them all the same
ARGS = "words of join"  # among what click keeps of a call: the words after `join`
_T = TypeVar("_T")
_GPU = re.compile(r"[A-Za-z0-9_:./-]{1,64}", re.ASCII)


def _as_written(parse: Callable[[str], _T]) -> Callable[[click.Context, click.Parameter, str | None], _T | None]:
    """A callback that reads a value as people write it."""

    def read(context: click.Context, option: click.Parameter, value: str | None) -> _T | None:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), context, option) from None

    return read


def _rate(text: str) -> int:
    found = units.parse_size(text)
    if found < LEAST:
        raise ValueError(f"{text} is too little: allow at least {units.format_size(LEAST)} a second")
    return found


def _labels(text: str) -> tuple[str, ...]:
    """Of GPUs: numbers, or such as GPU-1a2b."""
    labels = [part.strip() for part in text.split(",")] if text else []
    if len(set(labels)) < len(labels) or not all(_GPU.fullmatch(label) for label in labels):
        raise UsageError(f"--gpus {text!r}: expected different labels with commas between", "such as --gpus 0,1")
    return tuple(labels)


def _hours(text: str) -> str | None:
    return lending.checked(Courtesy(hours=text)).hours


_duration, _size = _as_written(units.parse_duration), _as_written(units.parse_size)


class _Join(click.Command):
    """Without WHERE it joins as last time."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell completes a word of it
            return super().parse_args(ctx, args)
        given = dict(self.make_parser(ctx).parse_args(list(args))[0])
        if not isinstance(given.pop("where", None), str) and not {"-h", "--help"} & set(args):
            args = _as_last_time(ctx, given)
        ctx.meta[ARGS] = [arg for arg in args if arg != "--detach"]
        return super().parse_args(ctx, args)


def _as_last_time(ctx: click.Context, given: Mapping[str, Any]) -> list[str]:
    """The words of the last join: of this name or spool, where one is given; rather of an agent that does not run."""
    if given.keys() - {"name", "spool", "detach"}:
        raise click.UsageError("WHERE is missing; without options it would join as last time", ctx)
    spool = Path(given["spool"]).absolute() if "spool" in given else None
    known = [
        one
        for one in register.entries()
        if given.get("name") in (None, one.name) and spool in (None, Path(one.spool)) and Path(one.spool).is_dir()
    ]
    if not known:
        raise click.UsageError("WHERE is missing, and no join is remembered here", ctx)
    busy = {folder for folder, _ in register.running(None)}
    last = next((one for one in known if Path(one.spool) not in busy), known[0])
    try:
        os.chdir(last.cwd)
    except OSError as error:
        why = f"{last.name} joined from {last.cwd}, which cannot be entered: {error.strerror}"
        raise RefusedError(why, "name the coordinator once more") from None
    default = owners.name_and_folder(last.name, None)[1] == Path(last.spool)
    which = ["--name", last.name, *([] if default else ["--spool", last.spool])]
    args = last.args if last.args[: len(which)] == which else [*which, *last.args]
    click.echo(f"as last time: agent join {shlex.join(args)}", err=True)
    return [*args, *["--detach"][: last.detached or "detach" in given]]


@click.command(
    cls=_Join,
    epilog=example(
        "agent join /data/farm --name desk --cpus 4",
        "agent join ./farm --detach",
        "agent join server.lab",
        "agent join anna@server.lab:/data/farm --accept-new-host-key --bandwidth 10MiB",
        "agent join server.lab --kinds cluster,infer --no-code",
        "agent join server.lab --have /mnt/data",
        "agent join server.lab --pool processes",
        "agent join server.lab --env nlp=/opt/conda/envs/nlp/bin/python --env vision=~/venvs/vision",
        "agent join ssh://anna@server.lab:2222/data/farm --ssh openssh",
        "agent join server.lab --idle-timeout 600 --time-limit 7h30m",
        "agent join server.lab --ray head:6379 --ray-token ~/cluster.token --cpus 64",
        "agent join",
    ),
)
@click.argument("where")
@click.option("--name", default=None, help="Name of this agent; default this machine's name.")
@click.option(
    "--cpus",
    type=click.IntRange(1, 4096),
    default=None,
    help="Processors to lend; default all that your other agents here leave.",
)
@click.option(
    "--memory",
    callback=_size,
    metavar="SIZE",
    default=None,
    help="Memory for shards, such as 8GiB; default 80% of all.",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder for its work; default on local disk.",
)
@click.option(
    "--disk",
    callback=_size,
    metavar="SIZE",
    default=None,
    help="Disk for results and pulled inputs; default 50% of what is free, 90% where WHERE is a folder.",
)
@ssh_options
@click.option(
    "--bandwidth",
    callback=_as_written(_rate),
    metavar="SIZE",
    default=None,
    help="Bytes per second at most, both ways together.",
)
@click.option(
    "--have",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=None,
    help="A copy of the sources here: what it has of them, compared by digests, is not pulled.",
)
@click.option(
    "--env", "envs", multiple=True, metavar="NAME=PYTHON", help="An environment for jobs that ask for it; repeatable."
)
@click.option(
    "--gpus",
    callback=_as_written(_labels),
    default="",
    metavar="0,1",
    help="GPUs to lend, as CUDA_VISIBLE_DEVICES names them.",
)
@click.option(
    "--kinds",
    callback=_as_written(taken_kinds.listed),
    default="",
    metavar="cluster,infer",
    help="Kinds of jobs to take; default all.",
)
@click.option("--no-code", is_flag=True, help="Run no code that others wrote: no commands, functions or pickles.")
@click.option("--leave-cores", type=click.IntRange(0, 4095), default=None, help="Processors to leave free.")
@click.option(
    "--hours",
    callback=_as_written(_hours),
    default=None,
    metavar="SPAN",
    help="When to work, such as 20:00-08:00 or 'Mon-Fri 20:00-08:00'; else it pauses.",
)
@click.option(
    "--nice",
    type=click.IntRange(0, 19),
    default=None,
    help="Niceness of what computes; 19 is the kindest.",
)
@click.option(
    "--ionice", type=click.Choice(["normal", "idle"]), default=None, help="With idle, disks are used after all others."
)
@click.option(
    "--pool",
    type=click.Choice(POOL_KINDS),
    default=None,
    envvar="MUSTER_POOL",
    show_envvar=True,
    help="What starts workers; default Ray, and plain processes where it does not start.",
)
@click.option(
    "--ray", default=None, metavar="HOST:PORT", help="Run shards on the nodes of the Ray cluster with this head."
)
@ray_token_option
@click.option(
    "--idle-timeout", callback=_duration, metavar="SECONDS", default=None, help="Leave after so long without work."
)
@click.option(
    "--time-limit",
    callback=_duration,
    metavar="DURATION",
    default=None,
    help="Leave after so long, such as 7h30m; what runs then is finished.",
)
@click.option("--detach", is_flag=True, help="Return as soon as the agent works, and leave it running.")
def command(
    where: str,
    name: str | None,
    cpus: int | None,
    memory: int | None,
    spool: Path | None,
    disk: int | None,
    ssh: Ssh,
    accept_new_host_key: bool,
    program: str | None,
    port: int | None,
    ssh_config: Path | None,
    bandwidth: int | None,
    have: Path | None,
    envs: tuple[str, ...],
    gpus: tuple[str, ...],
    kinds: tuple[str, ...],
    no_code: bool,
    leave_cores: int | None,
    hours: str | None,
    nice: int | None,
    ionice: Literal["normal", "idle"] | None,
    pool: PoolKind | None,
    ray: str | None,
    ray_token: Path | None,
    idle_timeout: float | None,
    time_limit: float | None,
    detach: bool,
) -> int:
    """Work for the coordinator at WHERE until told to leave.

    WHERE is the farm's root folder on this machine, if it has a `/` before any `:` or starts with `.` or `~`;
    else host, user@host, user@host:/root or ssh://user@host:port/root. If it is a host, inputs are pulled over ssh
    into the spool, and kept there while there is room. Without WHERE, or with --name, --spool or --detach alone, it
    joins as last time, with all options of that time.

    After Ctrl-C, SIGTERM or `agent leave` it finishes what runs, pushes what is finished and hands back the rest. A
    second Ctrl-C stops it at once; what is finished then is handed in after the next join. With --idle-timeout or
    --time-limit it leaves by itself, in the same order.
    """
    there = place_of(where, port)
    if isinstance(there, Folder):
        check_root(there)
    name, folder = owners.name_and_folder(name, spool)
    _check_spool(folder, spool is not None)
    pythons = _pythons(envs)
    takes = Takes(kinds, no_code)
    wish = lending.checked(Courtesy(False, None, leave_cores, hours, nice, ionice, elsewhere=ray is not None))
    cluster = _cluster(ray, ray_token, pythons, is_typed("pool"))
    args: list[str] = click.get_current_context().meta[ARGS]
    if detach:
        code = _detach(folder, name, args)
        if code == 0:
            register.note(folder, name, str(there), args, detached=True)
        return code
    options = Options(ssh, accept_new_host_key, program, ssh_config, interactive=sys.stdin.isatty())
    have_copy = _copy(have)
    limits = (cpus, memory, disk, bandwidth)
    ends = (idle_timeout, time_limit)
    wishes = Wishes(name, folder, *limits, pythons, wish, gpus, takes, have_copy, pool, cluster, args, *ends)
    return _join(there, options, wishes)


@dataclass(frozen=True)
class Wishes:
    """What the command line says of this machine; None: the default."""

    name: str
    folder: Path
    cpus: int | None
    memory: int | None
    disk: int | None
    bandwidth: int | None
    pythons: dict[str, str]  # by the name of their environment
    courtesy: Courtesy
    gpus: tuple[str, ...]
    takes: Takes
    have: Path | None  # a copy of the sources
    pool: PoolKind | None  # what starts workers
    cluster: Cluster | None  # whose nodes it uses in place of this machine
    args: list[str]  # all of it, as it was typed
    idle_timeout: float | None  # seconds without work, after which it leaves
    time_limit: float | None  # seconds, after which it leaves


def _copy(folder: Path | None) -> Path | None:
    """A folder that is not there may be mounted yet."""
    if folder is None:
        return None
    found = expand(folder).absolute()
    if not found.is_dir():
        click.echo(f"warning: --have {found}: no such folder; inputs are pulled while there is none", err=True)
    return found


def _cluster(ray: str | None, token: Path | None, pythons: dict[str, str], pool_typed: bool) -> Cluster | None:
    """`pool_typed`: whether --pool is there as well. MUSTER_POOL is for whatever joins here, and no contradiction."""
    from muster.agent.pool import ray_cluster

    check_ray_options(ray, token)
    if ray is None:
        return None
    for option, given in (("--env", pythons), ("--pool", pool_typed)):
        if given:
            raise UsageError(f"{option} is of this machine, and with --ray it runs nothing", f"leave {option} out")
    found = ray_cluster.Cluster(ray_cluster.checked_address(ray), token.absolute() if token is not None else None)
    if found.token is not None:
        ray_cluster.read_token(found.token)
    return found


def _pythons(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, python in map(environments.parse, texts):
        if found.setdefault(name, python) != python:
            raise UsageError(f"--env {name} is named twice", "give each environment a name of its own")
    return found


def _check_spool(folder: Path, asked_for: bool) -> None:
    """Network file systems lose locks and renames: only for who insists."""
    if not asked_for and (shared := owners.network_home()):
        click.echo(f"the home is on a network file system ({shared}): the spool is {folder}", err=True)
    if not (kind := filesystems.network_file_system(folder)):
        return
    if not asked_for:
        raise RefusedError(f"the spool {folder} is on a network file system ({kind})", "name a local one with --spool")
    click.echo(f"warning: the spool {folder} is on a network file system ({kind})", err=True)


class LeftEarly(BaseException):
    """SIGTERM, before there is anything to finish or to hand back."""


def _leave_early(number: int, frame: FrameType | None) -> None:
    raise LeftEarly


def _join(place: Folder | Host, options: Options, wishes: Wishes) -> int:
    spool = spools.Spool(wishes.folder)
    signal.signal(signal.SIGTERM, _leave_early)
    try:
        return _work(place, options, wishes, spool)
    except LeftEarly:
        spool.release()
        click.echo(f"{wishes.name}: left before it joined", err=True)
        return 0


def _work(place: Folder | Host, options: Options, wishes: Wishes, spool: spools.Spool) -> int:
    from muster.agent.process import AgentProcess

    envs = {name: environments.probe(name, python) for name, python in wishes.pythons.items()}
    spool.take(wishes.name, str(place))
    lending.write(spool.path, wishes.courtesy)
    link = open_link(place, options)
    try:
        link.prepare()
    except LinkError as error:
        if not error.retryable:
            raise
        click.echo(f"{wishes.name}: {joined(error.message)}; trying again", err=True)
    register.note(spool.path, wishes.name, str(place), wishes.args)  # not a host that was mistyped
    settings = _of_machine(place, wishes, spool, envs) if wishes.cluster is None else _of_cluster(place, wishes, spool)
    who = settings.who
    lent = f"{units.counted(who.cpus, 'cpu')}, {units.format_size(who.memory)} of memory"
    click.echo(f"{who.name}: {lent}, {units.format_size(who.disk)} of disk in {wishes.folder}", err=True)
    return AgentProcess(settings, spool, link).run()


def _of_machine(
    place: Folder | Host, wishes: Wishes, spool: spools.Spool, envs: Mapping[str, Environment]
) -> AgentSettings:
    """What this machine lends."""
    from muster.agent.host import memory as weigh

    share = CpuShare(owners.cpu_shares(), spool.uuid)
    cores = max(1, lending.cores() - (wishes.courtesy.leave_cores or 0))
    cpus, others = share.take(wishes.name, wishes.cpus, cores)
    if shared := cpu_shares.told(cpus, others, cores):
        click.echo(f"{wishes.name}: {shared}", err=True)
    lends = Lends(cpus, wishes.memory or int(MEMORY_SHARE * weigh.total()), wishes.gpus)
    return _settings(place, wishes, spool, envs, lends, share)


def _of_cluster(place: Folder | Host, wishes: Wishes, spool: spools.Spool) -> AgentSettings:
    """What a cluster has now, and as much of it as it is to lend: one that grows may have more than it has now."""
    from muster.agent.pool import ray_cluster

    assert wishes.cluster is not None
    has, is_open = ray_cluster.look(wishes.cluster)
    now = f"{units.counted(has.nodes, 'node')} with {units.counted(has.cpus, 'cpu')}, {units.counted(has.gpus, 'gpu')}"
    click.echo(f"{wishes.name}: a Ray cluster, now of {now} (Ray {has.version})", err=True)
    if is_open:
        click.echo(f"warning: the Ray cluster at {wishes.cluster.address} obeys everybody who reaches it", err=True)
    cpus = wishes.cpus or max(1, has.cpus)
    memory = wishes.memory or (has.memory * cpus // has.cpus if has.cpus else cpus * NODE_MEMORY)
    gpus = wishes.gpus or tuple(str(number) for number in range(has.gpus))
    return _settings(place, wishes, spool, {}, Lends(cpus, memory, gpus), None)


@dataclass(frozen=True)
class Lends:
    """Of a machine, or of a cluster."""

    cpus: int
    memory: int
    gpus: tuple[str, ...]


def _settings(
    place: Folder | Host,
    wishes: Wishes,
    spool: spools.Spool,
    envs: Mapping[str, Environment],
    lends: Lends,
    share: CpuShare | None,
) -> AgentSettings:
    from muster.agent.process import AgentSettings
    from muster.coordinator.protocol.control import Hello
    from muster.coordinator.protocol.values import PROTOCOL
    from muster.jobs.kinds.registry import kernels
    from muster.jobs.workbench.admission import answers
    from muster.jobs.workbench.fingerprint import fingerprint

    versions = {kind: kernel for kind, kernel in kernels().items() if kind in (wishes.takes.kinds or {kind})}
    disk_share = DISK_SHARE if isinstance(place, Folder) else PULL_DISK_SHARE
    there = shutil.disk_usage(wishes.folder).free + spool.part_bytes() + spool.input_bytes()
    who = Hello(
        protocol=PROTOCOL,
        version=VERSION,
        name=wishes.name,
        spool=spool.uuid,
        process=uuid.uuid4().hex,
        host=owners.host(),
        pid=os.getpid(),
        cpus=lends.cpus,
        memory=lends.memory,
        disk=wishes.disk or int(disk_share * there),
        kernels=versions,
        fingerprint=fingerprint(),
        python=platform.python_version(),
        in_place=isinstance(place, Folder),
        packages=environments.installed(),
        gpus=list(lends.gpus),
        envs={"": environments.own(), **envs},
        kinds=list(wishes.takes.kinds),
        no_code=wishes.takes.no_code,
        names_rest=True,
        answers=answers(versions),
        machine=cpu_shares.machine(),
        cores=os.cpu_count() or 0,
        have=joined(str(wishes.have))[:HAVE_SHOWN] if wishes.have and not isinstance(place, Folder) else "",
        sets_variables=True,
        no_rounds=wishes.cluster is not None,
    )
    packs = place.path / "code" if isinstance(place, Folder) else None
    return AgentSettings(
        who,
        packs,
        wishes.bandwidth,
        wishes.pythons,
        share,
        wishes.have,
        wishes.pool,
        wishes.cluster,
        wishes.idle_timeout,
        wishes.time_limit,
    )


def _detach(folder: Path, name: str, args: list[str]) -> int:
    """The same command again, on its own."""
    from muster.agent.commands.status import state_of

    spools.Spool(folder).make()
    said = folder / "start.log"
    hint = f"see {said}; `agent leave` ends it"
    late = LinkError(f"the agent did not start within {launch.START_SECONDS:.0f} s", hint)
    since: list[float] = []  # when it was first heard of

    def works(pid: int) -> bool:
        state = state_of(folder)
        if state is None or state.pid != pid:
            return False
        since.append(time.monotonic())
        if state.lasting:
            kill_tree(identify(pid))
            raise AccessError(f"{name} has no link: {state.why_idle}", "then join again; nothing is left running")
        if not state.linked and state.why_idle and since[-1] - since[0] > LINK_SECONDS:
            goes_on = f"it tries again by itself (process {pid}); `agent leave` ends it"
            raise LinkError(f"{name} has no link yet: {state.why_idle}", goes_on)
        return state.linked and state.ready

    command = launch.python("muster.agent.cli", "join", *args)
    pid, code = launch.detach(command, said, works, late)
    if code is None:
        click.echo(f"{name} works (process {pid}); `agent status` shows it, `agent leave` ends it")
    return code or 0
