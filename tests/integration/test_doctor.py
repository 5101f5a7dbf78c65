"""`agent doctor` through a real sshd: each link of the way broken in turn, and what is said of it and of the rest."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muster.agent import cli
from muster.agent.links.base import greet
from muster.agent.links.local import PipeLink
from muster.agent.links.paramiko_ssh import known_hosts
from muster.coordinator.protocol.control import Greeting
from muster.coordinator.protocol.frames import frame
from muster.coordinator.protocol.transfer import Probe, Sending, Sent, ToPuller
from muster.coordinator.protocol.values import PROBE_LIMIT, PROTOCOL, Decoder, encode
from tests.support import sshd
from tests.support.farm import FarmHarness, running
from tests.support.sshd import HOST, Sshd

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"  # where no `coordinator` is
WAY = ["name", "port", "ssh banner", "host key", "login", "channels", "connections", "quiet shell", "command"]
OPENSSH_WAY = ["name", "ssh", "quiet shell", "command", "version", "connections"]
THERE = ["coordinator", "round trip", "pull rate"]
HERE = ["disk", "workers", "ray"]
TO_PULLER = Decoder(ToPuller)

both = pytest.mark.parametrize("ssh", ["paramiko", "openssh"])


class Found(NamedTuple):
    """What the doctor said."""

    exit_code: int
    checks: Mapping[str, Mapping[str, Any]]

    def outcomes(self, outcome: str) -> list[str]:
        return [name for name, check in self.checks.items() if check["outcome"] == outcome]

    def of(self, name: str) -> str:
        return str(self.checks[name]["outcome"])

    def detail(self, name: str) -> str:
        return str(self.checks[name]["detail"])

    def fix(self, name: str) -> str:
        return str(self.checks[name]["fix"])


Doctor = Callable[..., Found]


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarmHarness]:
    with running(tmp_path_factory.mktemp("farm")) as made:
        yield made


@pytest.fixture
def doctor(farm: FarmHarness, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Visits the farm, or `root`, by this ssh configuration; without Ray."""

    def visit(config: Path, ssh: str, *args: str, root: Path | None = farm.root.path) -> Found:
        where = f"{HOST}:{root}" if root else HOST
        options = ["--ssh-config", str(config), "--ssh", ssh, "--spool", str(tmp_path / "spool"), "--no-ray", "--json"]
        return heard(cli.main(["doctor", where, *options, *args]), capsys)

    return visit


def heard(code: int, capsys: pytest.CaptureFixture[str]) -> Found:
    said = json.loads(capsys.readouterr().out)
    assert said["exit_code"] == code
    checks = {check["name"]: check for check in said["checks"]}
    assert all(check["fix"] for check in checks.values() if check["outcome"] in ("warn", "fail"))
    return Found(code, checks)


def stopped_at(found: Found, name: str, ssh: str) -> None:
    """Passed up to there, not tried from there on; this machine's own checks made all the same."""
    way = [*OPENSSH_WAY, *THERE] if ssh == "openssh" else [*WAY, "version", *THERE]
    at = way.index(name)
    assert list(found.checks) == [*way, *HERE]
    assert found.outcomes("fail") == [name]
    assert all(found.of(one) == "pass" for one in way[:at])
    assert all(found.of(one) == "not tried" for one in way[at + 1 :])
    assert found.of("disk") == "pass"


# --- a healthy one --------------------------------------------------------------------------------------------


@both
def test_nothing_is_wrong(doctor: Doctor, server: Sshd, ssh: str) -> None:
    found = doctor(server.ssh_config(), ssh)
    assert found.exit_code == 0
    assert set(found.outcomes("pass")) == set(found.checks) - {"ray"}
    assert f"farm is 127.0.0.1 port {server.port}" in found.detail("name")
    assert found.checks["pull rate"]["figures"]["mib_per_second"] > 0
    assert f"protocol {PROTOCOL}" in found.detail("version")


def test_each_step_says_what_was_found(doctor: Doctor, server: Sshd) -> None:
    found = doctor(server.ssh_config(), "paramiko")
    assert "127.0.0.1" in found.detail("port")
    assert "SSH-2.0-OpenSSH" in found.detail("ssh banner")
    assert f"{server.known_hosts}:1" in found.detail("host key")
    assert str(server.key) in found.detail("login")


@pytest.mark.ray
def test_a_ray_start_leaves_nothing(farm: FarmHarness, server: Sshd) -> None:
    """In a process of its own, in text: with each line in its place."""
    sshd.require()
    before = farm.processes()
    where = f"{HOST}:{farm.root.path}"
    spool = str(farm.folder / "spool")
    done = farm.agent_command("doctor", where, "--ssh-config", str(server.ssh_config()), "--spool", spool)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    names = [*WAY, "version", *THERE, *HERE]
    assert [line[11:22].strip() for line in lines[:-1]] == names
    assert " in " in lines[-2]
    assert lines[-1].startswith(f"all is well: `agent join {where} --")
    assert lines[-1].endswith("` will work")
    assert done.stderr == ""
    assert farm.processes() == before
    assert not list(farm.temp.iterdir())
    assert not Path(spool).exists()


