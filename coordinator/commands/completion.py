"""`coordinator completion`: the script by which a shell completes words of our programs."""

from __future__ import annotations

import click

from muster.coordinator.commands.options import say
from muster.jobs.common.cli import completion_script, example

SHELLS = ("bash", "zsh", "fish")
PROGRAMS = ("muster", "coordinator", "agent", "deploy")


@click.command(
    epilog=example(
        "coordinator completion bash >> ~/.bashrc",
        "coordinator completion zsh >> ~/.zshrc",
        "coordinator completion fish > ~/.config/fish/conf.d/muster.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print a script with which a shell completes commands, options, and the names of jobs and machines.

    It is for `muster`, `coordinator`, `agent` and `deploy`, in bash from 4.4 on, zsh and fish. A new shell has it once
    it is in the file that the shell reads at its start.
    """
    say("\n".join(completion_script(program, shell) for program in PROGRAMS))
