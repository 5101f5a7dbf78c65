"""HTML and SVG elements from values: whatever is not markup already is text, and escaped. Knows no job."""

from __future__ import annotations

from markupsafe import Markup, escape

from muster.jobs.common.printable import harmless

VOID = frozenset({"meta", "br"})
_SHORT = frozenset({"rect", "path", "line", "circle", "polyline", "polygon"})  # of SVG

Content = object  # Markup, or what is shown as text


def shown(value: Content) -> Markup:
    return value if isinstance(value, Markup) else escape(harmless(str(value)))


def tag(name: str, /, *content: Content, **attributes: object) -> Markup:
    """An element. An attribute's `_` becomes `-`, and one at the end goes (`class_`); one that is None is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{shown(number(value) if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = joined(*content)
    if not inner and (name in VOID or name in _SHORT):
        return Markup(f"<{name}{given}>" if name in VOID else f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{inner}</{name}>")


def joined(*content: Content) -> Markup:
    return Markup("".join(map(shown, content)))


def number(value: float) -> str:
    """A coordinate: two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"
