"""Farms, jobs and results as a notebook shows them: small tables, with whatever others wrote escaped. Asks nobody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

ROWS_SHOWN = 20


def page(title: str, header: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()) -> str:
    """A heading, a table of at most ROWS_SHOWN rows, and lines below it."""
    cells = [[escape(str(cell)) for cell in row] for row in rows]
    hidden = [f"… and {len(cells) - ROWS_SHOWN} more"] if len(cells) > ROWS_SHOWN else []
    lines = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells[:ROWS_SHOWN]]
    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in header)}</tr>"
    table = f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>" if lines else ""
    return f"<b>{escape(title)}</b>{table}{''.join(f'<div>{escape(note)}</div>' for note in [*hidden, *notes])}"
