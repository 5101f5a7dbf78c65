"""What `up` wants of a machine, step by step: how it is, and what would put it right. Pure: facts in, orders out.

A step that was put right is looked at again: what a machine says of itself afterwards is what counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from muster.deploy import bootstrap, keys, services
from muster.deploy.inventory import Machine
from muster.jobs.common import units

LEAST, BEYOND = (3, 10), (3, 15)  # versions of Python; setup.cfg has the same, a test compares them
INSTALL_SECONDS = 1800.0
RESTART_SECONDS = 60  # that a running agent has to finish what it computes
STOP_SECONDS = 180.0  # for the whole of a restart
RAY_PLATFORM = re.compile(r"Linux (x86_64|aarch64) glibc 2\.\d+", re.ASCII)  # for which its wheels are made
RAY_MEMORY = 3 << 29  # bytes: its own processes take a third of that before anything is computed
SOCKET_FOLDER_LIMIT = 98  # characters: a socket's whole path may have 107, its name has 8
DOCTOR_SECONDS = 180.0


@dataclass(frozen=True)
class WantedMachine:
    """How one machine is to be."""

    machine: Machine
    version: str
    stamp: str  # of what is installed: the digest of the wheel
    wheel: str  # its name
    where: str  # what its agent joins
    known_hosts: str
    has_wheelhouse: bool = False
    confine: Callable[[str, str], str] = lambda public, name: ""  # the line of authorized_keys
    without_ray: str = ""  # what is installed beside the wheel where Ray is not, a line each
    build: str = ""  # what its environment is called: another build of the same version gets another
    dial: str = ""  # a script that is kept at work in place of an agent: of this server, for a machine it dials into
    dial_config: str = ""  # of its ssh


class MachineFacts(msgspec.Struct, frozen=True):
    """How it is: what its probe said, and what the server knows of it."""

    home: str = ""
    user: str = ""
    platform: str = ""  # system, machine, and the C library where it is GNU's
    room: int = 0  # bytes free in its home
    memory: int = 0  # bytes that it has; 0: it does not say
    stamp: str = ""
    link: str = ""
    own: str = ""  # the muster that the named interpreter has
    pythons: tuple[tuple[str, str], ...] = ()  # version, path
    bare: tuple[tuple[str, str], ...] = ()  # those that cannot make a venv
    key: str = ""
    files: dict[str, str] = {}
    manager: bool = False  # of systemd, for this user
    enabled: bool = False
    lingers: bool = False
    crontab: bool = False
    cron: str = ""
    runs: tuple[str, ...] = ()  # unit, keep
    restart: bool = False  # what it runs with is no longer what it should
    doctor: str | None = None
    last: str = ""  # what the agent said last on stderr
    kept: str = ""  # parts that could not be pushed, and where
    way: str = ""  # a socket that the server's ssh made there
    dials: Literal["", "right", "wrong"] = ""  # whether the server dials in, and as it should
    line: str | None = None  # in authorized_keys
    locked_out: bool = False  # by `remove --now`
    agent: str = ""  # its state, as the coordinator sees it


def facts_of(lines: Iterable[str], line: str | None = None, agent: str = "") -> MachineFacts:
    """What a machine's scripts said, a later word over an earlier one."""
    said: dict[str, str] = {}
    pythons: dict[str, list[tuple[str, str]]] = {"with": [], "without": []}
    runs: list[str] = []
    files: dict[str, list[str]] = {}
    for one in lines:
        key, _, value = one.partition(" ")
        if key == "python":
            version, has_venv, path = [*value.split(" ", 2), "", ""][:3]
            pythons.get(has_venv, []).append((version, path))
        elif key == "runs":
            runs.append(value)
        elif key == "file":
            name, _, text = value.partition(" ")
            files.setdefault(name, []).append(text)
        else:
            said[key] = value
    texts = {name: "".join(f"{row}\n" for row in rows) for name, rows in files.items()}
    words = {
        key: said.get(key, "")
        for key in ("home", "user", "platform", "stamp", "link", "own", "key", "cron", "last", "kept", "way")
    }
    flags = {key: key in said for key in ("manager", "enabled", "lingers", "crontab", "restart")}
    sizes = {key: int(said[key]) * 1024 if said.get(key, "").isdecimal() else 0 for key in ("room", "memory")}
    found = {name: tuple(dict.fromkeys(pythons[has])) for name, has in (("pythons", "with"), ("bare", "without"))}
    known = {"files": texts, "runs": tuple(runs), "doctor": said.get("doctor"), "line": line, "agent": agent}
    return msgspec.convert({**words, **flags, **sizes, **found, **known}, MachineFacts)


# --- what may come of a look ---


@dataclass(frozen=True)
class RunScript:
    """A script to run there. `brings`: send the wheel, and the wheelhouse if there is one, before."""

    script: str
    seconds: float = 60.0
    brings: bool = False


