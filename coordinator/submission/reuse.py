"""A new job made from an old one: its description changed, and what it need not compute again. Starts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import msgspec
import yaml

from muster.coordinator.farm_root import plans
from muster.coordinator.farm_root.paths import Root
from muster.coordinator.submission.earlier_jobs import EarlierJobs, is_merged
from muster.coordinator.submission.submit import ItemsAt, Planned, plan_file, plan_text
from muster.jobs.common.errors import RefusedError, UsageError
from muster.jobs.common.locations import located
from muster.jobs.contract.plan import ArraySource, Layer, ModelFile, Plan
from muster.jobs.job_file import yaml_text
from muster.jobs.job_file.make_plan import make_plan
from muster.jobs.job_file.read import parse_job, read_text
from muster.jobs.kinds import registry
from muster.jobs.user_code.code_pack import opened

CHANGES_SHOWN = 4


@dataclass(frozen=True)
class Wish:
    """What the command line says beside the old job's name."""

    layers: tuple[str, ...] = ()  # globs that `sets` is for; none: for all
    sets: tuple[str, ...] = ()  # `n_clusters=256`
    old: str = ""  # the old job's name


@dataclass(frozen=True)
class Fate:
    """A layer of the new job."""

    layer: str
    reused: bool
    why: str


def planned(job_file: Path, wish: Wish, root: Root | None = None) -> Planned:
    """The plan of a job file with what is to be changed of its params. `root`: the farm that may have the same layers,
    and the old job where the wish names one."""
    old = wish.old or None
    if wish == Wish():
        return plan_file(job_file, root)
    document = yaml_text.load(read_text(job_file), job_file.name).value
    if not isinstance(document, dict) or (made := changed(document, wish)) == document:
        return plan_file(job_file, root, old)  # where it is no mapping, its error says what it is
    text = yaml.safe_dump(made, sort_keys=False, allow_unicode=True)
    where = f"{job_file.name} with --set" if wish.sets else job_file.name
    return plan_text(text, where, job_file.absolute().parent, root, old)


def changed(document: dict[str, Any], wish: Wish) -> dict[str, Any]:
    """A job file's fields, with what is to be changed of its params."""
    if wish.layers and not wish.sets:
        raise UsageError("--layers says what --set is for", "--layers 'conv3*' --set n_clusters=256")
    document = _going_on(document, wish.old) if wish.old else document
    return _changed(document, document.get("params") or {}, wish) if wish.sets else document


def _going_on(document: dict[str, Any], old: str) -> dict[str, Any]:
    """Of a kind whose jobs go on from earlier ones: from that one, unless the params name another, or null."""
    by = _goes_on_by(document.get("kind"))
    return {**document, "params": {by: old, **(document.get("params") or {})}} if by else document


def _goes_on_by(kind: object) -> str:
    """The parameter by which a job of that kind says which one it goes on from; "" where it cannot."""
    return registry.load(kind).goes_on_by if isinstance(kind, str) and kind in registry.names() else ""


def planned_from(root: Root, old: str, job_file: Path | None, wish: Wish) -> Planned:
    """The new job's plan: of its own job file, or of the old one's as it was submitted, with what is to be changed."""
    if wish.layers and not wish.sets:
        raise UsageError("--layers says what --set is for", "--layers 'conv3*' --set n_clusters=256")
    if job_file is not None:
        return planned(job_file, replace(wish, old=old), root)
    plan = stored_plan(root, old)
    folder = root.job(old)
    document = yaml_text.load(folder.job_file.read_text(), f"{old}'s job file").value
    if not isinstance(document, dict):
        raise RefusedError("the old job has no job file that could be changed", "give a job file beside --from")
    by = _goes_on_by(plan.work.kind)
    own = {name: value for name, value in (document.get("params") or {}).items() if name != by}
    document = _going_on({**document, "params": own}, old)
    known = {**plan.work.params, **document["params"]}
    text = yaml.safe_dump(_changed(document, known, wish), sort_keys=False, allow_unicode=True)
    base = Path(plan.base) if plan.base else folder.path
    code = opened(root.pack(plan.work.code).read_bytes()) if plan.work.code else None
    items = ItemsAt()
    moved = _moved_model(root, plan, base, items.folder)
    job = parse_job(text, f"{old}'s job file")
    made = make_plan(job, base, code, items.path, moved, EarlierJobs(root, old))
    model = moved.get(made.work.model.name) if made.work.model else None
    return Planned(msgspec.structs.replace(made, base=plan.base), text.encode(), code, base, items, model)


