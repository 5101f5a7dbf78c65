"""What `agent join` says of the place of its spool: network file systems are named, and refused where nobody asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.agent.commands import join
from muster.agent.spool import owner as owners
from muster.jobs.common import filesystems
from muster.jobs.common.errors import RefusedError

LOCAL = Path("/var/tmp/muster/one")


def on(monkeypatch: pytest.MonkeyPatch, home: str, spool: str) -> None:
    """The file systems of the home, and of wherever the spool is."""
    monkeypatch.setattr(filesystems, "file_system", lambda path: home if path == owners._home() else spool)


def test_a_home_on_a_network_is_said_with_where_the_spool_is_instead(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, "nfs4", "ext4")
    join._check_spool(LOCAL, asked_for=False)
    assert capsys.readouterr().err == f"the home is on a network file system (nfs4): the spool is {LOCAL}\n"


def test_a_spool_on_a_network_is_refused_where_nobody_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "nfs4", "lustre")
    with pytest.raises(RefusedError, match="lustre") as caught:
        join._check_spool(LOCAL, asked_for=False)
    assert "--spool" in caught.value.hint


def test_who_insists_is_warned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    on(monkeypatch, "ext4", "nfs")
    join._check_spool(LOCAL, asked_for=True)
    assert capsys.readouterr().err == f"warning: the spool {LOCAL} is on a network file system (nfs)\n"


def test_a_local_one_is_not_worth_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    on(monkeypatch, "ext4", "xfs")
    join._check_spool(LOCAL, asked_for=False)
    assert capsys.readouterr().err == ""
