"""How much is kept of what users' code prints and of what a failure says, from the worker to the store.

Whoever makes a text keeps to the limit of whoever carries it, who cuts without a look at what it is.
"""

from __future__ import annotations

LINE_CHARS = 500  # of what an exception says, or the user's process: one line, its beginning
MESSAGE_CHARS = 1_000  # of why something failed or was lost
EVIDENCE_CHARS = 8_000  # of one failure: its traceback, and what was printed; of a program of ours, what it said last
EVIDENCE_TOTAL_CHARS = 6 << 20  # of all failures in one message; a frame holds 16 MiB
RUNNER_BYTES = 16 << 10  # of what a runner prints, at each end
ROWS_CHARS = 32 << 10  # of what was printed while rows were taken one by one
PRINTED_CHARS = 4_000  # of what a shard's code printed that did not fail
BATCH_CHARS = 256 << 10  # of that, of a batch
LOG_BYTES = 64 << 20  # of a job's failures, and as much of its prints: beyond it no more is kept there
