"""A program's outside: whatever ends it as an exit code and two lines for people. Knows no command, decides nothing."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.jobs.common.errors import INTERRUPTED_EXIT, MusterError, UsageError, report, report_bug

if TYPE_CHECKING:
    import click

BROKEN_PIPE_EXIT = 141


def exit_code(run: Callable[[], int]) -> int:
    """Of a program that does `run`."""
    try:
        code = run()
        sys.stdout.flush()
        return code
    except MusterError as error:
        return report(error)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    except BrokenPipeError:
        return _quiet()
    except Exception as error:
        return report_bug(error)


def invoke(group: click.Group, args: list[str]) -> int:
    """Call the command that `args` name; what is wrong with them is a UsageError."""
    import click

    name = group.name or ""
    _never_fail_to_print()
    try:
        with group.make_context(name, args) as context:
            made = group.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.Abort:
        return INTERRUPTED_EXIT
    except click.ClickException as error:
        context_of = getattr(error, "ctx", None)
        hint = getattr(error, "hint", None) or f"see `{context_of.command_path if context_of else name} --help`"
        raise UsageError(error.format_message(), hint) from None
    return made if isinstance(made, int) else 0


def _never_fail_to_print() -> None:
    """A terminal that lacks a character gets a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _quiet() -> int:
    """The reader of our output went away; the interpreter's own flush at exit must not complain either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE_EXIT
