"""Messages: whatever bytes a peer sends are a message of the protocol or a ProtocolError, in bounded memory."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.agent.core.reports import Reports
from muster.coordinator.api import driver
from muster.coordinator.api import requests as a
from muster.coordinator.protocol import control, fitting, transfer, values
from muster.coordinator.protocol.frames import AGENT_LIMIT
from muster.jobs.common.errors import DamagedError, ProtocolError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Output
from muster.jobs.parts.part_file import decode_index

DIGEST = "0123456789abcdef" * 2
GROWTH_LIMIT = 24  # bytes of memory for each byte of a message, at most

decode = values.Decoder(transfer.FromHelper | a.FromCommand)

RANGES = [(0, 3), (5, 6)]
FAILURE = control.Failure("job.1", DIGEST, 3, 1, 2, "exception", "no", "because", 0.5, 1)
LOSS = control.Loss("job.1", DIGEST, 1, 2, RANGES, True, "killed")
SAMPLES: list[values.Message] = [
    transfer.Attach("control", "lab3"),
    control.Hello(
        1, "0.1.0", "lab3", "s", "p", "h", 7, 2, 1, 1, {"cluster": 1}, "fp", "3.11", True,
        [control.Held("job.1", DIGEST, 1, 2, RANGES, [])], [FAILURE], [LOSS], answers={"cluster": (DIGEST, DIGEST)},
    ),
    control.Sync(
        5, 1, 0.5, True, [control.Finished("job.1", DIGEST, 1, 2, RANGES, 4, 0.1, 0.2, 3, 4, 5)], [FAILURE], [LOSS],
        [control.Returned(DIGEST, 1, 2, RANGES)], [DIGEST],
    ),
    control.Leave(5),
    transfer.Offer(5, DIGEST, RANGES, [Output("centers", "rows", "<f4", (4,))], b"index", 99),
    transfer.Stored(1, 99),
    transfer.Failed(1, "full", "no room"),
    transfer.Moved(5),
    transfer.Probe(1 << 20, "lab3"),
    a.Submit("submit-0123456789abcdef"),
    a.Retry("job.1", ["a/b"]),
    driver.Advance("job.1", 0, 1, [(0, b"payload")]),
]  # fmt: skip


def outcome(raw: bytes) -> values.Message | None:
    try:
        return decode(raw)
    except ProtocolError as error:
        assert "\n" not in error.message
        return None


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_what_is_said_is_what_is_heard(message: values.Message) -> None:
    assert decode(values.encode(message)) == message


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_cut_short_anywhere_is_an_error(message: values.Message) -> None:
    raw = values.encode(message)
    for cut in range(len(raw)):
        with pytest.raises(ProtocolError):
            decode(raw[:cut])


@given(st.binary(max_size=300))
def test_arbitrary_bytes(raw: bytes) -> None:
    outcome(raw)


@given(st.sampled_from(SAMPLES), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6))
def test_mutated_messages(message: values.Message, changes: list[tuple[int, int]]) -> None:
    raw = bytearray(values.encode(message))
    for at, byte in changes:
        raw[at % len(raw)] = byte
    heard = outcome(bytes(raw))
    if heard is not None:
        assert decode(values.encode(heard)) == heard


JSONISH = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=200)
def test_any_value_in_any_field(message: values.Message, data: st.DataObject) -> None:
    fields = msgspec.to_builtins(message, builtin_types=(bytes,))
    name = data.draw(st.sampled_from(sorted(fields)))
    outcome(msgspec.msgpack.encode({**fields, name: data.draw(JSONISH)}))


def test_nesting_without_end_is_an_error() -> None:
    for opening in (b"\x91", b"\x81\xa1t"):
        assert outcome(opening * 100_000) is None
        raw = values.encode(SAMPLES[1])
        at = raw.index(b"kernels") + len(b"kernels")
        assert outcome(raw[:at] + opening * 100_000) is None


@pytest.mark.parametrize("field", ["held", "failures", "losses", "kernels"])
def test_a_length_that_lies_costs_nothing(field: str) -> None:
    raw = values.encode(SAMPLES[1])
    at = raw.index(field.encode()) + len(field)
    claim = b"\xdf\xff\xff\xff\xff" if field == "kernels" else b"\xdd\xff\xff\xff\xff"
    tracemalloc.start()
    try:
        assert outcome(raw[:at] + claim + raw[at + 1 :]) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def long_messages() -> dict[str, bytes]:
    """The messages that grow most in memory, of about 1 MiB each."""
    count = 1 << 14
    tiny = control.Failure("", DIGEST, 0, 0, 0, "", "", "", 0, 0)
    finished = control.Finished("", DIGEST, 0, 0, [], 0, 0, 0, 0, 0, 0)
    kernels = {f"{i:x}": 0 for i in range(10 * count)}
    ranges = [(2 * i, 2 * i + 1) for i in range(65_536)]
    hello = msgspec.to_builtins(SAMPLES[1])
    return {
        "failures": values.encode(control.Sync(1, 0, failures=[tiny] * count)),
        "finished": values.encode(control.Sync(1, 0, finished=[finished] * count)),
        "returned": values.encode(control.Sync(1, 0, returned=[control.Returned(DIGEST, 0, 0, [])] * count)),
        "ranges": values.encode(control.Sync(1, 0, returned=[control.Returned(DIGEST, 0, 0, ranges)] * 2)),
        "kernels": msgspec.msgpack.encode({**hello, "kernels": kernels}),
        "outputs": values.encode(transfer.Offer(1, DIGEST, [], [Output("", "sum", "")] * count, b"", 0)),
        "changed": values.encode(control.Sync(1, 0, changed=[DIGEST] * 2 * count)),
    }


@pytest.mark.parametrize("name", long_messages())
def test_the_most_hostile_message_costs_a_bounded_factor(name: str) -> None:
    raw = long_messages()[name]
    tracemalloc.start()
    try:
        outcome(raw)
        assert tracemalloc.get_traced_memory()[1] < GROWTH_LIMIT * len(raw)
    finally:
        tracemalloc.stop()


NUMBERS = st.integers(0, 60)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=6)


@given(PAIRS)
def test_ranges_that_are_not_sorted_and_apart_are_refused(pairs: list[tuple[int, int]]) -> None:
    canonical = all(lo < hi for lo, hi in pairs) and all(one[1] < after[0] for one, after in pairwise(pairs))
    report = {"t": "returned", "layer": DIGEST, "boot": 1, "attempt": 1, "numbers": pairs}
    sync = msgspec.to_builtins(control.Sync(1, 0))
    assert (outcome(msgspec.msgpack.encode({**sync, "returned": [report]})) is not None) == canonical


def test_ranges_in_falling_order_are_refused_before_anything_is_made_of_them() -> None:
    falling = [(2 * n, 2 * n + 1) for n in range(65_536, 0, -1)]
    held = {"t": "held", "job": "", "layer": DIGEST, "boot": 1, "attempt": 1, "running": falling, "finished": []}
    assert outcome(msgspec.msgpack.encode({**msgspec.to_builtins(SAMPLES[1]), "held": [held]})) is None


TEXTS = st.text(max_size=40) | st.sampled_from(["\x1b" * 16_000, "\U0001f600" * 16_000, "\n" * 16_000, "\\" * 16_000])
RUNS = st.builds(lambda n, start: [(start + 3 * i, start + 3 * i + 1) for i in range(n)],
                 st.integers(1, 20) | st.sampled_from([3_000, 9_000]), st.integers(0, 1 << 40))  # fmt: skip


def many(one: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.tuples(one, st.integers(0, 3) | st.sampled_from([300, 2_000])).map(lambda pair: [pair[0]] * pair[1])


FIELDS = ("j", DIGEST, 1, 1)
PRINTED = st.builds(control.Printed, *map(st.just, (DIGEST, 1, 1, 1)), TEXTS)
SYNCS = st.builds(
    control.Sync,
    st.just(1),
    st.just(0),
    finished=many(st.builds(control.Finished, *map(st.just, FIELDS), RUNS, *map(st.just, (1, 1.0, 1.0, 1, 1, 1)))),
    failures=many(
        st.builds(control.Failure, *map(st.just, ("j", DIGEST, 1, 1, 1, "exit")), TEXTS, TEXTS, *map(st.just, (1.0, 1)))
    ),
    losses=many(st.builds(control.Loss, *map(st.just, FIELDS), RUNS, st.booleans(), TEXTS)),
    returned=many(st.builds(control.Returned, *map(st.just, FIELDS[1:]), RUNS)),
    changed=many(st.just(DIGEST)),
    change=TEXTS,
    note=TEXTS,
    printed=st.tuples(PRINTED, st.sampled_from([0, 1, 1024])).map(lambda pair: [pair[0]] * pair[1]),
)


@given(SYNCS)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_an_agent_says_is_cut_to_a_frame_and_what_fits_is_left_alone(sync: control.Sync) -> None:
    cut = fitting.fitted_sync(sync)
    assert len(values.encode(cut)) <= AGENT_LIMIT
    assert fitting.fitted_sync(cut) == cut
    assert len(msgspec.json.encode(cut)) <= 2 * AGENT_LIMIT, "texts become longer where they are written"
    entries: list[Any] = [*cut.finished, *cut.losses, *cut.returned]
    assert len(entries) <= fitting.ENTRIES and sum(len(one.numbers) for one in entries) <= fitting.RANGES
    texts = [cut.note, cut.change, *(one.message for one in cut.failures), *(one.reason for one in cut.losses)]
    assert all(text.isprintable() for text in texts)
    assert decode(values.encode(cut)) == cut


@given(st.lists(st.tuples(st.integers(0, 9), RUNS), max_size=3), st.lists(RUNS, max_size=2))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_an_agent_says_all_it_has_in_as_many_messages_as_that_takes(
    finished: list[tuple[int, list[tuple[int, int]]]], lost: list[list[tuple[int, int]]]
) -> None:
    reports = Reports()
    for attempt, pairs in finished:
        reports.finish(("j", DIGEST, 1, attempt), RangeSet.canonical(pairs)).rows += 1
    for pairs in lost:
        reports.lose(control.Loss("j", DIGEST, 1, 77, pairs, True, "killed"))
    said: list[control.Sync] = []
    while reports.next.pressing:
        assert len(said) < 1_000, "it never ends"
        said.append(control.Sync(1, 0, **reports.post().fields()))  # type: ignore[arg-type]
        assert fitting.fitted_sync(said[-1]) == said[-1], "an honest agent would be cut"
        reports.answered()
    assert sum(one.rows for sync in said for one in sync.finished) == len(finished)
    reported: list[Any] = [one for sync in said for one in (*sync.finished, *sync.losses)]
    told = [(one.attempt, n) for one in reported for n in RangeSet(one.numbers)]
    wanted = {(attempt, n) for attempt, pairs in (*finished, *((77, pairs) for pairs in lost)) for n in RangeSet(pairs)}
    assert {*told} == wanted


@given(st.binary(max_size=200))
def test_an_index_of_arbitrary_bytes_is_damaged(raw: bytes) -> None:
    with pytest.raises(DamagedError):
        decode_index(raw)
