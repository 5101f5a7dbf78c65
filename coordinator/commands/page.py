"""`coordinator page`: the farm, live, in a browser."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path

import click

from muster.coordinator.commands.farm_meant import farm_meant
from muster.coordinator.commands.options import json_option, place_options, say
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError
from muster.jobs.common.locations import Host


@click.command(epilog=example("coordinator page", "coordinator page me@server", "coordinator page --port 9000"))
@click.argument("where", metavar="[WHERE]", required=False)
@click.option("--port", type=click.IntRange(1, 65_535), help="Where it listens; default the first free from 8470 on.")
@click.option("--ssh-config", type=click.Path(path_type=Path), metavar="FILE", help="Of WHERE: as `ssh -F` takes it.")
@click.option("--until-eof", is_flag=True, hidden=True)
@place_options
@json_option
def command(
    where: str | None,
    port: int | None,
    ssh_config: Path | None,
    until_eof: bool,
    place: Host | Path | None,
    as_json: bool,
) -> int:
    """Serve a page that shows the farm live: machines, jobs, one job, one machine, one shard. Until Ctrl-C.

    It listens on this machine alone, and only who has the address with its secret may read it; nothing can be changed
    there. With WHERE (or --at), such as me@server, the page of a farm there is shown here, by the system's ssh.
    """
    context = click.get_current_context()
    if where is not None:
        if context.params["root"] is not None or context.params["at"] is not None:
            wrong = "WHERE names a farm, and --root or --at another"
            raise UsageError(wrong, "give one of them; a root elsewhere is named so: me@server:/root")
        place = farm_meant(where, None)
    if isinstance(place, Host):
        return _far(place, port, ssh_config, as_json)
    if ssh_config is not None:
        raise UsageError("--ssh-config is for a farm elsewhere", "name it, such as `coordinator page me@server`")
    return _here(roots.existing(place), port, until_eof, as_json)


def _here(root: roots.Root, port: int | None, until_eof: bool, as_json: bool) -> int:
    from muster.coordinator.page.server import Page, said

    page = Page(root, port)
    there, here = f"{getpass.getuser()}@{socket.gethostname()}", page.place.port
    tunnel = f"ssh -N -L {here}:127.0.0.1:{here} {there}"
    if as_json:
        say(said(page.place, {"tunnel": tunnel}))
    else:
        say(f"{page.place.url}\nelsewhere, first `{tunnel}`; Ctrl-C ends the page")
    page.serve(until_eof)
    return 0


def _far(host: Host, port: int | None, config: Path | None, as_json: bool) -> int:
    from muster.coordinator.client.backends.ssh import Ssh
    from muster.coordinator.page import far
    from muster.coordinator.page.server import said

    with far.page_of(Ssh(host, config), port) as (place, talk):
        say(said(place, {}) if as_json else f"{place.url}\nCtrl-C ends the page")
        far.follow(talk)
    return 0
