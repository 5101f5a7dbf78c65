"""Every code that is given or asked for, in all of the tree, is one of its closed set; and whose fault a failure is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from muster.agent.core.events import Why
from muster.coordinator.protocol.control import RejectionCode
from muster.coordinator.protocol.transfer import RefusalCode
from muster.jobs.contract.failure_codes import CODES, DataCode, ShardCode, is_final, is_loss, shard_code, whose_fault
from muster.jobs.workbench.batch import Mishap

ROOT = Path(__file__).parents[4]
PRODUCT = ("jobs", "coordinator", "agent")
SHARDS, REFUSALS, REJECTIONS = (frozenset(get_args(codes)) for codes in (ShardCode, RefusalCode, RejectionCode))
DATA = frozenset(get_args(DataCode))
GIVEN = {  # what is made with a code → which of its arguments that is, and of which set
    "ShardFailure": (0, SHARDS | DATA),
    "CannotStart": (0, SHARDS),
    "Refusal": (0, SHARDS),  # the runner's, which imports nothing of ours
    "Mishap": (1, CODES),
    "Failure": (5, CODES),
    "Refused": (0, REFUSALS),
    "RefuseOffer": (1, REFUSALS),
    "Failed": (1, REFUSALS),
    "Rejected": (0, REJECTIONS),
}
ALL = CODES | REFUSALS | REJECTIONS | frozenset(get_args(Why))


def trees() -> Iterator[tuple[Path, ast.AST]]:
    for top in PRODUCT:
        for path in sorted((ROOT / top).rglob("*.py")):
            yield path, ast.parse(path.read_text())


def texts(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def given(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What is made, and the code that is written there for it."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name | ast.Attribute):
            name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
            at = GIVEN[name][0] if name in GIVEN else len(call.args)
            if at < len(call.args) and isinstance(call.args[at], ast.Constant):
                yield from ((name, text) for text in texts(call.args[at]))


def asked(tree: ast.AST) -> Iterator[str]:
    """Every string that a `code` is compared with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "code":
            yield from (text for other in node.comparators for text in texts(other))
        elif isinstance(node, ast.Match) and ast.unparse(node.subject).split(".")[-1] == "code":
            yield from (text for case in node.cases for text in texts(case.pattern))


def test_every_code_that_is_given_is_of_its_set() -> None:
    found = [(path.name, *one) for path, tree in trees() for one in given(tree)]
    assert {name for _, name, _ in found} == set(GIVEN)
    assert [one for one in found if one[2] not in GIVEN[one[1]][1]] == []


def test_no_decision_hangs_on_a_code_that_there_is_not() -> None:
    found = [(path.name, text) for path, tree in trees() for text in asked(tree)]
    assert len(found) > 10 and [one for one in found if one[1] not in ALL] == []


@pytest.mark.parametrize(
    ("code", "whose", "loss"),
    [
        ("exception", "shard", False),
        ("output", "shard", False),
        ("data", "data", False),
        ("model", "machine", True),
        ("killed", "nobody", True),
        ("driver", "job", False),
        ("of-a-newer-version", "shard", False),
    ],
)
def test_whose_fault_a_failure_is(code: str, whose: str, loss: bool) -> None:
    assert (whose_fault(code), is_loss(code), Mishap(3, code, "", "", 0.0, 0).lost) == (whose, loss, loss)


def test_no_failure_but_the_datas_own_is_final() -> None:
    assert {code for code in {*ALL, "of-a-newer-version"} if is_final(code)} == DATA


@pytest.mark.parametrize("code", ["killed", "lost", "data", "driver", "of-a-newer-version"])
def test_a_users_process_cannot_pass_its_failure_off_as_somebody_elses(code: str) -> None:
    assert shard_code("timeout") == "timeout" and shard_code(code) == "exception"
