"""The inventory: which machines a farm has and how each is to be, of one yaml file. Every wrong field is named at once,
with its line. Connects to nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from muster.deploy import join_options
from muster.jobs.common import names, units
from muster.jobs.common.errors import JobFileError, MusterError, RefusedError, UsageError
from muster.jobs.common.locations import Host, expand, parse
from muster.jobs.common.validation import FieldError, convert, did_you_mean, nearest
from muster.jobs.job_file import yaml_text

FILE_LIMIT = 1 << 20  # bytes
SSH_PORT = 22
_JUMP = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.@:\[\]%/-]*(,[A-Za-z0-9_\[][A-Za-z0-9_.@:\[\]%/-]*)*", re.ASCII)
_PLACE = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}", re.ASCII)
_SECTIONS = ("server", "defaults", "groups", "machines")
Service = Literal["user", "cron", "none"]  # systemd's user manager, the crontab, nothing


class InventoryError(JobFileError):
    """The inventory says something that cannot be."""

    default_hint = "correct the inventory; `deploy up --check` then says what would change, and touches nothing"

    def __init__(self, message: str, hint: str | None = None, earlier: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.earlier = earlier


class ServerAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the machines reach this one, and what it serves."""

    address: str  # host, user@host or ssh://user@host:port
    root: str = ""  # the farm's; where none is said, as commands find it
    service: Service = "none"  # what brings its coordinator back after a restart; none: its user does as he likes
    authorized_keys: str = "~/.ssh/authorized_keys"  # where its sshd looks for this account's keys
    host_keys: str = "/etc/ssh/ssh_host_*_key.pub"  # the public ones of its sshd
    sshd: str = ""  # host:port by which this machine reaches it itself; what is dialled in leads there

    @property
    def own_sshd(self) -> str:
        return self.sshd or f"localhost:{self.host.port or SSH_PORT}"

    @property
    def farm(self) -> Path | None:
        return expand(self.root).absolute() if self.root else None

    @property
    def host(self) -> Host:
        found = parse(self.address)
        assert isinstance(found, Host)
        return found


class MachineWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What defaults, groups and machines may say beside the options of `agent join`."""

    jump: str | None = None  # as `ssh -J` takes it
    python: str = "auto"  # an interpreter there; one that has muster already is used as it is
    service: Service = "user"  # what brings the agent back after the machine was restarted
    reach: Literal["out", "in"] = "out"  # in: it cannot reach the server, which keeps a way open by dialling in


class Machine(msgspec.Struct, frozen=True):
    """One machine, complete: defaults and groups are in it."""

    name: str  # of its agent too
    ssh: str  # how we reach it: as ServerAddress.address
    wish: MachineWish = MachineWish()
    join: tuple[str, ...] = ()  # words of its `agent join`

    @property
    def host(self) -> Host:
        found = parse(self.ssh)
        assert isinstance(found, Host)
        return found

    def option(self, flag: str) -> str | None:
        """The value that its `agent join` has for it."""
        return self.join[self.join.index(flag) + 1] if flag in self.join else None


class Inventory(msgspec.Struct, frozen=True):
    """All of it."""

    path: Path
    server: ServerAddress
    machines: tuple[Machine, ...]

    def named(self, wanted: tuple[str, ...]) -> tuple[Machine, ...]:
        """Those of these names, all of them where none is given."""
        known = {machine.name: machine for machine in self.machines}
        for name in wanted:
            if name not in known:
                near = nearest(name, known)
                hint = f"did you mean {near}?" if near else f"it has {', '.join(known) or 'none'}"
                raise UsageError(f"{self.path} has no machine {name!r:.80}", hint)
        return tuple(known[name] for name in dict.fromkeys(wanted)) if wanted else self.machines


def read(path: Path) -> Inventory:
    """The inventory in a file; an InventoryError for whatever is wrong with it."""
    return parse_inventory(text_of(path), path)


def text_of(path: Path) -> str:
    """What the file says."""
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InventoryError(
            f"{path}: cannot be read: {reason}", "name one with --inventory; see docs/deploy.md"
        ) from None
    if len(raw) > FILE_LIMIT:
        raise InventoryError(f"{path}: longer than {units.format_size(FILE_LIMIT)}", "is this the inventory?")
    return text


def parse_inventory(text: str, path: Path) -> Inventory:
    """The inventory in a text."""
    try:
        document = yaml_text.load(text, path.name)
    except JobFileError as error:
        raise InventoryError(error.message, None if error.hint == JobFileError.default_hint else error.hint) from None
    reader = _InventoryReader()
    made = reader.inventory(document.value, path)
    if reader.wrong:
        lines = [document.line_of(error.path) for error in reader.wrong]
        pairs = zip(lines, reader.wrong, strict=True)
        said = [f"{path.name}:{line}: {error}" if line else f"{path.name}: {error}" for line, error in pairs]
        raise InventoryError(said[-1], reader.wrong[-1].hint, tuple(said[:-1]))
    assert made is not None
    return made


def with_machine(text: str, path: Path, name: str, fields: Mapping[str, Any]) -> str:
    """The text of an inventory with one machine more, all else of it as it was; an InventoryError where that machine
    would be wrong, and a RefusedError where the text is not written a line for each machine."""
    old = parse_inventory(text, path)
    if any(machine.name == name for machine in old.machines):
        raise UsageError(f"{path} has a machine {name!r:.80} already", f"`deploy up {name:.80}` brings it")
    said = yaml.safe_dump({name: dict(fields)}, default_flow_style=True, sort_keys=False, width=1 << 20).strip()
    entry = said.removeprefix("{").removesuffix("}")
    lines, document = text.splitlines(), yaml_text.load(text, path.name)
    first = [document.lines[f"machines.{machine.name}"] for machine in old.machines][:1]
    begin = document.lines["machines"]
    indent = re.match(r" *", lines[first[0] - 1])[0] if first else ""  # type: ignore[index]
    after = min([n for key, n in document.lines.items() if "." not in key and n > begin], default=len(lines) + 1)
    end = next((n for n in range(after - 1, begin, -1) if lines[n - 1].strip() and lines[n - 1][:1] == " "), begin)
    if indent:
        made = "".join(f"{line}\n" for line in [*lines[:end], f"{indent}{entry}", *lines[end:]])
        found = parse_inventory(made, path)
        if found.machines[:-1] == old.machines and found.machines[-1].name == name:
            return made
    raise RefusedError(f"{path} is not written a line for each machine", f"add to `machines:` yourself: {entry}")


class _InventoryReader:
    """Reads on after a wrong field; `wrong` has each."""

    def __init__(self) -> None:
        self.wrong: list[FieldError] = []
        self._options = join_options.options()
        self._own = tuple(MachineWish.__struct_fields__)

    def inventory(self, value: Any, path: Path) -> Inventory | None:
        top = self._mapping(value, "", "an inventory")
        for name in top:
            if name not in _SECTIONS:
                self._unknown(name, name, _SECTIONS)
        server = self._server(top.get("server"))
        common = self._wishes(self._mapping(top.get("defaults", {}), "defaults"), "defaults")
        groups = {
            name: self._wishes(self._mapping(group, f"groups.{name}"), f"groups.{name}")
            for name, group in self._mapping(top.get("groups", {}), "groups").items()
        }
        machines = self._mapping(top.get("machines"), "machines", "`machines`")
        found = [self._machine(name, value, common, groups) for name, value in machines.items()]
        self._check_accounts(filter(None, found))
        return None if self.wrong or server is None else Inventory(path, server, tuple(filter(None, found)))

    def _server(self, value: Any) -> ServerAddress | None:
        try:
            server = convert({} if value is None else value, ServerAddress, "server")
            _check_host(server.address, "server.address")
            if server.root and not (server.root.isprintable() and server.root[:1] in {"/", "~"}):
                raise FieldError("server.root", f"expected a path from / or ~ on, got {server.root!r:.80}")
            if server.sshd and not _PLACE.fullmatch(server.sshd):
                raise FieldError("server.sshd", f"{server.sshd!r:.80} is no host with a port", "sshd: localhost:22")
        except FieldError as error:
            self.wrong.append(error)
            return None
        return server

    def _machine(
        self, name: str, value: Any, common: dict[str, Any], groups: Mapping[str, dict[str, Any]]
    ) -> Machine | None:
        at = f"machines.{name}"
        fields = dict(self._mapping(value, at))
        if not names.is_plain(name):
            self._fault(at, f"{name!r:.80} is no name", "use 1 to 64 letters, digits, `_` and `-`")
        ssh, belongs = fields.pop("ssh", None), fields.pop("groups", [])
        own = self._wishes(fields, at, more=("ssh", "groups"))
        if not isinstance(belongs, list) or not all(isinstance(one, str) for one in belongs):
            self._fault(f"{at}.groups", "expected a list of names")
            belongs = []
        for group in belongs:
            if group not in groups:
                self._fault(
                    f"{at}.groups", f"there is no group {group!r:.80}", f"groups: {', '.join(groups) or 'none'}"
                )
        if not isinstance(ssh, str):
            self._fault(f"{at}.ssh", "missing: how this server reaches it", "ssh: user@host")
            return None
        if self._try(_check_host, ssh, f"{at}.ssh") is None:
            return None
        merged = dict(common)
        for part in [*(groups.get(group, {}) for group in belongs), own]:
            merged |= part
        wish = MachineWish(**{field: merged[field] for field in self._own if field in merged})
        words = [word for field, words in merged.items() if field not in self._own for word in words]
        return Machine(name, ssh, wish, tuple(words))

    def _check_accounts(self, machines: Iterable[Machine]) -> None:
        """An account has one agent of a farm: two would change the same files at once."""
        known: dict[tuple[Host, str | None], str] = {}
        for machine in machines:
            account = (replace(machine.host, host=machine.host.host.lower()), machine.wish.jump)
            if (first := known.setdefault(account, machine.name)) != machine.name:
                hint = "one agent lends all of a machine; of two accounts there each may have one"
                self._fault(f"machines.{machine.name}.ssh", f"the same account as that of {first!r}", hint)

    def _wishes(self, fields: Mapping[str, Any], at: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
        """The fields that may stand anywhere: our own as they are, others as words of `agent join`."""
        found: dict[str, Any] = {}
        for name, value in fields.items():
            path = f"{at}.{name}"
            if name in self._own:
                found |= self._try(_own, name, value, at) or {}
            elif name in self._options:
                words = self._try(join_options.words, self._options[name], value, path)
                found |= {} if words is None else {name: words}
            else:
                self._unknown(name, path, (*more, *self._own, *self._options))
        return found

    def _mapping(self, value: Any, at: str, what: str = "") -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self._fault(at, f"{what or 'this'} is a mapping of fields", "see docs/deploy.md")
        return {}

    def _try(self, read: Any, *args: Any) -> Any:
        try:
            return read(*args)
        except FieldError as error:
            self.wrong.append(error)
            return None

    def _unknown(self, name: str, path: str, known: tuple[str, ...]) -> None:
        self._fault(path, f"unknown field{did_you_mean(name, known)}", ", ".join(known))

    def _fault(self, path: str, text: str, hint: str | None = None) -> None:
        self.wrong.append(FieldError(path, text, hint))


def _own(name: str, value: Any, at: str) -> dict[str, Any]:
    found = getattr(convert({name: value}, MachineWish, at), name)
    if name == "jump" and found is not None and not _JUMP.fullmatch(found):
        raise FieldError(f"{at}.jump", f"{found!r:.80} is no host to pass", "jump: user@gate, as `ssh -J` takes it")
    if name == "python" and found != "auto" and not (found.isprintable() and found[:1] in {"/", "~"}):
        raise FieldError(f"{at}.python", f"expected `auto` or the path of an interpreter there, got {found!r:.80}")
    return {name: found}


def _check_host(text: str, path: str) -> Host:
    """Nothing that ssh or a shell could take for something else, and no root."""
    try:
        found = parse(text)
    except MusterError as error:
        raise FieldError(path, error.message, "host, user@host or ssh://user@host:port") from None
    if not isinstance(found, Host) or found.root:
        raise FieldError(path, f"{text!r:.80} is no host", "host, user@host or ssh://user@host:port")
    return found
