"""What the controller of the pool hands to it, and what it keeps from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.agent.core.actions import Run
from muster.agent.core.events import BatchEnded, Needs
from muster.agent.host.taken_kinds import Takes
from muster.agent.pool import controller as controllers
from muster.agent.pool.controller import PoolController
from muster.agent.spool.paths import Spool
from muster.coordinator.protocol.control import Hello, LayerInfo
from muster.jobs.contract.plan import Layer, MadeSource, Work

WHO = Hello(1, "1", "a", "s", "p" * 8, "h", 1, 1, 1 << 30, 1 << 30, {}, "", "3.11", envs={})
COMMAND = Work("command", 1, {"run": "touch ran"}, None, None, None, 1, None, None, runs_code=False)


class Pool:
    def __init__(self, *given: Any, meanwhile: bool = True) -> None:
        self.submitted: list[object] = []

    def submit(self, slot: int, ticket: int, batch: object, needs: Needs) -> None:
        self.submitted.append((ticket, needs))


def run(work: Work) -> Run:
    layer = Layer("made", "d" * 32, MadeSource(), 0, 1, 1, 0, 0, None)
    return Run(1, 0, "farm", LayerInfo("j.1", layer, work), "f/d/p.part", ((0, 1, 1), (1, 1, 1)), {})


def test_work_that_this_machine_does_not_take_reaches_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllers, "Pool", Pool)
    spool = Spool(tmp_path)
    spool.run.mkdir()
    controller = PoolController(spool, WHO, None, tmp_path, {}, Takes(no_code=True), lambda news: None)
    pool: Any = controller.pool
    ended = controller.run(run(COMMAND))
    assert isinstance(ended, BatchEnded) and not pool.submitted
    assert [mishap.message for mishap in ended.outcome.mishaps] == ["this machine runs no code of others"] * 2
    assert controller.run(run(msgspec.structs.replace(COMMAND, kind="cluster"))) is None
    assert pool.submitted == [(1, Needs(cpus=1))]
