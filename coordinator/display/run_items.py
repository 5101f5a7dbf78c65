"""Items of a `muster run` as they end: printed, and written down where that is wished. Fetches none and ends no run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TextIO

from muster.coordinator.runs import lines
from muster.coordinator.runs.lines import Ended
from muster.coordinator.runs.wish import Wish
from muster.coordinator.submission.run_items import RunItems
from muster.jobs.common.json_documents import json_text
from muster.jobs.common.printable import harmless


class _Waiting:
    """Items whose turn has not come. What they printed waits in a file: it may be more than memory has."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._places: dict[int, tuple[Ended, int, int, int]] = {}  # without its texts; where these are

    def put(self, ended: Ended) -> None:
        if self._file is None:
            self._file = TemporaryFile(buffering=0)  # noqa: SIM115 - until it is closed
        place = self._file.seek(0, os.SEEK_END)
        self._file.write(ended.stdout + ended.stderr)
        sizes = len(ended.stdout), len(ended.stderr)
        self._places[ended.number] = (ended._replace(stdout=b"", stderr=b""), place, *sizes)

    def pop(self, number: int) -> Ended:
        assert self._file is not None
        ended, place, out, err = self._places.pop(number)
        self._file.seek(place)
        said = self._file.read(out + err)
        if not self._places:
            self._file.truncate(0)
        return ended._replace(stdout=said[:out], stderr=said[out:])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __contains__(self, number: object) -> bool:
        return number in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)


class ItemsDisplay:
    """What is shown of items as they end; which of them ended, and how."""

    def __init__(self, items: RunItems, wish: Wish) -> None:
        self.failed: list[int] = []
        self.well: list[int] = []
        self._items, self._wish = items, wish
        self._waiting = _Waiting()
        self._turns = iter(items.numbers)
        self._turn = next(self._turns, None)
        self._log = self._opened_log()
        self._bar: Any = None
        if wish.bar:
            from tqdm import tqdm

            self._bar = tqdm(total=len(items.numbers), unit="item", file=sys.stderr, dynamic_ncols=True)

    @property
    def missing(self) -> int:
        """How many have not ended."""
        return len(self._items.numbers) - len(self.well) - len(self.failed)

    def show(self, ended: Ended) -> None:
        (self.well if ended.ok else self.failed).append(ended.number)
        if self._log is not None:
            self._log.write(lines.joblog_line(ended, self._items.command(ended.number)))
            self._log.flush()
        if self._wish.results is not None:
            self._keep(ended, Path(self._wish.results))
        if self._bar is not None:
            self._bar.clear()
        if self._wish.keep_order:
            self._print_in_order(ended)
        else:
            self._print(ended)
        if self._bar is not None:
            self._bar.update()

    def rest(self) -> None:
        """None ends for a moment: what was printed is to be seen."""
        sys.stdout.flush()

    def close(self) -> None:
        """Also where it was left: print what was waiting for its turn."""
        for number in sorted(self._waiting):
            self._print(self._waiting.pop(number))
        self._waiting.close()
        sys.stdout.flush()
        if self._bar is not None:
            self._bar.close()
        if self._log is not None:
            self._log.close()

    def _print_in_order(self, ended: Ended) -> None:
        """Now, with those behind it that waited for it; or once its turn has come."""
        if ended.number != self._turn:
            self._waiting.put(ended)
            return
        self._print(ended)
        self._turn = next(self._turns, None)
        while self._turn is not None and self._turn in self._waiting:
            self._print(self._waiting.pop(self._turn))
            self._turn = next(self._turns, None)

    def _print(self, ended: Ended) -> None:
        if self._wish.as_json:
            sys.stdout.write(json_text(self._facts(ended), 0) + "\n")
            sys.stdout.flush()
            return
        tag = " ".join(self._items.rows[ended.number]) if self._wish.tag else ""
        out, err = (lines.tagged(text, tag) for text in (ended.stdout, ended.stderr))
        if out:
            sys.stdout.buffer.write(out)
        if out and (err or sys.stdout.isatty()):
            sys.stdout.buffer.flush()
        if err:
            sys.stderr.buffer.write(err)
            sys.stderr.buffer.flush()
        if (why := self._items.failure(ended)) is not None:
            print(harmless(f"item {ended.number + 1} {why}: {self._items.command(ended.number)}"), file=sys.stderr)

    def _facts(self, ended: Ended) -> dict[str, Any]:
        facts: dict[str, Any] = ended._asdict()
        texts = {name: facts[name].decode(errors="replace") for name in ("stdout", "stderr")}
        values, shown = list(self._items.rows[ended.number]), self._items.command(ended.number)
        return {**facts, **texts, "number": ended.number + 1, "values": values, "command": shown}

    def _keep(self, ended: Ended, folder: Path) -> None:
        number = ended.number
        columns = self._items.columns or ("1",)
        place = folder.joinpath(*lines.results_folder(columns, self._items.rows[number]))
        place.mkdir(parents=True, exist_ok=True)
        for name, text in (("stdout", ended.stdout), ("stderr", ended.stderr), ("seq", b"%d" % (number + 1))):
            (place / name).write_bytes(text)

    def _opened_log(self) -> TextIO | None:
        if self._wish.joblog is None:
            return None
        path, more = Path(self._wish.joblog), self._wish.resume or self._wish.retry_failed
        begun = more and path.exists() and path.stat().st_size > 0
        file = path.open("a" if more else "w", encoding="utf-8")
        if not begun:
            file.write(lines.JOBLOG_HEAD)
        return file
