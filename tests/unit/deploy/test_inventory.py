"""The inventory: what it may say, defaults and groups in it, and every wrong field named with its line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from muster.agent.commands.join import command as join
from muster.deploy import cli, inventory, join_options
from muster.deploy.inventory import Inventory, InventoryError, MachineWish, ServerAddress, parse_inventory
from muster.jobs.common.errors import MusterError, UsageError

GOOD = """
server: {address: me@server.lab}
defaults: {python: auto, nice: 10, memory: 4GiB}
groups:
  night: {hours: "20:00-08:00", nice: 19}
  big: {memory: 64GiB}
machines:
  lab3: {ssh: cy@10.0.0.13, groups: [night, big], cpus: 4, memory: 8GiB}
  gpu1: {ssh: ann@gpu1, jump: hop@gate, python: /opt/py/bin/python3, gpus: 0, env: {nlp: ~/nlp, b: /b}, service: cron}
"""


def parsed(text: str) -> Inventory:
    return parse_inventory(text, Path("lab/inventory.yaml"))


def wrong(text: str) -> list[str]:
    """Every line that is said of it."""
    with pytest.raises(InventoryError) as caught:
        parsed(text)
    return [*caught.value.earlier, caught.value.message]


def of_machine(fields: str) -> str:
    return f"server: {{address: s}}\nmachines:\n  lab3:\n    ssh: lab3\n    {fields}\n"


def test_a_machine_has_defaults_then_its_groups_then_its_own() -> None:
    lab3, gpu1 = parsed(GOOD).machines
    options = dict(zip(lab3.join[::2], lab3.join[1::2], strict=True))
    assert options == {"--nice": "19", "--memory": "8GiB", "--hours": "20:00-08:00", "--cpus": "4"}
    assert lab3.wish.python == "auto" and lab3.wish.service == "user" and lab3.wish.jump is None
    assert (gpu1.wish.python, gpu1.wish.jump, gpu1.wish.service) == ("/opt/py/bin/python3", "hop@gate", "cron")
    assert gpu1.join[gpu1.join.index("--gpus") :][:6] == ("--gpus", "0", "--env", "nlp=~/nlp", "--env", "b=/b")
    assert gpu1.option("--nice") == "10" and gpu1.option("--spool") is None


def test_an_account_has_one_machine_of_the_farm() -> None:
    fields = [
        "{ssh: me@lab}",
        "{ssh: you@lab}",
        "{ssh: me@lab, jump: gate}",
        "{ssh: 'ssh://me@lab:2222'}",
        "{ssh: lab}",
    ]
    text = "server: {address: s}\nmachines:\n" + "".join(f"  m{n}: {one}\n" for n, one in enumerate(fields))
    assert len(parsed(text).machines) == len(fields)
    assert wrong(text + "  again: {ssh: me@LAB}\n  bad: {ssh: -o}\n")[-1] == (
        "inventory.yaml:8: machines.again.ssh: the same account as that of 'm0'"
    )


# Every option of `agent join` that is a field, with what may stand there, and what the command makes of it
FIELDS: dict[str, tuple[object, object]] = {
    "cpus": (4, 4),
    "memory": ("8GiB", 8 << 30),
    "spool": ("/big/spool", Path("/big/spool")),
    "disk": ("1GiB", 1 << 30),
    "link": ("openssh", "openssh"),
    "bandwidth": ("10MiB", 10 << 20),
    "have": ("/data/weights", Path("/data/weights")),
    "env": ({"nlp": "/opt/nlp"}, ("nlp=/opt/nlp",)),
    "gpus": ("0,1", ("0", "1")),
    "kinds": ("cluster,infer", ("cluster", "infer")),
    "no_code": (True, True),
    "leave_cores": (1, 1),
    "hours": ("Mon-Fri 20:00-08:00", "Mon-Fri 20:00-08:00"),
    "nice": (10, 10),
    "ionice": ("idle", "idle"),
    "pool": ("processes", "processes"),
    "ray": ("head:6379", "head:6379"),
    "ray_token": ("/etc/token", Path("/etc/token")),
    "idle_timeout": (600, 600.0),
    "time_limit": ("7h30m", 27000.0),
}


def test_every_option_of_join_is_a_field_or_is_ours_to_say() -> None:
    known = {join_options.RENAMED.get(str(one.name), str(one.name)) for one in join.params}
    assert known == FIELDS.keys() | join_options.OURS


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_is_what_the_option_of_join_is(field: str) -> None:
    given, meant = FIELDS[field]
    [machine] = parsed(of_machine(f"{field}: {json.dumps(given)}")).machines
    made = join.make_context("join", ["server.lab", *machine.join]).params
    names = {renamed: name for name, renamed in join_options.RENAMED.items()}
    assert made[names.get(field, field)] == meant


def test_the_page_names_every_field() -> None:
    page = (Path(__file__).parents[3] / "docs/deploy.md").read_text()
    rows = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    own = {*MachineWish.__struct_fields__, "ssh", *(f"server.{name}" for name in ServerAddress.__struct_fields__)}
    assert set(re.findall(r"`([^`]+)`", rows)) == FIELDS.keys() | own - {"server.address"} | {"groups"}


def test_its_machines_parse_as_the_command_line_of_join() -> None:
    for machine in parsed(GOOD).machines:
        join.make_context("join", ["server.lab", *machine.join])


def test_all_that_is_wrong_is_said_at_once_with_its_line() -> None:
    text = (
        GOOD.replace("cpus: 4", "cpus: 0, memroy: 1").replace("nice: 10", "nice: lots").replace("[night, big]", "[day]")
    )
    said = wrong(text.replace("server: {address: me@server.lab}", "server: {adress: me@server.lab}"))
    assert [line.split(": ")[0] for line in said] == [
        "inventory.yaml:2",
        "inventory.yaml:3",
        *["inventory.yaml:8"] * 3,
    ]
    assert "machines.lab3.memroy: unknown field; did you mean `memory`?" in "\n".join(said)
    assert "there is no group 'day'" in said[-1]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ("jump: -oProxyCommand=x", "is no host to pass"),
        ("python: python3", "expected `auto` or the path"),
        ("python: ''", "expected `auto` or the path"),
        ("service: systemd", "expected one of cron, none, user"),
        ("service: [user]", "expected text"),
        ("reach: both", "expected one of in, out"),
        ("hours: 25:00-26:00", "expected something like 20:00-08:00"),
        ("hours: Fri-Mo 20:00-08:00", "expected something like 20:00-08:00"),
        ("idle_timeout: soon", "expected a duration"),
        ("time_limit: true", "expected a text or a number"),
        ("bandwidth: 1KiB", "too little: allow at least"),
        ("gpus: '0,0'", "expected different labels"),
        ("kinds: clutser", "there is no kind 'clutser' here"),
        ("no_code: please", "expected true or false"),
        ("detach: true", "unknown field"),
        ("memory: lots", "expected a size"),
        ("cpus: four", "not a valid integer"),
        ("cpus:", "expected a text or a number"),
        ("name: other", "unknown field"),
        ("port: 22", "unknown field"),
        ("groups: night", "expected a list of names"),
        ('env: {nlp: "a\\nb"}', "can be printed"),
    ],
)
def test_a_wrong_field_is_named(fields: str, what: str) -> None:
    [said] = wrong(of_machine(fields))
    assert said.startswith("inventory.yaml:5: machines.lab3.")
    assert what in said


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "an inventory is a mapping"),
        ("server: {address: s}", "`machines` is a mapping"),
        ("server: {address: s}\nmachines: {a.b: {ssh: x}}", "'a.b' is no name"),
        ("server: {address: s}\nmachines: {lab3: {}}", "machines.lab3.ssh: missing"),
        ("server: {address: s}\nmachines: {lab3: {ssh: x}, lab3: {ssh: y}}", "'lab3' is there twice"),
        ("server: {address: s}\nmachines: {lab3: {ssh: -oX=y}}", "is not a place"),
        ("server: {address: s}\nmachines: {lab3: {ssh: 'x:/root'}}", "is no host"),
        ("server: {address: s, sshd: localhost}\nmachines: {}", "is no host with a port"),
        ("server: {address: s, service: systemd}\nmachines: {}", "expected one of cron, none, user"),
        ("server: {address: s, root: farm}\nmachines: {}", "expected a path from / or ~ on"),
        ("server: {address: s, rot: /farm}\nmachines: {}", "unknown field"),
        ("server: {address: /data/farm}\nmachines: {}", "is no host"),
        ("machines: {}", "server.address: missing"),
        ("server: [", "not YAML"),
        ("server: {address: s}\nmachines: {}\nmachine: {}", "did you mean `machines`?"),
    ],
)
def test_what_cannot_be_is_refused(text: str, what: str) -> None:
    assert what in "\n".join(wrong(text))


def test_names_of_the_command_line_are_looked_up() -> None:
    found = parsed(GOOD)
    assert [one.name for one in found.named(())] == ["lab3", "gpu1"]
    assert [one.name for one in found.named(("gpu1", "gpu1"))] == ["gpu1"]
    with pytest.raises(UsageError, match="no machine 'lab4'") as caught:
        found.named(("lab4",))
    assert caught.value.hint == "did you mean lab3?"


def test_a_command_says_every_line_and_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from muster.coordinator.farm_root import paths as roots

    root = roots.prepare(tmp_path / "farm")
    (root.path / "inventory.yaml").write_text(of_machine("cpus: 0\n    nice: 99"))
    assert cli.main(["up", "--root", str(root.path)]) == 3
    said = capsys.readouterr().err
    assert "inventory.yaml:5: machines.lab3.cpus" in said and "inventory.yaml:6: machines.lab3.nice" in said


WRITTEN = """# the lab
server: {address: s}
machines:
  lab3: {ssh: x}   # by the window
  # the old ones
  lab4:
    ssh: y

    cpus: 2
