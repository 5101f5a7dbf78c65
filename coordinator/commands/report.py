"""`coordinator report`: how jobs of one kind went, side by side; as text, JSON, a page to send, pictures and CSV."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.coordinator.commands import complete_names
from muster.coordinator.commands.farm_meant import handed_over, reached
from muster.coordinator.commands.options import json_option, place_options, say, say_json
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example
from muster.jobs.common.errors import NotFoundError, RefusedError, SpaceError, UsageError
from muster.jobs.common.locations import Host
from muster.jobs.common.units import counted

if TYPE_CHECKING:
    from muster.coordinator.report.gather import Gathered

JOBS_MOST = 20


@click.command(
    epilog=example(
        "coordinator report weights",
        "coordinator report weights --html weights.html",
        "coordinator report sync async --target 0.88 --plots out",
    )
)
@click.argument("jobs", metavar="JOB…", nargs=-1, required=True, shell_complete=complete_names.job)
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write it as a page, one file to send; -: print it."
)
@click.option(
    "--plots", type=click.Path(path_type=Path), metavar="DIR", help="Write pictures, and their numbers as CSV."
)
@click.option(
    "--target", type=click.FloatRange(0, 1), help="Accuracy to compare trainings by; default the first's own."
)
@click.option("--timeline", is_flag=True, help="With --json: what each machine did over time, too.")
@click.option("--curves", is_flag=True, help="With --json: of a search also every trial with its curve.")
@place_options
@json_option
def command(
    jobs: tuple[str, ...],
    html: Path | None,
    plots: Path | None,
    target: float | None,
    timeline: bool,
    curves: bool,
    place: Host | Path | None,
    as_json: bool,
) -> int:
    """Show how jobs went: response time, memory, bandwidth, fairness and effect, and what is their kind's own.

    This works while they run, afterwards, and without a coordinator.
    """
    from muster.coordinator.report import gather, terminal
    from muster.coordinator.report.html import page

    if (timeline or curves) and not as_json:
        raise UsageError(f"--{'timeline' if timeline else 'curves'} is for --json alone", "`--html FILE` draws them")
    if isinstance(place, Host):
        return _far(place, jobs, html, plots, target, as_json)
    if len(dict.fromkeys(jobs)) > JOBS_MOST:
        raise UsageError(f"{len(jobs)} jobs do not stand side by side", f"name at most {JOBS_MOST}")
    found = gather.gather(roots.existing(place), jobs, target, timeline or html is not None)
    _check(found, plots, target, curves)
    if html == Path("-"):
        sys.stdout.write(page(found))
        sys.stdout.flush()
        return 0
    if html is not None:
        _write(html, page(found))
    if as_json:
        say_json(gather.document(found, curves))
    elif html is None:
        say(terminal.text(found))
    if plots is not None and found.own is not None:
        click.echo(f"wrote {counted(len(found.own.draw(plots)), 'file')} to {plots}", err=True)
    return 0


def _check(found: Gathered, plots: Path | None, target: float | None, curves: bool) -> None:
    """Nothing that was asked for is left out without a word."""
    from muster.jobs.contract.kind import draw_nothing, no_curves
    from muster.jobs.kinds import registry

    kind, own = found.kind, found.own
    if target is not None and not registry.load(kind).takes_target:
        raise UsageError(f"--target is for jobs with a score over time, and kind {kind} has none", "leave it out")
    if own is None and (plots is not None or target is not None or curves):
        raise NotFoundError(found.why_not, "`coordinator report JOB` shows what there is")
    if own is not None and curves and own.curves is no_curves:
        raise UsageError(f"--curves is for searches, and kind {kind} is none", "`--timeline` is of every job")
    if own is not None and plots is not None and own.draw is draw_nothing:
        raise UsageError(
            f"kind {kind} has no pictures for --plots", f"`--html {plots}.html` is a page with all there are"
        )


def _far(
    host: Host, jobs: tuple[str, ...], html: Path | None, plots: Path | None, target: float | None, as_json: bool
) -> int:
    """Made there, and written here."""
    if plots is not None:
        raise UsageError("--plots draws where the farm is", f"--html {plots}.html is a page with all pictures, here")
    if html is None or html == Path("-"):
        return handed_over(host)
    if as_json:
        raise UsageError("of a farm elsewhere, --html and --json are two reports", "ask for one after the other")
    aims = ["--target", str(target)] if target is not None else []
    _write(html, reached(host).run("report", "--html", "-", *aims, "--", *jobs).decode(errors="replace"))
    return 0


def _write(file: Path, page: str) -> None:
    """Whole or not at all: an older one stays where there is no room."""
    from muster.jobs.common.durable import write_durably

    if file.is_dir():
        raise UsageError(f"{file} is a folder", f"name a file in it: --html {file / 'report.html'}")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent}", "make it first")
    try:
        write_durably(file, page.encode())
    except SpaceError:
        raise SpaceError(f"{file} does not fit on its disk", "make room there, or name another folder") from None
    except OSError as error:
        raise RefusedError(f"{file}: {error.strerror}", "name another file") from None
    click.echo(f"wrote {file}", err=True)
