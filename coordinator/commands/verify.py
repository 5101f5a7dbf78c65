"""`coordinator verify`: a job's merged result against its digests, and its inputs against what was computed from."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from muster.coordinator.commands.options import farm_option, job_argument, json_option, plain, say, say_json
from muster.coordinator.commands.result import nothing_merged, unfinished
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root import plans
from muster.coordinator.farm_root.paths import JobFolder, Root
from muster.coordinator.result_downloads.file_server import layers_of
from muster.jobs.common.cli import example
from muster.jobs.common.errors import DamagedError, IncompleteError, MusterError, UsageError
from muster.jobs.common.units import counted, format_size

if TYPE_CHECKING:
    from muster.jobs.contract.kind import Kind
    from muster.jobs.contract.plan import ItemsWindow, Layer, Plan, Window, Work

PROBLEMS_SHOWN = 20
CLAIMS = {
    True: "the bytes are those of a serial run",
    False: "bits may differ between them",
    None: "by code that is not Muster's: as it was written, not compared with a serial run",
}


class VerifyReport(msgspec.Struct):
    """What was found."""

    job: str
    layers: int = 0  # merged, and read again
    shards: int = 0
    nbytes: int = 0
    missing: list[str] = []
    fingerprints: list[str] = []
    problems: list[str] = []
    bad_layers: list[str] = []
    inputs: int | None = None  # shards whose input was read again
    serial: bool | None = None  # whether the bytes are those of a serial run; None: nobody knows, none was compared


@click.command(
    epilog=example(
        "coordinator verify weights", "coordinator verify weights --inputs", "coordinator verify weights --rerun 300"
    )
)
@job_argument
@click.option("--inputs", is_flag=True, help="Read the inputs again too, and compare their digests.")
@click.option("--rerun", type=click.IntRange(min=1), metavar="N", help="Compute N shards again, and compare those.")
@click.option("--on", "machine", metavar="AGENT", help="Let this machine compute all of them; default any.")
@click.option("--seed", type=int, metavar="S", help="Seed of the choice of shards; default random, and printed.")
@click.option("--keep", is_flag=True, help="Keep the job that computed them, with its arrays.")
@farm_option
@json_option
def command(
    job: str,
    inputs: bool,
    rerun: int | None,
    machine: str | None,
    seed: int | None,
    keep: bool,
    root: Path | None,
    as_json: bool,
) -> None:
    """Read a job's merged result again and compare every digest.

    It says on how many different kernels (numpy, scikit-learn, BLAS, threads) the result was computed and, if only
    Muster's own code computed, whether the bytes are those of a serial run.
    The exit code is 12 if anything is damaged, and 11 if layers are missing.

    With --rerun no array is read: N shards, drawn from those that are merged, are computed again on the farm's
    machines, as a job of their own that is removed at the end, and the digests of their outputs are compared with
    those in the result. If any differ, it says who computed them then and now, and the exit code is 17. It is 11 if
    some failed or the machines left.
    """
    if rerun is None and (machine or seed is not None or keep):
        raise UsageError("--on, --seed and --keep are for --rerun", f"coordinator verify {job} --rerun 300")
    if rerun is not None and inputs:
        raise UsageError("--inputs and --rerun cannot be combined", "run verify once with each of them")
    found = roots.existing(root)
    name = roots.resolve_job(found, job)
    if rerun is not None:
        _rerun(found, name, rerun, machine or "", seed, keep, as_json)
        return
    report = verify(name, found.job(name), inputs)
    if not report.layers:
        raise nothing_merged(name, found.job(name))
    found_wrong = _verdict(report)
    if not as_json:
        say(page(report))
    elif found_wrong is None:
        say_json(report)
    if found_wrong is not None:
        found_wrong.document = plain(report)
        raise found_wrong


def _rerun(root: Root, job: str, count: int, machine: str, seed: int | None, keep: bool, as_json: bool) -> None:
    from muster.coordinator.commands import rerun

    chosen = secrets.randbits(32) if seed is None else seed
    rerun.conclude(rerun.run(root, job, count, machine, chosen, keep, as_json), as_json)


def verify(job: str, folder: JobFolder, inputs: bool) -> VerifyReport:
    """Everything that is merged, read again."""
    plan = plans.load(folder)
    merged, missing = layers_of(folder, plan)
    layers = {layer.name: layer for layer in plan.layers}
    report = VerifyReport(job, missing=missing, inputs=0 if inputs else None)
    prints: set[str] = set()
    known = plans.manifests(folder)
    for name in merged:
        _verify_layer(report, folder, layers[name], prints, known.get(layers[name].digest))
    report.fingerprints = sorted(prints)
    if prints and not report.problems and _repeats(plan, [layers[name] for name in merged]):
        report.serial = len(prints) == 1
    return report


def _repeats(plan: Plan, layers: list[Layer]) -> bool:
    """Whether the job's kind vouches for the bytes of all of these, as `Kind.repeats` has it; one that is not here does
    not."""
    from muster.jobs.kinds import registry

    try:
        kind = registry.load(plan.work.kind)
        return all(_repeats_layer(kind, plan.work_of(layer), layer) for layer in layers)
    except Exception:  # another package's: the result can be verified all the same
        return False


def _repeats_layer(kind: Kind[Any], work: Work, layer: Layer) -> bool:
    from muster.jobs.contract.kind import Shape
    from muster.jobs.contract.plan import ArraySource

    source = layer.source
    shape = Shape(source.shape[1:], source.dtype) if isinstance(source, ArraySource) else None
    params = msgspec.convert(work.params, kind.Params)
    return kind.repeats(params, shape, work.threads or work.cpus, work.code is not None)


def _verify_layer(report: VerifyReport, job: JobFolder, layer: Layer, prints: set[str], known: str | None) -> None:
    """`known`: the digest of its manifest, where the store has it."""
    from muster.jobs.parts.manifest import read_manifest
    from muster.jobs.results.open_result import verify_layer

    folder = job.result / layer.name
    problems = verify_layer(folder, report.job, layer, known)
    report.layers += 1
    if not problems:
        manifest = read_manifest(folder)
        prints.update(manifest.fingerprints)
        report.shards += manifest.shards
        report.nbytes += manifest.nbytes
        if report.inputs is not None:
            problems = list(changed_inputs(report, job, layer))
    if problems:
        report.problems += problems
        report.bad_layers.append(layer.name)


def changed_inputs(report: VerifyReport, job: JobFolder, layer: Layer) -> Iterator[str]:
    """A line for each shard whose input is not what its result was computed from."""
    from muster.jobs.contract.plan import MadeSource
    from muster.jobs.results.open_result import open_result
    from muster.jobs.sources.items import located

    if isinstance(layer.source, MadeSource):
        return
    for line in open_result(job.result / layer.name).shards:
        number = int(line["shard"])
        if problem := _input_problem(located(layer.window(number), job.items), line):
            yield f"{layer.name}/{number}: {problem}"
        report.inputs = (report.inputs or 0) + 1


def _input_problem(window: Window | ItemsWindow, line: Any) -> str:
    """The bytes count, not when they were written."""
    from muster.jobs.contract.plan import ItemsWindow
    from muster.jobs.sources.read_rows import SourceChanged, read_window
    from muster.jobs.sources.stage_files import input_digest

    try:
        if isinstance(window, ItemsWindow):
            digest = input_digest(window)
        else:
            _, digest = read_window(msgspec.structs.replace(window, stamp=None))
    except SourceChanged as error:
        return str(error)
    except OSError as error:
        return f"{window.path}: {error.strerror}"
    shown = window.folder if isinstance(window, ItemsWindow) else window.path
    return "" if digest == line["in_digest"].tobytes() else f"{shown}: not what was computed from"


def page(report: VerifyReport) -> str:
    verb = "are as they were written" if not report.problems else "read"
    lines = [
        f"{report.job}: {counted(report.layers, 'layer')}, {counted(report.shards, 'shard')},"
        f" {format_size(report.nbytes)} {verb}"
    ]
    if report.inputs is not None:
        lines.append(f"inputs of {counted(report.inputs, 'shard')} read again")
    prints = len(report.fingerprints)
    if prints:
        claim = "" if report.problems else f"; {CLAIMS[report.serial]}"
        lines.append(f"computed on {counted(prints, 'kernel fingerprint')}{claim}")
    if report.missing:
        done = [""] * report.layers
        lines.append(unfinished(done, report.missing))
    hidden = len(report.problems) - PROBLEMS_SHOWN
    lines += report.problems[:PROBLEMS_SHOWN] + ([f"… and {hidden} more; --json has all"] if hidden > 0 else [])
    return "\n".join(lines)


def _verdict(report: VerifyReport) -> MusterError | None:
    """What is wrong with the result, if anything is."""
    if report.problems:
        layers = " ".join(report.bad_layers[:PROBLEMS_SHOWN])
        hint = (
            f"`coordinator retry {report.job} --layers {layers}` computes them anew; changed inputs want a new submit"
        )
        return DamagedError(f"{len(report.problems)} problems in {counted(len(report.bad_layers), 'layer')}", hint)
    if report.missing:
        what = f"{counted(len(report.missing), 'layer')} of {report.job} not merged"
        return IncompleteError(what, f"`coordinator status {report.job}` says how far they are")
    return None
