"""Which options of `agent join` an inventory may give a machine, and a field's value as words of that command line."""

from __future__ import annotations

from typing import Any

import click

from muster.agent.commands.join import command
from muster.jobs.common.errors import UsageError
from muster.jobs.common.validation import FieldError

# What a deployment says itself, and what makes no sense where nobody sits
OURS = frozenset({"where", "name", "accept_new_host_key", "program", "port", "ssh_config", "detach"})
RENAMED = {"ssh": "link", "envs": "env"}  # `ssh` is how we reach the machine


def options() -> dict[str, click.Option]:
    """Each by the name of its field."""
    return {
        RENAMED.get(one.name or "", one.name or ""): one
        for one in command.params
        if isinstance(one, click.Option) and one.name not in OURS
    }


def words(option: click.Option, value: Any, path: str) -> tuple[str, ...]:
    """The option and its value, checked as the command would check them; a FieldError that names `path`."""
    flag = option.opts[0]
    if option.is_flag:
        if not isinstance(value, bool):
            raise FieldError(path, f"expected true or false, got {value!r:.40}")
        return (flag,) if value else ()
    if option.multiple and isinstance(value, dict):
        value = [f"{key}={_text(one, f'{path}.{key}')}" for key, one in value.items()]
    given = value if option.multiple and isinstance(value, list) else [value]
    texts = [_text(one, path) for one in given]
    try:
        option.process_value(click.Context(command), tuple(texts) if option.multiple else texts[0])
    except click.BadParameter as error:
        raise FieldError(path, error.message) from None
    except UsageError as error:
        raise FieldError(path, error.message, error.hint) from None
    return tuple(word for text in texts for word in (flag, text))


def _text(value: Any, path: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FieldError(path, f"expected a text or a number, got {value!r:.40}")
    text = str(value)
    if not text or not text.isprintable():
        raise FieldError(path, f"expected something that can be printed, got {text!r:.40}")
    return text
