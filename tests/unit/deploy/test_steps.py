"""The steps of `up`: for what a machine says of itself, what is right, what would be changed and how."""

from __future__ import annotations

import configparser
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from muster.deploy import bootstrap, services, steps
from muster.deploy.commands.options import teller
from muster.deploy.inventory import Machine, MachineWish
from muster.deploy.rollout import MachineOutcome, StepResult
from muster.deploy.steps import Authorize, Await, Dial, MachineFacts, RunScript, WantedMachine, facts_of

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKpYFF79AgXCiwAMg8j4pZZVG5BKJLyHghPB9C0Q8qBV"
LAB3 = Machine("lab3", "cy@lab3", MachineWish(), ("--cpus", "4", "--spool", "/big disk/spool"))
WANTED = WantedMachine(
    LAB3, "0.2.0", "digest", "the.whl", "me@server", "server ssh-ed25519 AAAA\n",
    confine=lambda public, name: f"{public} {name}", build="0.2.0-digest",
)  # fmt: skip
SCRIPTS = ("PROBE", "INSTALL", "LINK", "KEY", "WRITE", "DOCTOR", "START", "REMOVE", "LOGS", "CRON", "CRON_LINES")


def settled(**more: object) -> MachineFacts:
    """A machine of which nothing is to be changed, but for `more`."""
    bare = MachineFacts(
        home="/home/cy", user="cy", stamp="digest", link="0.2.0-digest", key=f"{KEY} lab3", crontab=True,
        platform="Linux x86_64 glibc 2.36",
    )  # fmt: skip
    files = steps.files_of(WANTED, bare)
    cron = services.cron_line("/home/cy/.local/share/muster/agents/lab3/keep")
    found = msgspec.structs.replace(bare, files=files, runs=("keep",), cron=cron, line=f"{KEY} lab3", agent="live")
    return msgspec.structs.replace(found, **more)


def not_right(facts: MachineFacts, wanted: WantedMachine = WANTED) -> list[str]:
    return [name for name, look in steps.STEPS if look(wanted, facts).state != "ok"]


def test_nothing_is_changed_where_all_is_right() -> None:
    assert not_right(settled()) == []


def test_a_bare_machine_wants_every_step_in_order() -> None:
    bare = MachineFacts(
        home="/home/cy", user="cy", pythons=(("3.9", "/usr/bin/python3"), ("3.12", "/opt/py/bin/python3"))
    )
    assert not_right(bare) == ["muster", "version", "key", "authorized", "files", "doctor", "service", "joined"]
    order = steps.install(WANTED, bare).order
    assert isinstance(order, RunScript) and order.brings and "python=/opt/py/bin/python3" in order.script
    assert "version=0.2.0-digest" in order.script  # beside another build of the same version, which an agent may run


@pytest.mark.parametrize(
    ("change", "steps_"),
    [
        ({"stamp": "old", "pythons": (("3.12", "/opt/py/bin/python3"),)}, ["muster"]),
        ({"link": "0.1.0"}, ["version"]),
        ({"key": ""}, ["key", "authorized"]),
        ({"line": None}, ["authorized"]),
        ({"line": f"{KEY} other"}, ["authorized"]),
        ({"files": {}}, ["files"]),
        ({"runs": ()}, ["service"]),
        ({"cron": ""}, ["service"]),
        ({"cron": "", "crontab": False}, []),
        ({"restart": True}, ["doctor", "service"]),
        ({"files": {**steps.files_of(WANTED, MachineFacts(home="/home/cy")), "unit": "[Unit]"}}, ["files", "service"]),
        ({"agent": "gone"}, ["doctor", "joined"]),
        ({"manager": True}, ["files", "service"]),
        ({"home": "/home/c y"}, ["login", "files", "service"]),
    ],
)
def test_a_step_is_wanted_for_what_is_not_right(change: dict[str, object], steps_: list[str]) -> None:
    assert not_right(settled(**change)) == steps_


def test_an_interpreter_that_has_muster_is_used_as_it_is() -> None:
    wish = MachineWish(python="~/venv/bin/python", service="none")
    wanted = replace(WANTED, machine=msgspec.structs.replace(LAB3, wish=wish))
    facts = MachineFacts(home="/home/cy", own="0.2.0", pythons=(("3.11", "/home/cy/venv/bin/python"),))
    assert not_right(facts, wanted)[0] == "key"
    assert "/home/cy/venv/bin/python -m muster.agent join me@server" in steps.files_of(wanted, facts)["join"]
    assert "muster" in not_right(msgspec.structs.replace(facts, own="0.1.0"), wanted)


def test_no_usable_python_is_said_with_what_was_looked_at() -> None:
    look = steps.python(WANTED, MachineFacts(pythons=(("3.9", "/usr/bin/python3"), ("3.15", "/opt/x/bin/python3"))))
    assert look.state == "fail"
    assert "no Python from 3.10 to before 3.15" in look.said and "/usr/bin/python3 is 3.9" in look.said
    assert "without root" in look.hint


