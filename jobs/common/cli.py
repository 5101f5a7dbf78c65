"""A program's group of commands: lists them without importing any, suggests the nearest name. Runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

import click

from muster import VERSION


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


def example(*lines: str) -> str:
    """The end of a command's --help, as typed."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
