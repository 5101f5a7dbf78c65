"""`coordinator report`: how jobs of one kind went, side by side, as that says; as text, JSON, pictures and CSV."""

from __future__ import annotations

from pathlib import Path

import click

from muster.coordinator.commands.options import json_option, root_option, say, say_json
from muster.coordinator.display import tables
from muster.coordinator.farm_root import paths as roots
from muster.jobs.common.cli import example
from muster.jobs.common.errors import UsageError
from muster.jobs.common.units import counted


@click.command(epilog=example("coordinator report fashion", "coordinator report sync async --target 0.88 --plots out"))
@click.argument("jobs", metavar="JOB…", nargs=-1, required=True)
@click.option(
    "--plots", type=click.Path(path_type=Path), metavar="DIR", help="Write pictures, and their numbers as CSV."
)
@click.option("--target", type=click.FloatRange(0, 1), help="Accuracy to compare by; default the first job's own.")
@root_option
@json_option
def command(jobs: tuple[str, ...], plots: Path | None, target: float | None, root: Path | None, as_json: bool) -> None:
    """Show how trainings or searches went: loss, accuracy and time to a target, or the best trial and what it took.

    This works while they run, from their newest checkpoints, and without a coordinator.
    """
    from muster.coordinator.submission.reuse import stored_plan
    from muster.jobs.kinds import registry

    found = roots.existing(root)
    named = list(dict.fromkeys(roots.resolve_job(found, job) for job in jobs))
    kinds = sorted({stored_plan(found, job).work.kind for job in named})
    if len(kinds) > 1:
        raise UsageError(f"jobs of different kinds: {', '.join(kinds)}", "name jobs of one kind")
    seen = registry.load(kinds[0]).report({job: found.job(job).checkpoints for job in named}, target)
    if as_json:
        say_json({"jobs": seen.values})
    else:
        rows = [(tables.short(job), *cells) for job, cells in zip(named, seen.rows, strict=True)]
        say(tables.table(("job", *seen.header), rows, right=f".{seen.right}"))
    if plots is not None:
        click.echo(f"wrote {counted(len(seen.draw(plots)), 'file')} to {plots}", err=True)