def test_a_python_that_makes_no_venv_is_named_and_not_taken() -> None:
    look = steps.python(WANTED, MachineFacts(bare=(("3.11", "/usr/bin/python3"),)))
    assert look.state == "fail" and "/usr/bin/python3 is 3.11 and makes no venv" in look.said
    both = MachineFacts(bare=(("3.11", "/usr/bin/python3"),), pythons=(("3.12", "/opt/py/bin/python3"),))
    assert steps.python(WANTED, both).said == "3.12, /opt/py/bin/python3"


def test_ray_comes_into_the_environment_that_was_made_without_it() -> None:
    processes = msgspec.structs.replace(LAB3, join=(*LAB3.join, "--pool", "processes"))
    with_ray = replace(WANTED, without_ray="numpy")
    without = replace(with_ray, machine=processes)
    bare = settled(stamp="", pythons=(("3.12", "/opt/py/bin/python3"),))
    first = steps.install(without, bare).order
    assert isinstance(first, RunScript) and "stamp='digest without ray'" in first.script and "numpy" in first.script
    made = settled(stamp="digest without ray", pythons=(("3.12", "/home/cy/venv/bin/python"),))
    assert steps.install(without, made).state == steps.install(without, settled()).state == "ok"
    look = steps.install(with_ray, made)
    assert isinstance(look.order, RunScript) and look.said == "install Ray"
    assert "stamp=digest\n" in look.order.script and "python=''\n" in look.order.script  # nothing is made anew


def test_the_pythons_are_those_that_muster_installs_on() -> None:
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[3] / "setup.cfg")
    least, beyond = ("{}.{}".format(*version) for version in (steps.LEAST, steps.BEYOND))
    assert config["options"]["python_requires"] == f">={least},<{beyond}"


def test_the_doctors_first_failure_stops_the_machine() -> None:
    checks = [
        {"name": "port", "outcome": "pass", "detail": "", "fix": ""},
        {"name": "login", "outcome": "fail", "detail": "not let in", "fix": "do this"},
    ]
    look = steps.doctor(WANTED, settled(agent="gone", doctor=json.dumps({"checks": checks})))
    assert (look.state, look.said, look.hint) == ("fail", "login: not let in", "do this")


@pytest.mark.parametrize("said", ["", "{", "[]", '{"checks": 1}', '{"checks": [{"name": 1}]}'])
def test_what_cannot_be_read_of_a_machine_stops_that_machine(said: str) -> None:
    assert steps.doctor(WANTED, settled(agent="gone", doctor=said)).state == "fail"


def test_a_machines_words_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    teller(False)("lab3", StepResult("login", "failed", "\x1b[2Jgone", "\x1b]0;x\x07"))
    assert capsys.readouterr().err == "lab3: login: failed: \\x1b[2Jgone\n    hint: \\x1b]0;x\\x07\n"


def test_orders_are_what_puts_it_right() -> None:
    assert steps.authorized(WANTED, settled(line=None)).order == Authorize(f"{KEY} lab3")
    assert steps.joined(WANTED, settled(agent="gone")).order == Await()
    hostile = steps.authorized(WANTED, settled(key='command="id" ssh-rsa AAAA', line=None))
    assert hostile.state == "change" and hostile.order is None


def test_what_a_script_says_is_read_a_later_word_over_an_earlier_one() -> None:
    said = [
        "home /home/cy",
        "room 1024",
        "python 3.11 with /a b/python",
        "python 3.12 without /c",
        "python 3",
        "runs unit",
        "file join #!/bin/sh",
        "file join ",
    ]
    found = facts_of([*said, "key old", "key new key", "manager", "nonsense", "room many"])
    assert (found.home, found.room, found.key, found.manager, found.lingers) == ("/home/cy", 0, "new key", True, False)
    assert found.pythons == (("3.11", "/a b/python"),) and found.bare == (("3.12", "/c"),)
    assert found.files == {"join": "#!/bin/sh\n\n"} and found.runs == ("unit",)


def test_the_wheels_that_fit_a_machine_are_named_as_pip_does() -> None:
    pythons = (("3.9", "/usr/bin/python3"), ("3.12", "/opt/py/bin/python3"))
    kind = steps.kind_of(MachineFacts(platform="Linux aarch64 glibc 2.28", pythons=pythons))
    assert kind is not None and (kind.python, kind.machine) == ("3.12", "aarch64")
    assert kind.tags[0] == "manylinux_2_28_aarch64" and kind.tags[-2:] == (
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
    )
    for platform in ("Linux x86_64", "Darwin arm64", "", "Linux x86_64 glibc two", "Linux x86_64 glibc 2"):
        assert steps.kind_of(MachineFacts(platform=platform, pythons=pythons)) is None


