"""A file over a plain TCP stream, into a file: what a link carries at best. No encryption, no digest, no protocol.

python -m benchmarks.plain send ADDRESS FILE | receive ADDRESS PORT TARGET NBYTES
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

CHUNK_BYTES = 1 << 20


def send(address: str, source: Path) -> None:
    """The whole file to each who connects, once it asks by a byte; says on which port, and goes on until killed."""
    with socket.create_server((address, 0)) as server, source.open("rb") as file:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                if connection.recv(1):
                    connection.sendfile(file)
                    file.seek(0)


def receive(address: str, port: int, target: Path, nbytes: int) -> None:
    """Connect; when told to by a line, bring the file."""
    buffer, left = memoryview(bytearray(CHUNK_BYTES)), nbytes
    with socket.create_connection((address, port)) as connection, target.open("wb", buffering=0) as file:
        print("done", flush=True)
        sys.stdin.readline()
        connection.sendall(b"\0")
        while left and (count := connection.recv_into(buffer, min(left, CHUNK_BYTES))):
            file.write(buffer[:count])
            left -= count
        if left:
            raise SystemExit(f"{left} bytes did not come")
        print("done", flush=True)
        sys.stdin.readline()


def main() -> None:
    role, address, *words = sys.argv[1:]
    if role == "send":
        send(address, Path(words[0]))
    else:
        receive(address, int(words[0]), Path(words[1]), int(words[2]))


if __name__ == "__main__":
    main()