@dataclass(frozen=True)
class Authorize:
    """A line to put into the server's authorized_keys."""

    line: str


@dataclass(frozen=True)
class Dial:
    """Let the server keep an ssh into the machine; or, where `hang_up`, no longer."""

    hang_up: bool = False


@dataclass(frozen=True)
class Await:
    """Wait until the coordinator has it."""


Order = RunScript | Authorize | Dial | Await


@dataclass(frozen=True)
class Look:
    """One step as it is. `order` puts right what is to be changed; None where an earlier step must come first."""

    state: Literal["ok", "change", "fail"]
    said: str
    hint: str = ""
    order: Order | None = None


def _ok(said: str) -> Look:
    return Look("ok", said)


# --- the steps ---


def login(wanted: WantedMachine, facts: MachineFacts) -> Look:
    if not facts.home.startswith("/") or any(letter.isspace() or letter in "'\"" for letter in facts.home):
        return Look("fail", f"its home is {facts.home!r}", "paths of ssh's configuration cannot have spaces or quotes")
    return _ok(f"as {facts.user}")


def python(wanted: WantedMachine, facts: MachineFacts) -> Look:
    if facts.own == wanted.version:
        return _ok(f"{wanted.machine.wish.python} has muster {facts.own}")
    if facts.stamp:
        return _ok(f"in ~/{bootstrap.BASE}/{wanted.build}")
    found = usable(facts)
    if found:
        return _ok(f"{found[0]}, {found[1]}")
    seen = ", ".join(
        [f"{path} is {version}" for version, path in facts.pythons]
        + [f"{path} is {version} and makes no venv (no ensurepip)" for version, path in facts.bare]
    )
    looked = "on the PATH, in conda, pyenv, /opt and uv's own"
    if wanted.machine.wish.python != "auto":
        looked = f"as {wanted.machine.wish.python}"
    return Look(
        "fail",
        f"no Python from {_dotted(LEAST)} to before {_dotted(BEYOND)} {looked}" + (f": {seen}" if seen else ""),
        "`uv python install 3.12` or `conda create -n muster python=3.12` there brings one without root",
    )


def pool(wanted: WantedMachine, facts: MachineFacts) -> Look:
    return _ok(workers(wanted, facts) or "Ray")


def install(wanted: WantedMachine, facts: MachineFacts) -> Look:
    if facts.own == wanted.version:
        return _ok(f"{facts.own}, not ours to change")
    plain = f"{wanted.stamp} without ray"
    needs = wanted.without_ray if workers(wanted, facts) else ""
    if facts.stamp == wanted.stamp or (needs and facts.stamp == plain):
        return _ok(wanted.version)
    found, said = usable(facts), f"install {wanted.version}" if facts.stamp != plain else "install Ray"
    if found is None:
        return Look("change", said)
    given = {"name": wanted.machine.name, "version": wanted.build, "stamp": plain if needs else wanted.stamp}
    given["python"] = found[1] if facts.stamp != plain else ""  # agents may be running in what there is
    index = "none" if wanted.has_wheelhouse else ""
    text = bootstrap.script(bootstrap.INSTALL, **given, wheel=wanted.wheel, index=index, needs=needs)
    return Look("change", said, order=RunScript(text, INSTALL_SECONDS, brings=True))


def switch(wanted: WantedMachine, facts: MachineFacts) -> Look:
    """The link that agents are started by: with it, all of them on that machine change versions."""
    if facts.own == wanted.version or facts.link == wanted.build:
        return _ok(wanted.version)
    was = f", it was {facts.link}" if facts.link else ""
    script = bootstrap.script(bootstrap.LINK, name=wanted.machine.name, version=wanted.build)
    return Look("change", f"use {wanted.build}{was}", order=RunScript(script))


def key(wanted: WantedMachine, facts: MachineFacts) -> Look:
    if keys.public_key(facts.key):
        return _ok("its own")
    return Look(
        "change", "make a key there", order=RunScript(bootstrap.script(bootstrap.KEY, name=wanted.machine.name))
    )


def authorized(wanted: WantedMachine, facts: MachineFacts) -> Look:
    public = keys.public_key(facts.key)
    if public is None:
        return Look("change", "let its key in")
    line = wanted.confine(public, wanted.machine.name)
    if facts.line == line and not facts.locked_out:
        return _ok("as this agent, and nothing else")
    return Look("change", "let its key in", order=Authorize(line))


def files(wanted: WantedMachine, facts: MachineFacts) -> Look:
    texts = files_of(wanted, facts)
    other = [name for name, text in texts.items() if facts.files.get(name, "") != text]
    if not other:
        return _ok("as in the inventory")
    unit = texts.pop("unit", "")
    way = "yes" if wanted.machine.wish.reach == "in" and not wanted.dial else ""
    script = bootstrap.script(bootstrap.WRITE, name=wanted.machine.name, way=way, unit_text=unit, **texts)
    return Look("change", f"write {', '.join(other)}", order=RunScript(script))


