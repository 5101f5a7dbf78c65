"""A program's group of commands: lists them without importing any, suggests the nearest name, gives options what is
configured of them. Runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from muster import VERSION
from muster.jobs.common import configuration
from muster.jobs.common.program import completion_variable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


WORDS = "words as typed"  # in a context's meta: what was typed behind the command's name
TYPED_ALONE = frozenset({"yes", "json", "at", "root", "parcel"})  # consent, a place, and what programs count on
_SOURCES = "source of"  # the same, of an option's value that was not typed: where it stands


class LazyGroup(click.Group):
    """`sections`: what stands above some commands → their names and lines of help. Those under "" are not listed: they
    are run by programs. `load` imports one of them. `place`: where their options stand in a configuration; `elsewhere`
    has those that stand elsewhere, and `others` what else may stand beside them."""

    def __init__(
        self,
        name: str,
        help: str,
        sections: Mapping[str, Mapping[str, str]],
        load: Callable[[str], click.Command],
        place: tuple[str, ...] = (),
        elsewhere: Mapping[str, tuple[str, ...]] | None = None,
        others: tuple[str, ...] = (),
    ) -> None:
        super().__init__(name, help=help, context_settings={"help_option_names": ["-h", "--help"]})
        self._place, self._elsewhere, self._others = place, elsewhere or {}, others
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
            found = super().resolve_command(ctx, args)
            if found[1] is not None and not ctx.resilient_parsing:
                self._configure(ctx, name, found[1])
                ctx.meta[WORDS] = list(found[2])  # click takes its own to pieces
            return found
        error = click.UsageError(f"there is no command {name!r}", ctx)
        if near := get_close_matches(name, self._shorts, 1):
            error.hint = f"did you mean `{ctx.command_path} {near[0]}`?"  # type: ignore[attr-defined]
        raise error

    def _configure(self, ctx: click.Context, name: str, command: click.Command) -> None:
        """Let the command's options have what variables and files say, under the names that they have when typed."""
        own = [one for one in self._shorts if one not in self._elsewhere]
        files = configuration.files()
        for file in files:
            file.check(self._place, [*own, *self._others], "command")
        if isinstance(command, LazyGroup):
            return
        place = self._elsewhere.get(name, (*self._place, name))
        given = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        options = {known: one for one in given if (known := _long(one)) not in TYPED_ALONE}
        for known, option in options.items() if configuration.is_heard() else ():
            _name_variable(option, place, known)
        values: dict[str, Any] = {}
        for file in files:
            file.check(place, options, "option")
            for key in file.section(place):
                values[str(options[key].name)] = file.words(place, key, options[key].multiple)
                ctx.meta[f"{_SOURCES}.{options[key].name}"] = f"`{'.'.join([*place, key])}` in {file.path}"
        ctx.default_map = {**(ctx.default_map or {}), name: values}

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


def _long(option: click.Option) -> str:
    """What an option is called in a file: the first of its long names."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0]).lstrip("-")


def _name_variable(option: click.Option, place: tuple[str, ...], known: str) -> None:
    """MUSTER_RUN_JOBS for --jobs, behind a variable that the option has anyhow. As `auto_envvar_prefix` has it, but by
    the name that is typed."""
    given = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    variable = "_".join(["MUSTER", *place, known]).upper().replace("-", "_")
    option.envvar = list(dict.fromkeys([*given, variable]))


def configured(context: click.Context) -> list[str]:
    """The options of a command that were not typed and are no defaults, as they would be typed."""
    words = []
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source not in (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP):
            continue
        assert isinstance(option, click.Option)
        if option.is_flag:
            words += [f"--{_long(option)}"] if context.params[option.name or ""] else []
            continue
        value: Any = option.value_from_envvar(context)
        value = context.lookup_default(option.name or "") if value is None else value
        words += [f"--{_long(option)}={one}" for one in ([value] if isinstance(value, str) else value)]
    return words


def where_it_stands(error: click.BadParameter) -> str | None:
    """A hint for a value that was not typed."""
    if error.ctx is None or not isinstance(option := error.param, click.Option):
        return None
    source = error.ctx.get_parameter_source(option.name or "")
    if source is ParameterSource.DEFAULT_MAP:
        return f"correct {error.ctx.meta[f'{_SOURCES}.{option.name}']}"
    if source is ParameterSource.ENVIRONMENT and isinstance(option.envvar, list):
        return f"correct the variable {' or '.join(option.envvar)}"
    return None


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
