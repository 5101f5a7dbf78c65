"""A bit is flipped in a file that lies there: what reads it finds that out, or it is without effect. What a whole farm
makes of such files is in beneath.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from muster.coordinator.commands.verify import verify
from muster.coordinator.farm_root import plans
from muster.jobs.common.errors import MusterError
from muster.jobs.contract.plan import ArraySource
from muster.jobs.parts.manifest import MANIFEST, Merged, read_manifest
from muster.jobs.parts.part_file import check_body, read_index
from muster.jobs.user_code.code_pack import unpack
from tests.campaign import beneath
from tests.campaign.left import count_left
from tests.campaign.line import Line
from tests.support.farm import FarmHarness, arrays, until
from tests.support.simulated import SimulatedAgent

CODE = """
def half(rows):
    return {"half": rows / 2}
"""
FLIPS_EACH = 80  # flips of files that are read alone: then some beneath a farm that is started on them


class Damage:
    """One farm with a job that is whole; every flip is taken back."""

    def __init__(self, folder: Path, seed: int, line: Line) -> None:
        self.random = random.Random(seed)
        self.line = line
        self.farm = FarmHarness(folder)
        self.farm.start()
        self.agent = self.farm.agent()
        self.job = self._submit(seed)
        self.plan = self.farm.plan(self.job)
        source = self.plan.layers[0].source
        assert isinstance(source, ArraySource)
        self.source, self.place = source, 0
        self._compute(self.agent)
        self.part = folder / "kept.part"
        self.part.write_bytes(self.agent.parts[0].path.read_bytes())
        self.agent.work(lambda: self.farm.status(self.job).state == "complete")
        self.folder = self.farm.root.job(self.job)
        self.digest = plans.read(self.folder, None)[1]
        self.manifest = self._said(self.folder.result / "a" / MANIFEST)

    def _submit(self, seed: int) -> str:
        return self.farm.submit(arrays(seed=seed), 8, CODE, kind="map", code="work.py:half", name="map")

    def _compute(self, agent: SimulatedAgent) -> None:
        agent.join()
        until(lambda: agent.sync(wait=0.05) and agent.compute(), "a finished shard")

    # --- flips ---

    def flip(self) -> None:
        """One bit of one file."""
        kinds: dict[str, tuple[list[Path], Callable[[Path], bool]]] = {
            "result": ([path for path in self.folder.result.rglob("*") if path.is_file()], self._result_is_found),
            "input": ([Path(self.source.path)], self._input_is_found),
            "plan": ([self.folder.plan], self._plan_is_found),
            "code": ([self.farm.root.pack(self.plan.work.code or "")], self._code_is_found),
            "part": ([self.part], self._part_is_found),
        }
        kind = self.random.choice(list(kinds))
        paths, is_found = kinds[kind]
        path = self.random.choice(paths)
        whole = path.read_bytes()
        self._spoil(path, whole)
        try:
            self.line.faults[f"{kind} flipped"] += 1
            if is_found(path):
                self.line.found[kind] += 1
            else:
                self.line.broke("wrong", f"a bit of {path.name} ({kind}) is another, and nobody notices")
        finally:
            path.write_bytes(whole)

    def _spoil(self, path: Path, whole: bytes) -> None:
        spoilt = bytearray(whole)
        self.place = self.random.randrange(len(whole))
        spoilt[self.place] ^= 1 << self.random.randrange(8)
        path.write_bytes(bytes(spoilt))

    def _result_is_found(self, path: Path) -> bool:
        """Of a manifest's optional fields the names may be others: then it says the same."""
        if verify(self.job, self.folder, inputs=False).problems:
            return True
        return path.name == MANIFEST and self._said(path) == self.manifest

    def _said(self, manifest: Path) -> Merged:
        return read_manifest(manifest.parent)

    def _input_is_found(self, path: Path) -> bool:
        return bool(verify(self.job, self.folder, inputs=True).problems) or self._is_in_header()

    def _is_in_header(self) -> bool:
        """What is not among that which is computed from is without effect."""
        return self.place < self.source.offset

    def _plan_is_found(self, path: Path) -> bool:
        return _refuses(lambda: plans.read(self.folder, self.digest))

    def _code_is_found(self, path: Path) -> bool:
        target = self.farm.folder / "unpacked"
        return _refuses(lambda: unpack(path.read_bytes(), target, self.plan.work.code or ""))

    def _part_is_found(self, path: Path) -> bool:
        return _refuses(lambda: check_body(path, read_index(path)))


def _refuses(do: Callable[[], object]) -> bool:
    """Whether it says that this is damaged, rather than that something is wrong with us."""
    try:
        do()
    except MusterError:
        return True
    return False


def run(folder: Path, seed: int, times: int, line: Line, say: Callable[[str], None]) -> None:
    """So many flips."""
    one = Damage(folder / "damage", seed, line)
    try:
        for _ in range(times):
            one.flip()
        one.agent.hang_up()
        one.farm.stop()
        count_left(one.farm, line)
    finally:
        one.farm.close()
    for number in beneath.rounds(folder, seed, times // FLIPS_EACH, line):
        say(f"{number + 1:4} beneath a farm")
