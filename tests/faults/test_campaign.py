"""The campaign's short form; `make campaign` is the long one."""

from __future__ import annotations

import pytest

from tests.campaign import page
from tests.campaign.__main__ import play
from tests.campaign.line import Line, added
from tests.support import disks


def test_a_flipped_bit_is_found_or_without_effect() -> None:
    line = play("damage", 5, 400)
    assert line.is_whole and sum(line.faults.values()) == 402, line.text()


@pytest.mark.root
def test_a_power_cut_loses_nothing_that_was_acknowledged() -> None:
    disks.require("mkfs.ext4", "fsck.ext4", "mount")
    line = play("power", 5, 4)
    assert line.is_whole and line.compared >= 3, line.text()


@pytest.mark.ray
@pytest.mark.root
def test_a_full_disk_is_said_and_waited_for_and_a_start_on_it_ends() -> None:
    disks.require("mount")
    line = play("full", 5, 5)
    assert line.is_whole and line.compared == 5, line.text()


@pytest.mark.ray
def test_kills_of_everything_leave_results_as_they_have_to_be() -> None:
    line = play("kills", 5, 12)
    assert line.is_whole and line.compared >= 2, line.text()


def test_lines_add_up() -> None:
    one, two = Line("power", [3], wrong=1), Line("power", [4], compared=2)
    one.faults["power cut"] = two.faults["power cut"] = 3
    total = added([one.text(), "", two.text()])
    assert (total.faults["power cut"], total.compared, total.wrong) == (6, 2, 1)
    assert not total.is_whole and total.seeds == ["power:3", "power:4"]


def test_the_page_is_made_of_the_lines_that_are_kept() -> None:
    kept = page.KEPT.read_text()
    assert page.PAGE.read_text() == page.made(kept)
    assert added(kept.splitlines()).is_whole
