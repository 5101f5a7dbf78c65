"""The Workbench: batches to parts, and what becomes of shards that fail, kinds that die and disks that fill."""

from __future__ import annotations

import errno
import importlib.util
import os
import py_compile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
import threadpoolctl
import xxhash

from muster.jobs.common.errors import SpaceError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.kind import Answers, Bench, Kind, Result, Runner, RunnerLost, Shape, Shard, ShardFailure
from muster.jobs.contract.plan import ITEMS_LIST, ArraySource, ItemsSource, Layer, MadeSource, Output, Work
from muster.jobs.kinds import registry
from muster.jobs.parts.part_file import PartWriter, check_body, read_index
from muster.jobs.results.bundle import HeldPart
from muster.jobs.results.merge import merge_layer
from muster.jobs.results.open_result import open_result
from muster.jobs.sources.discover import SourceSpec, stamp_of
from muster.jobs.sources.items import cut, located
from muster.jobs.sources.list_items import find_items
from muster.jobs.user_code.code_pack import CodeBundle, pack, unpack
from muster.jobs.workbench.batch import Batch, Item, Outcome
from muster.jobs.workbench.fingerprint import fingerprint
from muster.jobs.workbench.serial import run_serially
from muster.jobs.workbench.slot_marker import read
from muster.jobs.workbench.workbench import Workbench

Act = Callable[[Shard], Result]


def doubled(shard: Shard) -> Result:
    assert shard.rows is not None
    return {"twice": shard.rows * 2, "same": shard.rows}


class Acting(Runner):
    """Does what its kind is told, and remembers being closed."""

    def __init__(self, kind: type[Told]) -> None:
        self._kind = kind

    def run(self, shard: Shard) -> Result:
        self._kind.ran.append(shard.number)
        return self._kind.act(shard)

    def close(self) -> None:
        self._kind.closed += 1


class Told(Kind[msgspec.Struct]):
    """A kind that a test tells what to do."""

    name = "told"
    kernel = 1
    act: ClassVar[Act]
    ran: ClassVar[list[int]]
    opened: ClassVar[list[Bench]]
    closed: ClassVar[int]
    failing: ClassVar[Exception | None]

    class Params(msgspec.Struct, forbid_unknown_fields=True):
        level: int = 0

    def declare(self, params: msgspec.Struct, shape: Shape | None) -> None:
        return None

    def open(self, bench: Bench) -> Runner:
        if self.failing is not None:
            raise self.failing
        self.opened.append(bench)
        return Acting(type(self))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> type[Told]:
    """The kind `told`, as it is before anything ran."""
    Told.act, Told.ran, Told.opened, Told.closed, Told.failing = staticmethod(doubled), [], [], 0, None
    monkeypatch.setattr(registry, "load", lambda name: {"told": Told}[name]())
    return Told


