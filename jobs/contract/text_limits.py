"""How much is kept of what users' code prints and of what a failure says, from the worker to the store.

Whoever makes a text keeps to the limit of whoever carries it, who cuts without a look at what it is.
"""

from __future__ import annotations

from muster.jobs.common.printable import harmless, one_line

LINE_CHARS = 500  # of what an exception says, or the user's process: one line, its beginning
MESSAGE_CHARS = 1_000  # of why something failed or was lost
EVIDENCE_CHARS = 8_000  # of one failure: its traceback, and what was printed; of a program of ours, what it said last
RUNNER_BYTES = 16 << 10  # of what a runner prints, at each end
ROWS_CHARS = 32 << 10  # of what was printed while rows were taken one by one
PRINTED_CHARS = 4_000  # of what a shard's code printed that did not fail
BATCH_CHARS = 256 << 10  # of that, of a batch
LINE_BYTES = 1_000  # of what a machine says of itself, as UTF-8 has it; so are all that follow
MESSAGE_BYTES = 2_000
EVIDENCE_BYTES = 16_000
PRINTED_BYTES = 8_000
LOG_BYTES = 64 << 20  # of a job's failures, and as much of its prints: beyond it no more is kept there


def kept(text: str, limit: int, end: bool = False) -> str:
    """As much of a text of many lines as is kept, its beginning or its end: at most `limit` bytes, none that steers."""
    if len(text) <= limit // 4 and text.isprintable():
        return text
    raw = harmless(text[-limit:] if end else text[:limit]).encode(errors="replace")
    return (raw[-limit:] if end else raw[:limit]).decode(errors="ignore")


def kept_line(text: str, limit: int = LINE_BYTES) -> str:
    """The same of what is to be one line: what cannot be printed is escaped."""
    if len(text) <= limit // 4 and text.isprintable():
        return text
    return one_line(text[:limit]).encode(errors="replace")[:limit].decode(errors="ignore")
