"""Plans: how layers are cut, what a digest depends on, and plans as bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.jobs.common.errors import DamagedError, JobFileError, RefusedError, SourceError
from muster.jobs.contract.plan import (
    FORMAT,
    ArraySource,
    ItemsSource,
    Layer,
    MadeSource,
    Plan,
    Stamp,
    Work,
    decode_plan,
    encode_plan,
    in_bytes_total,
    total_shards,
)
from muster.jobs.contract.shard_size import RowCost
from muster.jobs.job_file import make_plan as plans
from muster.jobs.job_file.cut_layers import Precedents, SameLayer
from muster.jobs.job_file.digest import layer_digest
from muster.jobs.job_file.make_plan import make_plan
from muster.jobs.job_file.read import parse_job
from muster.jobs.kinds import registry
from tests.support import tiny


@dataclass
class Bundle:
    digest: str = "c" * 32
    entry: str = "work.py:embed"


@pytest.fixture(autouse=True)
def tiny_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "load", tiny.load)
    monkeypatch.setattr(tiny.Tiny, "asked", [])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "w" / "b").mkdir(parents=True)
    np.save(tmp_path / "w" / "b" / "one.npy", np.zeros((10, 256), "<f4"))
    np.save(tmp_path / "w" / "two.npy", np.zeros((7, 256), "<f4"))
    return tmp_path


def planned(base: Path, more: str = "", code: Any = None, head: str = "name: a\nkind: tiny\nsource: w\n") -> Plan:
    return make_plan(parse_job(head + more, "job.yaml"), base, code)


def test_a_plan(base: Path) -> None:
    plan = planned(
        base,
        "shard: {size: 4KiB}\nresources: {cpus: 2, memory: 1GiB, disk: 2GiB}\ntimeout: 5m\nattempts: 4\npriority: 2\n"
        "same_kernels: require\n",
    )
    assert (plan.name, plan.attempts, plan.max_failures, plan.priority, plan.driver) == ("a", 4, 20, 2, None)
    assert plan.work == Work(
        "tiny",
        3,
        {"n_clusters": 8, "tol": 1.0, "inner": {"start": "density"}, "named": None},
        None,
        None,
        None,
        2,
        1 << 30,
        300.0,
        disk=2 << 30,
        runs_code=False,
        rests_on=(),
    )
    one, two = plan.layers
    assert (one.name, one.rows, one.shard_rows, one.count, one.in_bytes) == ("b/one", 10, 4, 3, 4096)
    assert (two.name, two.rows, two.shard_rows, two.count, two.in_bytes) == ("two", 7, 4, 2, 4096)
    assert one.out_bytes == 4 * 8 * 4 + 8
    assert total_shards(plan) == 5
    assert in_bytes_total(plan) == 17 * 1024
    assert plans.out_bytes_total(plan) == 17 * 32 + 5 * 8
    assert len(tiny.Tiny.asked) == 1, "layers of one shape are asked about once"


def test_windows_cover_every_row_once(base: Path) -> None:
    layer = planned(base, "shard: {rows: 3}\n").layers[0]
    windows = [layer.window(n) for n in range(layer.count)]
    assert [window.shape[0] for window in windows] == [3, 3, 3, 1]
    assert windows[0].offset == 128
    assert all(a.offset + a.nbytes == b.offset for a, b in pairwise(windows))
    assert windows[-1].offset + windows[-1].nbytes == Path(windows[-1].path).stat().st_size


@pytest.mark.parametrize(
    ("shard", "rows"),
    [
        ("size: 1", 1),
        ("size: 1023", 1),
        ("size: 2047", 1),
        ("size: 2048", 2),
        ("size: 1TiB", 10),
        ("rows: 3", 3),
        ("rows: 99", 10),
    ],
)
def test_shard_rows(base: Path, shard: str, rows: int) -> None:
    assert planned(base, f"shard: {{{shard}}}\n").layers[0].shard_rows == rows


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 20), st.integers(1, 1 << 34))
def test_any_cut_is_whole(rows: int, row_bytes: int, size: int) -> None:
    job = parse_job(f"name: a\nkind: tiny\nsource: w\nshard: {{size: {size}}}\n", "job.yaml")
    cut = plans._shard_rows(job.shard, rows, row_bytes)
    assert 1 <= cut <= rows
    assert cut == 1 or cut * row_bytes <= size
    assert cut == rows or (cut + 1) * row_bytes > size


@pytest.mark.parametrize("shard", ["", "shard: auto\n"])
def test_small_arrays_are_many_shards_and_the_plan_says_why(base: Path, shard: str) -> None:
    np.save(base / "w" / "many.npy", np.zeros((2000, 4), "<f4"))
    head = "name: a\nkind: tiny\nsource: {path: w, layers: [many]}\n"
    plan = planned(base, shard, head=head)
    assert (plan.layers[0].shard_rows, plan.layers[0].count) == (31, 65)
    assert plan.cut == "65 shards of 31 rows: for many machines to share; nobody knows yet what a row takes"
    assert planned(base, "shard: {size: 128MiB}\n", head=head).cut == ""
    assert planned(base, "shard: {size: 128MiB}\n", head=head).layers[0].count == 1


def test_many_layers_share_the_shards_of_their_source(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    for number in range(100):
        np.save(tmp_path / "w" / f"{number:03}.npy", np.zeros((200, 4), "<f4"))
        if number in (1, 42):
            assert 64 <= total_shards(planned(tmp_path)) <= 128
    assert {layer.count for layer in planned(tmp_path).layers} == {1}
    np.save(tmp_path / "w" / "long.npy", np.zeros((20_000, 1), "<f4"))
    np.save(tmp_path / "w" / "wide.npy", np.zeros((50, 4000), "<f4"))
    counts = {layer.name: layer.count for layer in planned(tmp_path).layers}
    assert counts["long"] >= 32, "it has half of the rows"
    assert counts["wide"] >= 20, "it has a third of the bytes"


class Earlier(Precedents):
    """Knows one layer, and what a row takes."""

    def __init__(self, same: SameLayer | None = None, seconds: float | None = None) -> None:
        self.same, self.seconds = same, seconds

    def same_layer(self, work: Work, name: str, source: ArraySource | ItemsSource) -> SameLayer | None:
        return self.same if name in ("two", "items") else None

    def row_cost(self, work: Work, source: ArraySource | ItemsSource) -> RowCost | None:
        return RowCost(self.seconds, "as in b.1") if self.seconds else None


def with_earlier(base: Path, earlier: Precedents, source: str = "w", kind: str = "tiny") -> Plan:
    text = f"name: a\nkind: {kind}\nsource: {source}\n"
    return make_plan(parse_job(text, "job.yaml"), base, None, precedents=earlier)


def test_a_layer_that_the_farm_has_keeps_its_cut(base: Path) -> None:
    plan = with_earlier(base, Earlier(SameLayer("b.1", 5, 5 * 1024), 6.0))
    assert [(layer.name, layer.shard_rows, layer.in_bytes) for layer in plan.layers] == [
        ("b/one", 1, 1024),
        ("two", 5, 5 * 1024),
    ]
    assert plan.cut.startswith(
        "12 shards of 1 to 5 rows: 1 of 2 layers for many machines to share; 1 of 2 layers as b.1"
    )
    given = planned(base, "shard: {rows: 5}\n")
    assert given.layers[1].digest == plan.layers[1].digest, "so one result is of both jobs"


def test_measured_seconds_cut_arrays_and_lists(base: Path) -> None:
    np.save(base / "w" / "many.npy", np.zeros((2000, 4), "<f4"))
    source = "{path: w, layers: [many]}"
    assert with_earlier(base, Earlier(seconds=1.0), source).layers[0].shard_rows == 10
    assert with_earlier(base, Earlier(seconds=1e-6), source).layers[0].count == 1
    (base / "t.csv").write_text("a,b\n" + "1,2\n" * 30_000)
    unknown, dear, cheap = (
        with_earlier(base, Earlier(seconds=seconds), "{table: t.csv}", "listing") for seconds in (None, 1.0, 1e-6)
    )
    assert [plan.layers[0].count for plan in (unknown, dear, cheap)] == [257, 3000, 2]
    assert unknown.cut == "257 shards of 117 lines: for many machines to share; nobody knows yet what an item takes"
    assert "as in b.1" in dear.cut and "as in b.1" in cheap.cut


def test_a_list_that_the_farm_has_keeps_its_cuts(base: Path) -> None:
    (base / "t.csv").write_text("a,b\n" + "1,2\n" * 10)
    text = "name: a\nkind: listing\nsource: {table: t.csv}\n"
    [given] = make_plan(parse_job(text + "shard: {rows: 4}\n", "job.yaml"), base, None).layers
    assert isinstance(given.source, ItemsSource)
    earlier = Earlier(SameLayer("b.1", given.shard_rows, given.in_bytes, given.source.cuts))
    plan = with_earlier(base, earlier, "{table: t.csv}", "listing")
    assert plan.layers == (given,)
    assert plan.cut == "3 shards of 4 lines: as b.1 has the same layer"


def test_a_million_shards_are_one_layer(tmp_path: Path) -> None:
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(4_000_000)
    head = "name: a\nkind: tiny\nsource: {path: w.bin, dtype: <f4, shape: [-1]}\nshard: {rows: 1}\n"
    plan = planned(tmp_path, head=head)
    assert total_shards(plan) == 1_000_000
    assert len(encode_plan(plan)) < 1000


def test_too_many_shards(tmp_path: Path) -> None:
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate((1 << 31) + 1)
    head = "name: a\nkind: tiny\nsource: {path: w.bin, dtype: int8, shape: [-1]}\nshard: {rows: 1}\n"
    with pytest.raises(JobFileError, match="shard: 2147483649 shards") as caught:
        planned(tmp_path, head=head)
    assert caught.value.hint == "choose larger shards"


def test_code(base: Path) -> None:
    head = "name: a\nkind: coded\nsource: w\ncode: work.py:embed\n"
    plan = planned(base, head=head, code=Bundle())
    assert (plan.work.code, plan.work.entry) == ("c" * 32, "work.py:embed")
    assert plan.layers[0].outputs is None
    assert plan.layers[0].out_bytes == plans.out_bytes_total(plan) == 0


def test_a_driven_job_without_a_source_has_one_made_layer(base: Path) -> None:
    plan = planned(base, head="name: a\nkind: driven\n")
    [layer] = plan.layers
    assert (layer.name, layer.rows, layer.shard_rows, layer.count, layer.in_bytes) == ("made", 0, 1, 0, 0)
    assert layer.source == MadeSource()
    assert layer.rows_of(5) == 1
    assert (plan.driver, plan.driven) == ("driven", True)
    assert tiny.Tiny.asked == [None]
    assert (total_shards(plan), in_bytes_total(plan), plans.out_bytes_total(plan)) == (0, 0, 0)
    assert decode_plan(encode_plan(plan)) == plan


def test_a_driven_job_with_a_source_has_its_layers(base: Path) -> None:
    assert [layer.name for layer in planned(base, head="name: a\nkind: driven\nsource: w\n").layers] == ["b/one", "two"]


def test_what_a_kind_refuses_keeps_its_field_and_names_the_layer(base: Path) -> None:
    with pytest.raises(JobFileError) as caught:
        planned(base, "params: {n_clusters: 1001}\n")
    assert caught.value.message == "params.n_clusters: more than there are values in a row (layer b/one)"
    assert caught.value.hint == "choose fewer"


def test_a_bad_source_is_a_source_error(base: Path) -> None:
    with pytest.raises(SourceError):
        planned(base, head="name: a\nkind: tiny\nsource: nowhere\n")


def test_a_job_of_unchecked_parameters_is_refused(base: Path) -> None:
    job = msgspec.structs.replace(parse_job("name: a\nkind: tiny\nsource: w\n", "job.yaml"), params={"n_clusters": 0})
    with pytest.raises(JobFileError, match=r"params\.n_clusters: expected a whole number >= 1"):
        make_plan(job, base, None)


# --- digests -----------------------------------------------------------------------------------------------


def digests(plan: Plan) -> list[str]:
    return [layer.digest for layer in plan.layers]


def test_what_changes_no_result_changes_no_digest(base: Path) -> None:
    same = "attempts: 9\ntimeout: 3s\nmax_failures: 2\npriority: 7\nsame_kernels: require\n"
    same += "at_once: 3\nflush: 0.5s\n"
    same += "resources: {memory: 3GiB, disk: 1GiB}\nparams: {tol: 1, n_clusters: 8}\n"
    other = planned(base, same, head="name: other\nkind: tiny\nsource: w\n")
    assert digests(other) == digests(planned(base))


@pytest.mark.parametrize(
    "more",
    [
        "params: {n_clusters: 9}\n",
        "params: {tol: 2}\n",
        "resources: {cpus: 2}\n",
        "env: torch\n",
        "shard: {rows: 2}\n",
        "variables: {LANG: C}\n",
    ],
)
def test_what_changes_results_changes_every_digest(base: Path, more: str) -> None:
    assert not set(digests(planned(base, more))) & set(digests(planned(base)))


def test_code_and_its_entry_are_in(base: Path) -> None:
    head = "name: a\nkind: coded\nsource: w\ncode: work.py:embed\n"
    bundles = [Bundle(), Bundle(digest="d" * 32), Bundle(entry="work.py:other")]
    assert len({digests(planned(base, head=head, code=bundle))[0] for bundle in bundles}) == 3


def test_a_touched_file_is_another_source(base: Path) -> None:
    before = digests(planned(base))
    os.utime(base / "w" / "two.npy", ns=(1, 1))
    after = digests(planned(base))
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_two_names_for_one_file_are_two_layers(base: Path) -> None:
    (base / "w" / "three.npy").symlink_to("two.npy")
    plan = planned(base)
    assert plan.layers[1].source == plan.layers[2].source
    assert len(set(digests(plan))) == 3


WORK = Work("tiny", 3, {"a": 1, "b": [1.5, "x"]}, None, None, None, 1, None, None)
SOURCE = ArraySource("/w/a.npy", 128, "<f4", (10, 4), Stamp(1, 2, 3, 4))
OTHERS: list[Callable[[], tuple[Work, str, ArraySource | MadeSource, int]]] = [
    lambda: (msgspec.structs.replace(WORK, kernel=4), "n", SOURCE, 5),
    lambda: (msgspec.structs.replace(WORK, kind="tiny2"), "n", SOURCE, 5),
    lambda: (msgspec.structs.replace(WORK, params={"a": 1}), "n", SOURCE, 5),
    lambda: (msgspec.structs.replace(WORK, params={"a": "1", "b": [1.5, "x"]}), "n", SOURCE, 5),
    lambda: (WORK, "m", SOURCE, 5),
    lambda: (WORK, "n", SOURCE, 6),
    lambda: (WORK, "n", MadeSource(), 5),
    lambda: (WORK, "n", msgspec.structs.replace(SOURCE, offset=64), 5),
    lambda: (WORK, "n", msgspec.structs.replace(SOURCE, dtype=">f4"), 5),
    lambda: (WORK, "n", msgspec.structs.replace(SOURCE, shape=(5, 8)), 5),
    lambda: (WORK, "n", msgspec.structs.replace(SOURCE, path="/w/b.npy"), 5),
    lambda: (WORK, "n", msgspec.structs.replace(SOURCE, stamp=Stamp(1, 2, 3, 5)), 5),
]


@pytest.mark.parametrize("other", OTHERS)
def test_each_thing_a_digest_depends_on(other: Callable[[], tuple[Work, str, ArraySource | MadeSource, int]]) -> None:
    digest = layer_digest(WORK, "n", SOURCE, 5)
    assert len(digest) == 32
    assert layer_digest(*other()) != digest


def test_the_order_of_parameters_is_not_in_a_digest() -> None:
    turned = msgspec.structs.replace(WORK, params={"b": [1.5, "x"], "a": 1})
    assert layer_digest(turned, "n", SOURCE, 5) == layer_digest(WORK, "n", SOURCE, 5)


# --- as bytes ----------------------------------------------------------------------------------------------


def test_a_plan_survives_its_bytes(base: Path) -> None:
    plan = planned(base, "shard: {rows: 2}\n")
    again = decode_plan(encode_plan(plan))
    assert again == plan
    assert [type(layer) for layer in again.layers] == [Layer, Layer]


def test_another_format_is_refused_with_a_hint(base: Path) -> None:
    raw = encode_plan(msgspec.structs.replace(planned(base), format=FORMAT + 1))
    with pytest.raises(RefusedError, match="format 2") as caught:
        decode_plan(raw)
    assert caught.value.hint == "submit the job again"


def test_a_newer_format_may_have_other_fields() -> None:
    with pytest.raises(RefusedError):
        decode_plan(msgspec.msgpack.encode({"format": 99, "anything": [1, 2]}))


@given(st.binary(max_size=100))
def test_bytes_that_are_no_plan(raw: bytes) -> None:
    with pytest.raises((DamagedError, RefusedError)):
        decode_plan(raw)


def test_a_cut_plan(base: Path) -> None:
    raw = encode_plan(planned(base))
    for length in range(0, len(raw), 7):
        with pytest.raises(DamagedError):
            decode_plan(raw[:length])


# --- items ------------------------------------------------------------------------------------------------


def items_plan(base: Path, source: str, more: str = "", at: Path | None = None) -> Plan:
    head = f"name: a\nkind: listing\nsource: {source}\n{more}"
    return make_plan(parse_job(head, "job.yaml"), base, None, at)


@pytest.fixture
def files(base: Path) -> Path:
    for i in range(600):
        (base / f"f{i:03}").write_bytes(b"x" * (i % 7))
    return base


def test_files_are_one_layer_cut_between_them(files: Path) -> None:
    [layer] = items_plan(files, '{files: "f*"}', at=files / "list").layers
    assert (layer.name, layer.rows, layer.count, layer.shard_rows) == ("items", 600, 300, 2)
    assert [layer.rows_of(n) for n in (0, 299)] == [2, 2] and layer.first_row(299) == 598
    [by_size] = items_plan(files, '{files: "f*"}', "shard: {size: 9}").layers
    assert sum(by_size.rows_of(n) for n in range(by_size.count)) == 600
    assert len({by_size.rows_of(n) for n in range(by_size.count)}) > 1
    assert (
        by_size.total_in_bytes
        == layer.total_in_bytes
        == sum(i % 7 for i in range(600)) + (files / "list").stat().st_size
    )
    assert max(by_size.window(n).nbytes for n in range(by_size.count)) == by_size.in_bytes
    assert by_size.digest != layer.digest
    [again] = decode_plan(encode_plan(items_plan(files, '{files: "f*"}', "shard: {size: 9}"))).layers
    assert again == by_size


def test_a_table_is_cut_by_rows(base: Path) -> None:
    (base / "t.csv").write_text("a,b\n" + "1,2\n" * 10)
    [layer] = items_plan(base, "{table: t.csv}", "shard: {rows: 4}").layers
    assert [layer.rows_of(n) for n in range(layer.count)] == [4, 4, 2]
    [other] = items_plan(base, "{table: t.csv}").layers
    assert other.count == 10


@pytest.mark.parametrize(
    ("source", "more", "message"),
    [
        ('{files: "f*", path: w}', "", "expected only one of"),
        ('{files: "f*", layers: [a]}', "", "are of arrays"),
        ('{files: "f*"}', "shard: {rows: 3}", "shard.rows: the source has files"),
        ("{table: t.csv}", "shard: {files: 3}", "shard.files: the source has rows"),
        ('{files: "f*"}', "shard: {files: 3, size: 3}", "exactly one of `size` and `files`"),
        ('{files: "f*"}', "shard: {}", "exactly one of `size` and `files`"),
        ("w", "shard: {files: 3}", "shard.files: the source has rows"),
    ],
)
def test_items_that_cannot_be_planned(files: Path, source: str, more: str, message: str) -> None:
    with pytest.raises(JobFileError, match=r"job\.yaml:\d+: ") as caught:
        items_plan(files, source, more)
    assert message in caught.value.message


def test_a_kind_for_arrays_refuses_items(files: Path) -> None:
    with pytest.raises(JobFileError, match="kind `tiny` computes on arrays"):
        make_plan(parse_job('name: a\nkind: tiny\nsource: {files: "f*"}\n', "job.yaml"), files, None)


def test_more_shards_than_a_list_may_have(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "ITEMS_SHARDS_LIMIT", 10)
    with pytest.raises(JobFileError, match="300 shards of files or lines"):
        items_plan(files, '{files: "f*"}')