class Desk:
    """A layer of 10 rows in shards of 3, and batches of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = np.arange(20, dtype="<f4").reshape(10, 2)
        path = folder / "layer.bin"
        path.write_bytes(self.rows.tobytes())
        source = ArraySource(str(path), 0, "<f4", (10, 2), stamp_of(path.stat()))
        self.layer = Layer("layer", "d" * 32, source, 10, 3, 4, 24, 0, None)
        self.work = Work("told", 1, {}, None, None, None, 1, None, None)
        self.bench = Workbench()

    def batch(self, *numbers: int, **fields: Any) -> Batch:
        layer = fields.pop("layer", self.layer)
        items = tuple(Item(number, 2, number + 10, layer.window(number)) for number in numbers)
        plain: dict[str, Any] = {
            "farm": "farm",
            "agent": "me",
            "job": "job.1",
            "layer": layer,
            "work": self.work,
            "items": items,
            "tmp": str(self.folder / "tmp" / "part"),
            "done": str(self.folder / "done" / "part"),
            "mark": str(self.folder / "mark"),
            "scratch": str(self.folder / "scratch"),
            "code": None,
            "python": None,
        }
        return Batch(**(plain | fields))

    def run(self, *numbers: int, **fields: Any) -> Outcome:
        return self.bench.run(self.batch(*numbers, **fields))

    @property
    def done(self) -> Path:
        return self.folder / "done" / "part"

    def left(self) -> list[str]:
        """Files in tmp/ and done/."""
        return sorted(path.name for name in ("tmp", "done") for path in self.folder.glob(f"{name}/*"))


@pytest.fixture
def core(tmp_path: Path, told: type[Told]) -> Desk:
    return Desk(tmp_path)


def only_fails(number: int, error: BaseException) -> Act:
    def act(shard: Shard) -> Result:
        if shard.number == number:
            raise error
        return doubled(shard)

    return act


def test_a_batch_becomes_a_part(core: Desk) -> None:
    outcome = core.run(0, 1, 3, rest=", torch 2.9")
    assert outcome.numbers == (0, 1, 3) and outcome.rows == 7 and outcome.in_bytes == 56 and not outcome.mishaps
    assert outcome.nbytes == core.done.stat().st_size and outcome.peak > 1 << 20
    index = read_index(core.done)
    check_body(core.done, index)
    assert index.outputs == (Output("same", "rows", "<f4", (2,)), Output("twice", "rows", "<f4", (2,)))
    assert (index.farm, index.layer) == ("farm", "d" * 32)
    assert index.fingerprint == f"{fingerprint()}, torch 2.9"
    entry = index.entries[2]
    assert (entry.number, entry.rows, entry.boot, entry.attempt, entry.agent) == (3, 1, 2, 13, "me")
    assert entry.in_digest == xxhash.xxh3_128_digest(core.rows[9:].tobytes()) and entry.in_bytes == 8
    assert os.listdir(core.folder / "tmp") == []


def test_results_that_are_the_input_itself_are_kept(core: Desk) -> None:
    core.run(0, 1, 2, 3)
    (core.folder / "out").mkdir()
    merge_layer(core.layer, [core.done], core.folder / "out", job="job.1")
    found = open_result(core.folder / "out").outputs
    assert np.array_equal(np.array(found["same"]), core.rows)
    assert np.array_equal(np.array(found["twice"]), core.rows * 2)


def test_the_serial_run_is_the_whole_layer(core: Desk) -> None:
    index = read_index(run_serially(core.layer, core.work, core.folder))
    assert HeldPart(core.done, index, RangeSet([(0, 4)])).wanted == RangeSet.of(e.number for e in index.entries)


def test_the_serial_run_fails_as_its_shard_does(core: Desk, told: type[Told]) -> None:
    told.act = staticmethod(only_fails(2, ShardFailure("exit", "exit 3", "tail")))
    with pytest.raises(ShardFailure, match="shard 2: exit 3"):
        run_serially(core.layer, core.work, core.folder)


def test_a_kind_stays_open_until_another_jobs_batch_comes(core: Desk, told: type[Told]) -> None:
    core.run(0)
    core.run(1, work=Work("told", 1, {}, None, None, None, 1, None, None))
    assert len(told.opened) == 1 and told.closed == 0
    core.run(2, work=Work("told", 1, {"level": 2}, None, None, None, 1, None, 5.0))
    core.run(3, code=str(core.folder), work=Work("told", 1, {}, None, "work.py:f", None, 1, None, None))
    assert len(told.opened) == 3 and told.closed == 2
    assert told.opened[1].params.level == 2 and told.opened[1].timeout == 5.0
    assert told.opened[2].code == core.folder and told.opened[2].entry == "work.py:f"
    core.bench.close()
    core.bench.close()
    assert told.closed == 3


@pytest.mark.parametrize(
    ("error", "code", "lost", "message"),
    [
        (ShardFailure("exit", "exit code 3", "last lines"), "exit", False, "exit code 3"),
        (RunnerLost("killed by SIGKILL"), "killed", True, "killed by SIGKILL"),
        (MemoryError(), "memory", False, "MemoryError"),
        (KeyError("x\ny"), "exception", False, "KeyError"),
        (OSError(errno.EIO, "bad disk"), "exception", False, "OSError"),
    ],
)
def test_one_bad_shard_spoils_no_other(
    core: Desk, told: type[Told], error: Exception, code: str, lost: bool, message: str
) -> None:
    told.act = staticmethod(only_fails(1, error))
    outcome = core.run(0, 1, 2)
    assert outcome.numbers == (0, 2) and [entry.number for entry in read_index(core.done).entries] == [0, 2]
    (mishap,) = outcome.mishaps
    assert (mishap.number, mishap.lost, mishap.code) == (1, lost, code)
    assert mishap.message.startswith(message) and "\n" not in mishap.message and mishap.peak > 0
    check_body(core.done, read_index(core.done))


def test_evidence_is_the_end_of_the_traceback(core: Desk, told: type[Told]) -> None:
    told.act = staticmethod(only_fails(0, ValueError("x" * 100_000)))
    (mishap,) = core.run(0).mishaps
    assert len(mishap.evidence) == 8_000 and len(mishap.message) == 500
    told.act = staticmethod(only_fails(0, ValueError("no such thing")))
    (mishap,) = core.run(0).mishaps
    assert "in act" in mishap.evidence and mishap.evidence.endswith("ValueError: no such thing\n")


def test_when_nothing_came_of_it_there_is_no_part(core: Desk, told: type[Told]) -> None:
    told.act = staticmethod(only_fails(0, ValueError("no")))
    assert core.run(0).numbers == () and core.left() == []


def odd_in(number: int) -> Act:
    def act(shard: Shard) -> Result:
        assert shard.rows is not None
        return {"y": shard.rows.astype("f8" if shard.number == number else "f4")}

    return act


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_a_part_ends_where_outputs_differ_and_nobody_is_blamed(core: Desk, told: type[Told], odd: int) -> None:
    """Which of them is right is not for one machine to say."""
    told.act = staticmethod(odd_in(odd))
    left, parts = [0, 1, 2, 3], []
    while left:
        outcome = core.run(*left)
        assert outcome.numbers and not outcome.mishaps and not outcome.changed
        (output,) = read_index(core.done).outputs
        parts.append((outcome.numbers, output.dtype))
        left = [number for number in left if number not in outcome.numbers]
    apart = [tuple(range(odd)), (odd,), tuple(range(odd + 1, 4))]
    assert parts == [(numbers, "<f8" if numbers == (odd,) else "<f4") for numbers in apart if numbers]


def test_the_serial_run_says_where_outputs_differ(core: Desk, told: type[Told]) -> None:
    told.act = staticmethod(odd_in(2))
    with pytest.raises(ShardFailure, match="shard 2: its outputs"):
        run_serially(core.layer, core.work, core.folder)


def test_declared_outputs_bind_the_first_shard_too(core: Desk) -> None:
    declared = (Output("twice", "rows", "<f4", (3,)),)
    outcome = core.run(0, layer=msgspec.structs.replace(core.layer, outputs=declared))
    assert outcome.numbers == () and outcome.mishaps[0].code == "output"


@pytest.mark.parametrize("lost", [False, True])
def test_a_kind_that_does_not_open_costs_one_shard(core: Desk, told: type[Told], lost: bool) -> None:
    told.failing = RunnerLost("killed") if lost else ShardFailure("exception", "no module torch")
    outcome = core.run(0, 1)
    assert [(mishap.number, mishap.lost) for mishap in outcome.mishaps] == [(0, lost)] and outcome.numbers == ()
    told.failing = None
    assert core.run(0, 1).numbers == (0, 1)


def test_another_kernel_than_planned_is_a_loss(core: Desk) -> None:
    outcome = core.run(0, work=Work("told", 2, {}, None, None, None, 1, None, None))
    assert outcome.mishaps[0].lost and "version 1" in outcome.mishaps[0].message


def test_a_changed_source_stops_the_batch_and_keeps_what_was_done(core: Desk, told: type[Told]) -> None:
    def act(shard: Shard) -> Result:
        if shard.number == 1:
            (core.folder / "layer.bin").write_bytes(bytes(81))
        return doubled(shard)

    told.act = staticmethod(act)
    outcome = core.run(0, 1, 2, 3)
    assert outcome.changed and outcome.numbers == (0, 1) and not outcome.mishaps and told.ran == [0, 1]


def test_a_failure_over_a_file_that_has_gone_meanwhile_is_nobodys(core: Desk, told: type[Told]) -> None:
    files = core.folder / "files"
    files.mkdir()
    for name in ("a", "b"):
        (files / name).write_bytes(b"1")

    def act(shard: Shard) -> Result:
        (files / "b").unlink()
        assert shard.items is not None and shard.items.names is not None
        raise OSError([(shard.items.folder / name).read_bytes() for name in shard.items.names])

    told.act = staticmethod(act)
    _, _, listed = find_items(SourceSpec(files="files/*"), core.folder, core.folder / ITEMS_LIST)
    cuts = cut(listed, len(listed), 1 << 60)[0]
    window = located(ItemsSource(str(files), (), listed.digest, cuts).window(0), listed.path)
    outcome = core.run(items=(Item(0, 1, 1, window),))
    assert outcome.changed and not outcome.mishaps
    assert f"{files}/b" in outcome.change


def test_an_input_gone_from_the_spool_is_a_loss(core: Desk) -> None:
    window = msgspec.structs.replace(core.layer.window(0), path=str(core.folder / "gone"), stamp=None)
    outcome = core.run(items=(Item(0, 1, 1, window), Item(1, 1, 1, core.layer.window(1))))
    assert outcome.numbers == (1,) and not outcome.changed
    assert outcome.mishaps[0].lost and "spool" in outcome.mishaps[0].message


@pytest.mark.parametrize("where", ["add", "finish"])
def test_a_full_disk_commits_nothing_and_leaves_nothing(
    core: Desk, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PartWriter, where, full)
        outcome = core.run(0, 1)
    assert "No space left" in outcome.full and outcome.numbers == () and not outcome.mishaps and core.left() == []
    assert core.run(0, 1).numbers == (0, 1)


@pytest.mark.parametrize("error", [OSError(errno.EDQUOT, "Disk quota exceeded"), SpaceError("quota exceeded")])
def test_a_kind_that_meets_a_full_disk_has_not_failed(core: Desk, told: type[Told], error: Exception) -> None:
    told.act = staticmethod(only_fails(1, error))
    outcome = core.run(0, 1, 2)
    assert "quota exceeded" in outcome.full and outcome.numbers == () and not outcome.mishaps and core.left() == []


def test_another_error_of_the_spools_disk_is_the_workers_own(core: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(PartWriter, "add", broken)
    with pytest.raises(OSError, match="Input/output"):
        core.run(0)
    assert core.left() == []


def test_made_shards_get_their_payload(core: Desk, told: type[Told]) -> None:
    def act(shard: Shard) -> Result:
        assert shard.rows is None
        return {"size": np.array([len(shard.payload)])}

    told.act = staticmethod(act)
    made = Layer("made", "e" * 32, MadeSource(), 0, 1, 2, 0, 0, None)
    outcome = core.run(layer=made, items=(Item(0, 1, 1, None, b"abc"), Item(1, 1, 1, None, b"defg")))
    assert outcome.numbers == (0, 1) and outcome.rows == 2 and outcome.in_bytes == 7
    assert read_index(core.done).entries[1].in_digest == xxhash.xxh3_128_digest(b"defg")


def test_the_mark_follows_the_shard_at_hand(core: Desk, told: type[Told]) -> None:
    seen = []

    def act(shard: Shard) -> Result:
        seen.append(read(core.folder / "mark"))
        return doubled(shard)

    told.act = staticmethod(act)
    core.run(1, 2)
    assert [(mark.running, mark.number, mark.boot, mark.attempt) for mark in seen if mark] == [
        (True, 1, 2, 11),
        (True, 2, 2, 12),
    ]
    last = read(core.folder / "mark")
    assert last and not last.running
    told.act = staticmethod(only_fails(0, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        core.run(0)
    last = read(core.folder / "mark")
    assert last and not last.running and core.left() == ["part"]


def test_threads_are_those_of_the_plan(core: Desk, told: type[Told]) -> None:
    seen: list[set[int]] = []

    def act(shard: Shard) -> Result:
        seen.append({pool["num_threads"] for pool in threadpoolctl.threadpool_info()})
        return doubled(shard)

    told.act = staticmethod(act)
    for cpus in (2, 1):
        core.run(0, work=Work("told", 1, {}, None, None, None, cpus, None, None))
    assert seen == [{2}, {1}]


# --- the user's files -----------------------------------------------------------------------------------------

TIMES = b"import helper\ndef f(rows): return rows * helper.FACTOR\n"
DIES = b"""
import os
from pathlib import Path
def f(rows, shard):
    if shard == 1:
        Path(__file__).write_text("def f(rows): return rows * 3")
        os._exit(1)
    return rows * 2