def dialled(wanted: WantedMachine, facts: MachineFacts) -> Look:
    """The way of a machine that cannot reach the server: the server's ssh, which makes a socket there."""
    if wanted.machine.wish.reach == "out":
        return Look("change", "dial in no longer", order=Dial(hang_up=True)) if facts.dials else _ok("it dials itself")
    folder = way_in(wanted, facts)
    if len(folder) > SOCKET_FOLDER_LIMIT:
        return Look("fail", f"{folder} is too long for a socket", "a shorter name of the machine, or a shorter home")
    if facts.dials != "right" or not facts.way:
        return Look("change", "dial in", order=Dial())
    return _ok("the server keeps a way open")


def doctor(wanted: WantedMachine, facts: MachineFacts) -> Look:
    if facts.agent in ("live", "draining") and not facts.restart:
        return _ok("it is joined")
    if facts.doctor is None:
        options = [word for flag in ("--spool", "--ssh") for word in _option(wanted.machine, flag)]
        name, where, config = wanted.machine.name, wanted.where, f"{_at(wanted, facts)}/ssh_config"
        words = ("doctor", where, "--name", name, "--ssh-config", config, "--no-ray", "--json", *options)
        command = services.agent_command(_program(wanted, facts), *words)
        script = bootstrap.script(bootstrap.DOCTOR, name=name, command=command)
        return Look("change", "try each link of the way to the coordinator", order=RunScript(script, DOCTOR_SECONDS))
    try:
        checks = msgspec.json.decode(facts.doctor, type=_DoctorReport).checks
    except msgspec.DecodeError:
        return Look("fail", "what `agent doctor` said there cannot be read", f"`deploy logs {wanted.machine.name}`")
    failed = [check for check in checks if check.outcome == "fail"]
    if failed:
        return Look("fail", f"{failed[0].name}: {failed[0].detail}", failed[0].fix)
    warned = [f"{check.name}: {check.detail}" for check in checks if check.outcome == "warn"]
    return _ok("; ".join(warned) or "all is well")


class _DoctorCheck(msgspec.Struct, frozen=True):
    """What is read of a check."""

    name: str
    outcome: str
    detail: str
    fix: str


class _DoctorReport(msgspec.Struct, frozen=True):
    """Another machine's word: it may be anything."""

    checks: list[_DoctorCheck]


def service(wanted: WantedMachine, facts: MachineFacts) -> Look:
    how = _how(wanted, facts)
    cron = _cron(wanted, facts)
    as_wanted = facts.enabled if how == "unit" else "unit" not in facts.files  # which would start another with it
    if how in facts.runs and not facts.restart and facts.cron == cron and as_wanted:
        return _ok(survives(wanted, facts))
    given = {"name": wanted.machine.name, "how": how, "cron": cron, "patience": str(RESTART_SECONDS)}
    said = "start the agent" if not facts.runs else "start the agent anew"
    return Look("change", said, order=RunScript(bootstrap.script(bootstrap.START, **given), STOP_SECONDS))


def joined(wanted: WantedMachine, facts: MachineFacts) -> Look:
    if facts.agent in ("live", "draining"):
        return _ok(facts.agent)
    return Look("change", "wait until the coordinator has it", order=Await())


Step = tuple[str, Callable[[WantedMachine, MachineFacts], Look]]
STEPS: tuple[Step, ...] = (
    ("login", login),
    ("python", python),
    ("pool", pool),
    ("muster", install),
    ("version", switch),
    ("key", key),
    ("authorized", authorized),
    ("files", files),
    ("dialled", dialled),
    ("doctor", doctor),
    ("service", service),
    ("joined", joined),
)

BESIDE = STEPS[:4]  # these change nothing for an agent that runs
KEEPING: tuple[Step, ...] = (("files", files), ("service", service))  # of what is kept at work and is no agent

# --- what several of them want to know ---


def usable(facts: MachineFacts) -> tuple[str, str] | None:
    """The first interpreter of a version that we run on."""
    for version, path in facts.pythons:
        numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
        if LEAST <= numbers[:2] < BEYOND:
            return version, path
    return None


@dataclass(frozen=True, order=True)
class WheelFit:
    """Machines that the same wheels fit."""

    machine: str
    python: str
    tags: tuple[str, ...]  # of platforms, as pip names them


