"""What a comparison runs and says: units and directions, sizes, which figures are judged, and the last line."""

from __future__ import annotations

import pytest

from benchmarks.compare import Subject, render, shared_figures, subject_of, summary
from benchmarks.verdict import Pair

FINE, POOR = [Pair(100.0, 101.0)] * 7, [Pair(100.0, 80.0)] * 7
RATE = Subject("dispatch", (), "shards/s", less_is_better=False)


def test_a_line_of_the_table_brings_its_arguments() -> None:
    subject = subject_of("cluster-ssh", ["--values", "1024"])
    assert (subject.module, subject.args) == ("cluster", ("--ssh", "--values", "1024"))


def test_a_module_has_the_unit_of_its_line() -> None:
    assert subject_of("lockstep", []).unit == subject_of("train-agents", []).unit


@pytest.mark.parametrize(("name", "less"), [("dispatch", False), ("scale", True), ("memory-ssh", True)])
def test_the_direction_is_that_of_the_table(name: str, less: bool) -> None:
    assert subject_of(name, []).less_is_better is less


@pytest.mark.parametrize(
    ("name", "args", "size"),
    [
        ("dispatch", [], "--shards"),
        ("dispatch", ["--shards", "100"], None),
        ("dispatch", ["--shards=100"], None),
        ("command", [], "--commands"),
        ("command-ssh", [], "--files"),
        ("cluster", [], "--seconds"),
        ("scale", [], None),
    ],
)
def test_a_size_is_looked_for_unless_it_is_said(name: str, args: list[str], size: str | None) -> None:
    assert subject_of(name, args).size == size


def test_processor_time_is_compared_where_both_sides_give_it() -> None:
    both = {"old": {"ours": 1.0, "cpu": 0.1}, "new": {"ours": 1.0, "cpu": 0.2}}
    assert shared_figures(both) == ["ours", "cpu"]
    assert shared_figures({**both, "old": {"ours": 1.0}}) == ["ours"]


def test_any_figure_that_is_worse_makes_the_whole_worse() -> None:
    assert summary({"ours": FINE, "cpu": FINE}, RATE)["worse"] is False
    assert summary({"ours": POOR, "cpu": FINE}, RATE)["worse"] is True
    dearer = [Pair(old=1e-4, new=1.3e-4)] * 7
    assert summary({"ours": FINE, "cpu": dearer}, RATE)["worse"] is True


def test_a_cost_that_falls_is_no_worse() -> None:
    assert summary({"ours": POOR}, Subject("scale", (), "µs", less_is_better=True))["worse"] is False


def test_too_few_pairs_cannot_tell() -> None:
    found = summary({"ours": POOR[:2]}, RATE)
    assert found["worse"] is None
    assert "worse: cannot tell" in render(found, RATE)


def test_the_verdict_is_said_with_unit_and_direction() -> None:
    said = render(summary({"ours": POOR, "cpu": FINE}, RATE), RATE)
    assert (
        "ours: median ratio 0.800, 90% interval 0.800 to 0.800; worse than 0.95: yes (shards/s; more is better)" in said
    )
    assert said.splitlines()[-1] == "worse: yes"
