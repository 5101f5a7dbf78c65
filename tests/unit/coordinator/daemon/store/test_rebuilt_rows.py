"""The rows of a new store: every shard once, the lower bundle first, nothing of what is damaged or another job's."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from muster.coordinator.daemon.store.rebuilt_rows import (
    FoundBundle,
    FoundJob,
    FoundResult,
    LayerRows,
    StoreRows,
    rows_of,
)
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import ArraySource, Layer, MadeSource, Output, Plan, Source, Stamp, Work

COUNT = 6  # shards of a layer
OUTPUTS = (Output("y", "rows", "<f4"),)
OTHER = (Output("z", "rows", "<f4"),)
ARRAY = ArraySource("/x.npy", 0, "<f4", (COUNT, 2), Stamp(0, 0, 0, 0))
WORK = Work("map", 1, {}, None, None, None, 1, None, None)


def layer(digest: str, source: Source = ARRAY, outputs: tuple[Output, ...] | None = None) -> Layer:
    count = 0 if isinstance(source, MadeSource) else COUNT
    return Layer(digest, digest, source, count, 1, count, 8, 4, outputs)


def plan(*layers: Layer, same_kernels: bool = False, driver: str | None = None) -> Plan:
    return Plan(1, "job", WORK, layers, 3, 20, 5, driver, same_kernels)


def bundle(
    order: tuple[int, int], digest: str, numbers: set[int], fingerprint: str = "k", **more: object
) -> FoundBundle:
    values = {"outputs": OUTPUTS, "boots": frozenset({order[0]}), **more}
    return FoundBundle(
        f"{order[0]}-{order[1]}.part", order, digest, RangeSet.of(sorted(numbers)), fingerprint=fingerprint,
        agents=frozenset({f"agent-{order[1] % 2}"}), nbytes=100, body=90, at=float(order[0]), **values,  # type: ignore[arg-type]
    )  # fmt: skip


def job(*bundles: FoundBundle, of: Plan, id: str = "job.1", merged: str = "", created: float = 1.0) -> FoundJob:
    results = {digest: FoundResult("m", OUTPUTS, ("k",), 9.0) for digest in merged}
    return FoundJob(id, of, "p", created, bundles, results)


def rebuilt(*jobs: FoundJob, boots: tuple[int, ...] = ()) -> StoreRows:
    return rows_of(jobs, [one.id for one in jobs], boots)


def the(rows: StoreRows, digest: str, at: int = 0) -> LayerRows:
    return next(one for one in rows.jobs[at].layers if one.layer.digest == digest)


BUNDLES = st.lists(
    st.builds(
        bundle,
        st.tuples(st.integers(1, 9), st.integers(1, 99)),
        st.sampled_from("abcx"),
        st.sets(st.integers(0, COUNT), min_size=1),
        st.sampled_from(["k", "l"]),
        outputs=st.sampled_from([OUTPUTS, OUTPUTS, OTHER]),
    ),
    unique_by=lambda one: one.order,
    max_size=12,
)


@given(BUNDLES, st.sets(st.sampled_from("abc")), st.booleans(), st.randoms())
def test_every_shard_is_committed_once_and_by_the_lowest_bundle(
    bundles: list[FoundBundle], merged: set[str], same_kernels: bool, rng: random.Random
) -> None:
    of = plan(layer("a"), layer("b", outputs=OUTPUTS), layer("c"), same_kernels=same_kernels)
    rows = rebuilt(job(*bundles, of=of, merged="".join(sorted(merged))))
    shuffled = rng.sample(bundles, len(bundles))
    assert rebuilt(job(*shuffled, of=of, merged="".join(sorted(merged)))).jobs[0].layers == rows.jobs[0].layers
    counted = [one for row in rows.jobs[0].layers for one in row.bundles]
    assert {one.file for one in counted} | rows.jobs[0].left_out.keys() == {one.file for one in bundles}
    assert not {one.file for one in counted} & rows.jobs[0].left_out.keys()
    for row in rows.jobs[0].layers:
        assert sum(len(one.numbers) for one in row.bundles) == len(row.committed) <= COUNT
        assert len({one.outputs for one in row.bundles}) <= 1 and all(
            one.layer == row.layer.digest for one in row.bundles
        )
        assert (row.state == "merged") == (row.layer.digest in merged) and not (row.result and row.bundles)
        assert row.state == "merged" or row.state == "open"
    for one in bundles:
        lower = [other for other in counted if other.layer == one.layer and other.order < one.order]
        sound = one.layer in "abc" and one.layer not in merged and one.numbers.top <= COUNT
        if sound and not same_kernels and one.outputs == OUTPUTS and the(rows, one.layer).outputs in (None, OUTPUTS):
            assert (one in counted) == (not any(one.numbers & other.numbers for other in lower))
    if same_kernels:
        assert {one.fingerprint for one in counted} | ({"k"} if merged else set()) <= {rows.jobs[0].kernels}
    assert rows.boot > max([0, *(one.order[0] for one in bundles)]) + 100


def test_what_is_merged_is_complete_and_the_rest_paused() -> None:
    of = plan(layer("a"), layer("b"))
    rows = rebuilt(job(of=of, merged="ab"), job(of=of, id="job.2", merged="a", created=2.0))
    assert [(one.state, one.ended) for one in rows.jobs] == [("complete", 9.0), ("paused", None)]
    assert "coordinator resume job.2" in rows.jobs[1].why and rows.numbers == {"job": 2}


def test_a_layer_is_open_in_the_one_job_that_has_some_of_it() -> None:
    of = plan(layer("a"), layer("b"))
    rows = rebuilt(job(of=of), job(bundle((1, 1), "a", {0}), of=of, id="job.2", created=2.0))
    assert [[one.state for one in each.layers] for each in rows.jobs] == [["waiting", "open"], ["open", "waiting"]]


def test_what_a_driver_made_begins_anew_and_its_result_is_complete() -> None:
    of = plan(layer("a", MadeSource()), driver="chain")
    rows = rebuilt(job(bundle((1, 1), "a", {0}), of=of))
    assert (the(rows, "a").state, the(rows, "a").bundles) == ("waiting", []) and rows.jobs[0].left_out
    assert rebuilt(job(of=of, merged="a")).jobs[0].state == "complete"


def test_the_start_is_above_all_that_is_known_of() -> None:
    of = plan(layer("a"))
    assert rebuilt(job(of=of), boots=(7, 3)).boot > 7
    assert rebuilt(job(bundle((2, 1), "a", {0}, boots=frozenset({40})), of=of), boots=(7,)).boot > 40


def test_jobs_whose_plans_cannot_be_read_keep_their_numbers() -> None:
    rows = rows_of([job(of=plan(layer("a")))], ["job.1", "job.4", "other.2"], ())
    assert rows.numbers == {"job": 4, "other": 2} and len(rows.jobs) == 1