def test_a_jump_is_a_step_of_its_own(doctor: Doctor, server: Sshd) -> None:
    config = server.ssh_config(name="jumps")
    lines = config.read_text().replace(f"Host {HOST}\n", f"Host first {HOST}\n")
    config.write_text(f"Host {HOST}\nProxyJump first\n{lines}")
    found = doctor(config, "paramiko")
    assert found.exit_code == 0
    assert "ProxyJump first" in found.detail("name")
    assert found.detail("jump").startswith("first")
    assert found.of("login") == "pass"


def test_a_jump_that_does_not_let_in(doctor: Doctor, server: Sshd, tmp_path: Path) -> None:
    stranger = sshd.make_key(tmp_path / "stranger")
    lines = server.ssh_config(key=stranger, name="no_jump").read_text().replace(f"Host {HOST}\n", "Host first\n")
    config = server.ssh_config("ProxyJump first", name="no_jump")
    config.write_text(config.read_text() + lines)
    found = doctor(config, "paramiko")
    assert found.outcomes("fail") == ["jump"]
    assert found.exit_code == 14
    assert found.of("port") == "not tried"


def test_a_folder(farm: FarmHarness, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--no-ray", "--json", "--spool", str(tmp_path / "spool")]
    found = heard(cli.main(["doctor", str(farm.root.path), *options]), capsys)
    assert found.exit_code == 0
    assert found.outcomes("pass") == ["root", "coordinator", "disk", "workers"]


def test_a_folder_that_is_no_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--no-ray", "--json", "--spool", str(tmp_path / "spool")]
    found = heard(cli.main(["doctor", str(tmp_path), *options]), capsys)
    assert found.exit_code == 5
    assert found.outcomes("fail") == ["root"]
    assert found.of("coordinator") == "not tried"
    assert found.of("disk") == "pass"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--ray-token", "token"], "--ray-token is of a cluster that --ray names"),
        (["--ray", "head", "--no-ray"], "--no-ray leaves out what --ray names"),
    ],
)
def test_options_of_a_cluster_that_mean_nothing_are_refused(
    options: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", str(tmp_path), *options]) == 2
    assert capsys.readouterr().err.splitlines()[0] == f"error: {why}"


# --- each link broken -----------------------------------------------------------------------------------------


def test_no_such_host(doctor: Doctor, server: Sshd) -> None:
    found = doctor(server.ssh_config("HostName no-such-host.invalid", name="nowhere"), "paramiko")
    stopped_at(found, "name", "paramiko")
    assert found.exit_code == 9


def test_a_configuration_that_cannot_be_read(doctor: Doctor, server: Sshd) -> None:
    found = doctor(server.ssh_config("Port many", name="unreadable"), "paramiko")
    stopped_at(found, "name", "paramiko")
    assert found.exit_code == 2


@both
def test_a_wrong_port(doctor: Doctor, server: Sshd, ssh: str) -> None:
    found = doctor(server.ssh_config(f"Port {sshd.free_port()}", name="refused"), ssh)
    stopped_at(found, "ssh" if ssh == "openssh" else "port", ssh)
    assert found.exit_code == 9


@both
def test_a_configuration_named_from_here(
    doctor: Doctor, server: Sshd, ssh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = server.ssh_config(f"Port {sshd.free_port()}", name="relative")
    monkeypatch.chdir(config.parent)
    assert "refused" in doctor(Path(config.name), ssh).detail("ssh" if ssh == "openssh" else "port")


@both
def test_an_unknown_host_key(doctor: Doctor, server: Sshd, ssh: str, tmp_path: Path) -> None:
    config = server.ssh_config(f"UserKnownHostsFile {tmp_path / 'empty'}", name="unknowing")
    found = doctor(config, ssh)
    at = "ssh" if ssh == "openssh" else "host key"
    stopped_at(found, at, ssh)
    assert found.exit_code == 14
    assert "--accept-new-host-key" in found.fix(at)
    assert not (tmp_path / "empty").exists()
    assert doctor(config, ssh, "--accept-new-host-key").exit_code == 0


@both
def test_a_changed_host_key(doctor: Doctor, server: Sshd, ssh: str, tmp_path: Path) -> None:
    other = sshd.make_key(tmp_path / "other")
    name = known_hosts.name_of("127.0.0.1", server.port)
    (tmp_path / "known").write_text(f"{name} {sshd.public_line(other)}\n")
    config = server.ssh_config(f"UserKnownHostsFile {tmp_path / 'known'}", name="mistaken")
    found = doctor(config, ssh, "--accept-new-host-key")
    at = "ssh" if ssh == "openssh" else "host key"
    stopped_at(found, at, ssh)
    assert "has changed" in found.detail(at)
    assert str(tmp_path / "known") in found.fix(at)


@both
def test_a_refused_key(doctor: Doctor, server: Sshd, ssh: str, tmp_path: Path) -> None:
    stranger = sshd.make_key(tmp_path / "stranger")
    found = doctor(server.ssh_config(key=stranger, name="stranger"), ssh)
    at = "ssh" if ssh == "openssh" else "login"
    stopped_at(found, at, ssh)
    assert found.exit_code == 14
    assert "authorized_keys" in found.fix(at)
    assert sshd.public_line(stranger).split()[1] in found.fix(at), "the line to paste"
    assert "ls -ld ~ ~/.ssh ~/.ssh/authorized_keys" in found.fix(at)
    assert "journalctl -u ssh" in found.fix(at) and "`coordinator serve`" in found.fix(at)


@both
def test_a_machine_that_lets_nobody_in_now_is_no_matter_of_keys(
    doctor: Doctor, odd: Callable[..., Sshd], ssh: str, tmp_path: Path
) -> None:
    (tmp_path / "nologin").write_text("System is going down. Unprivileged users are not permitted to log in anymore.\n")
    server = odd(f"Banner {tmp_path / 'nologin'}")
    found = doctor(server.ssh_config(key=sshd.make_key(tmp_path / "stranger"), name="down"), ssh)
    at = "ssh" if ssh == "openssh" else "login"
    assert found.exit_code == 14
    assert "System is going down" in found.detail(at)
    assert "authorized_keys" not in found.fix(at)


@both
@pytest.mark.parametrize("code", [0, 1])
def test_a_shell_that_exits(doctor: Doctor, odd: Callable[..., Sshd], ssh: str, code: int) -> None:
    found = doctor(odd(f"ForceCommand exit {code}").ssh_config(), ssh)
    assert found.outcomes("fail") == ["command"]
    assert "startup file" in found.fix("command")


@both
def test_an_environment_that_was_moved(doctor: Doctor, odd: Callable[..., Sshd], ssh: str, tmp_path: Path) -> None:
    (tmp_path / "coordinator").write_text("#!/no/where/bin/python\n")
    (tmp_path / "coordinator").chmod(0o755)
    server = odd(path=f"{tmp_path}:{SYSTEM_PATH}")
    found = doctor(server.ssh_config(), ssh, root=tmp_path / "none")
    assert found.exit_code == 15
    assert "moved or deleted" in found.fix("command"), found.detail("command")


@both
def test_a_mistyped_root_is_not_told_to_be_served(doctor: Doctor, server: Sshd, ssh: str, tmp_path: Path) -> None:
    found = doctor(server.ssh_config(), ssh, root=tmp_path / "mistyped")
    assert "there is no farm in" in found.detail("coordinator")
    assert found.fix("coordinator").startswith("correct the root")


@both
def test_no_coordinator_there(doctor: Doctor, odd: Callable[..., Sshd], ssh: str, tmp_path: Path) -> None:
    found = doctor(odd(path=SYSTEM_PATH).ssh_config(), ssh, root=tmp_path / "none")
    stopped_at(found, "command", ssh)
    assert found.exit_code == 15
    assert "--command" in found.fix("command")


@both
def test_the_launcher_is_what_starts_where_path_has_nothing(
    doctor: Doctor, odd: Callable[..., Sshd], ssh: str, farm: FarmHarness
) -> None:
    found = doctor(odd(path=SYSTEM_PATH).ssh_config(), ssh)
    assert found.exit_code == 0
    assert str(farm.root.launcher) in found.detail("command")


@both
def test_a_profile_that_prints(doctor: Doctor, odd: Callable[..., Sshd], ssh: str) -> None:
    server = odd('ForceCommand echo "Hello, it is a fine day"; eval "$SSH_ORIGINAL_COMMAND"')
    found = doctor(server.ssh_config(), ssh)
    stopped_at(found, "quiet shell", ssh)
    assert found.exit_code == 10
    assert "a fine day" in found.detail("quiet shell")
    assert ".bashrc" in found.fix("quiet shell")


@both
def test_another_protocol(doctor: Doctor, odd: Callable[..., Sshd], ssh: str, tmp_path: Path) -> None:
    (tmp_path / "greeting").write_bytes(frame(encode(Greeting(PROTOCOL + 1, "9.9", ""))))
    found = doctor(odd(f"ForceCommand cat {tmp_path / 'greeting'}").ssh_config(), ssh)
    stopped_at(found, "version", ssh)
    assert found.exit_code == 10
    assert "upgrade muster on this machine" in found.fix("version")


@both
def test_an_account_without_a_shell(doctor: Doctor, odd: Callable[..., Sshd], ssh: str) -> None:
    server = odd("ForceCommand echo This account is currently not available.; exit 1")
    found = doctor(server.ssh_config(), ssh)
    assert found.exit_code == 14
    assert found.outcomes("fail") == ["command"]
    assert found.of("login" if ssh == "paramiko" else "ssh") == "pass"


@both
def test_no_daemon_is_a_warning_that_says_what_to_start(doctor: Doctor, server: Sshd, ssh: str, tmp_path: Path) -> None:
    found = doctor(server.ssh_config(), ssh, root=tmp_path / "idle")
    assert found.exit_code == 0
    assert found.outcomes("warn") == ["coordinator"]
    assert f"coordinator serve --root {tmp_path / 'idle'} --detach" in found.fix("coordinator")
    assert set(found.outcomes("not tried")) == {"round trip", "pull rate", "ray"}


def test_a_daemon_that_stands_still_does_not_answer(
    doctor: Doctor, server: Sshd, monkeypatch: pytest.MonkeyPatch, farm: FarmHarness
) -> None:
    monkeypatch.setattr("muster.agent.doctor.link_probe.ANSWER_SECONDS", 0.5)
    farm.kill(signal.SIGSTOP)
    try:
        found = doctor(server.ssh_config(), "paramiko")
    finally:
        farm.kill(signal.SIGCONT)
    assert found.outcomes("fail") == ["coordinator"]
    assert found.exit_code == 9


def test_one_session_to_a_connection(doctor: Doctor, odd: Callable[..., Sshd]) -> None:
    found = doctor(odd("MaxSessions 1").ssh_config(), "paramiko")
    assert found.exit_code == 0
    assert found.outcomes("warn") == ["channels"]
    assert "only 1 to a connection" in found.detail("channels")
    assert found.of("pull rate") == "pass"


def test_no_sessions_at_all(doctor: Doctor, odd: Callable[..., Sshd]) -> None:
    found = doctor(odd("MaxSessions 0").ssh_config(), "paramiko")
    assert found.outcomes("fail") == ["channels"]
    assert found.of("connections") == "pass"
    assert found.of("quiet shell") == "not tried"


def test_few_connections_at_once(doctor: Doctor, odd: Callable[..., Sshd]) -> None:
    found = doctor(odd("MaxStartups 1").ssh_config(), "paramiko")
    assert found.exit_code == 0
    assert found.outcomes("warn") == ["connections"]
    assert "MaxStartups" in found.fix("connections")
    assert found.of("pull rate") == "pass"


@both
def test_a_confined_key_under_another_name(
    doctor: Doctor, server: Sshd, ssh: str, farm: FarmHarness, tmp_path: Path
) -> None:
    key = sshd.make_key(tmp_path / "confined")
    server.authorize(key, f'restrict,command="coordinator connect --root {farm.root.path} --as lab3"')
    config = server.ssh_config(key=key, name="confined")
    found = doctor(config, ssh, "--name", "other")
    assert found.exit_code == 7
    assert found.outcomes("fail") == ["coordinator"]
    assert "--name lab3" in found.fix("coordinator")
    assert doctor(config, ssh, "--name", "lab3", root=None).exit_code == 0


# --- the probe ------------------------------------------------------------------------------------------------


def test_a_probe_brings_so_many_bytes_and_never_more_than_the_limit(farm: FarmHarness) -> None:
    link = PipeLink(farm.root.path)
    channel = link.open("pull")
    try:
        greet(channel)
        for wanted, coming in [(0, 0), (1, 1), (1 << 53, PROBE_LIMIT), (3 << 20, 3 << 20)]:
            channel.say(Probe(wanted))
            assert channel.hear(TO_PULLER, 20) == Sending(coming)
            assert sum(len(piece) for piece in channel.pieces(coming, 20)) == coming
            assert channel.hear(TO_PULLER, 20) == Sent(True)
    finally:
        channel.close()


def test_the_last_line_has_the_options(server: Sshd, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, spool = server.ssh_config(), tmp_path / "spool"
    assert cli.main(["doctor", f"{HOST}:/none", "--ssh-config", str(config), "--spool", str(spool), "--no-ray"]) == 0
    command = f"`agent join {HOST}:/none --ssh-config {config} --spool {spool}`"
    assert sorted(command.strip("`").split()) == sorted(capsys.readouterr().out.splitlines()[-1].split("`")[-2].split())


def test_the_command_line_is_joins(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "lab", "--port", "0"]) == 2
    assert cli.main(["doctor", "ssh://lab:22", "--port", "23"]) == 2
    assert cli.main(["doctor", "-x"]) == 2
    capsys.readouterr()
