"""An agent over ssh with a copy of the source: what is equal there is not pulled, and the result is the source's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from muster.coordinator.api.status import AgentStatus
from muster.coordinator.commands.submit import submit
from muster.coordinator.protocol.values import PIECE_BYTES
from tests.integration.test_remote import MIB, Remote, finish
from tests.support.farm import FarmHarness, running, until
from tests.support.proxy import Proxy
from tests.support.sshd import Sshd

WORK = """
import numpy as np

def total(rows):
    return rows.sum(axis=1)

def size(paths):
    return np.array([sum(path.read_bytes()) for path in paths])
"""
JOB: dict[str, Any] = {"work": WORK, "kind": "map", "name": "copied"}


class Field(NamedTuple):
    farm: FarmHarness
    proxy: Proxy
    copy: Path

    def far(self) -> AgentStatus:
        found = self.farm.agent_status("far")
        assert found is not None
        return found

    def moved(self, job: str) -> tuple[int, int]:
        """Bytes of the inputs of a finished job that came over the link, and that came from the copy."""
        inputs = sum(layer.total_in_bytes for layer in self.farm.plan(job).layers)
        until(lambda: self.far().bytes_pulled + self.far().bytes_spared == inputs, "the agent to tell what it pulled")
        return self.far().bytes_pulled, self.far().bytes_spared


@pytest.fixture
def field(tmp_path: Path, server: Sshd) -> Iterator[Field]:
    proxy, copy = Proxy(server.port), tmp_path / "copy"
    copy.mkdir()
    try:
        with running(tmp_path / "farm") as farm:
            far = Remote(farm, server, proxy=proxy).join("--have", str(copy))
            until(far.is_at_work, "the agent to work", 60)
            yield Field(farm, proxy, copy)
    finally:
        proxy.close()


def test_of_a_copy_with_one_changed_byte_one_piece_is_pulled(field: Field) -> None:
    array = np.random.default_rng(1).normal(size=(8192, 1024)).astype("f4")
    file = field.farm.job_file({"x": array}, 2048, code="work.py:total", **JOB)
    shutil.copytree(file.parent / "arrays", field.copy / "arrays")
    with (field.copy / "arrays" / "x.npy").open("r+b") as spoilt:
        spoilt.seek(20 * MIB)
        byte = spoilt.read(1)[0]
        spoilt.seek(20 * MIB)
        spoilt.write(bytes([byte ^ 1]))
    before = field.proxy.moved
    job = submit(field.farm.root, file)
    finish(field.farm, job)
    assert field.moved(job) == (PIECE_BYTES, array.nbytes - PIECE_BYTES)
    assert field.proxy.moved - before < 4 * PIECE_BYTES
    assert field.far().have == str(field.copy)[:64]
    assert "spared its link 31 MiB of 32 MiB" in field.farm.coordinator("agents").stdout
    assert "\n  pays     with far " in field.farm.coordinator("plan", str(file)).stdout


def test_of_files_those_that_are_missing_or_links_are_pulled(field: Field) -> None:
    files = {f"data/{number:02}.bin": os.urandom(400_000) for number in range(20)}
    source = {"files": "data/*.bin"}
    file = field.farm.job_file({}, files=files, code="work.py:size", source=source, **JOB)
    shutil.copytree(file.parent / "data", field.copy / "data")
    (field.copy / "data/07.bin").unlink()
    (field.copy / "data/08.bin").unlink()
    (field.copy / "data/08.bin").symlink_to("08.bin")
    (field.copy / "data/09.bin").write_bytes(files["data/09.bin"][:1000])
    job = submit(field.farm.root, file)
    finish(field.farm, job)
    pulled, spared = field.moved(job)
    assert 1_199_000 < pulled < 5 * PIECE_BYTES
    assert spared > 20 * 400_000 - 5 * PIECE_BYTES
