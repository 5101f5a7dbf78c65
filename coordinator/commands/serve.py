"""`coordinator serve`: the daemon, in the foreground or detached."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.api.requests import StatusAsk
from muster.coordinator.api.status import Status
from muster.coordinator.commands.options import root_option, say
from muster.coordinator.farm_root import ask_daemon
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.scheduler.timing import Timing
from muster.jobs.common import launch
from muster.jobs.common.cli import example
from muster.jobs.common.errors import LinkError, NoDaemonError, RefusedError

_LAUNCHER = "over ssh, where `coordinator` is not on the PATH there: `agent join HOST --command {}`"
SHORTEST = click.FloatRange(min=0.01)


@click.command(epilog=example("coordinator serve --root /data/farm --detach", "agent join /data/farm"))
@root_option
@click.option("--detach", is_flag=True, help="Return once it answers; it goes on by itself.")
@click.option("--quiet", is_flag=True, hidden=True)  # what --detach starts: nobody reads its stderr
@click.option("--lease", type=SHORTEST, default=Timing.lease, hidden=True)  # these three, in seconds, are for tests
@click.option("--heartbeat", type=SHORTEST, default=Timing.heartbeat, hidden=True)
@click.option("--tick", type=SHORTEST, default=Timing.tick, hidden=True)
def command(root: Path | None, detach: bool, quiet: bool, lease: float, heartbeat: float, tick: float) -> int:
    """Run the coordinator of a farm, making its root where there is none.

    In the foreground, Ctrl-C stops it. Jobs outlive it: the next one goes on.
    """
    found = roots.prepare(roots.find(root).path)
    if detach:
        return _detach(found, ["--quiet", "--lease", str(lease), "--heartbeat", str(heartbeat), "--tick", str(tick)])
    from muster.coordinator.daemon.serve import serve

    return serve(found.path, Timing(lease, heartbeat, tick), quiet)


def _detach(found: Root, options: list[str]) -> int:
    if _answers(found):
        raise RefusedError(f"{found.path} is served already", "`coordinator stop` ends it")
    late = LinkError(f"the coordinator did not answer within {launch.START_SECONDS:.0f} s", f"see {found.log}")
    command = [*roots.command("serve", found.path), *options]
    pid, code = launch.detach(command, found.start_log, lambda _: _answers(found), late, cwd="/")
    if code is None:
        say(f"serving {found.path} (process {pid}); machines join it with `agent join {found.path}`")
        say(_LAUNCHER.format(found.launcher))
    return code or 0


def _answers(found: Root) -> bool:
    try:
        ask_daemon.ask(found, StatusAsk(), Status)
    except (NoDaemonError, LinkError):
        return False
    return True