# groups are below
groups: {night: {nice: 19}}
"""


def test_one_machine_more_is_one_line_more() -> None:
    fields = {"ssh": "cy@10.0.0.9", "cpus": 4, "groups": ["night"], "env": {"nlp": "/a b/python"}}
    made = inventory.with_machine(WRITTEN, Path("i.yaml"), "lab9", fields)
    line = "  lab9: {ssh: cy@10.0.0.9, cpus: 4, groups: [night], env: {nlp: /a b/python}}"
    assert made == WRITTEN.replace("    cpus: 2\n", f"    cpus: 2\n{line}\n")
    [*_, lab9] = parsed(made).machines
    assert (lab9.name, lab9.option("--nice"), lab9.option("--env")) == ("lab9", "19", "nlp=/a b/python")


def test_a_machine_goes_to_the_end_of_a_file_without_a_last_newline() -> None:
    text = "server: {address: s}\nmachines:\n    lab3: {ssh: x}"
    made = inventory.with_machine(text, Path("i.yaml"), "no", {"ssh": "y"})  # a word that YAML takes for false
    assert made == f"{text}\n    'no': {{ssh: y}}\n"


@pytest.mark.parametrize(
    ("text", "name", "fields", "what"),
    [
        (WRITTEN, "lab3", {"ssh": "z"}, "has a machine 'lab3' already"),
        (WRITTEN, "lab 9", {"ssh": "z"}, "'lab 9' is no name"),
        (WRITTEN, "lab9", {"cpus": 1}, "machines.lab9.ssh: missing"),
        (WRITTEN, "lab9", {"ssh": "z", "cpu": 1}, "did you mean `cpus`?"),
        (WRITTEN, "lab9", {"ssh": "z", "groups": ["day"]}, "there is no group 'day'"),
        ("server: {address: s}\nmachines: {lab3: {ssh: x}}\n", "lab9", {"ssh": "z"}, "not written a line for each"),
        ("server: {address: s}\nmachines: {}\n", "lab9", {"ssh": "z"}, "not written a line for each"),
    ],
)
def test_what_cannot_be_added_is_said(text: str, name: str, fields: dict[str, object], what: str) -> None:
    with pytest.raises(MusterError) as caught:
        inventory.with_machine(text, Path("i.yaml"), name, fields)
    assert what in caught.value.message
