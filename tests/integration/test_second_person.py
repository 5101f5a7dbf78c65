"""A second person with a key of the farm: she submits, watches and fetches her own, and tries everything else. What is
refused before anything is asked is in tests/unit/coordinator/connect/test_forced_command.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
import yaml

from muster.coordinator.client import Farm
from muster.coordinator.submission import client_job
from muster.coordinator.submission.client_job import ClientJob
from muster.jobs.common.errors import JobFileError, NotFoundError, RefusedError, SourceError
from muster.jobs.common.ssh import quote
from tests.integration.test_at import Laptop
from tests.integration.test_dependencies import SEARCH
from tests.support import networks, sshd
from tests.support.farm import Array, FarmHarness, arrays, running
from tests.support.sshd import HOST, Sshd

SECONDS = 60
ECHO = {"run": "echo {name}"}
LINES: dict[str, Any] = {
    "name": "hers",
    "kind": "command",
    "params": ECHO,
    "source": {"table": "t.csv"},
}
TABLE = ("t.csv", b"name\none\ntwo\n")


def twice(rows: Array) -> Array:
    return rows * 2


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        made.join("one", "--cpus", "2")
        yield made


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the server's PATH, with a program that says that it ran."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "proof").write_text(f'#!/bin/sh\necho "$@" >{folder}/ran\n')
    (folder / "proof").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def server(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    with sshd.running(tmp_path_factory.mktemp("sshd"), path=path) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def theirs(farm: FarmHarness) -> str:
    """A job of who has the farm, with a result."""
    made = farm.submit(arrays(), name="secret")
    farm.wait(made)
    return made


def key_of(person: str, farm: FarmHarness, server: Sshd, folder: Path) -> Path:
    """The configuration of this person's ssh."""
    key = sshd.make_key(folder / "key")
    server.authorize(key, f'restrict,command="{farm.root.path}/connect --submit-as {person}"')
    return server.ssh_config(key=key, name=person)


