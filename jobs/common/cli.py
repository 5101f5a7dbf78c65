"""A program's group of commands: lists them without importing any, suggests the nearest name. Runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

import click

from muster import VERSION


class LazyGroup(click.Group):
    """`shorts`: every command's name and its line of help; `load` imports one of them."""

    def __init__(self, name: str, help: str, shorts: Mapping[str, str], load: Callable[[str], click.Command]) -> None:
        super().__init__(name, help=help, context_settings={"help_option_names": ["-h", "--help"]})
        self._shorts = shorts
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
        if name in self._shorts or name.startswith("-"):
            return super().resolve_command(ctx, args)
        error = click.UsageError(f"there is no command {name!r}", ctx)
        if near := get_close_matches(name, self._shorts, 1):
            error.hint = f"did you mean `{ctx.command_path} {near[0]}`?"  # type: ignore[attr-defined]
        raise error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._shorts.items()))


def example(*lines: str) -> str:
    """The end of a command's --help, as typed."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
