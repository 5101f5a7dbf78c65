"""A stand-in for the Workbench: does what the batch's job name says, so that tests of the pool need no kind."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from muster.jobs.contract.plan import Layer, MadeSource, Work
from muster.jobs.workbench.batch import Batch, Outcome

LAYER = Layer("layer", "0" * 32, MadeSource(), 0, 1, 0, 0, 0, None)
WORK = Work("map", 1, {}, None, None, None, 1, None, None)
SLEEP, TIED = "import time; time.sleep(600)", "import sys; sys.stdin.read()"


def batch(
    what: str = "nothing", scratch: Path = Path(), in_rounds: bool = False, gpus: tuple[str, ...] | None = None
) -> Batch:
    layer = msgspec.structs.replace(LAYER, source=MadeSource(rounds="whole")) if in_rounds else LAYER
    folder = str(scratch)  # as `sheets` it is the same on another machine
    return Batch("farm", "agent", what, layer, WORK, (), "", "", "", folder, None, None, gpus=gpus, sheets=folder)


class Stand:
    def run(self, order: Batch) -> Outcome:
        (Path(order.sheets) / f"ran-{order.job}").touch()
        if order.job == "segfault":
            ctypes.string_at(0)
        elif order.job == "raise":
            raise ValueError("the bench broke\nand this is the second line")
        elif order.job == "wait":
            time.sleep(600)
        elif order.job == "until-told":
            while not (Path(order.sheets) / "go").exists():
                time.sleep(0.01)
        elif order.job == "gpus":
            return Outcome((), 0, 0, 0, 0.0, os.getpid(), (), change=",".join(order.gpus or ()))
        elif order.job == "runner":
            self._runner(Path(order.sheets))
            time.sleep(600)
        elif order.job == "tied-runner":
            self._runner(Path(order.sheets), tied=True)
            time.sleep(600)
        elif order.job == "waits-for-runner":
            self._runner(Path(order.sheets)).wait()
        elif order.job == "exit":
            os._exit(3)
        return Outcome((), 0, 0, 0, 0.0, os.getpid(), ())

    def _runner(self, scratch: Path, tied: bool = False) -> subprocess.Popen[bytes]:
        """A child that leads a session of its own, as runners do; `tied`: and ends with its parent, as they do."""
        code, stdin = (TIED, subprocess.PIPE) if tied else (SLEEP, None)
        child = subprocess.Popen([sys.executable, "-c", code], stdin=stdin, start_new_session=True)
        (scratch / "runner.new").write_text(str(child.pid))
        (scratch / "runner.new").rename(scratch / "runner")
        return child


class Unborn:
    def __init__(self) -> None:
        raise RuntimeError("no bench here")