@pytest.fixture(scope="module")
def config(farm: FarmHarness, server: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of her ssh."""
    return key_of("ann", farm, server, tmp_path_factory.mktemp("ann"))


@pytest.fixture(scope="module")
def ann(farm: FarmHarness, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Farm:
    return Farm(HOST, ssh_config=config, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def hers(ann: Farm, theirs: str) -> str:
    """A job of hers, with a result."""
    job = ann.map(twice, np.arange(12, dtype="f4").reshape(6, 2), name="doubled", progress=False)
    assert np.array_equal(job.result(progress=False).array(), np.arange(12, dtype="f4").reshape(6, 2) * 2)
    return job.id


def asked(config: Path, words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """What her ssh is told, as she types it."""
    command = ["ssh", "-F", str(config), "-T", "-o", "BatchMode=yes", HOST, words]
    return subprocess.run(command, input=given, capture_output=True, timeout=SECONDS, check=False)


def test_she_submits_watches_and_fetches_her_own(ann: Farm, hers: str, farm: FarmHarness) -> None:
    assert hers == "ann-doubled.1" and farm.status(hers).owner == "ann"
    assert [job.id for job in ann.jobs()] == [hers] and ann.job("doubled").id == ann.job("last").id == hers
    assert {shard.layer for shard in ann.job(hers).stream()} == {"array"}
    assert ann.job(hers).logs() == [] and ann.job(hers).report().job == hers
    assert all(one.complete for one in ann.uploads())


def test_her_command_line_does_what_she_may(
    config: Path, hers: str, theirs: str, farm: FarmHarness, server: Sshd, tmp_path: Path
) -> None:
    laptop = Laptop(farm, server, tmp_path / "laptop")
    laptop.use(config)
    laptop.env["MUSTER_FARM"] = HOST
    laptop.job_file({**LINES, "after": ["doubled"]}, {"t.csv": "name\none\ntwo\n"})
    done = laptop.run("submit", "job.yaml", "--wait")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "ann-hers.1"), done.stderr
    assert farm.plan("ann-hers.1").after == (hers,)
    listed = laptop.run("status", "--json")
    assert [job["id"] for job in json.loads(listed.stdout)["jobs"]] == [hers, "ann-hers.1"]
    assert laptop.run("wait", "all").returncode == 0
    assert laptop.run("result", "doubled", "--to", "out").returncode == 0
    assert (laptop.folder / "out" / "array" / "out.npy").exists()
    for words in (["cancel", "doubled"], ["agents"], ["rm", hers], ["stop"], ["status", theirs], ["run", "true"]):
        refused = laptop.run(*words)
        code = NotFoundError.exit_code if words[0] == "status" else RefusedError.exit_code
        assert refused.returncode == code, (words, refused.stderr)
        assert farm.status(hers).state == "complete"


@pytest.mark.parametrize(
    "words",
    [
        "", "sh", "env MUSTER_CONFIG= sh", "scp -f x", "coordinator stop", "coordinator agents",
        "coordinator cancel {hers}", "coordinator rm {hers} --yes", "coordinator diff {hers} {theirs}",
        "coordinator submit /etc/passwd", "coordinator result {hers} --to /tmp/hers", "coordinator status --root /tmp",
        "coordinator connect --as one --role control", "coordinator status && id", "coordinator status $(id)",
    ],
)  # fmt: skip
def test_nothing_else_is_run(words: str, config: Path, hers: str, theirs: str, farm: FarmHarness) -> None:
    before = (farm.jobs(), farm.agents_now()[0].name, sorted(Path("/tmp").glob("hers")))
    done = asked(config, words.format(hers=hers, theirs=theirs))
    assert done.returncode in (RefusedError.exit_code, NotFoundError.exit_code, 2), done
    assert done.stderr.startswith(b"error: ") and not done.stdout and b"uid=" not in done.stderr
    assert [job.state for job in farm.jobs()] == [job.state for job in before[0]]
    assert sorted(Path("/tmp").glob("hers")) == before[2] and farm.agents_now()[0].name == before[1]


@pytest.mark.parametrize(
    "words",
    [
        *(f"{name} {{theirs}}" for name in ("watch", "wait", "logs", "result", "fetch", "stream", "report")),
        "status -- {theirs}", "status secret", "status ../jobs/{theirs}", "logs {theirs}/a/0", "result -- --to",
        "submit --parcel --from {theirs}", "submit --parcel --after=secret",
    ],
)  # fmt: skip
def test_what_is_anothers_is_not_there(words: str, config: Path, hers: str, theirs: str) -> None:
    done = asked(config, f"coordinator {words.format(hers=hers, theirs=theirs)}")
    assert done.returncode in (NotFoundError.exit_code, 2) and not done.stdout, done


def test_who_has_no_job_sees_none(theirs: str, hers: str, farm: FarmHarness, server: Sshd, tmp_path: Path) -> None:
    config = key_of("bea", farm, server, tmp_path)
    for name in ("status", "watch", "wait", "logs", "report", "result", "fetch", "stream"):
        for named in ("", " all", " last"):
            done = asked(config, f"coordinator {name}{named}")
            assert b"secret" not in done.stdout + done.stderr and b"ann-" not in done.stdout + done.stderr, done
            is_empty = name == "status" and named != " last"
            assert done.returncode in ((0,) if is_empty else (2, NotFoundError.exit_code)), (name, named, done)


def test_it_is_logged(config: Path, farm: FarmHarness) -> None:
    asked(config, "coordinator stop")
    assert (
        "key of ann from 127.0.0.1 asked for 'coordinator stop' refused: "
        in (farm.root.path / "refused.log").read_text()
    )


def parcel(table: tuple[str, bytes] | None = TABLE, **fields: Any) -> bytes:
    return client_job.encode(ClientJob(yaml.safe_dump({**LINES, **fields}), table=table))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"notify": {"command": "touch /tmp/hers"}}, b"notify: "),
        ({"name": "x" * 61}, b"as it is called here, is too long"),
        ({"source": {"table": "/etc/passwd"}}, b"source: "),
        ({"source": {"table": "~/t.csv"}}, b"source: "),
        ({"source": {"files": "/etc/*"}}, b"source: "),
        ({"source": {"names": "/etc/passwd"}}, b"source: "),
        ({"kind": "cluster", "source": {"path": "/"}, "params": {"n_clusters": 2}}, b"source: "),
        ({"kind": "cluster", "source": {"path": "arrays"}, "params": {"n_clusters": 2}}, b"source: "),
        ({"env": "/bin/sh"}, b"env: "),
        ({"after": ["secret"]}, b"you have no job"),
        ({"kind": "tune", "source": None, "params": SEARCH}, b"kind: "),
    ],
)  # fmt: skip
def test_her_jobs_name_nothing_of_the_server(
    fields: dict[str, Any], said: bytes, config: Path, theirs: str, farm: FarmHarness
) -> None:
    known = len(farm.jobs())
    done = asked(config, "coordinator submit --parcel --json", parcel(**fields))
    assert done.returncode in (RefusedError.exit_code, NotFoundError.exit_code), done
    assert said in done.stderr and len(farm.jobs()) == known


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("m.pkl", {"trust_pickle": True}, "params.trust_pickle: "),
        ("m.pt", {"trust_torchscript": True}, "params.trust_torchscript: "),
        ("m.skops", {"trusted": ["os.system"]}, "params.trusted: "),
        ("m.pkl", {}, "a pickle, and opening one runs"),
        ("/tmp/m.onnx", {}, "params.model: "),
    ],
)
def test_her_models_do_not_act_on_the_server(
    name: str, params: dict[str, Any], said: str, ann: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(b"\x80\x04cos\nsystem\n(S'touch /tmp/hers'\ntR.")
    with pytest.raises((RefusedError, JobFileError), match=re.escape(said)):
        ann.submit(
            kind="infer", name="acts", source=np.zeros((2, 2), "f4"), params={"model": name, **params}, progress=False
        )
    assert not Path("/tmp/hers").exists()


def test_a_table_is_written_nowhere_else(config: Path) -> None:
    for name in ("../../t.csv", "/tmp/hers", ".hidden"):
        done = asked(
            config, "coordinator submit --parcel --json", parcel((name, b"name\none\n"), source={"table": name})
        )
        assert done.returncode in (2, RefusedError.exit_code), done
    assert not Path("/tmp/hers").exists()


def test_an_array_of_anothers_is_no_input_of_hers(ann: Farm, config: Path, farm: FarmHarness) -> None:
    rows = np.random.default_rng(1).normal(size=(4, 2)).astype("f4")
    job = Farm(farm.root.path).map(twice, rows, name="mine", progress=False)
    job.wait(progress=False)
    [digest] = [
        path.stem for path in farm.root.uploads.glob("*.npy") if path.stem not in {u.digest for u in ann.uploads()}
    ]
    fields = {"kind": "cluster", "source": {"path": "arrays"}, "params": {"n_clusters": 2}, "name": "taken"}
    sent = ClientJob(yaml.safe_dump(fields), arrays={"array": digest})
    done = asked(config, "coordinator submit --parcel --json", client_job.encode(sent))
    assert done.returncode == SourceError.exit_code and b"is not here" in done.stderr
    assert all(one.digest != digest for one in ann.uploads())


def test_who_knows_the_digest_of_anothers_array_does_not_have_it(
    config: Path, hers: str, farm: FarmHarness, tmp_path: Path
) -> None:
    rows = np.random.default_rng(2).normal(size=(4, 2)).astype("f4")
    np.save(tmp_path / "x.npy", rows)
    raw = (tmp_path / "x.npy").read_bytes()
    digest, size = xxhash.xxh3_128_hexdigest(raw), len(raw)
    whole = farm.root.uploads / f"{digest}.npy"
    begun = whole.with_suffix(".part")

    def upload(given: bytes, start: int = 0) -> subprocess.CompletedProcess[bytes]:
        return asked(config, f"coordinator upload {digest} --size {size} --from {start}", given)

    def is_hers() -> bool:
        return any(one["complete"] for one in listed() if one["digest"] == digest)

    def listed() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(asked(config, "coordinator uploads --json").stdout)["uploads"]
        return found

    begun.write_bytes(raw[:-1])  # of somebody else, whose last byte is easily guessed
    assert upload(raw[-1:], size - 1).returncode != 0 and not is_hers()
    begun.rename(whole)
    whole.write_bytes(raw)
    stamp = whole.stat()
    for given, start in ((b"", 0), (b"", size), (b"x" * size, 0)):
        assert upload(given, start).returncode != 0 and not is_hers()
    assert upload(raw[:7]).returncode != 0 and [one["bytes"] for one in listed() if one["digest"] == digest] == [7]
    assert upload(raw[7:], 7).returncode == 0 and is_hers()
    assert whole.stat() == stamp and not list(farm.root.people.glob("*/*.part"))


def test_no_program_of_the_server_opens_her_model(
    ann: Farm, hers: str, farm: FarmHarness, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks.save_onnx(tmp_path / "model.onnx", networks.weights(sizes=(2, 3)))
    monkeypatch.chdir(tmp_path)
    params = {"model": "model.onnx"}
    job = ann.submit(
        kind="infer", name="opened", source=np.zeros((2, 2), "f4"), params=params, env="proof", progress=False
    )
    assert farm.coordinator("cancel", job.id).returncode == 0
    assert not (programs / "ran").exists()


def test_a_parcel_that_is_none_is_refused(config: Path, hers: str) -> None:
    for raw in (b"", b"\xff" * 100, msgspec.msgpack.encode({"job": "a", "owner": "bob"})):
        done = asked(config, f"coordinator submit --parcel --after {quote('doubled')}", raw)
        assert done.returncode not in (0, 70) and done.stderr.startswith(b"error: ")
