"""What merged results say of how a job went: which shards, and which items, took longest."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from muster.jobs.results import reported
from tests.unit.jobs.results.test_export import ITEMS, ROWS, merged

TABLE = [("shard", "<i8"), ("rows", "<i8"), ("agent", "<U8"), ("seconds", "<f8")]
SECONDS = np.array([0.1, 0.2, 9.0, 0.3, 0.4, 5.0, 0.5], "<f4")


def layer(folder: Path, items: list[list[str]] | None) -> None:
    """Seven rows in three shards."""
    made = merged(folder, {"seconds": SECONDS}, items)
    np.save(made / "shards.npy", np.array([(0, 3, "lab1", 9.3), (4, 3, "lab2", 5.7), (7, 1, "lab1", 0.5)], TABLE))


def test_the_slowest_shards_are_named_with_their_items(tmp_path: Path) -> None:
    layer(tmp_path / "one" / "items", ITEMS)
    found = reported.slowest({"j.1": tmp_path / "one"})
    assert found.header == ("shard", "items", "rows", "machine", "took") and found.right == "..r.r"
    assert found.rows[:2] == [
        ("j.1/items/0", "a,b.txt … new\nline", "3", "lab1", "9.3 s"),
        ("j.1/items/4", "007 … ü", "3", "lab2", "5.7 s"),
    ]
    assert found.rows[2] == ("j.1/items/7", "z", "1", "lab1", "500 ms")


def test_where_each_item_has_its_seconds_the_slowest_items_are_named_and_not_their_shards(tmp_path: Path) -> None:
    layer(tmp_path / "one" / "items", ITEMS)
    found = reported.slowest_items({"j.1": tmp_path / "one"}, reported.output("seconds"))
    assert found.header == ("item", "shard", "machine", "took") and len(found.rows) == ROWS
    assert found.rows[:2] == [("new\nline", "j.1/items/0", "lab1", "9.0 s"), ("ü", "j.1/items/4", "lab2", "5.0 s")]


def test_rows_of_arrays_have_no_names(tmp_path: Path) -> None:
    layer(tmp_path / "one" / "a", None)
    assert reported.slowest({"j.1": tmp_path / "one"}).header == ("shard", "rows", "machine", "took")
    assert reported.slowest_items({"j.1": tmp_path / "one"}, reported.output("seconds")).rows[0][0] == "row 2"
    assert reported.slowest({"j.1": tmp_path / "none"}).rows == []