def kind_of(facts: MachineFacts) -> WheelFit | None:
    """None where no wheels are known to fit, or no interpreter was looked for."""
    found, like = usable(facts), re.fullmatch(r"Linux (\w+) glibc 2\.(\d{1,3})", facts.platform, re.ASCII)
    if found is None or like is None:
        return None
    machine = like[1]
    minors = range(int(like[2]), 16, -1)  # 2.17 is manylinux2014
    tags = (*(f"manylinux_2_{minor}_{machine}" for minor in minors), f"manylinux2014_{machine}")
    older = (f"manylinux2010_{machine}", f"manylinux1_{machine}") if machine == "x86_64" else ()
    return WheelFit(machine, found[0], (*tags, *older))


def files_of(wanted: WantedMachine, facts: MachineFacts) -> dict[str, str]:
    """The texts of an agent's files; `unit` where systemd is to start it."""
    at, name, reach = _at(wanted, facts), wanted.machine.name, wanted.machine.wish.reach
    program, options = _program(wanted, facts), wanted.machine.join
    if workers(wanted, facts) and wanted.machine.option("--pool") is None:
        options = (*options, "--pool", "processes")
    found = {
        "known_hosts": wanted.known_hosts,
        "ssh_config": wanted.dial_config or services.ssh_config(at, program if reach == "in" else None),
        "join": wanted.dial or services.join_script(program, wanted.where, name, at, options),
        "keep": services.keep_script(name, at),
    }
    if _how(wanted, facts) != "unit":
        return found
    memory = wanted.machine.option("--memory")
    return {**found, "unit": services.unit(name, at, units.parse_size(memory) if memory else None)}


def probe(wanted: WantedMachine) -> str:
    machine = wanted.machine
    given = {"name": machine.name, "version": wanted.build, "python": machine.wish.python}
    return bootstrap.script(bootstrap.PROBE, **given, service=machine.wish.service)


def remove(wanted: WantedMachine, facts: MachineFacts, patience: int, force: bool) -> str:
    """The script that leaves a machine as it was."""
    machine = wanted.machine
    given = {"name": machine.name, "program": _program(wanted, facts), "spool": machine.option("--spool") or ""}
    return bootstrap.script(bootstrap.REMOVE, **given, patience=str(patience), force="yes" if force else "")


def logs(wanted: WantedMachine, facts: MachineFacts, lines: int, follow: bool) -> str:
    machine = wanted.machine
    given = {"name": machine.name, "program": _program(wanted, facts), "spool": machine.option("--spool") or ""}
    return bootstrap.script(bootstrap.LOGS, **given, lines=str(lines), follow="-f" if follow else "")


def workers(wanted: WantedMachine, facts: MachineFacts) -> str:
    """Why the machine's workers are plain processes; "" where Ray starts them."""
    named = wanted.machine.option("--pool")
    if wanted.machine.option("--ray") is not None:
        return ""  # a cluster's nodes, whatever this machine is
    if named is not None:
        return "" if named == "ray" else "plain processes, as the inventory says"
    if not RAY_PLATFORM.fullmatch(facts.platform):
        return f"plain processes: Ray has no wheel for {facts.platform.strip() or 'it'}"
    if 0 < facts.memory < RAY_MEMORY:
        return f"plain processes: with {units.format_size(facts.memory)} of memory there is no room for Ray"
    return ""


def way_in(wanted: WantedMachine, facts: MachineFacts) -> str:
    """The folder of the sockets by which an agent comes that the server dials into; its user's alone."""
    return f"{_at(wanted, facts)}/in"


def is_there(facts: MachineFacts) -> bool:
    """Whether anything of this agent is on the machine."""
    return bool(facts.files or facts.key or facts.runs or facts.cron)


def _at(wanted: WantedMachine, facts: MachineFacts) -> str:
    return f"{facts.home}/{bootstrap.BASE}/agents/{wanted.machine.name}"


def _program(wanted: WantedMachine, facts: MachineFacts) -> str:
    """The interpreter that runs the agent."""
    named = wanted.machine.wish.python
    if facts.own == wanted.version:
        return named.replace("~/", f"{facts.home}/", 1) if named.startswith("~/") else named
    return f"{facts.home}/{bootstrap.BASE}/current/bin/python"


def _how(wanted: WantedMachine, facts: MachineFacts) -> str:
    return "unit" if wanted.machine.wish.service == "user" and facts.manager else "keep"


def _cron(wanted: WantedMachine, facts: MachineFacts) -> str:
    """Its line in the crontab; "" where it has none."""
    needs = _how(wanted, facts) == "keep" and wanted.machine.wish.service != "none" and facts.crontab
    return services.cron_line(f"{_at(wanted, facts)}/keep") if needs else ""


def survives(wanted: WantedMachine, facts: MachineFacts) -> str:
    if _how(wanted, facts) == "unit":
        return "systemd" if facts.lingers else "systemd, until its user logs out: `loginctl enable-linger` was refused"
    return "cron" if _cron(wanted, facts) else "until the machine is restarted"


def _option(machine: Machine, flag: str) -> list[str]:
    value = machine.option(flag)
    return [flag, value] if value is not None else []


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
