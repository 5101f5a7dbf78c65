"""A round of the arena: a system at work, one fault at its seeded moment, and a person who does what is left to do.

The moment is a number of items that have ended, the same for every system; what is struck is drawn from the seed too.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.arena.item import block_of
from tests.arena.line import Line, Record
from tests.arena.systems import AGAIN, System
from tests.support import disks
from tests.support.farm import POLL_SECONDS, until
from tests.support.processes import is_running

PERSON_SECONDS = 2.0  # until a person notices and acts
STOP_SECONDS = 15.0
FULL_SECONDS = 10.0
HUNG_SECONDS = 120.0  # after the fault; in peace all of it takes about ten
MOMENTS = (0.25, 0.6)  # of the items
TIMES_AGAIN = 3  # that the person starts a program again, before giving up
DISK_MEGABYTES = 512
BALLAST = "ballast"


class Round:
    """One system, one fault."""

    def __init__(self, system: System, line: Line) -> None:
        self.system, self.line = system, line
        self.random = random.Random(line.seed)
        self.stopped: tuple[int, float] | None = None  # the process, and when it goes on

    def play(self) -> None:
        self.system.start()
        began = time.monotonic()
        self.system.submit()
        until(lambda: len(self._record().ended) >= self.line.at, f"{self.line.at} items", HUNG_SECONDS)
        FAULTS[self.line.fault](self)
        self._wait_for_the_end()
        self.line.seconds = round(time.monotonic() - began, 2)
        self._go_on(at_once=True)
        self._count()

    def _record(self) -> Record:
        path = self.system.record
        return Record.read(path.read_text()) if path.exists() else Record()

    def _wait_for_the_end(self) -> None:
        deadline = time.monotonic() + HUNG_SECONDS
        while not self.system.has_ended() or self._try_again():
            self._go_on()
            if time.monotonic() > deadline:
                self.line.hung = True
                return
            time.sleep(POLL_SECONDS)

    def _try_again(self) -> bool:
        """Whether the person did so, as the system ended without success."""
        if self.system.has_succeeded() or self.line.by_hand.count(AGAIN) >= TIMES_AGAIN:
            return False
        time.sleep(PERSON_SECONDS)
        self.system.submit()
        self.line.by_hand.append(AGAIN)
        return True

    def _count(self) -> None:
        due = {number: block_of(number) for number in range(self.line.items)}
        self.line.count(self._record(), self.system.blocks(), due, self.system.objection())

    # --- faults ---

    def peace(self) -> None:
        """None at all."""

    def kill_worker(self) -> None:
        os.kill(self._one_that_runs(), signal.SIGKILL)

    def _one_that_runs(self) -> int:
        """The process of an item that runs now."""

        def running() -> list[int]:
            return [pid for _, pid in self._record().running() if is_running(pid)]

        return self.random.choice(until(running, "an item that runs"))

    def kill_machine(self) -> None:
        """It does not come back."""
        self.system.kill_machine()

    def kill_head(self) -> None:
        self.system.kill_head()
        time.sleep(PERSON_SECONDS)
        self.line.by_hand.append(self.system.come_back())

    def stop_worker(self) -> None:
        pid = self._one_that_runs()
        os.kill(pid, signal.SIGSTOP)
        self.stopped = pid, time.monotonic() + STOP_SECONDS

    def _go_on(self, at_once: bool = False) -> None:
        """Let what was stopped go on when it is time, and end what it was at."""
        if self.stopped and (at_once or time.monotonic() >= self.stopped[1]):
            pid, self.stopped = self.stopped[0], None
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            until(lambda: not is_running(pid) or pid not in [one for _, one in self._record().running()], "it to go on")

    def fill_disk(self) -> None:
        """There is no room at all for a while; then the person makes some."""
        ballast = self.system.results / BALLAST
        full_until = time.monotonic() + FULL_SECONDS
        while time.monotonic() < full_until:
            with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(1 << 16)):
                    pass
            time.sleep(POLL_SECONDS)
        ballast.unlink()
        self.line.by_hand.append("made room")

    def flip_bit(self) -> None:
        """One bit of one file of results that is there already."""
        path = self.random.choice(until(self.system.written, "a result on the disk"))
        whole = bytearray(path.read_bytes())
        whole[self.random.randrange(len(whole))] ^= 1 << self.random.randrange(8)
        with path.open("r+b") as file:
            file.write(whole)


FAULTS: dict[str, Callable[[Round], None]] = {
    "peace": Round.peace,
    "worker killed": Round.kill_worker,
    "machine killed": Round.kill_machine,
    "head killed": Round.kill_head,
    "worker stopped": Round.stop_worker,
    "disk full": Round.fill_disk,
    "bit flipped": Round.flip_bit,
}


def moment(seed: int, items: int) -> int:
    """After how many items the fault comes."""
    return round(items * random.Random(f"moment {seed}").uniform(*MOMENTS))


def obstacle(system: type[System], fault: str) -> str:
    """Why there can be no such round here, or ""."""
    if fault == "machine killed" and not system.is_cluster:
        return "it has one machine, which is its head"
    if fault == "disk full" and (why := disks.obstacle("mount")):
        return why
    return system.obstacle()


def play(system: type[System], fault: str, seed: int, items: int) -> Line:
    """A round, whatever came of it."""
    why = obstacle(system, fault)
    line = Line(system.name, "" if system.obstacle() else system.version(), fault, seed, items, moment(seed, items))
    if why:
        line.cannot = why
        return line
    folder = Path(tempfile.mkdtemp(prefix="ma-"))  # short: Ray has sockets below it
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        one = system(folder, items)
        if fault == "disk full":
            stack.enter_context(disks.small(one.results, DISK_MEGABYTES))
        stack.callback(one.close)
        Round(one, line).play()
    return line
