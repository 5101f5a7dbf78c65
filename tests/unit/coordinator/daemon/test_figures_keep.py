"""Keeping what is measured: whatever goes wrong with it goes wrong with nothing else."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.coordinator.daemon.figures.keep import FiguresKeeper
from muster.coordinator.protocol.control import JobAccount, MachineAccount


def test_a_bug_in_adding_up_costs_measurements_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: FiguresKeeper, engine: Any) -> tuple[float, int]:
        raise ZeroDivisionError("of ours")

    async def kept() -> str:
        keeper = FiguresKeeper(tmp_path / "figures.sqlite")
        task = asyncio.create_task(keeper.keep_forever(None))  # type: ignore[arg-type]
        keeper._hurry.set()
        while not keeper.trouble:
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()
        return keeper.trouble

    monkeypatch.setattr(FiguresKeeper, "_round", broken)
    assert asyncio.run(asyncio.wait_for(kept(), 30)) == "ZeroDivisionError: of ours"


@pytest.mark.parametrize("what, is_kept", [("left", False), ("gone", True)])
def test_of_a_machine_that_left_the_last_word_counts_and_nothing_is_kept_in_memory(
    tmp_path: Path, what: str, is_kept: bool
) -> None:
    """One that is gone may come back, with the same process."""
    agent = SimpleNamespace(name="lab1", cpus=4, hello=SimpleNamespace(process="p", cpus=4), present=True)
    jobs = {"a.1": SimpleNamespace(state="running")}
    state = SimpleNamespace(agents={"lab1": agent}, jobs=jobs, obstacle=lambda agent, job: None)
    engine: Any = SimpleNamespace(state=state)
    keeper, began = FiguresKeeper(tmp_path / "figures.sqlite"), time.time() - 10
    keeper.opened("a.1", "map", began)
    ledger = keeper._ledgers["a.1"]
    ledger.began(began)
    told = MachineAccount(seconds=10.0, busy=36.0, no_work=4.0, jobs=[JobAccount("a.1", busy=36.0)])
    keeper.account(engine, agent, told)  # type: ignore[arg-type]
    assert keeper.lately("lab1") is not None
    agent.present = False
    keeper.parted(engine, what, "lab1", "as it is said")
    assert keeper.lately("lab1") is None and ("lab1" in keeper._heard) is is_kept
    if is_kept:
        keeper._add_up(engine, "lab1")
    machine = ledger.machines["lab1"]
    assert machine.busy == 36.0 and machine.lent == pytest.approx(40.0, rel=0.01)
    assert [event.what for event in ledger.record.events] == [what]
