"""Files and lines as items, run by an agent on the server and by one over ssh: the bytes of a serial run, whatever
names they have; what happens to a file that changes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from muster.coordinator.api.requests import Submit, Submitted
from muster.coordinator.client import Farm as Client
from muster.coordinator.commands.submit import submit
from muster.coordinator.submission.submit import plan_file, submission
from muster.jobs.contract.plan import ITEMS_LIST
from muster.jobs.results.open_result import WrittenFiles, open_result, verify_layer
from tests.integration.test_remote import Remote
from tests.support import proxy as proxies
from tests.support.farm import FarmHarness, running, until
from tests.support.halves import floats_of, halves_of, safetensors_of
from tests.support.odd_names import ODD_NAMES, fill
from tests.support.sshd import HOST, Sshd

LEASE_SECONDS = 3.0
WORK = """
import os, time
from pathlib import Path
import numpy as np

def look(paths, nap=0.0):
    time.sleep(nap)
    assert all(isinstance(path, Path) and not path.is_absolute() for path in paths)
    assert {str(path) for path in paths} <= {str(path) for path in Path().rglob("*")}
    raw = [path.read_bytes() for path in paths]
    names = np.zeros((len(paths), 300), "u1")
    for row, path in zip(names, paths):
        name = os.fsencode(path)
        row[:len(name)] = np.frombuffer(name, "u1")
    return {"size": [len(one) for one in raw], "sum": [sum(one) for one in raw], "name": names}

def twice(rows):
    time.sleep(0.05)
    return rows * 2

def copies(paths, out, nap=0.0):
    time.sleep(nap)
    for path in paths:
        (out / path).write_bytes(path.read_bytes()[::-1])
    return np.array([len(path.read_bytes()) for path in paths])

def collide(paths, out):
    for path in paths:
        (out / "same").write_bytes(b"")

def picky(paths):
    if any(path.read_bytes() == b"13" for path in paths):
        raise ValueError(", ".join(map(str, paths)))
    return np.array([float(path.read_bytes()) for path in paths])

def add(lines, first_row):
    assert [line["n"] for line in lines] == [str(first_row + i) for i in range(len(lines))]
    return np.array([float(line["a"]) + float(line["b, c"]) for line in lines])
