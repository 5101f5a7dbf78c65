"""The Python API on a farm of real processes: an agent that joined by folder, the client beside it and over ssh."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.coordinator.client import Farm, Job
from muster.coordinator.client import arrays as sending
from muster.coordinator.client.backends.retry import Patience
from muster.coordinator.result_downloads import file_server
from muster.jobs.common.errors import (
    AccessError,
    IncompleteError,
    JobFileError,
    LinkError,
    NoCommandError,
    NoDaemonError,
    NotFoundError,
    ProtocolError,
    RefusedError,
    SourceError,
    UsageError,
)
from tests.support import proxy, sshd
from tests.support.farm import Array, running, until
from tests.support.farm import FarmHarness as Processes
from tests.support.halves import floats_of, halves_of, safetensors_of

DOUBLE = 2.0
OFFSETS = np.arange(6, dtype="f4")
MEGABYTE = 1 << 20


def twice(rows: Array) -> Array:
    return rows * DOUBLE


def scaled(rows: Array, by: float, gate: str = "", first_row: int = 0) -> dict[str, Array]:
    """Waits, but for the first shard, until `gate` exists."""
    import time

    while gate and first_row and not os.path.exists(gate):  # noqa: PTH110
        time.sleep(0.02)
    return {"scaled": twice(rows) * by, "first": np.full(len(rows), first_row)}


def wide(rows: Array, width: int) -> Array:
    return np.repeat(rows[:, :1], width, axis=1)


def refusing(rows: Array) -> Array:
    if (rows == 13).any():
        raise ValueError("thirteen")
    return rows


def failing(rows: Array) -> Array:
    raise ValueError("never")


def shifted(rows: Array) -> Array:
    return rows + OFFSETS


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with running(tmp_path_factory.mktemp("farm")) as farm:
        farm.join("one", "--cpus", "2")
        yield farm


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, processes: Processes) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path_factory.mktemp("sshd")) as daemon:
        yield daemon


@pytest.fixture
def here(processes: Processes) -> Farm:
    return Farm(processes.root.path)


@pytest.fixture
def there(processes: Processes, server: sshd.Sshd, tmp_path: Path) -> Farm:
    return far(processes, server, tmp_path)


def far(processes: Processes, server: sshd.Sshd, cache: Path, *lines: str) -> Farm:
    config = server.ssh_config(*lines, name=f"config-{len(lines)}")
    return Farm(f"{sshd.HOST}:{processes.root.path}", ssh_config=config, cache=cache / "cache")


@pytest.fixture(params=["here", "there"])
def farm(request: pytest.FixtureRequest) -> Farm:
    """On the server itself, and from elsewhere."""
    found: Farm = request.getfixturevalue(request.param)
    return found


def rows(count: int = 40, width: int = 6, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, width)).astype("f4")


# --- handing in, and what comes back ----------------------------------------------------------------------


def test_a_function_over_an_array_gives_what_numpy_gives(farm: Farm) -> None:
    array = rows()
    job = farm.map(scaled, array, by=3, shard={"rows": 8}, progress=False)
    result = job.result(progress=False)
    assert list(result) == ["array"]
    assert list(result["array"]) == ["first", "scaled"]
    assert isinstance(result["array"]["scaled"], np.memmap)
    np.testing.assert_array_equal(result.array("scaled"), array * 2 * 3)
    assert job.status().state == "complete"
    assert farm.job("scaled").id == job.id
    assert job.id in [one.id for one in farm.jobs()]
    assert [agent.name for agent in farm.agents()] == ["one"]


def test_a_report_is_the_page_and_its_values(farm: Farm, tmp_path: Path) -> None:
    job = farm.map(twice, rows(16), name="told", shard={"rows": 4}, progress=False)
    job.wait(progress=False)
    report = job.report()
    assert report.values["job"] == job.id and report.values["shards"]["committed"] == 4
    assert report.values["timeline"]["machines"][0]["name"] == "one"
    assert report.save(tmp_path / "told.html").read_text() == report.html
    assert report.html.startswith("<!doctype html>") and report.html.rstrip().endswith("</html>")
    assert job.id in repr(report) and "srcdoc=" in report._repr_html_() and "<h1>" not in report._repr_html_()


def test_arrays_by_name_become_layers_and_a_glob_chooses_some(farm: Farm) -> None:
    given = {"a.weight": rows(16), "deep/b": rows(8, 4, 1)[::2], "deep/c": np.asfortranarray(rows(8)).astype(">f8")}
    job = farm.map(twice, given, name="named", shard={"rows": 3}, progress=False)
    result = job.result(["deep/*"], progress=False)
    assert list(result) == ["deep/b", "deep/c"]
    np.testing.assert_array_equal(result.array(layer="deep/b"), given["deep/b"] * 2)
    np.testing.assert_array_equal(result.array(layer="deep/c"), given["deep/c"] * 2)
    assert result.layer("deep/b").shards["agent"].tolist() == ["one", "one"]
    with pytest.raises(NotFoundError, match="no layer"):
        job.result(["shallow"], progress=False)


def test_tensors_of_this_machine_are_layers(farm: Farm, tmp_path: Path, monkeypatch: Any) -> None:
    """Those of bfloat16 too, which are sent as float32."""
    halves = halves_of(rows(8))
    (tmp_path / "net.safetensors").write_bytes(safetensors_of("w", halves))
    monkeypatch.chdir(tmp_path)
    job = farm.map(twice, "net.safetensors", shard={"rows": 3}, progress=False)
    np.testing.assert_array_equal(job.result(progress=False).array(layer="w"), floats_of(halves) * 2)


def test_a_job_file_and_a_path_of_this_machine(farm: Farm, processes: Processes, monkeypatch: Any) -> None:
    work = "def f(rows):\n    return rows + 1\n"
    path = processes.job_file({"a": rows(), "b": rows(8)}, work=work, kind="map", code="work.py:f")
    array = farm.submit(path, progress=False).result(progress=False).array(layer="a")
    np.testing.assert_array_equal(array, rows() + 1)
    monkeypatch.chdir(path.parent)
    fields: dict[str, Any] = {"code": "work.py:f", "shard": {"rows": np.int64(5)}}
    job = farm.submit(kind="map", source={"path": Path("arrays"), "layers": ["b"]}, progress=False, **fields)
    np.testing.assert_array_equal(job.result(progress=False).array(), rows(8) + 1)


def test_a_model_of_this_machine_goes_along(farm: Farm, tmp_path: Path, monkeypatch: Any) -> None:
    random = np.random.default_rng(3)
    weights: dict[str, Any] = {"w0": random.normal(size=(6, 3)).astype("f4"), "b0": np.ones(3, "f4")}
    np.savez(tmp_path / "net.npz", **weights)
    monkeypatch.chdir(tmp_path)
    params = {"model": "net.npz", "activation": "none"}
    job = farm.submit(kind="infer", source=rows(), params=params, shard={"rows": 16}, progress=False)
    expected = rows() @ weights["w0"] + weights["b0"]
    np.testing.assert_allclose(job.result(progress=False).array(), expected, rtol=1e-4, atol=1e-5)


def test_a_path_of_the_server_is_read_in_place(there: Farm, processes: Processes) -> None:
    path = processes.job_file({"a": rows()}).parent / "arrays"
    before = {one.digest for one in there.uploads()}
    job = there.map(twice, str(path), progress=False)
    np.testing.assert_array_equal(job.result(progress=False).array(), rows() * 2)
    assert {one.digest for one in there.uploads()} == before


def test_an_array_goes_up_once_and_goes_with_its_last_job(farm: Farm, processes: Processes) -> None:
    array = rows(seed=hash(repr(farm)) % 1000)
    first = farm.map(twice, array, progress=False)
    sent = {one.digest: one for one in farm.uploads()}
    second = farm.map(wide, array, width=2, progress=False)
    assert {one.digest: one for one in farm.uploads()} == sent
    mine = sending.Outgoing(array, "it").digest
    file = processes.root.uploads / f"{mine}.npy"
    np.testing.assert_array_equal(np.load(file), array)
    for job in (first, second):
        job.wait(progress=False)
        assert file.exists()
        assert processes.coordinator("rm", job.id).returncode == 0
    assert not file.exists()


def test_an_upload_that_goes_just_then_is_sent_again(here: Farm, processes: Processes, monkeypatch: Any) -> None:
    array, really = rows(seed=77), type(here._place).submit
    times: list[int] = []

    def once_too_late(place: Any, parcel: Any, old: str | None) -> str:
        if not times:
            (processes.root.uploads / f"{parcel.arrays['array']}.npy").unlink()
        times.append(1)
        return really(place, parcel, old)

    monkeypatch.setattr(type(here._place), "submit", once_too_late)
    job = here.map(twice, array, progress=False)
    assert len(times) == 2
    np.testing.assert_array_equal(job.result(progress=False).array(), array * 2)


# --- following --------------------------------------------------------------------------------------------


def test_shards_come_once_each_while_the_job_runs(farm: Farm, tmp_path: Path) -> None:
    array, gate = rows(48, 3), tmp_path / "gate"
    job = farm.map(scaled, array, by=1, gate=str(gate), shard={"rows": 8}, progress=False)
    shards = job.stream()
    first = next(shards)
    assert (first.number, first.first_row, first.rows) == (0, 0, 8)
    assert job.status().state == "running"
    gate.touch()
    found = [first, *shards]
    assert sorted(shard.number for shard in found) == list(range(6))
    for shard in found:
        np.testing.assert_array_equal(shard.outputs["scaled"], array[shard.first_row :][:8] * 2)
        assert shard.outputs["first"].tolist() == [shard.first_row] * 8
    again = [shard.number for shard in job.stream()]  # out of the merged result now, in the same order
    assert again == [shard.number for shard in found]
    behind = [shard.number for shard in job.stream(after=found[3].cursor)]
    assert behind == again[4:]


def test_a_stream_that_is_left_can_be_gone_on_with(farm: Farm) -> None:
    job = farm.map(twice, {"a": rows(), "b": rows(24)}, name="left", shard={"rows": 4}, progress=False)
    seen, cursor = [], None
    for _ in range(4):
        for shard, _ in zip(job.stream(after=cursor), range(4), strict=False):
            seen.append((shard.layer, shard.number))
            cursor = shard.cursor
    assert len(seen) == len(set(seen)) == 16


def test_a_job_that_only_fails_shows_its_failures_though_no_shard_is_given_up(farm: Farm) -> None:
    job = farm.map(failing, np.arange(32.0).reshape(16, 2), shard={"rows": 4}, progress=False)
    with pytest.raises(IncompleteError, match="halted") as raised:
        job.wait(progress=False)
    assert "never" in raised.value.cause
    assert all("never" in one.message for one in job.logs(failed=True)) and job.logs(failed=True)


def test_library_functions_and_arrays_around_a_function_are_there_where_it_runs(farm: Farm) -> None:
    array = rows()
    norms = farm.map(np.linalg.norm, array, axis=1, shard={"rows": 8}, progress=False)
    moved = farm.map(shifted, array, shard={"rows": 8}, progress=False)
    np.testing.assert_allclose(norms.result(progress=False).array(), np.linalg.norm(array, axis=1))
    np.testing.assert_array_equal(moved.result(progress=False).array(), array + OFFSETS)


def test_a_job_that_ends_without_all_its_shards(farm: Farm) -> None:
    array = np.arange(32.0).reshape(16, 2)
    job = farm.map(refusing, array, attempts=1, shard={"rows": 4}, progress=False)
    with pytest.raises(IncompleteError, match="incomplete") as raised:
        job.wait(progress=False)
    assert "thirteen" in raised.value.cause and "refusing" in raised.value.evidence
    assert raised.value.shard == "array/1"
    with pytest.raises(IncompleteError):
        job.result(progress=False)
    with pytest.raises(IncompleteError):
        list(job.stream())
    some = job.result(progress=False, partial=True)
    there = np.array(some.array("ok"))
    assert np.flatnonzero(~there).tolist() == [4, 5, 6, 7] and np.isnan(some.array("out")[~there]).all()
    np.testing.assert_array_equal(some.array("out")[there], array[there])
    [failure] = job.logs(failed=True)
    assert "thirteen" in failure.message + failure.evidence
    assert job.logs(f"{failure.layer}/{failure.number}") == [failure]
    assert job.logs(f"{failure.layer}/0") == []


def test_whatever_the_command_line_can_python_can(here: Farm, tmp_path: Path) -> None:
    farm, array, gate = here, rows(8), tmp_path / "gate"
    planned = farm.plan(kind="cluster", source=array, params={"n_clusters": 2}, shard={"rows": 4})
    assert (planned.shards, planned.rows) == (2, 8)
    tried = farm.try_shards(kind="cluster", source=array, params={"n_clusters": 2}, shard={"rows": 4}, shards=1)
    assert [(one.number, one.mishap) for one in tried] == [(0, None)] and not [
        job for job in farm.jobs() if job.id.startswith("cluster")
    ]
    held = farm.map(scaled, array, by=1.0, gate=str(gate), shard={"rows": 4})
    with farm, pytest.raises(ZeroDivisionError), held as job:
        job.pause()
        assert job.status().state == "paused"
        job.priority(3)
        job.set(attempts=2)
        assert job.status().priority == 3
        job.resume()
        assert job.status().state == "running" and job.explain().about.startswith(job.id)
        until(lambda: (now := job.status().totals).committed and now.running, "its second shard to run")
        job.kick("array/1")
        raise ZeroDivisionError
    assert job.status().state == "cancelled"
    gate.touch()
    with farm.map(scaled, array, by=2.0, shard={"rows": 4}) as again:
        pass
    assert again.status().state == "complete" and job.diff(again)["params"]
    assert again.verify()["problems"] == [] and again.verify(rerun=1)["compared"] == 1
    assert again.explain("array/1").merged
    assert "one" in " ".join(one.about for one in farm.explain()) and farm.explain("one")[0].lines
    with pytest.raises(RefusedError):
        again.kick("array/1")
    job.rm()
    assert job.id not in [one.id for one in farm.jobs()]
    with pytest.raises(NotFoundError):
        farm.drain("nobody")


def test_what_python_does_by_a_command_it_does_from_elsewhere(there: Farm) -> None:
    with there as farm:
        job = farm.map(twice, rows(8), resources={"gpus": 1}, progress=False)  # which nobody lends
        job.pause()
        assert job.status().state == "paused" and job.explain().about.startswith(job.id)
        with pytest.raises(RefusedError):
            job.rm()
        job.cancel()


def test_a_job_is_cancelled(farm: Farm, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = farm.map(scaled, rows(), by=1, gate=str(gate), shard={"rows": 8}, progress=False)
    job.cancel()
    gate.touch()
    assert job.status().state == "cancelled"
    with pytest.raises(IncompleteError, match="cancelled"):
        job.wait(progress=False)
    with pytest.raises(RefusedError):
        job.cancel()


# --- bad links --------------------------------------------------------------------------------------------


def cut_once(link: proxy.Proxy, ready: Any) -> threading.Thread:
    """Resets every connection as soon as `ready`."""

    def run() -> None:
        until(ready, "something to be under way")
        link.reset()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.fixture
def bad(processes: Processes, server: sshd.Sshd, tmp_path: Path) -> Iterator[tuple[Farm, proxy.Proxy]]:
    """A farm behind a link that can be cut."""
    with proxy.running(server.port) as link:
        yield far(processes, server, tmp_path, f"Port {link.port}", f"HostKeyAlias {server.name}"), link


def test_a_download_that_is_cut_goes_on(bad: tuple[Farm, proxy.Proxy]) -> None:
    farm, link = bad
    array = rows(32, 2)
    job = farm.map(wide, array, width=MEGABYTE // 8, shard={"rows": 8}, progress=False)
    job.wait(progress=False)
    link.moved, link.rate = 0, 24.0 * MEGABYTE
    cutting = cut_once(link, lambda: link.moved > 6 * MEGABYTE)
    result = job.result(progress=False).array()
    cutting.join()
    np.testing.assert_array_equal(result[:, -1], array[:, 0])
    assert result.nbytes == 16 * MEGABYTE
    assert link.moved < 20 * MEGABYTE  # what was there was not sent again
    connections = len(link.seen)
    job.result(progress=False)
    assert len(link.seen) == connections + 3  # two questions and the manifest


def test_an_upload_that_is_cut_goes_on(bad: tuple[Farm, proxy.Proxy], processes: Processes) -> None:
    farm, link = bad
    array = np.random.default_rng(5).random((64, MEGABYTE // 8))
    parts = processes.root.uploads
    cutting = cut_once(link, lambda: any(part.stat().st_size > MEGABYTE for part in list(parts.glob("*.part"))))
    job = farm.map(twice, array, shard={"size": "16MiB"}, progress=False)
    cutting.join()
    np.testing.assert_array_equal(job.result(progress=False).array()[::9], array[::9] * 2)


def test_a_stream_that_is_cut_goes_on(bad: tuple[Farm, proxy.Proxy], tmp_path: Path) -> None:
    farm, link = bad
    gate = tmp_path / "gate"
    job = farm.map(scaled, rows(), by=1, gate=str(gate), shard={"rows": 4}, progress=False)
    shards = job.stream()
    numbers = [next(shards).number]
    link.reset()
    gate.touch()
    numbers += [shard.number for shard in shards]
    assert sorted(numbers) == list(range(10))


# --- what can be wrong ------------------------------------------------------------------------------------


def test_places_that_are_no_farm(server: sshd.Sshd, tmp_path: Path) -> None:
    config = server.ssh_config()
    with pytest.raises(NoDaemonError, match="not a farm's root"):
        Farm(tmp_path)
    with pytest.raises(LinkError, match="no host"):
        Farm("nobody.invalid", ssh_config=config)
    with pytest.raises(LinkError, match="nothing listens"):
        Farm(f"ssh://127.0.0.1:{sshd.free_port()}/root", ssh_config=config)
    with pytest.raises(NoDaemonError, match="not a farm's root"):
        Farm(f"{sshd.HOST}:{tmp_path}", ssh_config=config).jobs()
    with pytest.raises(NoCommandError, match="has no 'coordinator'"):
        Farm(sshd.HOST, ssh_config=config, command="nothing-like-it")
    with pytest.raises(UsageError, match="not a place"):
        Farm("-oProxyCommand=x")


def test_a_server_that_does_not_let_us_in(server: sshd.Sshd, tmp_path: Path) -> None:
    stranger = sshd.make_key(tmp_path / "stranger")
    with pytest.raises(AccessError, match="does not let us in"):
        Farm(sshd.HOST, ssh_config=server.ssh_config(key=stranger, name="strange"))
    nowhere = server.ssh_config("UserKnownHostsFile /dev/null", name="unknown")
    with pytest.raises(AccessError, match="not known"):
        Farm(sshd.HOST, ssh_config=nowhere)


def test_a_server_without_the_command_on_its_path(processes: Processes, tmp_path: Path) -> None:
    with sshd.running(tmp_path / "bare", path="/usr/bin:/bin") as bare:
        farm = Farm(f"{sshd.HOST}:{processes.root.path}", ssh_config=bare.ssh_config())
        assert farm.agents()[0].name == "one"


def test_a_server_whose_profile_prints(processes: Processes, tmp_path: Path) -> None:
    loud = tmp_path / "coordinator"
    loud.write_text(f'#!/bin/sh\necho welcome\nexec {processes.root.command} "$@"\n')
    loud.chmod(0o755)
    with sshd.running(tmp_path / "loud") as daemon:
        farm = Farm(f"{sshd.HOST}:{processes.root.path}", ssh_config=daemon.ssh_config(), command=str(loud))
        with pytest.raises(ProtocolError, match="printed 'welcome'"):
            farm.agents()


def test_jobs_that_cannot_be(farm: Farm) -> None:
    with pytest.raises(NotFoundError):
        farm.job("nowhere")
    with pytest.raises(JobFileError, match="did you mean `attempts`"):
        farm.submit(kind="cluster", source=rows(), attemps=2, progress=False)
    with pytest.raises(JobFileError, match="n_clusters"):
        farm.submit(kind="cluster", source=rows(), params={"n_clusters": "many"}, progress=False)
    with pytest.raises(UsageError, match="layer's name"):
        farm.submit(kind="cluster", source={"../up": rows()}, progress=False)
    with pytest.raises(SourceError, match="complex"):
        farm.submit(kind="cluster", source=rows().astype(complex), progress=False)
    with pytest.raises(SourceError):
        farm.submit(kind="cluster", source="/no/such/folder", progress=False)
    with pytest.raises(UsageError, match="unexpected keyword argument 'sclae'"):
        farm.map(scaled, rows(), by=1, sclae=2)
    with pytest.raises(UsageError, match="missing a required argument: 'by'"):
        farm.map(scaled, rows())


@pytest.mark.parametrize(
    ("layer", "file"),
    [("array", "../../../job.yaml"), ("array", "/etc/passwd"), ("..", "job.yaml"), ("other", "out.npy"), ("array", "")],
)
def test_only_what_a_manifest_names_is_sent(here: Farm, processes: Processes, layer: str, file: str) -> None:
    job = here.map(twice, rows(), name="sent", progress=False)
    job.wait(progress=False)
    sent: list[bytes] = []
    with pytest.raises(NotFoundError):
        file_server.answer(processes.root.job(job.id), {"array"}, file_server.Wanted(layer, file), sent.append, list)
    assert not sent


def test_a_coordinator_that_stops_is_waited_for(tmp_path: Path) -> None:
    with running(tmp_path / "own") as farm:
        job = Farm(farm.root.path).map(twice, rows(), progress=False)
        waited: list[Exception] = []

        def wait() -> None:
            try:
                Job(Farm(farm.root.path)._place, job.id).wait(progress=False)
            except IncompleteError as error:
                waited.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        farm.restart()
        job.cancel()
        thread.join()
        assert "cancelled" in str(waited[0])


def test_patience_ends() -> None:
    with pytest.raises(AccessError):
        Patience().endure(AccessError("no"))
