"""`deploy add`: one machine more, in the inventory and in the farm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from muster.coordinator.farm_root import paths as roots
from muster.deploy import inventory
from muster.deploy.commands import up
from muster.deploy.commands.options import (
    Asked,
    check_option,
    deploy_options,
    farm_of,
    file_of,
    fingerprints_option,
    site,
    wheelhouse_option,
)
from muster.deploy.rollout import alone
from muster.jobs.common.cli import example
from muster.jobs.common.durable import write_durably
from muster.jobs.common.errors import UsageError
from muster.jobs.job_file import yaml_text


@click.command(epilog=example("deploy add lab9 ssh=cy@10.0.0.19 cpus=4", "deploy add dmz ssh=dee@dmz reach=in --check"))
@deploy_options
@check_option
@fingerprints_option
@wheelhouse_option
def command(asked: Asked, dry: bool, fingerprints: Path | None, wheelhouse: Path | None) -> int:
    """Put one machine more into the inventory, and bring it as `up` does. Jobs go on meanwhile, and use it at once.

    After its NAME come its fields as FIELD=VALUE, each as in the inventory; `ssh` is required. The file gets one
    line; all else in it stays as it is. If the machine fails, it stays in the inventory, and `deploy up NAME` goes on.
    """
    if len(asked.names) < 2:
        raise UsageError("add wants a name and how to reach it", "deploy add lab9 ssh=cy@10.0.0.19")
    name, *words = asked.names
    path = file_of(asked).resolve()
    with alone(roots.existing(farm_of(asked, inventory.read(path)).path)):
        text = inventory.text_of(path)
        made = inventory.with_machine(text, path, name, dict(map(_field, words)))
        if not dry:
            write_durably(path, made.encode(), mode=path.stat().st_mode & 0o777)
        with site(replace(asked, names=(name,)), wheelhouse, inventory.parse_inventory(made, path)) as found:
            return up.bring(found, asked, dry, fingerprints)


def _field(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals:
        raise UsageError(f"{word!r:.80}: expected FIELD=VALUE", "deploy add lab9 ssh=cy@10.0.0.19 cpus=4")
    return name, yaml_text.load(value, f"{name:.40}=").value
