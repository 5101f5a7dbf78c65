"""The group of all commands, and what they share: lists them without importing any, suggests the nearest name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

import click

HELP = "Lend this machine's processors to a farm."


class LazyGroup(click.Group):
    """`shorts`: every command's name and its line of help."""

    def __init__(self, shorts: Mapping[str, str]) -> None:
        super().__init__("agent", help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
        self._shorts = shorts

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._shorts)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from agent.cli import load

        return load(cmd_name) if cmd_name in self._shorts else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self._shorts or name.startswith("-"):
            return super().resolve_command(ctx, args)
        error = click.UsageError(f"there is no command {name!r}", ctx)
        if near := get_close_matches(name, self._shorts, 1):
            error.hint = f"did you mean `agent {near[0]}`?"  # type: ignore[attr-defined]
        raise error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._shorts.items()))


def make_group(shorts: Mapping[str, str]) -> LazyGroup:
    return LazyGroup(shorts)


def example(*lines: str) -> str:
    """The end of a command's --help, as typed."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
