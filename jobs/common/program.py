"""A program's outside: its commands, found when they are called, and whatever ends it as an exit code and two lines for
people. Knows no command, decides nothing."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from muster.jobs.common.errors import (
    INTERRUPTED_EXIT,
    MusterError,
    RefusedError,
    SpaceError,
    UsageError,
    report,
    report_bug,
)

if TYPE_CHECKING:
    import click

BROKEN_PIPE_EXIT = 141


class Program(NamedTuple):
    """One whose commands are a module each, imported when it is called."""

    name: str
    help: str
    commands: Mapping[str, str]  # name → its line of help
    package: str  # of the commands' modules
    place: tuple[str, ...]  # of the commands' options in a configuration

    def main(self, argv: list[str] | None = None) -> int:
        """The exit code of `NAME ARGV`; `argv` is None for what it was started with."""
        args = sys.argv[1:] if argv is None else argv
        return exit_code(lambda: invoke(self.group(), args), wants_json(args))

    def group(self) -> click.Group:
        """All commands in one, which may stand below another."""
        from muster.jobs.common.cli import LazyGroup

        return LazyGroup(self.name, self.help, {"Commands": self.commands}, self.load, self.place)

    def load(self, name: str) -> click.Command:
        """The click command called `name`."""
        command: click.Command = import_module(f"{self.package}.{name}").command
        return command


def wants_json(args: Sequence[str]) -> bool:
    """Whether a command line asks for JSON. Looked up before it is read, as it may be what is wrong."""
    return "--json" in args[: args.index("--") if "--" in args else None]


def exit_code(run: Callable[[], int], as_json: bool = False) -> int:
    """Of a program that does `run`. `as_json`: an error is a document on stdout too."""
    _open_what_is_closed()
    try:
        code = run()
        sys.stdout.flush()
        return code
    except MusterError as error:
        return report(error, as_json)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    except BrokenPipeError:
        return _quiet()
    except Exception as error:
        known = _known(error)
        return report(known, as_json) if known is not None else report_bug(error, as_json)


def _open_what_is_closed() -> None:
    """Nothing in place of a standard stream that is closed: the next file or socket of ours would come to stand there,
    and be printed into. What is printed to a closed stdout is an error; what is said on a closed stderr is not."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "r"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _known(error: Exception) -> MusterError | None:
    """What may befall any program, whatever it does."""
    from muster.jobs.common.durable import is_full

    if isinstance(error, io.UnsupportedOperation) and not sys.stdout.writable():
        return UsageError("stdout is closed: there is nowhere to print to", "write `>/dev/null` for nowhere")
    if isinstance(error, OSError) and is_full(error):
        _quiet()  # it may be our output's
        return SpaceError(f"a disk is full: {error}", "make room on that disk, then start it again")
    no_thread = isinstance(error, RuntimeError) and str(error) == "can't start new thread"
    if no_thread or (isinstance(error, OSError) and error.errno == errno.EAGAIN):
        why = "this account may start no more processes or threads here"
        return RefusedError(why, "see `ulimit -u`: raise it, or end other programs")
    return None


def invoke(group: click.Group, args: list[str]) -> int:
    """Call the command that `args` name; what is wrong with them is a UsageError."""
    import click

    name = group.name or ""
    _never_fail_to_print()
    if instruction := os.environ.get(completion_variable(name)):
        from muster.jobs.common.cli import complete

        return complete(group, name, instruction)
    try:
        with group.make_context(name, args) as context:
            made = group.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.Abort:
        return INTERRUPTED_EXIT
    except click.ClickException as error:
        context_of = getattr(error, "ctx", None)
        if isinstance(error, click.NoSuchOption) and error.option_name == "--at":
            here = context_of.command_path if context_of else name
            raise UsageError(f"`{here}` is of this machine alone", "type it there, without --at") from None
        hint = getattr(error, "hint", None) or f"see `{context_of.command_path if context_of else name} --help`"
        if isinstance(error, click.BadParameter):
            from muster.jobs.common.cli import where_it_stands

            hint = where_it_stands(error) or hint
        raise UsageError(error.format_message(), hint) from None
    return made if isinstance(made, int) else 0


def completion_variable(program: str) -> str:
    """By which a shell says what it wants to have completed; set by no one else."""
    return f"_{program.upper()}_COMPLETE"


def _never_fail_to_print() -> None:
    """A terminal that lacks a character gets a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _quiet() -> int:
    """The reader of our output went away; the interpreter's own flush at exit must not complain either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE_EXIT
