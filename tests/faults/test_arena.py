"""The arena counts what is lost, done twice, wrong and hung; `make arena` plays all of its rounds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.arena import item, rounds
from tests.arena.__main__ import PAGE, kept
from tests.arena.line import Line, Record
from tests.arena.page import page
from tests.arena.rounds import play
from tests.arena.systems import AGAIN, Joblib, Muster, Peer, System

ITEMS = 12
PROGRAM = """
import sys
from pathlib import Path
from tests.arena.item import work
from tests.arena.programs import keep, missing
folder = Path(sys.argv[1])
for number in missing(folder, {items}):
    keep(folder, number, work(number))
{more}
"""


class Plain(Peer):
    """A program that does one item after the other, and then what a test planted."""

    name, module, is_cluster = "plain", "pytest", False
    more = ""

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", PROGRAM.format(items=ITEMS, more=self.more), str(self.results)]


class Careless(Plain):
    """It loses an item, does one again and changes a byte of a third."""

    more = """
(folder / "1.bin").unlink()
work(2)
(folder / "3.bin").write_bytes(b"!" + (folder / "3.bin").read_bytes()[1:])
"""


class Endless(Plain):
    more = "import time; time.sleep(600)"


def counts(line: Line) -> tuple[int, int, int, bool]:
    return line.lost, line.twice, line.wrong, line.hung


def test_what_a_careless_system_does_is_counted() -> None:
    assert counts(play(Careless, "peace", 1, ITEMS)) == (1, 1, 1, False)


def test_a_system_that_does_not_end_is_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "HUNG_SECONDS", 5.0)
    assert counts(play(Endless, "peace", 1, ITEMS)) == (0, 0, 0, True)


def test_a_flipped_bit_that_nobody_notices_is_wrong() -> None:
    assert counts(play(Plain, "bit flipped", 1, ITEMS)) == (0, 0, 1, False)


def test_what_a_system_itself_says_is_wrong_is_not_unnoticed() -> None:
    line = Line("one", "1", "bit flipped", 1, 2, 1)
    line.count(Record(), {0: b"a", 1: b"c"}, {0: b"a", 1: b"b"}, "item 1 is damaged")
    assert (line.wrong, line.said) == (0, "item 1 is damaged")


def test_an_execution_is_known_by_what_it_noted() -> None:
    record = Record.read("began 1 10\nbegan 2 11\nended 1 10\nbegan 1 12\nended 1 12\nbegan 3")
    assert record.running() == [(2, 11)] and record.twice() == 1


@pytest.mark.parametrize("system", [Plain, Joblib])
def test_a_program_whose_processes_are_killed_is_started_again_by_hand(system: type[System]) -> None:
    line = play(system, "head killed", 1, ITEMS)
    assert (line.lost, line.wrong, line.hung, line.by_hand) == (0, 0, False, [AGAIN])


@pytest.mark.ray
def test_muster_goes_on_by_itself_when_a_worker_is_killed() -> None:
    line = play(Muster, "worker killed", 1, ITEMS)
    assert (line.lost, line.wrong, line.hung, line.by_hand) == (0, 0, False, []), line.text()


def test_the_items_blocks_differ() -> None:
    assert len({item.block_of(number) for number in range(ITEMS)}) == ITEMS


def test_the_page_has_the_tables_of_the_lines_that_are_kept() -> None:
    text = Path(PAGE).read_text()
    assert page(text, kept()) == text
