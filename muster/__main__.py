"""`muster`, and `python -m muster`: the coordinator's commands, the agent's and deploy's beside them. Alone knows all
programs."""

from __future__ import annotations

import sys

from muster import forget_current_folder

if __name__ == "__main__":
    forget_current_folder()

from typing import TYPE_CHECKING

from muster.agent import cli as agent
from muster.coordinator import cli as coordinator
from muster.deploy import cli as deploy

if TYPE_CHECKING:
    import click

SHORT = "Put agents onto the machines of an inventory, and keep them at work."
SECTIONS = {
    **coordinator.SECTIONS,
    coordinator.MACHINES: {
        "join": agent.COMMANDS["join"],
        "agent": agent.HELP,
        "deploy": SHORT,
        **coordinator.SECTIONS[coordinator.MACHINES],
    },
}
COMMANDS = {name: line for part in SECTIONS.values() for name, line in part.items()}
ELSEWHERE = {"join": ("agent", "join")}  # in a configuration: `muster join` is `agent join`


def main(argv: list[str] | None = None) -> int:
    """The exit code of `muster ARGV`."""
    return coordinator.run("muster", SECTIONS, load, argv, ELSEWHERE)


def load(name: str) -> click.Command:
    """The click command called `name`."""
    if name == "agent":
        return agent.group()
    if name == "deploy":
        return deploy.group()
    return agent.load(name) if name == "join" else coordinator.load(name)


if __name__ == "__main__":
    sys.exit(main())
