"""YAML as strangers write it: bounded, no key twice, and the line of each field. Knows no fields."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml

from muster.jobs.common.errors import JobFileError
from muster.jobs.common.validation import one_line

TEXT_LIMIT = 1 << 20  # characters
DEPTH_LIMIT = 32
NODE_LIMIT = 200_000  # with every alias written out

_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
_FLOAT = "tag:yaml.org,2002:float"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_FLOATS = re.compile(
    r"[-+]?([0-9]+\.[0-9]*|\.?[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", re.ASCII
)

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """Safe, and closer to what is meant: 1e-4 is a number, 2024-01-01 is text."""


def _resolvers() -> dict[str, list[tuple[str, Any]]]:
    """PyYAML's own, without timestamps and with YAML 1.2's floats after its integers."""
    kept = {
        first: [(tag, pattern) for tag, pattern in known if tag not in {_FLOAT, _TIMESTAMP}]
        for first, known in _Base.yaml_implicit_resolvers.items()
    }
    whole = re.compile(rf"(?:{_FLOATS.pattern})\Z", re.ASCII)
    for first in "-+.0123456789":
        kept.setdefault(first, []).append((_FLOAT, whole))
    return kept


_Loader.yaml_implicit_resolvers = _resolvers()


class Document(NamedTuple):
    """What a text says, and on which line each field stands."""

    value: Any
    lines: dict[str, int]  # "shard.size" → 3

    def line_of(self, path: str) -> int | None:
        """The line of a field, or of the nearest field around it."""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path)


def load(text: str, where: str) -> Document:
    """The one document in `text`, as plain values."""
    if len(text) > TEXT_LIMIT:
        raise JobFileError(f"{where}: longer than {TEXT_LIMIT} characters", "put large values into files of their own")
    try:
        _check_depth(text, where)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            lines = _Walk(where).lines_of(node)
            return Document(loader.construct_document(node) if node else None, lines)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise JobFileError(one_line(f"{where}{line}: not YAML: {error.problem or error.context}")) from None
    except (yaml.YAMLError, ValueError) as error:
        raise JobFileError(one_line(f"{where}: not YAML: {' '.join(str(error).split())[:200]}")) from None


def _check_depth(text: str, where: str) -> None:
    """Before anything recurses over it."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            depth += 1
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            depth -= 1
        if depth > DEPTH_LIMIT:
            raise _too_much(where, event)


def _too_much(where: str, at: yaml.Event | yaml.Node) -> JobFileError:
    line = at.start_mark.line + 1 if at.start_mark else 1
    return JobFileError(
        f"{where}:{line}: nested deeper than {DEPTH_LIMIT}, or more than {NODE_LIMIT} values with aliases written out",
        "write the job file flat; put large values into files of their own",
    )


class _Walk:
    """Visits every node, aliases written out, before anything is built of them."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._left = NODE_LIMIT
        self._lines: dict[str, int] = {}

    def lines_of(self, node: yaml.Node | None) -> dict[str, int]:
        if node is not None:
            self._visit(node, "", 0)
        return self._lines

    def _visit(self, node: yaml.Node, path: str, depth: int) -> None:
        self._left -= 1
        if self._left < 0 or depth > DEPTH_LIMIT:
            raise _too_much(self._where, node)
        if isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self._visit(item, f"{path}[{i}]", depth + 1)
        elif isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, path, depth)

    def _visit_mapping(self, node: yaml.MappingNode, path: str, depth: int) -> None:
        seen: set[str] = set()
        for key, value in node.value:
            if key.tag == _MERGE:
                self._visit(value, path, depth + 1)
                continue
            line = key.start_mark.line + 1
            if key.tag != _TEXT:
                raise JobFileError(f"{self._where}:{line}: a key that is not text", "write the key in quotes")
            if key.value in seen:
                raise JobFileError(f"{self._where}:{line}: {key.value[:80]!r} is there twice", "keep one of them")
            seen.add(key.value)
            inner = f"{path}.{key.value}" if path else key.value
            self._lines[inner] = line
            self._visit(value, inner, depth + 1)
