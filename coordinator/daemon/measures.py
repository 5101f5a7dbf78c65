"""What this life of the daemon has measured: per job, per machine, and over the last minute. Only counts."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import msgspec

from muster.coordinator.api.status import Window
from muster.coordinator.api.values import bounded
from muster.coordinator.figures import histogram
from muster.coordinator.protocol.control import Failure, Finished

RECENT_SECONDS = 60
SETTLED_SHARDS = 5  # that a median wants
FADE_SECONDS = 120.0  # of transfer, after which what was measured before counts half
TOLD_BYTES = 1 << 20  # that a rate wants: of fewer it tells how long an answer takes
MEAN_WEIGHT = 0.2  # of the newest report in the moving mean of seconds per shard


class TransferRate(msgspec.Struct):
    """How fast bytes have been moving lately, while any were. Kept with what is known of a machine."""

    nbytes: float = 0.0
    seconds: float = 0.0

    def moved(self, nbytes: int, seconds: float) -> None:
        if nbytes and seconds > 0:
            kept = 0.5 ** (seconds / FADE_SECONDS)
            self.nbytes, self.seconds = self.nbytes * kept + nbytes, self.seconds * kept + seconds

    @property
    def rate(self) -> float:
        """Bytes a second; 0 while too little has moved."""
        return self.nbytes / self.seconds if self.nbytes >= TOLD_BYTES else 0.0


@dataclass
class ShardsDone:
    """What one machine has done of one job."""

    shards: int = 0
    rows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    committed: int = 0
    committed_bytes: int = 0
    busy: float = 0.0
    seconds: float = 0.0  # per shard, a moving mean
    peak: int = 0


@dataclass
class _Second:
    """What happened to a job in one second of its running."""

    finished: int = 0
    committed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows: int = 0


@dataclass
class JobFigures:
    """Of one job. `seconds` counts only while it runs."""

    by_agent: dict[str, ShardsDone] = field(default_factory=dict)
    seconds: float = 0.0
    whole: _Second = field(default_factory=_Second)
    recent: deque[_Second] = field(default_factory=lambda: deque([_Second()], RECENT_SECONDS))
    bytes_committed: int = 0
    bytes_merged: int = 0
    merge_seconds: float = 0.0
    failures: int = 0
    memory_failures: int = 0  # of them, for want of memory, in this life of the daemon
    memory_said: str = ""  # of the last of those, where it was and what was said of it
    spread: Counter[int] = field(default_factory=Counter)  # bucket of seconds → shards, transfer included

    def finished(self, agent: str, report: Finished, count: int, fresh: int) -> None:
        """`fresh`: those of the count that are not committed yet. Of all others the commit told already."""
        done = self.by_agent.setdefault(agent, ShardsDone())
        done.shards += fresh
        done.rows += report.rows
        done.bytes_in += report.in_bytes
        done.bytes_out += report.out_bytes
        done.busy += report.compute
        done.peak = max(done.peak, report.peak)
        each = report.compute / count
        done.seconds += (each - done.seconds) * (MEAN_WEIGHT if done.seconds else 1.0)
        self.spread[histogram.bucket_of_seconds(each + report.pull / count)] += count
        for second in (self.whole, self.recent[-1]):
            second.finished += count
            second.bytes_in += report.in_bytes
            second.rows += report.rows

    def failed(self, agent: str, failure: Failure) -> None:
        self.failures += 1
        if failure.code == "memory":
            self.memory_failures += 1
            self.memory_said = f"{agent}: {failure.message}"

    def merged(self, nbytes: int, seconds: float) -> None:
        self.bytes_merged += nbytes
        self.merge_seconds += seconds

    def committed(self, agent: str, count: int, nbytes: int) -> None:
        self.count_committed(agent, count, nbytes)
        for second in (self.whole, self.recent[-1]):
            second.committed += count
            second.bytes_out += nbytes

    def count_committed(self, agent: str, count: int, nbytes: int) -> None:
        """Whenever that was: by an earlier life of the daemon, or from a machine that finished it in one."""
        done = self.by_agent.setdefault(agent, ShardsDone())
        done.committed += count
        done.committed_bytes += nbytes
        done.shards = max(done.shards, done.committed)
        self.bytes_committed += nbytes

    def median(self) -> float:
        """Seconds of a finished shard; 0 while too few are known."""
        return histogram.quantile(self.spread, 0.5) or 0.0 if self.spread.total() >= SETTLED_SHARDS else 0.0

    def per_row(self) -> float:
        """Seconds that a row took in a slot; 0 while none is known."""
        rows = sum(done.rows for done in self.by_agent.values())
        return sum(done.busy for done in self.by_agent.values()) / rows if rows else 0.0

    def tick(self, seconds: float) -> None:
        """A tick of its running is over."""
        self.seconds += seconds
        self.recent.append(_Second())

    def window_recent(self, tick: float) -> Window:
        """The whole seconds of the last minute; the one under way does not count yet."""
        past = list(self.recent)[:-1]
        total = _Second(
            sum(s.finished for s in past),
            sum(s.committed for s in past),
            sum(s.bytes_in for s in past),
            sum(s.bytes_out for s in past),
            sum(s.rows for s in past),
        )
        return _window(total, len(past) * tick)

    def window_whole(self) -> Window:
        return _window(self.whole, self.seconds)


def _window(total: _Second, seconds: float) -> Window:
    return bounded(Window(seconds, total.finished, total.committed, total.bytes_in, total.bytes_out, total.rows))
