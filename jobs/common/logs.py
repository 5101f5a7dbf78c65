"""A long-lived program's log: one rotating file that all of its processes may write to; for people its lines on stderr,
of which one peer can cause only so many. Sets logging up; logs nothing itself."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

LOG_BYTES = 8 << 20
LOG_FILES = 3  # beside the one that is written
FORM = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
PEER_LINES = 30  # about one peer in a minute
MINUTE_SECONDS = 60.0

PEER: ContextVar[str] = ContextVar("PEER", default="")  # who is heard in this task, and so causes its lines


def open_log(path: Path, for_people: bool = False, level: int = logging.INFO) -> None:
    """All that is logged in this process from `level` on goes there; and to stderr, `for_people`."""
    from concurrent_log_handler import ConcurrentRotatingFileHandler

    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    to_file = ConcurrentRotatingFileHandler(str(path), "a", LOG_BYTES, LOG_FILES, chmod=0o600)
    handlers: list[logging.Handler] = [to_file, _ToPeople()] if for_people else [to_file]
    for handler in handlers:
        handler.setFormatter(logging.Formatter(FORM))
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(level)


def close_log() -> None:
    """Give the file back."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()


@dataclass
class _Minute:
    begun: float
    lines: int = 0
    more: int = 0  # that were not shown


class LinesPerPeer:
    """How many lines each peer had in its minute. Reads no clock."""

    def __init__(self) -> None:
        self._minutes: dict[str, _Minute] = {}

    def ended(self, now: float) -> list[str]:
        """What is to be said of the minutes that are over."""
        over = {peer: one for peer, one in self._minutes.items() if now - one.begun >= MINUTE_SECONDS}
        for peer in over:
            del self._minutes[peer]
        return [f"… and {one.more:,} more from {peer} in the last minute" for peer, one in over.items() if one.more]

    def may(self, peer: str, now: float) -> bool:
        """Whether one more line about this peer is shown; "" is nobody, and never too much."""
        if not peer:
            return True
        minute = self._minutes.setdefault(peer, _Minute(now))
        minute.lines += 1
        minute.more += minute.lines > PEER_LINES
        return minute.lines <= PEER_LINES


class _ToPeople(logging.StreamHandler):  # type: ignore[type-arg]
    """What was held back is said with the first line after its minute."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._lines = LinesPerPeer()

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        for text in self._lines.ended(now):
            said = {**record.__dict__, "msg": text, "args": None, "exc_info": None, "exc_text": None}
            super().emit(logging.makeLogRecord(said))
        if self._lines.may(PEER.get(), now):
            super().emit(record)
