"""The words that people are shown: one for each thing, as docs/endings.md has them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from muster.jobs.common.units import counted

ROOT = Path(__file__).parents[2]
MODULES = [path for room in ("agent", "coordinator", "deploy", "jobs") for path in sorted((ROOT / room).rglob("*.py"))]
OF_PROGRAMS = {"quarantined"}  # the name of a field, and of a table of the store


def texts(path: Path) -> list[str]:
    """What a module may show: its literals but for docstrings, names of fields and statements of SQL."""
    tree = ast.parse(path.read_text())
    spoken = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [str(node.value) for node in found if id(node) not in spoken and node.value not in OF_PROGRAMS]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_given_up_is_called_nothing_else(path: Path) -> None:
    told = [text for text in texts(path) if "quarantin" in text]
    sql = ("SELECT ", "DELETE ", "INSERT ", "UPDATE ", "CREATE ", " quarantined WHERE ")
    assert [text for text in told if not any(word in text for word in sql)] == []


def test_one_is_no_plural() -> None:
    assert [counted(n, "shard") for n in (0, 1, 2, 2000)] == ["0 shards", "1 shard", "2 shards", "2,000 shards"]
