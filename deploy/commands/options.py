"""What the commands share: their options, the farm they are about, the table at their end."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import click

from muster.coordinator.commands.options import json_option, root_option, say, say_json
from muster.coordinator.display.colours import state
from muster.coordinator.display.tables import table
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.deploy import inventory
from muster.deploy.connection import Connections
from muster.deploy.inventory import Inventory, Machine
from muster.deploy.rollout import KNOWN_HOSTS, MachineOutcome, Rollout, StepResult
from muster.jobs.common.errors import UsageError
from muster.jobs.common.validation import one_line

AT_ONCE = 16
INVENTORY = "inventory.yaml"  # in a root
_OPTIONS = (
    click.argument("names", nargs=-1, metavar="[NAME]..."),
    root_option,
    click.option(
        "--inventory",
        "file",
        type=click.Path(path_type=Path),
        default=None,
        help="File with the machines; default inventory.yaml in the root.",
    ),
    click.option(
        "--ssh-config",
        type=click.Path(path_type=Path),
        default=None,
        help="Read this in place of ~/.ssh/config.",
    ),
)
_OF_MANY = (
    click.option("-j", "at_once", type=click.IntRange(1, 256), default=AT_ONCE, help="Machines at a time; default 16."),
    json_option,
)


check_option = click.option("--check", "dry", is_flag=True, help="Say what would change, and touch nothing.")
fingerprints_option = click.option(
    "--fingerprints",
    type=click.Path(path_type=Path),
    default=None,
    help="File with fingerprints of host keys (`ssh-keygen -lf`) to trust without a question.",
)
wheelhouse_option = click.option(
    "--wheelhouse",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=None,
    help="Folder of wheels for machines that have no index of packages.",
)


@dataclass(frozen=True)
class Asked:
    """Which machines, of which farm, and how it is told."""

    names: tuple[str, ...]
    root: Path | None
    file: Path | None
    ssh_config: Path | None
    at_once: int = 1
    as_json: bool = False


def machine_options(command: Callable[..., int], more: Sequence[Callable[..., Any]] = ()) -> Callable[..., int]:
    """What all commands are asked comes to this one as `Asked`, before options of its own."""

    @wraps(command)
    def gathered(**given: Any) -> int:
        asked = Asked(**{field.name: given.pop(field.name) for field in fields(Asked) if field.name in given})
        return command(asked, **given)

    told: Callable[..., int] = gathered
    for option in reversed([*_OPTIONS, *more]):
        told = option(told)
    return told


def deploy_options(command: Callable[..., int]) -> Callable[..., int]:
    """The same for a command of many machines, which tells what came of each."""
    return machine_options(command, _OF_MANY)


@dataclass(frozen=True)
class DeploySite:
    """What a command works on."""

    inventory: Inventory
    machines: Sequence[Machine]
    connections: Connections
    rollout: Rollout


def file_of(asked: Asked) -> Path:
    """Where the inventory is."""
    return asked.file or roots.existing(asked.root).path / INVENTORY


def farm_of(asked: Asked, found: Inventory) -> Root:
    """The farm that is meant: the command line, the inventory and where that lies may each say so, and not two things.
    It need not exist."""
    said = found.server.farm
    lies_in = None if asked.file else roots.find(asked.root).path
    for other in (roots.find(asked.root).path if asked.root else None, lies_in):
        if said is not None and other is not None and said.resolve() != other.resolve():
            hint = "leave --root out, or correct `root:` below `server:`"
            raise UsageError(f"{found.path} is of the farm in {said}, and not of the one in {other}", hint)
    return roots.find(asked.root or said)


@contextmanager
def site(
    asked: Asked,
    wheelhouse: Path | None = None,
    given: Inventory | None = None,
    makes: Literal["", "trial", "farm"] = "",
) -> Iterator[DeploySite]:
    """The inventory read, unless it is given, and nothing connected yet. `makes`: a farm where there is none, or one to
    look at for as long as this lasts, if the inventory wants its coordinator kept at work."""
    found = given or inventory.read(file_of(asked))
    farm, machines = farm_of(asked, found), found.named(asked.names)
    # 0700, and short: it has sockets, of which threads may make one at any time
    with tempfile.TemporaryDirectory(prefix="muster-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if makes and found.server.service != "none" and not farm.path.exists():
            farm = roots.prepare(farm.path if makes == "farm" else folder / "root")
        connections = Connections(folder, farm.path / KNOWN_HOSTS, asked.ssh_config)
        rollout = Rollout(roots.existing(farm.path), found, connections, wheelhouse, folder)
        try:
            yield DeploySite(found, machines, connections, rollout)
        finally:
            connections.close()


def teller(as_json: bool) -> Callable[[str, StepResult], None]:
    """Says each step that is not as it was, on stderr, as it happens: words of machines, none of which may steer us."""

    def tell(machine: str, done: StepResult) -> None:
        if done.state != "ok" and not as_json:
            click.echo(one_line(f"{machine}: {done.name}: {done.state}: {done.said}"), err=True)
            if done.hint:
                click.echo(f"{'':4}hint: {one_line(done.hint)}", err=True)

    return tell


def finish(outcomes: Sequence[MachineOutcome], as_json: bool) -> int:
    """The table, and the exit code: 1 if any machine failed."""
    if as_json:
        say_json({"machines": list(outcomes)})
    elif outcomes:
        rows = [(one.machine, _coloured(one.state), _short(one.said)) for one in outcomes]
        say(table(("MACHINE", "STATE", "WHAT"), rows))
    else:
        say("the inventory has no machines")
    sys.stdout.flush()
    return 1 if any(one.state == "failed" for one in outcomes) else 0


def _coloured(outcome: str) -> str:
    """As the states of a machine's agent are."""
    return state(outcome, {"ok": "live", "changed": "running", "would change": "waiting"}.get(outcome))


def _short(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
