"""The disk budget: what is left of it, and whether the disk said that it is full. No I/O, no clock."""

from __future__ import annotations

RETRY_SECONDS = 2.0  # after a full disk, doubled each time it is full again
RETRY_LIMIT_SECONDS = 60.0
SPARE_BYTES = 4 << 20  # left for logs and the state file


class Disk:
    """`budget` is for parts, finished or being written, and for inputs. `free`: what the disk said, None before."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.free: int | None = None
        self.full = ""  # what the system said when it was last full; "" since something was written
        self._fulls = 0
        self._retry_at = 0.0

    def filled(self, why: str, now: float) -> None:
        """A batch met a full disk or quota."""
        self.full = why
        self._retry_at = now + min(RETRY_LIMIT_SECONDS, RETRY_SECONDS * 2 ** min(self._fulls, 10))
        self._fulls += 1

    def written(self) -> None:
        """A batch was committed: there is room."""
        self.full, self._fulls = "", 0

    def closed(self, now: float) -> bool:
        """Whether nothing should be tried for now."""
        return bool(self.full) and now < self._retry_at

    def grew(self, nbytes: int) -> None:
        """So much was written since the file system was asked; less than 0 where files were deleted."""
        if self.free is not None:
            self.free -= nbytes

    def room(self, parts: int, reserved: int, inputs: int = 0) -> int:
        """Bytes neither used by parts nor reserved; less than 0 where too much is promised. `inputs`: bytes on the disk
        that are either among the reserved ones or may go at once."""
        left = self.budget - parts - reserved
        return left if self.free is None else min(left, self.free + inputs - SPARE_BYTES - reserved)
