"""A TCP proxy on 127.0.0.1 that does to a stream what bad links do: cut or reset it, hold it back, let it trickle.

One thread owns every socket; the others ask it. Knows nothing of ssh.
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

PIECE = 1 << 16
NO_LINGER = struct.pack("ii", 1, 0)  # close() sends a reset then, and waits for nothing
ANSWER_SECONDS = 10.0

_T = TypeVar("_T")


class _Flow:
    """One direction: what was read and is not written yet."""

    def __init__(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        self.source, self.sink, self.counts = source, sink, counts
        self.pending = b""
        self.due = 0.0  # not before that is `pending` written
        self.ended = False


class _Pair:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.ends = (client, server)
        self.flows = (_Flow(client, server, False), _Flow(server, client, True))
        self.frozen = False
        self.rate: float | None = None  # as the proxy's, of this one alone, both ways


class Proxy:
    """Passes what comes to `port` on to `target`. All of its switches may be set while it runs."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.rate: float | None = None  # bytes per second towards the client; None: as fast as it goes
        self.delay = 0.0  # seconds that each piece is held up
        self.moved = 0  # bytes passed towards the client
        self.taken = 0  # and those that came from it
        self.seen: list[int] = []  # the clients' ports, of every connection there ever was
        self._swallowing = self._refusing = self._closing = False
        self._pairs: list[_Pair] = []
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    # --- switches ---

    def cut(self) -> None:
        """Every connection ends now; new ones are closed at once until `mend`."""
        self._refusing = True
        self._ask(self._end_all)

    def swallow(self) -> None:
        """Nothing moves any more, on old connections and new, and nobody is told, until `mend`: then all of it does."""
        self._ask(lambda: setattr(self, "_swallowing", True))

    def mend(self) -> None:
        self.rate = None
        self._refusing = False
        self._ask(lambda: setattr(self, "_swallowing", False))

    def close(self) -> None:
        if not self._closing:
            self._ask(lambda: setattr(self, "_closing", True))
            self._thread.join()

    # --- what is done to the connections of now; each says how many there are, and new ones are good ---

    def reset(self) -> int:
        """Both ends get a reset."""
        return self._ask(lambda: self._end_all(reset=True))

    def freeze(self) -> int:
        """No byte passes them any more, and they stay open."""
        return self._ask(lambda: self._mark("frozen", True))

    def trickle(self, bytes_per_second: float) -> int:
        return self._ask(lambda: self._mark("rate", bytes_per_second))

    def _ask(self, action: Callable[[], _T]) -> _T:
        """Have it done by the thread; its answer."""
        answer: queue.SimpleQueue[_T] = queue.SimpleQueue()
        self._orders.put(lambda: answer.put(action()))
        self._wake.send(b"!")
        return answer.get(timeout=ANSWER_SECONDS)

    # --- the thread ---

    def _run(self) -> None:
        while not self._closing:
            self._round()
        self._end_all()
        for one in (self._listener, self._wake, self._woken):
            one.close()

    def _round(self) -> None:
        """Whatever can be done now, once."""
        now = time.monotonic()
        flows = [flow for pair in self._moving() for flow in pair.flows]
        held = [flow.due - now for flow in flows if flow.pending and flow.due > now]
        readers = {flow.source: flow for flow in flows if not flow.pending and not flow.ended}
        writers = {flow.sink: flow for flow in flows if flow.pending and flow.due <= now}
        sources = [self._listener, self._woken, *readers]
        readable, writable, _ = select.select(sources, list(writers), [], min(held, default=None))
        for one in writable:
            self._guarded(writers[one], self._write)
        for one in readable:
            if one in readers:
                self._guarded(readers[one], self._read)
        if self._listener in readable:
            self._accept()
        if self._woken in readable:
            self._obey()

    def _moving(self) -> list[_Pair]:
        return [] if self._swallowing else [pair for pair in self._pairs if not pair.frozen]

    def _guarded(self, flow: _Flow, move: Callable[[_Pair, _Flow], None]) -> None:
        """A connection one end of which is gone goes as a whole."""
        pair = next((pair for pair in self._pairs if flow in pair.flows), None)
        if pair is None:
            return
        try:
            move(pair, flow)
        except BlockingIOError:
            return
        except OSError:
            self._drop(pair, reset=True)

    def _read(self, pair: _Pair, flow: _Flow) -> None:
        rate = pair.rate if pair.rate is not None else self.rate if flow.counts else None
        flow.pending = flow.source.recv(PIECE if rate is None else max(1, min(PIECE, int(rate / 10))))
        flow.due = time.monotonic() + self.delay + (len(flow.pending) / rate if rate else 0.0)
        if not flow.pending:
            flow.ended = True
            flow.sink.shutdown(socket.SHUT_WR)
            if all(one.ended for one in pair.flows):
                self._drop(pair)

    def _write(self, pair: _Pair, flow: _Flow) -> None:
        sent = flow.sink.send(flow.pending)
        flow.pending = flow.pending[sent:]
        if flow.counts:
            self.moved += sent
        else:
            self.taken += sent

    def _accept(self) -> None:
        client, address = self._listener.accept()
        self.seen.append(address[1])
        try:
            if self._refusing:
                raise ConnectionRefusedError
            server = socket.create_connection(("127.0.0.1", self.target), timeout=ANSWER_SECONDS)
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs.append(_Pair(client, server))

    def _obey(self) -> None:
        self._woken.recv(PIECE)
        with contextlib.suppress(queue.Empty):
            while True:
                self._orders.get_nowait()()

    def _end_all(self, reset: bool = False) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            self._drop(pair, reset)
        return len(pairs)

    def _drop(self, pair: _Pair, reset: bool = False) -> None:
        self._pairs.remove(pair)
        for end in pair.ends:
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            end.close()

    def _mark(self, switch: str, value: float) -> int:
        for pair in self._pairs:
            setattr(pair, switch, value)
        return len(self._pairs)


@contextlib.contextmanager
def running(target: int) -> Iterator[Proxy]:
    """A proxy in front of that port, gone at the end."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
