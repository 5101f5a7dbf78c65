"""What Ray finds around it when it starts, without starting it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.agent.pool import ray_environment
from muster.jobs.common.errors import UsageError
from tests.support import certificates


@pytest.fixture
def temp(tmp_path: Path) -> Path:
    (tmp_path / "pool").mkdir()
    ray_environment.furnish(tmp_path / "pool")
    return tmp_path / "pool"


@pytest.mark.parametrize(("given", "wanted"), [("src::/opt/x", "{}/src:/opt/x"), (":", "")])
def test_workers_find_what_was_found_by_a_relative_path(
    temp: Path, monkeypatch: pytest.MonkeyPatch, given: str, wanted: str
) -> None:
    monkeypatch.chdir(temp.parent)
    monkeypatch.setenv("PYTHONPATH", given)
    assert ray_environment.of_this_machine(temp)["PYTHONPATH"] == wanted.format(temp.parent)
    assert os.environ["PYTHONPATH"] == given


def test_the_users_own_settings_of_ray_are_out_of_sight(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_USE_TLS", "1")
    here, there = ray_environment.of_this_machine(temp), ray_environment.of_cluster(temp / "token")
    assert "RAY_ADDRESS" not in here and "RAY_ADDRESS" not in there
    assert "RAY_USE_TLS" not in here and there["RAY_USE_TLS"] == "1"
    assert (there["RAY_AUTH_MODE"], there["RAY_AUTH_TOKEN_PATH"]) == ("token", str(temp / "token"))
    assert ray_environment.of_cluster(None)["RAY_AUTH_MODE"] == "disabled"


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_environment.tls() is None
    found = certificates.rays(tmp_path / "tls")
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    assert ray_environment.tls() is not None
    for name, path, why in (
        ("RAY_TLS_SERVER_KEY", "", "RAY_USE_TLS is set, and RAY_TLS_SERVER_KEY is not"),
        ("RAY_TLS_SERVER_CERT", "/nowhere", "RAY_TLS_SERVER_CERT names /nowhere: No such file or directory"),
        ("RAY_TLS_CA_CERT", found["RAY_TLS_SERVER_KEY"], "RAY_USE_TLS is set, and its certificates cannot be used"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, path)
            with pytest.raises(UsageError, match=why):
                ray_environment.tls()