"""


class Coded:
    """A layer that a user's function runs over, its files unpacked as an agent has them."""

    def __init__(self, folder: Path, **files: bytes) -> None:
        self.core = Desk(folder)
        bundle = CodeBundle("work.py:f", {f"{name}.py": raw for name, raw in sorted(files.items())})
        self.pack, self.code = folder / "spool" / "pack", folder / "spool" / "code"
        self.core.work = Work("map", 1, {}, bundle.digest, bundle.entry, None, 1, None, 60.0)
        self.pack.parent.mkdir()
        self.pack.write_bytes(pack(bundle))
        unpack(self.pack.read_bytes(), self.code, bundle.digest)

    def run(self, *numbers: int) -> Outcome:
        try:
            return self.core.run(*numbers, code=str(self.code), pack=str(self.pack))
        finally:
            self.core.bench.close()

    def results(self) -> dict[int, list[float]]:
        """Of the part, by the shard's number."""
        raw, index = self.core.done.read_bytes(), read_index(self.core.done)
        return {
            entry.number: np.frombuffer(raw[offset : offset + sum(entry.sizes)], "<f4").tolist()
            for entry, offset, _ in index.spans()
        }

    def doubled(self, number: int) -> list[float]:
        rows: list[float] = (self.core.rows[number * 3 : number * 3 + 3] * 2).ravel().tolist()
        return rows


