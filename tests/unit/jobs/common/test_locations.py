"""What WHERE means."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.agent.spool import register
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.errors import UsageError
from muster.jobs.common.locations import Folder, Host, parse
from muster.jobs.user_code import environments


@pytest.mark.parametrize(
    "text", ["/data/farm", "./farm", "../farm", ".", "data/farm", "~/farm", "~", "a/b:c", "/x@y:z"]
)
def test_a_folder_has_a_slash_before_any_colon_or_starts_with_a_dot_or_tilde(text: str) -> None:
    place = parse(text)
    assert isinstance(place, Folder)
    assert place.path.is_absolute()


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse("~/farm") == Folder(tmp_path / "farm")


def test_a_tilde_of_a_user_who_is_not_there_is_the_users_slip() -> None:
    with pytest.raises(UsageError, match="~nobody-of-that-name/farm: there is no such user"):
        parse("~nobody-of-that-name/farm")
    with pytest.raises(UsageError, match="no such user"):
        roots.find(Path("~nobody-of-that-name/farm"))
    with pytest.raises(UsageError, match="no such user"):
        list(register.running(Path("~nobody-of-that-name")))
    with pytest.raises(UsageError, match="no such user"):
        environments.parse("nlp=~nobody-of-that-name/bin/python")


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("server", Host("server")),
        ("me@server", Host("server", "me")),
        ("me@server:/data/farm", Host("server", "me", None, "/data/farm")),
        ("server:farm", Host("server", None, None, "farm")),
        ("server:/a/b:c", Host("server", None, None, "/a/b:c")),
        ("[::1]:/farm", Host("[::1]", None, None, "/farm")),
        ("ssh://me@server:2222/data/farm", Host("server", "me", 2222, "/data/farm")),
        ("ssh://server", Host("server")),
        ("ssh://[fe80::1]:22/farm", Host("[fe80::1]", None, 22, "/farm")),
    ],
)
def test_anything_else_is_a_host(text: str, host: Host) -> None:
    assert parse(text) == host


@pytest.mark.parametrize(
    "text",
    ["", "-oProxyCommand=x", "me@-host", "@server", "server:", "a b", "ser;ver", "$(id)", "ssh://", "ssh://h:99999/x",
     "ssh://-x/y", "me\n@server", "server:/a\nb", "x" * 300, "[::1", "ssh://h:port/x"],
)  # fmt: skip
def test_what_ssh_or_a_shell_could_take_for_something_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert "WHERE is" in caught.value.hint
    assert "\n" not in caught.value.message
