"""What an agent that follows rounds is told: the sheet that it lacks, that its layer is gone, or to ask again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.coordinator.daemon.agents.transfers import RoundChannel
from muster.coordinator.daemon.connections import Connections
from muster.coordinator.daemon.waiting import Signal
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.protocol.transfer import Attach, Follow, Laid, NotYet, Refused

LAYER, SHEET = "a" * 32, "5" * 32
PATIENCE_SECONDS = 30.0  # of a heartbeat that is not to end
SOON_SECONDS = 0.05


class Engine:
    """One agent, b, in session 7, with shards of one layer of rounds. `sheet`: what they want and it does not have."""

    def __init__(self, root: Path, maker: str, heartbeat: float) -> None:
        self.sheet, self.has_layer = "", True
        self.connections: Connections[Any] = Connections(100)
        self.root = Root(root)
        self.state = SimpleNamespace(timing=SimpleNamespace(heartbeat=heartbeat))
        self.live = SimpleNamespace(
            makers={SHEET: maker}, bases={}, sheets_granted=Signal(),
            sheet_for=lambda agent, layer, have: "" if self.sheet in have else self.sheet,
        )  # fmt: skip
        self.jobs = {"j.1": self.live}

    def agent_of(self, session: int) -> object:
        return SimpleNamespace(name="b", had=lambda layer: True) if session == 7 else None

    def open_layer(self, digest: str) -> object:
        return SimpleNamespace(job="j.1", stored=False) if self.has_layer else None

    def lays_out(self) -> None:
        self.sheet = SHEET
        self.live.sheets_granted.give()

    def ends(self) -> None:
        self.has_layer = False
        self.live.sheets_granted.give()


class Wire:
    """Of which nobody reads."""

    limit = 0


def asked(engine: Engine, have: list[str], *, meanwhile: Any = None) -> Any:
    """The answer to a question. `meanwhile`: what happens while it waits for one."""
    channel = RoundChannel(cast(Any, engine), cast(Any, Wire()), Attach("round", ""))

    async def ask() -> Any:
        answer = asyncio.ensure_future(cast(Any, channel._answer(Follow(7, LAYER, have))))
        if meanwhile is not None:
            for _ in range(5):  # until it waits
                await asyncio.sleep(0)
            assert not answer.done()
            meanwhile()
        return await asyncio.wait_for(answer, PATIENCE_SECONDS / 2)

    return asyncio.run(ask())


@pytest.mark.parametrize(("maker", "says"), [("b", NotYet), ("c", Laid)])
def test_who_made_a_sheet_since_it_asked_is_to_ask_again(tmp_path: Path, maker: str, says: type[object]) -> None:
    engine = Engine(tmp_path, maker, PATIENCE_SECONDS)
    assert type(asked(engine, [], meanwhile=engine.lays_out)) is says


def test_who_made_it_and_asks_without_naming_it_gets_it(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "b", PATIENCE_SECONDS)
    engine.sheet = SHEET
    assert isinstance(answer := asked(engine, []), Laid) and answer.sheet == SHEET


@pytest.mark.parametrize("sheet", ["", SHEET])
def test_who_has_it_is_told_to_ask_again_after_a_heartbeat(tmp_path: Path, sheet: str) -> None:
    engine = Engine(tmp_path, "b", SOON_SECONDS)
    engine.sheet = sheet
    assert asked(engine, [SHEET]) == NotYet()


def test_a_layer_that_ends_while_it_is_followed_is_gone(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "b", PATIENCE_SECONDS)
    assert isinstance(answer := asked(engine, [], meanwhile=engine.ends), Refused) and answer.code == "gone"
