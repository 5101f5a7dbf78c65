"""The agent's log: one rotating file that all of its processes may write to. Sets logging up; logs nothing itself."""

from __future__ import annotations

import logging
from pathlib import Path

LOG_BYTES = 8 << 20
LOG_FILES = 3
FORM = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


def open_log(path: Path) -> None:
    """All that is logged in this process goes there."""
    from concurrent_log_handler import ConcurrentRotatingFileHandler

    handler = ConcurrentRotatingFileHandler(str(path), "a", LOG_BYTES, LOG_FILES, chmod=0o600)
    handler.setFormatter(logging.Formatter(FORM))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def close_log() -> None:
    """Give the file back."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
