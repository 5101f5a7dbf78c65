"""Templates filled with values: the one place that makes markup of what others wrote. Jinja escapes; knows no farm."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from muster.coordinator.page.blocks import Block
from muster.coordinator.report.markup import shown

HERE = Path(__file__).parent
_COMMAND = re.compile(r"`([^`]+)`")


class Cells:
    """What templates call for each piece that may change by itself; it stands in the skeleton as an empty element."""

    def __init__(self, block: str) -> None:
        self._block = block
        self.values: list[str] = []

    def __call__(self, value: object, look: str = "", tag: str = "td") -> Markup:
        made = Markup('<{0} id="{1}.{2}"{3}></{0}>').format(
            Markup(tag), self._block, len(self.values), Markup(' class="{}"').format(look) if look else ""
        )
        self.values.append(str(shown(value)))
        return made


def worded(line: object) -> Markup:
    """A line of ours: the commands in it stand between backticks."""
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(shown(line))))


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["worded"] = worded
    return made


def block(name: str, **values: Any) -> Block:
    """The block that the macro of this name makes."""
    cells = Cells(name)
    macro = getattr(_environment().get_template("blocks.html").module, name)
    return Block(name, " ".join(str(macro(cells, **values)).split()), cells.values)


def shell(**values: Any) -> str:
    """The page that a browser opens, without anything of the farm."""
    return _environment().get_template("shell.html").render(**values)
