"""What `--json` prints: one document with the number of its schema, on one line or several. Knows no command."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

SCHEMA = 2  # raised when a field that is there changes its name or its meaning; a field that is added raises nothing


def json_text(fields: Mapping[str, object], indent: int = 2) -> str:
    """The document of these fields; with an indent of 0 it is one line."""
    raw = msgspec.json.encode({"schema": SCHEMA, **fields})
    return (msgspec.json.format(raw, indent=indent) if indent else raw).decode()
