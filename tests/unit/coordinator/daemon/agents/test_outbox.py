"""What is said to an agent in one answer: a grant is heard after whatever settles or revokes it."""

from __future__ import annotations

import pytest

from muster.coordinator.daemon.agents.outbox import Outbox
from muster.coordinator.protocol.control import Committed, Drop, Grant, LayerInfo
from muster.jobs.common.ranges import Pairs
from muster.jobs.contract.plan import Layer, MadeSource, Work

A, B = "a" * 32, "b" * 32
WORK = Work("cluster", 1, {}, None, None, None, 1, None, None)
SHEET, OTHER = "c" * 32, "d" * 32


def info(digest: str) -> LayerInfo:
    return LayerInfo("j.1", Layer("x", digest, MadeSource(), 0, 1, 9, 0, 1, None), WORK)


def grant(layer: str, attempt: int, *numbers: int) -> Grant:
    payloads = {number: b"%d" % number for number in numbers}
    return Grant("j.1", layer, 1, attempt, [(n, n + 1) for n in numbers], payloads, {SHEET: [(0, 3)], OTHER: [(5, 6)]})


@pytest.fixture
def box() -> Outbox:
    box = Outbox()
    box.grant(grant(A, 1, 0, 2, 5), info(A))
    box.grant(grant(B, 1, 0), info(B))
    return box


def said(box: Outbox) -> dict[tuple[str, int], Pairs]:
    return {(one.layer, one.attempt): one.numbers for one in box.news().grants}


def test_what_is_revoked_before_it_is_granted_aloud_is_never_granted(box: Outbox) -> None:
    box.drop(Drop(A, 1, 1, [(0, 3)], retired=True))
    box.drop(Drop(B, 1, 2, [(0, 1)]))
    (left, other) = box.news().grants
    assert left == Grant("j.1", A, 1, 1, [(5, 6)], {5: b"5"}, {OTHER: [(5, 6)]})
    assert other == grant(B, 1, 0), "another attempt is another grant"


def test_what_is_granted_anew_after_it_was_revoked_is_granted(box: Outbox) -> None:
    box.drop(Drop(A, 1, 1, [(0, 9)]))
    box.grant(grant(A, 2, 0), info(A))
    assert said(box) == {(A, 2): [(0, 1)], (B, 1): [(0, 1)]}


def test_what_is_committed_or_gone_meanwhile_is_not_granted(box: Outbox) -> None:
    box.committed(Committed(A, [(2, 3)]))
    box.gone(B)
    assert said(box) == {(A, 1): [(0, 1), (5, 6)]}
    box.committed(Committed(A, [(0, 1)]))
    box.grant(grant(B, 2, 0), info(B))
    news = box.news()
    assert [one.layer for one in news.grants] == [B] and [one.layer.digest for one in news.layers] == [B]