def change(coded: Coded) -> None:
    (coded.code / "helper.py").write_text("FACTOR = 3\n")


def put_a_package_before_it(coded: Coded) -> None:
    (coded.code / "helper").mkdir()
    (coded.code / "helper" / "__init__.py").write_text("FACTOR = 3\n")


def put_compiled_beside_it(coded: Coded) -> None:
    evil = coded.code.parent / "evil.py"
    evil.write_text("FACTOR = 3\n")
    cached = importlib.util.cache_from_source(str(coded.code / "helper.py"))
    py_compile.compile(str(evil), cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


@pytest.mark.parametrize("harm", [change, put_a_package_before_it, put_compiled_beside_it])
def test_users_code_that_was_changed_never_runs(tmp_path: Path, harm: Callable[[Coded], None]) -> None:
    coded = Coded(tmp_path, work=TIMES, helper=b"FACTOR = 2\n")
    harm(coded)
    assert coded.run(0, 1).numbers == (0, 1)
    assert coded.results() == {number: coded.doubled(number) for number in (0, 1)}


def test_each_new_process_of_users_code_has_what_was_submitted(tmp_path: Path) -> None:
    coded = Coded(tmp_path, work=DIES)
    outcome = coded.run(0, 1, 2)
    assert (outcome.numbers, [mishap.code for mishap in outcome.mishaps]) == ((0, 2), ["exit"])
    assert coded.results() == {number: coded.doubled(number) for number in (0, 2)}


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_code_that_cannot_be_unpacked_anew_is_a_loss(tmp_path: Path, harm: str) -> None:
    coded = Coded(tmp_path, work=TIMES, helper=b"FACTOR = 2\n")
    change(coded)
    coded.pack.write_bytes(coded.pack.read_bytes()[:-1] + b"?") if harm == "damaged" else coded.pack.unlink()
    (mishap,) = coded.run(0, 1).mishaps
    assert (mishap.number, mishap.lost, mishap.code) == (0, True, "code")


def test_what_a_machine_computes_wrong_it_does_not_compute(
    core: Desk, told: type[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def answers(self: Told) -> Answers:
        asked.append(1)
        return {"sum": (np.array([3]), [3 + (len(asked) == 1)])}

    monkeypatch.setattr(told, "known_answers", answers)
    outcome = core.run(0, 1)
    (mishap,) = outcome.mishaps
    assert (mishap.number, mishap.code, mishap.lost) == (0, "unfit", True) and not outcome.numbers and not told.opened
    assert mishap.message == "sum of a problem with a known answer are off by 1"
    assert core.run(0, 1).numbers == (0, 1) and core.run(2).numbers == (2,) and len(asked) == 2
