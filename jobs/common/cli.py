"""A program's group of commands: lists them without importing any, suggests the nearest name. Runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from muster import VERSION
from muster.jobs.common.program import completion_variable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """`sections`: what stands above some commands → their names and lines of help. Those under "" are not listed: they
    are run by programs. `load` imports one of them."""

    def __init__(
        self, name: str, help: str, sections: Mapping[str, Mapping[str, str]], load: Callable[[str], click.Command]
    ) -> None:
        super().__init__(name, help=help, context_settings={"help_option_names": ["-h", "--help"]})
        self._sections = sections
        self._shorts = {name: line for part in sections.values() for name, line in part.items()}
        self._load = load
        click.version_option(VERSION, message="muster %(version)s")(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._shorts)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._load(cmd_name) if cmd_name in self._shorts else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if ctx.resilient_parsing and name not in self._shorts:
            return None, None, args
        if name in self._shorts or name.startswith("-"):
            return super().resolve_command(ctx, args)
        error = click.UsageError(f"there is no command {name!r}", ctx)
        if near := get_close_matches(name, self._shorts, 1):
            error.hint = f"did you mean `{ctx.command_path} {near[0]}`?"  # type: ignore[attr-defined]
        raise error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._shorts))
        for title, part in self._sections.items():
            if title:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(width), line) for name, line in part.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As the base class has it, without importing every command for its line of help."""
        from click.shell_completion import CompletionItem

        listed = [line for title, part in self._sections.items() if title for line in part.items()]
        found = [CompletionItem(name, help=line) for name, line in listed if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


def completion_script(program: str, shell: str) -> str:
    """What a shell reads to complete the words of a program."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, f"click knows no {shell}"
    return found(click.Command(program), {}, program, completion_variable(program)).source()


def complete(group: click.Group, program: str, instruction: str) -> int:
    """Answer a shell that completes a word, as such a script asks. Where that fails nothing is completed: a traceback
    would stand in the middle of what somebody types."""
    from click.shell_completion import shell_complete

    with suppress(Exception):
        shell_complete(group, {}, program, completion_variable(program), instruction)
    return 0


def example(*lines: str) -> str:
    """The end of a command's --help, as typed."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
