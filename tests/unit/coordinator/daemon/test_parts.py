"""The daemon's parts: each thing it is asked, told or ordered has one handler, and no part writes into another."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

from muster.coordinator.api import driver, requests
from muster.coordinator.daemon import actions as carried_out
from muster.coordinator.daemon import requests as answered
from muster.coordinator.daemon import serve
from muster.coordinator.daemon.agents import control, transfers
from muster.coordinator.daemon.engine import VERDICTS
from muster.coordinator.protocol.transfer import Attach, FromHelper
from muster.coordinator.protocol.values import Message
from muster.coordinator.scheduler import actions

DAEMON = Path(serve.__file__).parent
OTHERS = re.compile(r"(self\._)?(engine|live|state|job|layer|agent)\b.*\.\w+")  # an attribute of what another part owns
OPEN = ("jobs", "damaged", "taking")  # tables of the engine in which jobs are put, and from which they go

Table = Mapping[Any, Callable[..., Any]]
TABLES: dict[str, Table] = {
    "actions": carried_out.HANDLERS,
    "questions": answered.QUESTIONS,
    "changes": answered.CHANGES,
    "drivers": answered.DRIVES,
    **{role: channel.answers for role, channel in serve.CHANNELS.items()},
}


def defined(module: ModuleType) -> set[type]:
    return {kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__}


def test_every_action_has_one_handler() -> None:
    assert defined(actions) == set(get_args(actions.Action)), "an action that the scheduler may not give"
    assert set(carried_out.HANDLERS) == set(get_args(actions.Action)) - set(VERDICTS)


def test_every_question_has_one_handler() -> None:
    tables = [answered.QUESTIONS, answered.CHANGES, answered.DRIVES]
    known = [kind for table in tables for kind in table]
    assert sorted(kind.__name__ for kind in known) == sorted(kind.__name__ for kind in get_args(requests.FromCommand))
    said = {kind for kind in defined(requests) | defined(driver) if issubclass(kind, Message)}
    assert said == set(known) | said & set(get_args(requests.ToCommand)), "a question that nobody may ask"


def test_every_message_of_a_helper_has_a_channel() -> None:
    answers = {kind for channel in serve.CHANNELS.values() for kind in channel.answers}
    assert answers | {Attach} == set(get_args(FromHelper))


@pytest.mark.parametrize("name", TABLES)
def test_each_handler_takes_what_it_is_given(name: str) -> None:
    table = TABLES[name]
    assert table and len(set(table.values())) == len(table), "one handler of two"
    for kind, handler in table.items():
        hints = get_type_hints(handler)
        taken = [hints[parameter] for parameter in inspect.signature(handler).parameters if parameter in hints]
        assert kind in taken[:2], f"{handler.__name__} does not take a {kind.__name__}"


@pytest.mark.parametrize("module", [carried_out, answered, control, transfers], ids=lambda module: module.__name__)
def test_no_table_names_a_kind_twice(module: ModuleType) -> None:
    """Of two entries with one key the later one would hold, and nothing else tell of it."""
    tables = [
        node for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())) if isinstance(node, ast.Dict)
    ]
    assert tables
    for table in tables:
        keys = [ast.unparse(key) for key in table.keys if key is not None]
        assert len(set(keys)) == len(keys)


def test_no_part_writes_into_another() -> None:
    """What is written in a live job, the scheduler's state or the engine is written by their own methods."""
    written = [
        (str(path.relative_to(DAEMON)), ast.unparse(target))
        for path in DAEMON.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for target in targets(node)
        if isinstance(target, ast.Attribute)
    ]
    assert len(written) > 100, "it does not find them"
    assert not [one for one in written if OTHERS.fullmatch(one[1]) and one[1].rpartition("engine.")[2] not in OPEN]


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement binds or deletes: of a subscript, what is subscripted."""
    found = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else []
    found = [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else found
    flat = [one for target in found for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return [one.value if isinstance(one, ast.Subscript) else one for one in flat]
