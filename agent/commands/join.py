"""`agent join`: an agent, in the foreground or detached."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import click

from agent import spool as spools
from agent.commands.group import example
from agent.where import Folder, Host, parse
from jobs import units
from jobs.errors import LinkError, NoDaemonError, RefusedError
from jobs.names import check_name

MEMORY_SHARE = 0.8  # of the machine's, by default
DISK_SHARE = 0.9  # of what is free, by default
DETACH_SECONDS = 60.0
# `-m` would put the current folder, here anybody's, before our own packages
_START = "import sys; sys.path[:] = [p for p in sys.path if p]; from agent.cli import main; sys.exit(main())"


def _size(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """Bytes, as people write them."""
    try:
        return None if value is None else units.parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, option) from None


@click.command(epilog=example("agent join /data/farm --name desk --cpus 4", "agent join ./farm --detach"))
@click.argument("where")
@click.option("--name", default=None, help="What this agent is called; default this machine's name.")
@click.option("--cpus", type=click.IntRange(1, 4096), default=None, help="Processors to lend; default all.")
@click.option(
    "--memory",
    callback=_size,
    metavar="SIZE",
    default=None,
    help="Memory for shards, such as 8GiB; default 80% of all.",
)
@click.option("--spool", type=click.Path(path_type=Path), default=None, help="Folder for work; default on local disk.")
@click.option(
    "--disk", callback=_size, metavar="SIZE", default=None, help="Disk for results; default 90% of what is free."
)
@click.option("--detach", is_flag=True, help="Return once it works; it goes on by itself.")
def command(
    where: str,
    name: str | None,
    cpus: int | None,
    memory: int | None,
    spool: Path | None,
    disk: int | None,
    detach: bool,
) -> int:
    """Work for the coordinator at WHERE until told to leave.

    WHERE is the farm's root folder on this machine, if it has a `/` before any `:` or starts with `.` or `~`;
    else host, user@host, user@host:/root or ssh://user@host:port/root.

    Ctrl-C, SIGTERM and `agent leave` let it finish what runs, push what is finished and hand back the rest;
    a second Ctrl-C stops it at once, and what is finished is offered at the next join.
    """
    root = _root(where)
    name = check_name(name or spools.host(), "agent")
    folder = (spool or spools.base() / name).expanduser().absolute()
    _check_spool(folder, spool is not None)
    if detach:
        return _detach(folder, name)
    return _join(root, name, folder, cpus, memory, disk)


def _root(where: str) -> Path:
    match parse(where):
        case Host() as host:
            raise RefusedError(f"joining {host} over ssh is not built yet", "join a root folder on this machine")
        case Folder(path):
            if not (path / "farm.json").is_file():
                raise NoDaemonError(f"{path} is not a farm's root", f"make it with `coordinator serve --root {path}`")
            return path


def _check_spool(folder: Path, asked_for: bool) -> None:
    """Network file systems lose locks and renames: only for who insists."""
    kind = spools.file_system(folder)
    if kind not in spools.NETWORK_FILE_SYSTEMS:
        return
    if not asked_for:
        raise RefusedError(f"the spool {folder} is on a network file system ({kind})", "name a local one with --spool")
    click.echo(f"warning: the spool {folder} is on a network file system ({kind})", err=True)


def _join(root: Path, name: str, folder: Path, cpus: int | None, memory: int | None, disk: int | None) -> int:
    from importlib.metadata import version

    from agent import weigh
    from agent.links.pipe import PipeLink
    from agent.main import Agent, Settings

    spool = spools.Spool(folder)
    spool.take(name, str(root))
    settings = Settings(
        name=name,
        host=spools.host(),
        cpus=cpus or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)),
        memory=memory or int(MEMORY_SHARE * weigh.total()),
        disk=disk or int(DISK_SHARE * (spools.free_bytes(folder) + spool.part_bytes())),
        version=version("muster"),
    )
    return Agent(settings, spool, PipeLink(root), root / "code").run()


def _detach(folder: Path, name: str) -> int:
    """The same command again, on its own."""
    args = [arg for arg in sys.argv[1:] if arg != "--detach"]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    said = folder / "start.log"
    with said.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-c", _START, *args], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + DETACH_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            sys.stderr.write(said.read_text(errors="replace"))
            return child.returncode
        if _works(folder, child.pid):
            child.returncode = 0  # it is on its own now: nobody waits for it
            click.echo(f"{name} works (process {child.pid}); `agent status` shows it, `agent leave` ends it")
            return 0
        time.sleep(0.05)
    raise LinkError(f"the agent did not start within {DETACH_SECONDS:.0f} s", f"see {said}; `agent leave` ends it")


def _works(folder: Path, pid: int) -> bool:
    from agent.commands.status import state_of

    state = state_of(folder)
    return state is not None and state.pid == pid and state.linked and state.ready
