"""A job's report in Python: its values, and the page that a notebook shows or a file keeps. Measures nothing."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from muster.jobs.common.durable import write_durably

FRAME_PIXELS = 900


class Report:
    """How a job went, as of the moment it was asked for."""

    def __init__(self, job: str, values: dict[str, Any], html: str) -> None:
        self.job = job
        self.values = values  # as `coordinator report --json` prints them, of this job
        self.html = html  # the whole page

    def __repr__(self) -> str:
        made = self.values["response"]["makespan"]
        return f"<Report of {self.job}: {self.values['state']}, {made or 0:.3g} s; .save(file) writes the page>"

    def _repr_html_(self) -> str:
        """In a frame of its own, whose styles and texts touch nothing else."""
        return f'<iframe sandbox width="100%" height="{FRAME_PIXELS}" srcdoc="{escape(self.html)}"></iframe>'

    def save(self, file: str | Path) -> Path:
        """Write the page into a file."""
        path = Path(file)
        write_durably(path, self.html.encode())
        return path