"""


class Field(NamedTuple):
    farm: FarmHarness
    near: str
    far: Remote

    def submit(self, files: dict[str, bytes] | None = None, **fields: Any) -> str:
        job = {"kind": "map", "name": "files", "work": WORK, **fields}
        return submit(self.farm.root, self.farm.job_file({}, files=files, **job))

    def result(self, job: str) -> dict[str, Any]:
        return dict(open_result(self.farm.root.job(job).result / "items").outputs)


def far_client(farm: FarmHarness, server: Sshd, cache: Path) -> Client:
    return Client(f"{HOST}:{farm.root.path}", ssh_config=server.ssh_config(name="config-client"), cache=cache)


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory, server: Sshd) -> Iterator[Field]:
    """One farm and two agents for all tests: workers take seconds to start."""
    with running(tmp_path_factory.mktemp("farm"), lease=LEASE_SECONDS) as farm:
        farm.join("near", "--cpus", "1")
        far = Remote(farm, server).join()
        until(far.is_at_work, "the far agent to work")
        until(lambda: json.loads((farm.folder / "spools/near/state.json").read_bytes())["ready"], "the near one, too")
        yield Field(farm, "near", far)


def test_odd_names_by_both_ways_give_the_bytes_of_a_serial_run(field: Field, tmp_path: Path) -> None:
    contents = fill(tmp_path / "in")
    wanted = sorted((name for name in contents if "/." not in name), key=str.encode)
    assert len(wanted) >= len(ODD_NAMES) - 1
    params = {"args": {"nap": 0.05}}
    source = {"files": f"{tmp_path}/in/**/*"}
    job = field.submit(code="work.py:look", source=source, shard={"files": 2}, params=params)
    field.farm.wait(job)
    field.farm.check_result(job)
    result = field.result(job)
    assert [bytes(row).rstrip(b"\0").decode() for row in result["name"]] == wanted
    assert result["size"].tolist() == [len(contents[name]) for name in wanted]
    folder = field.farm.root.job(job).result / "items"
    assert set(open_result(folder).shards["agent"].tolist()) == {"near", "far"}
    assert field.farm.coordinator("verify", job, "--inputs").returncode == 0
    assert not list((field.far.spool / "run").glob("slot-*/items"))


def test_arrays_of_other_formats_are_read_in_place_and_afar(field: Field, tmp_path: Path) -> None:
    """Of each format a layer with rows at odd offsets: a bfloat16 tensor, a member of an archive, a dataset."""
    wide = np.arange(400, dtype="<f4").reshape(40, 10)
    halves = halves_of(wide)
    (tmp_path / "net.safetensors").write_bytes(safetensors_of("t", halves))
    np.savez(tmp_path / "x.npz", a=np.zeros(1, "u1"), t=wide)
    wanted = {"net.safetensors": (floats_of(halves), "t"), "x.npz": (wide, "t")}
    if find_spec("h5py"):
        import h5py

        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["in/t"] = wide.astype(">f8")
        wanted["x.h5"] = (wide, "in/t")
    for name, (rows, layer) in wanted.items():
        source = {"path": str(tmp_path / name), "layers": [layer]}
        job = field.submit(code="work.py:twice", source=source, shard={"rows": 1})
        field.farm.wait(job)
        field.farm.check_result(job)
        found = open_result(field.farm.root.job(job).result / layer)
        assert set(found.shards["agent"].tolist()) == {"near", "far"}
        assert np.array_equal(np.asarray(found.outputs["out"]), rows * 2)
        assert field.farm.coordinator("verify", job, "--inputs").returncode == 0


def test_the_items_are_in_the_result(field: Field) -> None:
    files = {"t/b, c.txt": b"12", "t/a.txt": b"", 't/it\'s "x".txt': b"123"}
    job = field.submit(files, code="work.py:look", source={"files": "t/*.txt"})
    field.farm.wait(job)
    text = (field.farm.root.job(job).result / "items/items.csv").read_text()
    assert text == 'name,bytes\na.txt,0\n"b, c.txt",2\n"it\'s ""x"".txt",3\n'


def test_lines_of_a_table(field: Field) -> None:
    lines = "".join(f'{i},{i / 7},"{i * 3}"\n' for i in range(50))
    job = field.submit({"t.csv": f'n,a,"b, c"\n{lines}'.encode()}, code="work.py:add", source={"table": "t.csv"})
    field.farm.wait(job)
    field.farm.check_result(job)
    assert np.allclose(field.result(job)["out"], [i / 7 + i * 3 for i in range(50)])
    assert field.farm.plan(job).layers[0].count == 50  # a small sweep is cut finely


def test_written_files_are_merged_under_their_names(field: Field, tmp_path: Path, server: Sshd) -> None:
    contents = fill(tmp_path / "in")
    wanted = sorted((name for name in contents if "/." not in name), key=str.encode)
    source, params = {"files": f"{tmp_path}/in/**/*"}, {"args": {"nap": 0.05}}
    job = field.submit(code="work.py:copies", source=source, shard={"files": 2}, params=params)
    field.farm.wait(job)
    field.farm.check_result(job)
    folder = field.farm.root.job(job).result / "items"
    assert set(open_result(folder).shards["agent"].tolist()) == {"near", "far"}
    for client in (Client(field.farm.root.path), far_client(field.farm, server, tmp_path / "cache")):
        result = client.job(job).result(progress=False)
        written = result["items"]["files"]
        assert isinstance(written, WrittenFiles) and list(written) == wanted
        assert {name: path.read_bytes()[::-1] for name, path in written.items()} == {n: contents[n] for n in wanted}
        assert result["items"]["out"].tolist() == [len(contents[name]) for name in wanted]
        assert verify_layer(result.folder / "items") == []
    assert field.farm.coordinator("result", job, "--to", str(tmp_path / "to")).returncode == 0
    assert verify_layer(tmp_path / "to/items") == []
    assert field.farm.coordinator("retry", job, "--layers", "items").returncode == 0
    field.farm.wait(job)
    field.farm.check_result(job)


def test_commands_run_by_both_ways_give_the_bytes_of_a_serial_run(field: Field, tmp_path: Path) -> None:
    contents = fill(tmp_path / "in")
    wanted = sorted((name for name in contents if "/." not in name), key=str.encode)
    run = "sh {code}/tools/turn.sh {in} > {out}; sleep 0.05"
    files = {"tools/turn.sh": b'tr a-z A-Z < "$1"'}
    source, code = {"files": f"{tmp_path}/in/**/*"}, {"include": ["tools"]}
    params = {"run": run, "out": "up/{}"}
    job = field.submit(files, work="", kind="command", source=source, shard={"files": 2}, params=params, code=code)
    field.farm.wait(job)
    field.farm.check_result(job)
    result = open_result(field.farm.root.job(job).result / "items")
    assert set(result.shards["agent"].tolist()) == {"near", "far"}
    written = result.outputs["files"]
    assert isinstance(written, WrittenFiles) and list(written) == [f"up/{name}" for name in wanted]
    assert written["up/Case"].read_bytes() == contents["Case"].upper() and not written["up/empty"].read_bytes()
    seconds = result.outputs["seconds"]
    assert isinstance(seconds, np.ndarray) and len(seconds) == len(wanted) and seconds.min() >= 0.05


def test_a_command_that_fails_is_named_with_its_evidence(field: Field) -> None:
    params = {"run": "echo at {n}; test {n} -lt 40"}
    table = {"t.csv": ("n\n" + "".join(f"{i}\n" for i in range(42))).encode()}
    job = field.submit(table, work="", kind="command", source={"table": "t.csv"}, params=params, attempts=1)
    field.farm.wait(job, "incomplete")
    failures = {failure.number: failure for failure in field.farm.failures(job)}
    assert sorted(failures) == [40, 41] and failures[41].code == "exit"
    assert failures[41].message == "line 42: `echo at 41; test 41 -lt 40` ended with status 1"
    assert "at 41" in failures[41].evidence


def test_shards_are_streamed_without_their_files(field: Field) -> None:
    files = {f"d/{i}": b"%d" % i for i in range(6)}
    job = field.submit(files, code="work.py:copies", source={"files": "d/*"}, shard={"files": 2})
    field.farm.wait(job)
    client = Client(field.farm.root.path)
    for _ in range(2):  # from the bundles or the result, whichever is there
        shards = sorted(client.job(job).stream(), key=lambda shard: shard.number)
        assert [(shard.first_row, list(shard.outputs)) for shard in shards] == [
            (0, ["out"]),
            (2, ["out"]),
            (4, ["out"]),
        ]
        assert [int(value) for shard in shards for value in shard.outputs["out"]] == [1] * 6


def test_names_that_collide_halt_the_job_and_say_so(field: Field) -> None:
    files = {f"d/{i}": b"" for i in range(4)}
    job = field.submit(files, code="work.py:collide", source={"files": "d/*"}, shard={"files": 1})
    status = field.farm.wait(job, "halted")
    assert status.why == "items does not merge: output files: two items wrote 'same'"
    assert not (field.farm.root.job(job).result / "items").exists()


def test_one_bad_file_does_not_sink_its_shard(field: Field) -> None:
    files = {f"d/{i:02}": b"%d" % i for i in range(20)}
    params = {"on_item_error": "record"}
    job = field.submit(files, code="work.py:picky", source={"files": "d/*"}, shard={"files": 5}, params=params)
    field.farm.wait(job)
    field.farm.check_result(job)
    result = field.result(job)
    assert np.flatnonzero(~result["ok"]).tolist() == [13] == np.flatnonzero(np.isnan(result["out"])).tolist()
    assert np.nansum(result["out"]) == sum(range(20)) - 13


def test_a_job_over_a_list_that_a_removed_job_had(field: Field) -> None:
    """Agents were told of its layer, and are not told again."""
    farm, code = field.farm, "work.py:add"
    table = {"t.csv": b'n,a,"b, c"\n0,1,2\n1,3,4\n'}
    for _ in range(2):
        job = field.submit(table, code=code, source={"table": "t.csv"})
        farm.wait(job)
        assert field.result(job)["out"].tolist() == [3, 7]
        lists = list(farm.root.code.glob("*.items"))
        assert farm.coordinator("rm", job).returncode == 0
        assert len(list(farm.root.code.glob("*.items"))) == len(lists) - 1


def test_a_file_that_vanishes_after_the_plan(field: Field, tmp_path: Path) -> None:
    """The far agent cannot pull it, the near one cannot read it; a copy in a spool would do."""
    for i in range(4):
        (tmp_path / f"m{i}").write_bytes(b"1")
    farm = field.farm
    job_file: dict[str, Any] = {"kind": "map", "work": WORK, "code": "work.py:look", "name": "gone"}
    planned = plan_file(farm.job_file({}, source={"files": f"{tmp_path}/m*"}, **job_file))
    (tmp_path / "m2").unlink()
    with submission(farm.root, planned) as folder:
        job = farm.ask(Submit(folder), Submitted).job
    said, why = farm.wait(job, "incomplete").notes
    assert said == "source of layer items changed" and not farm.failures(job)
    assert why.startswith(("near: ", "far: ")) and f"{tmp_path}/m2: No such file or directory" in why
    again = field.submit(code="work.py:look", source={"files": f"{tmp_path}/m*"})
    farm.wait(again)
    farm.check_result(again)


def test_inputs_are_verified(field: Field, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"1")
    job = field.submit(code="work.py:look", source={"files": f"{tmp_path}/m"})
    field.farm.wait(job)
    assert field.farm.coordinator("verify", job, "--inputs").returncode == 0
    (tmp_path / "m").write_bytes(b"2")
    said = field.farm.coordinator("verify", job, "--inputs")
    assert said.returncode == 12 and "not what was computed from" in said.stdout


def test_the_list_is_a_file_of_the_job_and_the_plan_says_where_shards_begin(field: Field) -> None:
    files = {f"d/{i:05}.txt": b"x" for i in range(1000)}
    job = field.submit(files, code="work.py:look", source={"files": "d/*"}, shard={"files": 3})
    folder = field.farm.root.job(job)
    assert (folder.path / ITEMS_LIST).stat().st_size > 1000 and folder.plan.stat().st_size < 1000 * 10
    assert msgspec.msgpack.decode(folder.plan.read_bytes())["layers"][0]["count"] == 334
    field.farm.wait(job)
    field.farm.check_result(job)


def sizes(paths: list[Path]) -> list[int]:
    return [len(path.read_bytes()) for path in paths]


def test_a_stream_of_files_that_is_cut_goes_on_where_it_ended(tmp_path: Path, server: Sshd) -> None:
    """In pieces too, as the bandwidth is limited; the function comes from Python."""
    wanted = [100_000 + i for i in range(40)] + [2_000_000]
    (tmp_path / "in").mkdir()
    for i, size in enumerate(wanted):
        (tmp_path / f"in/{i:02}").write_bytes(os.urandom(size))
    with proxies.running(server.port) as proxy, running(tmp_path / "farm", lease=LEASE_SECONDS) as farm:
        far = Remote(farm, server, proxy=proxy).join("--bandwidth", "3MiB")
        until(far.is_at_work, "the far agent to work")
        job = Client(farm.root.path).map(sizes, {"files": f"{tmp_path}/in/*"}, shard={"files": 100})
        until(lambda: far.input_bytes() > 1_000_000, "some of it to be there")
        proxy.cut()
        until(lambda: not far.state.get("linked"), "the link to be lost")
        proxy.mend()
        assert job.result(progress=False)["items"]["out"].tolist() == wanted
        farm.check_result(job.id)