def _moved_model(root: Root, plan: Plan, base: Path, folder: Path) -> dict[str, Path]:
    """The root's copy of the old job's model, by the model's name, where its file is no longer in its place."""
    model = plan.work.model
    if model is None or located(base, model.name).is_file() or not root.model(model.digest).is_file():
        return {}
    link = folder / f"model{PurePath(model.name).suffix}"  # by which a kind knows its format
    link.symlink_to(root.model(model.digest))
    return {model.name: link}


def _changed(document: dict[str, Any], known: Mapping[str, Any], wish: Wish) -> dict[str, Any]:
    """`known`: the params as they are, of which `--set args.size=3` changes a part."""
    sets = _parsed(wish.sets, known)
    if wish.layers:
        more = {"layers": list(wish.layers), "params": sets}
        return {**document, "overrides": [*document.get("overrides", []), more]}
    return {**document, "params": {**(document.get("params") or {}), **sets}} if sets else dict(document)


def _parsed(sets: Sequence[str], params: Mapping[str, Any]) -> dict[str, Any]:
    """`args.size=3` changes one value within what was there."""
    made: dict[str, Any] = {}
    for text in sets:
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise UsageError(f"--set {text!r}: expected NAME=VALUE", "--set n_clusters=256")
        first, *rest = path.split(".")
        try:
            made[first] = _put(made.get(first, params.get(first)), rest, yaml.safe_load(value))
        except yaml.YAMLError:
            raise UsageError(f"--set {text!r}: {value!r} is no value", "numbers, texts, [lists]") from None
    return made


def _put(old: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    inner = old if isinstance(old, dict) else {}
    return {**inner, path[0]: _put(inner.get(path[0]), path[1:], value)}


def stored_plan(root: Root, job: str) -> Plan:
    return plans.load(root.job(job))


# --- what is reused, and why not ---------------------------------------------------------------------------


def fates(root: Root, old_job: str, new: Plan) -> list[Fate]:
    """Of each layer of the new plan."""
    old = stored_plan(root, old_job)
    by_name = {layer.name: layer for layer in old.layers}
    return [_fate(root, old_job, old, by_name.get(layer.name), new, layer) for layer in new.layers]


def _fate(root: Root, job: str, old: Plan, before: Layer | None, new: Plan, layer: Layer) -> Fate:
    if before is None:
        return Fate(layer.name, False, f"{job} has no such layer")
    if new.work.params.get(_goes_on_by(new.work.kind)) == job:
        return Fate(layer.name, False, f"goes on from {job}")
    if before.digest != layer.digest:
        found = layer_changes(old, before, new, layer)
        return Fate(layer.name, False, "; ".join(found[:CHANGES_SHOWN]) or "made while it runs")
    if not is_merged(root, job, layer):
        return Fate(layer.name, False, f"not finished in {job}")
    return Fate(layer.name, True, f"the same as in {job}")


def layer_changes(old: Plan, before: Layer, new: Plan, layer: Layer) -> list[str]:
    """What makes their results differ, in words."""
    first, second = old.work_of(before), new.work_of(layer)
    found = [f"{name} {_shown(a)} → {_shown(b)}" for name, a, b in _differing(first.params, second.params)]
    for name in ("kind", "kernel", "entry", "env", "cpus", "gpus", "threads"):
        a, b = getattr(first, name), getattr(second, name)
        found += [f"{name} {_shown(a)} → {_shown(b)}"] if a != b else []
    if first.code != second.code:
        found.append("the code changed")
    if _digest(first.model) != _digest(second.model):
        found.append(f"the {registry.load(second.kind).model_is} changed")
    return found + _source_changes(before, layer)


def _digest(file: ModelFile | None) -> str:
    return file.digest if file is not None else ""


def _source_changes(before: Layer, layer: Layer) -> list[str]:
    a, b = before.source, layer.source
    found = []
    if isinstance(a, ArraySource) and isinstance(b, ArraySource):
        if a.path != b.path:
            found.append(f"its source is {b.path}, was {a.path}")
        elif a != b:
            found.append("its source changed")
    elif a != b:
        found.append("its items changed")
    if before.shard_rows != layer.shard_rows:
        found.append(f"cut into shards of {layer.shard_rows} rows, was {before.shard_rows}")
    return found


def _differing(a: Any, b: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Every value that is not the same, by its dotted path."""
    if not (isinstance(a, dict) and isinstance(b, dict)):
        a, b = (list(one) if isinstance(one, tuple) else one for one in (a, b))  # as a stored plan has them
        return [] if a == b else [(path or "params", a, b)]
    names = [*a, *(name for name in b if name not in a)]
    return [one for n in names for one in _differing(a.get(n), b.get(n), f"{path}.{n}" if path else n)]


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def params_changes(old: Plan, new: Plan) -> list[str]:
    """What differs of the parameters that hold for all layers."""
    return [f"{name}: {_shown(a)} → {_shown(b)}" for name, a, b in _differing(old.work.params, new.work.params)]
