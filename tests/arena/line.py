"""What one round of the arena came to, as a line of JSON, and how it is counted from what the items noted. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass
class Record:
    """What the items noted of their executions."""

    began: list[tuple[int, int]] = field(default_factory=list)  # (number, process)
    ended: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def read(cls, text: str) -> Record:
        """The last line may not be whole while an item writes it."""
        record = cls()
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):
                what, number, pid = line.split()
                (record.began if what == "began" else record.ended).append((int(number), int(pid)))
        return record

    def running(self) -> list[tuple[int, int]]:
        """Executions that began and did not end, of processes that may be gone."""
        return sorted((Counter(self.began) - Counter(self.ended)).elements())

    def twice(self) -> int:
        """Executions that ended although one of the same item had."""
        return len(self.ended) - len({number for number, _ in self.ended})


@dataclass
class Line:
    """One round. `wrong`: items with other bytes than they should have, of which the system said nothing."""

    system: str
    version: str
    fault: str
    seed: int
    items: int
    at: int  # items that had ended when the fault came
    seconds: float = 0.0  # from the start of the program, or the submit, to its end
    lost: int = 0
    twice: int = 0
    wrong: int = 0
    hung: bool = False
    said: str = ""  # of damage
    by_hand: list[str] = field(default_factory=list)  # what the person had to do
    cannot: str = ""  # why there was no such round

    def count(self, record: Record, found: Mapping[int, bytes], due: Mapping[int, bytes], said: str) -> None:
        """`found`: the result; `due`: the serial run's; `said`: what the system has to say against its own result."""
        self.twice = record.twice()
        self.lost = len(due.keys() - found.keys())
        differ = [number for number in due.keys() & found.keys() if found[number] != due[number]]
        self.wrong, self.said = (0, said) if said else (len(differ), "")

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Line:
        return cls(**json.loads(text))
