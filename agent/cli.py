"""`agent`: finds the command and shows its errors. Imports a command only when it is called."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from jobs.errors import INTERRUPTED_EXIT, MusterError, UsageError, report, report_bug

if TYPE_CHECKING:
    import click

COMMANDS = {
    "join": "Work for a coordinator until told to leave.",
    "doctor": "Try each link of the way to a coordinator, and say what to put right.",
    "pause": "Stop an agent of this machine where it is; nothing is lost.",
    "resume": "Let a paused agent go on.",
    "set": "Change what an agent may use of this machine, at once.",
    "leave": "End an agent of this machine in good order.",
    "status": "Show this machine's agents.",
}
BROKEN_PIPE_EXIT = 141


def main(argv: list[str] | None = None) -> int:
    """The exit code of `agent ARGV`."""
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except MusterError as error:
        return report(error)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE_EXIT
    except Exception as error:
        return report_bug(error)


def _run(args: list[str]) -> int:
    import click

    from agent.commands.group import make_group

    try:
        with make_group(COMMANDS).make_context("agent", args or ["--help"]) as context:
            made = context.command.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.Abort:
        return INTERRUPTED_EXIT
    except click.ClickException as error:
        context_of = getattr(error, "ctx", None)
        hint = getattr(error, "hint", None) or f"see `{context_of.command_path if context_of else 'agent'} --help`"
        raise UsageError(error.format_message(), hint) from None
    return made if isinstance(made, int) else 0


def load(name: str) -> click.Command:
    """The click command called `name`."""
    command: click.Command = import_module(f"agent.commands.{name}").command
    return command
