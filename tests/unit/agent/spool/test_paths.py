"""The spool: whose it is, and what an earlier process left in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash

from muster.agent.core.actions import Copy
from muster.agent.spool import owner as owners
from muster.agent.spool.paths import At, Spool
from muster.jobs.common import filesystems
from muster.jobs.common.errors import RefusedError
from muster.jobs.common.ranges import RangeSet
from muster.jobs.contract.plan import Output
from muster.jobs.parts.part_file import Index, PartEntry, PartWriter
from muster.jobs.workbench.slot_marker import Mark

FARM = "f" * 32
LAYER = "a" * 32


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path / "spool")
    made.take("one", "/farm")
    return made


def write_part(spool: Spool, name: str, numbers: list[int], farm: str = FARM) -> Path:
    """A sound part with one int64 per shard."""
    path = spool.part(f"{farm}/{LAYER}/{name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = PartWriter(path)
    entries = []
    for number in numbers:
        raw = np.array([number], "<i8").tobytes()
        writer.add([memoryview(raw)])
        digest = xxhash.xxh3_128_digest(raw)
        entries.append(PartEntry(number, 1, 1, number % 2, "one", 0.0, 0.1, 8, bytes(16), 1, (8,), digest))
    writer.finish(Index(farm, LAYER, (Output("x", "rows", "<i8"),), "", tuple(entries)))
    writer.close()
    return path


def test_a_spool_is_for_its_owner_alone(spool: Spool) -> None:
    assert spool.path.stat().st_mode & 0o777 == 0o700
    for name in ("lock", "uuid", "pid.json", "agent.log"):
        assert (spool.path / name).stat().st_mode & 0o777 == 0o600


def test_a_folder_open_to_others_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Spool(tmp_path).take("one", "/farm")
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_its_uuid_stays(spool: Spool) -> None:
    spool.release()
    again = Spool(spool.path)
    again.take("one", "/farm")
    assert again.uuid == spool.uuid
    assert len(again.uuid) == 32


def test_a_damaged_uuid_is_replaced(spool: Spool) -> None:
    spool.release()
    (spool.path / "uuid").write_text("../../etc")
    again = Spool(spool.path)
    again.take("one", "/farm")
    assert len(again.uuid) == 32


def test_two_agents_do_not_share_a_spool(spool: Spool) -> None:
    with pytest.raises(RefusedError) as caught:
        Spool(spool.path).take("two", "/farm")
    assert "agent one" in caught.value.message
    assert "agent leave" in caught.value.hint


def test_a_spool_whose_owner_was_killed_can_be_taken(tmp_path: Path) -> None:
    names = "from muster.agent.spool.paths import Spool; from pathlib import Path"
    take = f"{names}; Spool(Path({str(tmp_path)!r})).take('x', 'y')"
    subprocess.run([sys.executable, "-c", f"{take}; import os; os._exit(9)"], check=False)
    left = owners.owner_of(tmp_path)
    assert left is not None
    assert left.process() is None
    Spool(tmp_path).take("one", "/farm")


def test_an_owner_is_found_by_pid_and_start_time(spool: Spool) -> None:
    owner = owners.owner_of(spool.path)
    assert owner is not None
    assert owner.process() is not None
    later = owners.Owner(owner.pid, owner.started + 60, owner.name, owner.where)
    assert later.process() is None, "another process with the same pid"


def test_a_place_that_cannot_be_a_spool_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError, match="cannot be used"):
        Spool(tmp_path / "file").take("one", "/farm")


def test_sound_parts_are_found_with_their_attempts_oldest_first(spool: Spool) -> None:
    new = write_part(spool, "b.part", [4])
    old = write_part(spool, "a.part", [1, 2, 3])
    os.utime(old, (1, 1))
    os.utime(new, (2, 2))
    first, second = [part for part, _ in spool.parts()]
    assert first.name == f"{FARM}/{LAYER}/a.part"
    assert first.attempts == {(1, 1): RangeSet.of([1, 3]), (1, 0): RangeSet.of([2])}
    assert first.nbytes == old.stat().st_size
    assert list(second.attempts.values()) == [RangeSet.of([4])]


@pytest.mark.parametrize("where", [0, 12, -1])
def test_a_part_with_a_flipped_byte_is_deleted(spool: Spool, where: int) -> None:
    path = write_part(spool, "a.part", [1, 2, 3])
    assert len(list(spool.parts())) == 1
    raw = bytearray(path.read_bytes())
    raw[where] ^= 1
    path.write_bytes(raw)
    assert list(spool.parts()) == []
    assert not path.exists()


def test_a_part_cut_short_is_deleted(spool: Spool) -> None:
    path = write_part(spool, "a.part", [1, 2, 3])
    path.write_bytes(path.read_bytes()[:-5])
    assert list(spool.parts()) == []
    assert not path.exists()


def test_a_part_in_the_wrong_farm_is_not_offered_to_it(spool: Spool) -> None:
    path = write_part(spool, "a.part", [1])
    other = spool.done / ("e" * 32) / LAYER / "a.part"
    other.parent.mkdir(parents=True)
    path.rename(other)
    assert list(spool.parts()) == []
    assert not other.exists()


def test_what_ran_at_a_kill_is_a_loss(spool: Spool) -> None:
    spool.set_at(0, At(FARM, "j.1", LAYER))
    spool.set_at(1, At(FARM, "j.1", LAYER))
    running, idle = Mark(spool.mark(0)), Mark(spool.mark(1))
    running.start(17, 3, 2)
    idle.start(18, 3, 2)
    idle.idle()
    running.close()
    idle.close()
    (loss,) = spool.losses()
    assert (loss.job, loss.layer, loss.boot, loss.attempt, loss.running) == ("j.1", LAYER, 3, 2, True)
    assert loss.numbers == [(17, 18)]
    spool.clear()
    assert spool.losses() == []


def test_clearing_leaves_finished_work(spool: Spool) -> None:
    path = write_part(spool, "a.part", [1])
    (spool.tmp / "half").write_bytes(b"x")
    spool.clear()
    assert path.exists()
    assert not any(spool.tmp.iterdir())


def test_scratch_folders_and_those_of_which_all_was_pushed_go_at_a_start_and_at_a_good_end(spool: Spool) -> None:
    for goes in (spool.clear, spool.release):
        (spool.run / "slot-0" / "written").mkdir(parents=True)
        kept, pushed = write_part(spool, "a.part", [1]), spool.done / FARM / ("f" * 32)
        pushed.mkdir(parents=True)
        (spool.done / "another farm" / "its layer").mkdir(parents=True)
        goes()
        assert kept.exists() and not pushed.exists() and list(spool.done.iterdir()) == [spool.done / FARM]
        assert not any(spool.run.iterdir()), "the scratch folder of a runner that was killed"


def test_the_default_spool_is_keyed_by_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert owners.base() == tmp_path / "muster" / owners.host()


def test_the_default_spool_is_never_on_a_network_file_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(filesystems, "file_system", lambda path: "nfs4")
    assert not owners.base().is_relative_to(tmp_path)


# --- inputs that were pulled ---


def test_whole_inputs_are_found_again_the_oldest_first_and_halves_go(spool: Spool) -> None:
    old, new = spool.input("a" * 32, bytes(16)), spool.input("b" * 32, b"\1" * 16)
    for path, age in ((new, 2), (old, 1)):
        path.write_bytes(bytes(10 * age))
        os.utime(path, (age, age))
    spool.half("c" * 32).write_bytes(bytes(100))
    (spool.inputs / "x").mkdir()
    (spool.inputs / f"{'d' * 32}-{'d' * 32}").symlink_to("/etc/passwd")
    assert spool.copies() == [Copy("a" * 32, 10, bytes(16)), Copy("b" * 32, 20, b"\1" * 16)]
    assert sorted(path.name for path in spool.inputs.iterdir()) == [old.name, new.name]
    assert spool.input_bytes() == 30


def test_a_home_on_a_network_is_not_where_spools_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert owners.base() == tmp_path / "muster" / owners.host()
    monkeypatch.setattr(filesystems, "file_system", lambda path: "nfs4" if path == tmp_path else "ext4")
    assert owners.base() == Path("/var/tmp") / f"muster-{os.getuid()}" / owners.host()
    monkeypatch.setattr(filesystems, "file_system", lambda path: "ext4" if path == Path("/tmp") else "nfs4")
    assert owners.base() == Path("/tmp") / f"muster-{os.getuid()}" / owners.host()


def test_machines_with_one_home_have_each_a_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    places = set()
    for name in ("one", "two.lab", "three"):
        monkeypatch.setattr("socket.gethostname", lambda name=name: name)
        places.add(owners.base())
    assert len(places) == 3
