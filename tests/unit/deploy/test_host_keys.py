"""Host keys that nobody has seen: who vouches for them, and what is kept."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from muster.deploy import host_keys
from muster.deploy.host_keys import ShownKeys
from muster.deploy.inventory import Machine
from muster.jobs.common.errors import UsageError

MARKS = ("SHA256:" + "a" * 43, "SHA256:" + "b" * 43)
SHOWN = [
    ShownKeys(Machine(name, f"cy@{name}"), (f"{name} ssh-ed25519 AAAA",), (f"ed25519 {mark}",))
    for name, mark in zip(("lab3", "gpu1"), MARKS, strict=True)
]


class Person:
    """Who sits at the terminal."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, question: str) -> bool:
        self.asked.append(question)
        return self.answer


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": staticmethod(lambda: True)}))


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("answer", [True, False])
def test_a_person_is_shown_all_of_them_in_one_question(answer: bool) -> None:
    person = Person(answer)
    assert host_keys.vouched(SHOWN, None, person) == (SHOWN if answer else [])
    [question] = person.asked
    assert all(mark in question for mark in MARKS) and "cy@lab3" in question


@pytest.mark.usefixtures("terminal")
def test_nobody_is_asked_about_nothing() -> None:
    person = Person(True)
    assert host_keys.vouched([], None, person) == [] and not person.asked


def test_a_file_of_fingerprints_vouches_for_those_that_it_has(tmp_path: Path) -> None:
    person, file = Person(True), tmp_path / "marks"
    file.write_text(f"256 {MARKS[1]} root@gpu1 (ED25519)\n")
    assert host_keys.vouched(SHOWN, file, person) == SHOWN[1:] and not person.asked
    file.write_text(f"256 {MARKS[1][:-1]} root@gpu1 (ED25519)\n")
    assert host_keys.vouched(SHOWN, file, person) == []
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        host_keys.vouched(SHOWN, tmp_path / "none", person)


def test_without_a_terminal_nobody_vouches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", type("Pipe", (), {"isatty": staticmethod(lambda: False)}))
    person = Person(True)
    assert host_keys.vouched(SHOWN, None, person) == [] and not person.asked


def test_what_is_kept_is_its_users_alone(tmp_path: Path) -> None:
    file = tmp_path / "known"
    host_keys.keep(file, [])
    assert not file.exists()
    for one in SHOWN:
        host_keys.keep(file, [one])
    assert file.read_text() == "lab3 ssh-ed25519 AAAA lab3\ngpu1 ssh-ed25519 AAAA gpu1\n"
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("terminal")
def test_a_jump_host_of_many_is_shown_and_kept_once(tmp_path: Path) -> None:
    person, file = Person(True), tmp_path / "known"
    behind = [replace(one, hop="hop@gate", lines=("gate ssh-ed25519 AAAA",), fingerprints=("mark",)) for one in SHOWN]
    host_keys.keep(file, host_keys.vouched(behind, None, person))
    assert person.asked[0].count("hop@gate  mark") == 1 and file.read_text() == "gate ssh-ed25519 AAAA\n"
    assert "hop@gate, on the way to it, is not known here: mark" in behind[0].refusal().message


def test_a_machine_that_is_removed_is_forgotten_unless_another_is_on_that_host(tmp_path: Path) -> None:
    file = tmp_path / "known"
    file.write_text("gate ssh-ed25519 AAAA\nhost ssh-ed25519 AAAA one\nother ssh-ed25519 AAAA two\n")
    one, two, near = Machine("one", "a@host"), Machine("two", "a@other"), Machine("near", "b@HOST")
    host_keys.forget(file, [one, two], [near])
    assert file.read_text() == "gate ssh-ed25519 AAAA\nhost ssh-ed25519 AAAA one\n"
    host_keys.forget(file, [one], [])
    assert file.read_text() == "gate ssh-ed25519 AAAA\n" and file.stat().st_mode & 0o777 == 0o600
    host_keys.forget(tmp_path / "none", [one], [])
    assert not (tmp_path / "none").exists()
