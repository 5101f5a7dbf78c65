"""The text of units: what systemd makes of each word is what was meant."""

from __future__ import annotations

import pytest

from muster.jobs.common import user_units
from muster.jobs.common.errors import NotFoundError, RefusedError
from muster.jobs.common.user_units import UnitFacts, UserUnit


@pytest.mark.parametrize(
    ("word", "command", "variable"),
    [
        ("plain", '"plain"', '"plain"'),
        ("two words", '"two words"', '"two words"'),
        ('a"b\\c', '"a\\"b\\\\c"', '"a\\"b\\\\c"'),
        ("100%", '"100%%"', '"100%%"'),
        ("$HOME", '"$$HOME"', '"$HOME"'),
        ("it's", '"it\'s"', '"it\'s"'),
    ],
)
def test_nothing_in_a_word_means_more_than_itself(word: str, command: str, variable: str) -> None:
    assert (user_units.quoted(word), user_units.quoted(word, command=False)) == (command, variable)


def test_what_would_begin_another_line_is_refused() -> None:
    with pytest.raises(RefusedError, match="cannot be given"):
        user_units.text("test", "x", ["/bin/a", "b\nExecStartPre=/bin/c"])


def test_a_unit_has_what_was_said_and_nothing_that_was_not() -> None:
    bare = user_units.text("test", "50% done", ["/bin/a b", "c"])
    assert 'ExecStart="/bin/a b" "c"\nRestart=on-failure\n' in bare and "Description=50%% done\n" in bare
    assert {"KillMode=mixed", "OOMPolicy=continue", "WantedBy=default.target"} <= set(bare.splitlines())
    full = user_units.text("test", "x", ["/bin/a"], "/w%d", {"PATH": "/a:/b c"}, 1 << 30)
    assert 'WorkingDirectory=/w%%d\nEnvironment="PATH=/a:/b c"\nMemoryMax=1073741824\n' in full


def test_a_unit_is_told_in_a_line() -> None:
    facts = UnitFacts("muster-a.service", "active", 7, 2, True, False, "infinity")
    assert str(facts) == (
        "muster-a.service: active, process 7, started again 2 times; runs while its user is logged in"
    )


def test_a_unit_that_is_not_there_is_said_so(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    unit = UserUnit("muster-a.service")
    assert not unit.is_active()
    with pytest.raises(NotFoundError, match="there is no unit"):
        unit.remove()
