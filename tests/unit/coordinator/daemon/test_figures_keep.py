"""Keeping what is measured: whatever goes wrong with it goes wrong with nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from muster.coordinator.daemon.figures.keep import FiguresKeeper


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
