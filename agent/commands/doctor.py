"""`agent doctor`: tries each link of the way to a coordinator, one line each."""

from __future__ import annotations

import logging
import shlex
import sys
from pathlib import Path

import click

from muster.agent.commands.join import DISK_SHARE, PULL_DISK_SHARE
from muster.agent.commands.options import check_ray_options, is_typed, place_of, ray_token_option, ssh_options
from muster.agent.doctor import connection_checks, machine_checks, render
from muster.agent.doctor.checklist import Check, Checklist
from muster.agent.links import Options, Ssh
from muster.agent.spool import owner as owners
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError
from muster.jobs.common.locations import Folder, Host


@click.command(
    epilog=example(
        "agent doctor server.lab",
        "agent doctor anna@server.lab:/data/farm --accept-new-host-key",
        "agent doctor server.lab --no-ray --json",
        "agent doctor server.lab --ray head:6379 --ray-token ~/cluster.token",
    )
)
@click.argument("where")
@click.option("--name", default=None, help="Name of the agent that would join; default this machine's name.")
@click.option(
    "--spool",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder for its work; default on local disk.",
)
@ssh_options
@click.option(
    "--ray", default=None, metavar="HOST:PORT", help="Try the Ray cluster with this head in place of Ray here."
)
@ray_token_option
@click.option("--no-ray", is_flag=True, help="Do not try to start Ray, which takes some seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    where: str,
    name: str | None,
    spool: Path | None,
    ssh: Ssh,
    accept_new_host_key: bool,
    program: str | None,
    port: int | None,
    ssh_config: Path | None,
    ray: str | None,
    ray_token: Path | None,
    no_ray: bool,
    as_json: bool,
) -> int:
    """Try each link of the way to the coordinator at WHERE, from its name to the first bytes pulled, then this
    machine's disk, workers and Ray. For each it says that it passes, or what to put right.

    It joins nothing and leaves nothing behind. WHERE and the options are those of `agent join`. What needs a link that
    failed is not tried. The exit code is that of the first failure, or 0.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # what is said in the log is said by the checks too
    check_ray_options(ray, ray_token)
    if ray is not None and no_ray:
        raise UsageError("--no-ray leaves out what --ray names", "leave one of them out")
    there = place_of(where, port)
    name, folder = owners.name_and_folder(name, spool)
    share = DISK_SHARE if isinstance(there, Folder) else PULL_DISK_SHARE
    options = Options(ssh, accept_new_host_key, program, ssh_config, interactive=sys.stdin.isatty())
    sheet = _examine(there, options, name, machine_checks.SpoolPlace(folder, spool is not None, share), as_json)
    if no_ray:
        sheet.left_out("ray", "--no-ray")
    elif ray is not None:
        machine_checks.try_cluster(sheet, ray, ray_token)
    else:
        machine_checks.try_ray(sheet)
    sheet.close()
    if as_json:
        click.echo(render.as_json(sheet.checks, where, sheet.exit_code))
    else:
        click.echo(render.summary(sheet.checks, _join_command(where)))
    return sheet.exit_code


def _join_command(where: str) -> str:
    """The join that was looked into, with each option that was given to the doctor too."""
    context = click.get_current_context()
    words = ["agent", "join", where]
    for option in context.command.params:
        name, given = option.name or "", context.params.get(option.name or "")
        if isinstance(option, click.Option) and is_typed(name) and name not in ("no_ray", "as_json"):
            words += [option.opts[0]] if option.is_flag else [option.opts[0], str(given)]
    return shlex.join(words)


def _examine(
    there: Folder | Host, options: Options, name: str, place: machine_checks.SpoolPlace, quiet: bool
) -> Checklist:
    """All but Ray."""

    def tell(check: Check) -> None:
        if not quiet:
            click.echo(render.line(check))

    if isinstance(there, Folder):
        sheet = Checklist([*connection_checks.folder_rungs(), *machine_checks.RUNGS], tell)
        connection_checks.visit_folder(sheet, there)
    else:
        visit = connection_checks.visit(there, options, name)
        sheet = Checklist([*visit.rungs(), *machine_checks.RUNGS], tell)
        visit.go(sheet)
    machine_checks.try_disk(sheet, place)
    machine_checks.try_workers(sheet)
    return sheet
