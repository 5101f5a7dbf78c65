"""The program behind a ProxyCommand on a machine that the server dials into: its stdin and stdout are joined with the
newest socket in a folder, which leads to the server's sshd. Sockets of earlier ways are removed.

    python -m muster.agent.links.way_in FOLDER
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

READ_BYTES = 1 << 18


def main(argv: list[str]) -> int:
    """The exit code: 1 where there is no way now."""
    way = newest(Path(argv[0]))
    if way is None:
        print(f"the server has not dialled in: no way in {argv[0]}", file=sys.stderr)
        return 1
    threading.Thread(target=_copy, args=(lambda: os.read(0, READ_BYTES), way.sendall, way), daemon=True).start()
    _copy(lambda: way.recv(READ_BYTES), _write, None)
    return 0


def newest(folder: Path) -> socket.socket | None:
    """Connected to the last that was made of those that somebody listens on. Once it leads somewhere, older ones are
    over: the server dials again only when it has given up the one before."""
    found = [path for path in folder.iterdir() if path.is_socket()] if folder.is_dir() else []
    found.sort(key=lambda path: path.lstat().st_mtime_ns)
    while found:
        path = found.pop()
        way = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            way.connect(str(path))
        except ConnectionRefusedError:  # the ssh that made it is gone
            _remove(path)
        except OSError:
            pass
        else:
            for older in found:
                _remove(older)
            return way
        way.close()
    return None


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _copy(read: Callable[[], bytes], write: Callable[[bytes], object], then: socket.socket | None) -> None:
    """Until one of the two ends; the other hears of it."""
    with suppress(OSError):
        while data := read():
            write(data)
    if then is not None:
        with suppress(OSError):
            then.shutdown(socket.SHUT_WR)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