@pytest.mark.parametrize(
    ("platform", "memory", "named", "why"),
    [
        ("Linux x86_64 glibc 2.36", 8 << 30, "", ""),
        ("Linux aarch64 glibc 2.17", 0, "", ""),
        ("Linux x86_64", 8 << 30, "", "Ray has no wheel for Linux x86_64"),  # musl
        ("Linux armv7l glibc 2.31", 8 << 30, "", "Ray has no wheel for Linux armv7l glibc 2.31"),
        ("Linux x86_64 glibc 2.36", 1 << 30, "", "with 1 GiB of memory there is no room for Ray"),
        ("Linux x86_64", 1 << 30, "ray", ""),
        ("Linux x86_64", 1 << 30, "cluster", ""),  # whose nodes compute
        ("Linux x86_64 glibc 2.36", 8 << 30, "processes", "as the inventory says"),
    ],
)
def test_where_ray_has_no_wheel_or_no_room_workers_are_plain_processes(
    platform: str, memory: int, named: str, why: str
) -> None:
    pool = ("--ray", "head:6379") if named == "cluster" else ("--pool", named)
    join = (*LAB3.join, *pool) if named else LAB3.join
    machine = replace(WANTED, machine=msgspec.structs.replace(LAB3, join=join), without_ray="numpy\nclick")
    facts = MachineFacts(home="/h", platform=platform, memory=memory, pythons=(("3.12", "/opt/py/bin/python3"),))
    said = steps.pool(machine, facts).said
    assert why in said and said.startswith("plain processes") == bool(why)
    order = steps.install(machine, facts).order
    assert isinstance(order, RunScript) and ("needs='numpy\nclick'" in order.script) == bool(why)
    words = steps.files_of(machine, facts)["join"]
    assert ("--pool processes" in words) == bool(why)
    assert words.count("--pool") + words.count("--ray") == bool(why or named)


def test_the_table_says_so() -> None:
    done = [StepResult("pool", "ok", "plain processes: why"), StepResult("muster", "changed", "install")]
    assert MachineOutcome("lab3", "changed", done).said == "muster; plain processes: why"
    assert MachineOutcome("lab3", "ok", [StepResult("pool", "ok", "Ray")]).said == "-"


def dmz(**more: object) -> tuple[WantedMachine, MachineFacts]:
    """A machine that the server dials into."""
    wish = MachineWish(reach="in")
    return replace(WANTED, machine=msgspec.structs.replace(LAB3, wish=wish)), settled(**more)


def test_a_machine_that_cannot_reach_the_server_is_dialled_into() -> None:
    wanted, facts = dmz()
    assert steps.dialled(wanted, facts).order == Dial()
    assert steps.dialled(wanted, settled(dials="wrong", way="/s")).order == Dial()
    assert steps.dialled(wanted, settled(dials="right")).order == Dial()
    assert steps.dialled(wanted, settled(dials="right", way="/s")).state == "ok"
    proxy = "ProxyCommand /home/cy/.local/share/muster/current/bin/python -m muster.agent.links.way_in"
    assert f"{proxy} /home/cy/.local/share/muster/agents/lab3/in\n" in steps.files_of(wanted, facts)["ssh_config"]
    assert "ProxyCommand" not in steps.files_of(WANTED, facts)["ssh_config"]


def test_a_machine_that_can_is_dialled_into_no_longer() -> None:
    assert steps.dialled(WANTED, settled(dials="right")).order == Dial(hang_up=True)
    assert steps.dialled(WANTED, settled()).state == "ok"


def test_a_home_too_deep_for_a_socket_is_told_before_ssh_fails() -> None:
    wanted, facts = dmz(home=f"/home/{'c' * 70}", dials="right", way="/s")
    assert steps.dialled(wanted, facts).state == "fail"


def test_a_dial_makes_a_name_of_its_own_each_time(tmp_path: Path) -> None:
    command = ["ssh", "-N", "-o", "UserKnownHostsFile=~/a b"]
    text = services.dial_script("dmz", str(tmp_path), command, "/home/d x/in", "localhost:22", "dmz")
    told = text.replace("exec ssh", "printf '%s|' ssh")
    subprocess.run(["sh"], input=told, text=True, check=True)
    words = (tmp_path / "join.log").read_text().split("|")
    assert words[:5] == ["ssh", "-N", "-o", "UserKnownHostsFile=~/a b", "-R"] and words[6:] == ["--", "dmz", ""]
    folder, _, rest = words[5].rpartition("/")
    assert folder == "/home/d x/in" and len(rest.partition(":")[0]) == 8 and rest.endswith(":localhost:22")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_is_posix_sh(name: str) -> None:
    text = bootstrap.script(getattr(bootstrap, name), name="it's", python="$(id)")
    assert subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False).stderr == ""
    assert r"""name='it'\''s'""" in text and "python='$(id)'" in text


@pytest.mark.parametrize("name", ["join", "keep"])
def test_the_files_of_an_agent_are_posix_sh(name: str) -> None:
    text = steps.files_of(WANTED, settled())[name]
    assert subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False).stderr == ""
    if name == "join":
        assert (
            "--ssh-config /home/cy/.local/share/muster/agents/lab3/ssh_config --cpus 4 --spool '/big disk/spool'"
            in text
        )


def test_the_unit_has_what_lets_user_code_end_before_the_agent() -> None:
    text = steps.files_of(WANTED, settled(manager=True))["unit"]
    assert 'ExecStart="/home/cy/.local/share/muster/agents/lab3/join"' in text
    assert {"Restart=on-failure", "KillMode=mixed", "OOMPolicy=continue"} <= set(text.splitlines())
