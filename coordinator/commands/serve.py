"""`coordinator serve`: the daemon, in the foreground or detached."""

from __future__ import annotations

import getpass
import os
import platform
from pathlib import Path

import click

from muster.coordinator.commands.options import root_option, say
from muster.coordinator.connect.strict_modes import key_obstacles
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.scheduler.timing import Timing
from muster.jobs.common import launch
from muster.jobs.common.cli import example
from muster.jobs.common.errors import LinkError, RefusedError
from muster.jobs.common.ssh import quote

SHORTEST = click.FloatRange(min=0.01)


@click.command(epilog=example("coordinator serve --root /data/farm --detach", "agent join /data/farm"))
@root_option
@click.option("--detach", is_flag=True, help="Return as soon as the coordinator answers, and leave it running.")
@click.option("--quiet", is_flag=True, hidden=True)  # what --detach starts: nobody reads its stderr
@click.option("--lease", type=SHORTEST, default=Timing.lease, hidden=True)  # these three, in seconds, are for tests
@click.option("--heartbeat", type=SHORTEST, default=Timing.heartbeat, hidden=True)
@click.option("--tick", type=SHORTEST, default=Timing.tick, hidden=True)
def command(root: Path | None, detach: bool, quiet: bool, lease: float, heartbeat: float, tick: float) -> int:
    """Run the coordinator of a farm; makes the farm's root where there is none.

    In the foreground, Ctrl-C stops it. Jobs outlive it: the next `coordinator serve` goes on with them.
    """
    found = roots.prepare(roots.find(root).path)
    for line in key_obstacles(Path.home(), os.getuid()):
        click.echo(f"warning: sshd will let no machine in by a key, as {line}", err=True)
    if detach:
        return _detach(found, ["--quiet", "--lease", str(lease), "--heartbeat", str(heartbeat), "--tick", str(tick)])
    from muster.coordinator.daemon.serve import serve

    return serve(found.path, Timing(lease, heartbeat, tick), quiet)


def _detach(found: Root, options: list[str]) -> int:
    if ask_daemon.answers(found):
        raise RefusedError(f"{found.path} is served already", "`coordinator stop` ends it")
    late = LinkError(f"the coordinator did not answer within {launch.START_SECONDS:.0f} s", f"see {found.log}")
    command = [*roots.command("serve", found.path), *options]
    pid, code = launch.detach(command, found.start_log, lambda _: ask_daemon.answers(found), late, cwd="/")
    if code is None:
        say(serving(found.path, pid, _login()))
    return code or 0


def serving(root: Path, pid: int, login: str) -> str:
    """What is said once it answers: for each place a machine may be, the command to paste there. With the root in it,
    `coordinator` need not be on the PATH that sshd gives."""
    return "\n".join(
        [
            f"serving {root} (process {pid}). For a machine to work for it, type on this one",
            f"  agent join {quote(os.fspath(root))} --detach",
            "and on any other, which gets in here by ssh",
            f"  agent join {quote(f'{login}:{root}')} --detach",
        ]
    )


def _login() -> str:
    """What another machine most likely calls this account by."""
    try:
        return f"{getpass.getuser()}@{platform.node()}"
    except (KeyError, OSError):  # an account that has no name, as in a container
        return platform.node()
