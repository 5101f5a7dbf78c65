"""`coordinator connect`: an agent's channel on the server, between its stdio and the daemon. Holds no lock.

First frame in under 200 ms: nothing heavier than msgspec and xxhash is imported here. It ends when either end does, and
when nothing has come for a while: sshd would let it outlive a dead client.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from muster import VERSION
from muster.coordinator.connect.pipe import FIRST_SECONDS, Daemon, Pipe
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.protocol.control import Bye, FromAgent, Greeting
from muster.coordinator.protocol.fitting import fitted
from muster.coordinator.protocol.frames import AGENT_LIMIT, frame
from muster.coordinator.protocol.values import PROTOCOL, Decoder, encode
from muster.jobs.common.errors import MusterError

_from_agent = Decoder(FromAgent)


def main(root_path: Path, role: str, pinned: str, files: str = "") -> int:
    """Serve one channel on stdin and stdout. `files`: a folder of the agent's, where bundles may be taken from."""
    root = roots.find(root_path)
    agent = Pipe(sys.stdin.fileno(), sys.stdout.fileno(), first=FIRST_SECONDS)
    try:
        agent.send(Greeting(PROTOCOL, VERSION, root.farm if root.farm_file.exists() else "", AGENT_LIMIT, True))
        try:
            daemon = Daemon(root, role, pinned)
        except OSError:
            agent.send(Bye("no coordinator serves this root now"))
            return 0
        agent.daemon = daemon.fd
        if role == "push":
            from muster.coordinator.connect.serve_push import receive_bundles

            receive_bundles(agent, daemon, root.farm, Path(files) if files else None)
        elif role == "pull":
            from muster.coordinator.connect.serve_pull import send_windows

            send_windows(agent, daemon)
        elif role == "round":
            from muster.coordinator.connect.serve_rounds import send_sheets

            send_sheets(agent, daemon)
        else:
            _pass_frames(agent, daemon)
    except BrokenPipeError:
        return 0
    except (MusterError, OSError) as error:
        _say_bye(agent, str(error))
    return 0


def _pass_frames(agent: Pipe, daemon: Daemon) -> None:
    """Control: question in, answer out, until the agent closes. An older one may say more than the daemon hears."""
    while (payload := agent.read_frame()) is not None:
        if len(payload) > AGENT_LIMIT:
            payload = encode(fitted(_from_agent(payload)))
        agent.write(frame(daemon.ask(payload)))


def _say_bye(agent: Pipe, reason: str) -> None:
    agent.daemon = None  # it may be what has gone
    with suppress(MusterError, OSError):
        agent.send(Bye(reason[:4096]))
