"""Links: ways to reach a coordinator. A link opens channels, each a byte stream to one `coordinator connect`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from muster.agent.links.base import Link
    from muster.jobs.common.locations import Folder, Host

Ssh = Literal["auto", "paramiko", "openssh"]


@dataclass(frozen=True)
class Options:
    """How to reach a host by ssh; nothing of it matters for a folder."""

    ssh: Ssh = "auto"
    accept_new_host_key: bool = False
    command: str | None = None  # the program there; None: `coordinator`, else the launcher in the root
    config: Path | None = None  # in place of ~/.ssh/config and the system's
    interactive: bool = False  # whether a person may be asked on the terminal


def client_for(where: Host, options: Options) -> Literal["paramiko", "openssh"]:
    """What makes the connection: ours, unless the configuration wants of this host what only the system's ssh can. A
    UsageError where the configuration cannot be read."""
    if options.ssh != "auto":
        return options.ssh
    from muster.agent.links.ssh_config import Config

    return "openssh" if Config(options.config).target(where).needs else "paramiko"


def open_link(where: Folder | Host, options: Options | None = None) -> Link:
    """The link to `where`; nothing is connected yet. paramiko is imported for nothing but its own link."""
    from muster.jobs.common.locations import Folder

    chosen = options or Options()
    if isinstance(where, Folder):
        from muster.agent.links.local import PipeLink

        return PipeLink(where.path)
    if client_for(where, chosen) == "openssh":
        from muster.agent.links.openssh import OpensshLink

        return OpensshLink(where, chosen.config, chosen.command, chosen.accept_new_host_key, chosen.interactive)
    from muster.agent.links.paramiko_ssh.link import ParamikoLink
    from muster.agent.links.ssh_config import Config

    config = Config(chosen.config)
    return ParamikoLink(where, config, chosen.command, chosen.accept_new_host_key, chosen.interactive)
