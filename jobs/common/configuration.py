"""What people write down in place of typing it each time: config.yaml of the user, .muster.yaml of a project, and the
variables that stand beside both. Reads them, and knows no command."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from muster.jobs.common.errors import UsageError
from muster.jobs.common.validation import did_you_mean

VARIABLE = "MUSTER_CONFIG"  # a file in place of both; empty: what is typed counts, and nothing else
FARM_VARIABLE = "MUSTER_FARM"
FARM = "farm"
PROJECT = Path(".muster.yaml")
SIZE_LIMIT = 1 << 20
# What comes with a cloned repository sends nothing elsewhere, and names no program of this machine.
NOT_OF_PROJECTS = frozenset({FARM, "ship", "ssh-config", "agent", "deploy", "serve", "service"})

Words = str | list[str]  # as they would be typed


class FarmNamed(NamedTuple):
    """Where the farm is, by other than the command line."""

    where: str
    said_by: str


@dataclass(frozen=True)
class ConfigFile:
    """One file. Its texts are read as they would be typed: no number, no date, no truth is made of them."""

    path: Path
    values: Mapping[str, Any]

    def section(self, place: Collection[str]) -> Mapping[str, Any]:
        """What stands below these keys."""
        found: Any = self.values
        for at, key in enumerate(place, 1):
            found = found.get(key, {})
            if not isinstance(found, Mapping):
                raise self.wrong(".".join(list(place)[:at]), "a mapping of options is expected")
        return found  # type: ignore[no-any-return]

    def words(self, place: Collection[str], key: str, several: bool) -> Words:
        """The value of an option. `several`: it may be given again."""
        value = self.section(place)[key]
        if isinstance(value, str):
            return [value] if several else value
        if several and isinstance(value, list) and all(isinstance(one, str) for one in value):
            return value
        expected = "a text or a number is expected" + (", or a list of these" if several else "")
        raise self.wrong(".".join([*place, key]), expected)

    def check(self, place: Collection[str], known: Collection[str], what: str) -> None:
        """Every key below `place` is one of these."""
        for key in self.section(place):
            if key not in known:
                at = ".".join([*place, str(key)])
                raise self.wrong(at, f"there is no such {what}{did_you_mean(str(key), known)}")

    def wrong(self, at: str, why: str) -> UsageError:
        return UsageError(f"{self.path}: {at}: {why}", f"correct {self.path}, or leave it out with {VARIABLE}=")


def is_heard() -> bool:
    """Whether anything counts but what is typed. Not for commands that a client of ours runs on a server: what its user
    wrote there was meant for that user's own commands, and `farm` would lead on to another server."""
    return os.environ.get(VARIABLE) != ""


def user_file() -> Path:
    """$XDG_CONFIG_HOME/muster/config.yaml, else that in ~/.config."""
    named = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(named) if Path(named).is_absolute() else Path.home() / ".config") / "muster" / "config.yaml"


def files() -> tuple[ConfigFile, ...]:
    """Those that there are; what a later one says counts."""
    if not is_heard():
        return ()
    if named := os.environ.get(VARIABLE):
        return (_read(Path(named)),)
    found = [_read(path) for path in (user_file(), PROJECT) if path.is_file()]
    for file in found:
        if file.path == PROJECT:
            _check_project(file)
    return tuple(found)


def farm() -> FarmNamed | None:
    """The farm that is meant where no command line names one. $MUSTER_ROOT, which names a root here, comes between the
    variable and the file, as all variables come before all files."""
    if not is_heard():
        return None
    if where := os.environ.get(FARM_VARIABLE):
        return FarmNamed(where, f"${FARM_VARIABLE}")
    if os.environ.get("MUSTER_ROOT"):
        return None
    for file in reversed(files()):
        if FARM in file.values:
            where = file.values[FARM]
            if not isinstance(where, str):
                raise file.wrong(FARM, "a place is expected, such as me@server")
            return FarmNamed(where, str(file.path))
    return None


def _read(path: Path) -> ConfigFile:
    import yaml

    try:
        raw = path.read_bytes()
        if len(raw) > SIZE_LIMIT:
            raise UsageError(f"{path} has more than {SIZE_LIMIT} bytes", f"shorten it, or leave it out: {VARIABLE}=")
        values = yaml.load(raw, yaml.BaseLoader)  # makes texts, lists and mappings, and nothing else
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", f"correct {VARIABLE}, or the file's mode") from None
    except (yaml.YAMLError, RecursionError) as error:
        shown = " ".join(str(error).split())[:200]
        raise UsageError(f"{path} is no YAML: {shown}", f"correct it, or leave it out with {VARIABLE}=") from None
    made = ConfigFile(path, {} if values in (None, "") else values)
    if not isinstance(made.values, Mapping):
        raise made.wrong("its beginning", "a mapping is expected, such as `farm: me@server`")
    return made


def _check_project(file: ConfigFile) -> None:
    for key, value in file.values.items():
        inner = list(value) if isinstance(value, Mapping) else []
        if odd := next((one for one in (key, *inner) if one in NOT_OF_PROJECTS), None):
            raise file.wrong(odd, f"a project may not set it: it came with its files; {user_file()} may")
