"""HTML and SVG elements from values: whatever is not an element itself is text, and escaped. Knows no job."""

from __future__ import annotations

from html import escape

from muster.jobs.common.printable import harmless

VOID = frozenset({"meta", "br"})


class Markup(str):
    """Text that is markup already."""


Content = object  # Markup, or what is shown as text


def tag(name: str, /, *content: Content, **attributes: object) -> Markup:
    """An element. An attribute's `_` becomes `-`, and one at the end goes (`class_`); one that is None is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_shown(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = joined(*content)
    if not inner and (name in VOID or name in _SHORT):
        return Markup(f"<{name}{given}>" if name in VOID else f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{inner}</{name}>")


def joined(*content: Content) -> Markup:
    return Markup("".join(one if isinstance(one, Markup) else escape(harmless(str(one))) for one in content))


def number(value: float) -> str:
    """A coordinate: two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def _shown(value: object) -> str:
    return number(value) if isinstance(value, float) else harmless(str(value))


_SHORT = frozenset({"rect", "path", "line", "circle", "polyline", "polygon"})  # of SVG
