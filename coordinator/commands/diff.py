"""`coordinator diff`: what makes two jobs differ."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path
from typing import Any

import click

from muster.coordinator.commands import complete_names
from muster.coordinator.commands.options import farm_option, json_option, say, say_json
from muster.coordinator.farm_root import paths as roots
from muster.coordinator.farm_root.paths import Root
from muster.jobs.common.cli import example
from muster.jobs.common.errors import MusterError
from muster.jobs.contract.plan import Layer, Plan, Work

CODE_LINES_SHOWN = 60
_ENVIRONMENT = [name for name in Work.__struct_fields__ if name not in {"params", "code", "model", "needs"}]


@click.command(epilog=example("coordinator diff weights.1 weights.2"))
@click.argument("one", metavar="JOB", shell_complete=complete_names.job)
@click.argument("other", metavar="JOB", shell_complete=complete_names.job)
@farm_option
@json_option
def command(one: str, other: str, root: Path | None, as_json: bool) -> None:
    """Show how two jobs differ: their parameters, code, environment and sources, and whether their results differ.

    This needs no coordinator.
    """
    from muster.coordinator.submission import reuse

    found = roots.existing(root)
    names = [roots.resolve_job(found, name) for name in (one, other)]
    plans = [reuse.stored_plan(found, name) for name in names]
    said = {
        "params": reuse.params_changes(*plans),
        "environment": _environment(*plans),
        "code": _code(found, *plans),
        "layers": _layers(found, names, plans),
    }
    if as_json:
        say_json({"jobs": names, **said})
    else:
        say(page(names, said))


def page(names: list[str], said: dict[str, Any]) -> str:
    """As people read it."""
    lines = [f"{names[0]} → {names[1]}"]
    for what in ("params", "environment", "code"):
        lines += [f"{what}:", *(f"  {line}" for line in said[what])] if said[what] else []
    lines += ["layers:", *(f"  {name}: {why}" for name, why in said["layers"].items())]
    return "\n".join(lines)


def _environment(old: Plan, new: Plan) -> list[str]:
    found = []
    for name in _ENVIRONMENT:
        a, b = getattr(old.work, name), getattr(new.work, name)
        found += [f"{name}: {a or 'none'} → {b or 'none'}"] if a != b else []
    return found


def _code(root: Root, old: Plan, new: Plan) -> list[str]:
    """Lines as `diff -u` has them, some of them."""
    if old.work.code == new.work.code:
        return []
    before, after = _files(root, old), _files(root, new)
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        a, b = (files.get(name, b"").decode(errors="replace").splitlines() for files in (before, after))
        lines += unified_diff(a, b, name, name, n=1, lineterm="")
    hidden = len(lines) - CODE_LINES_SHOWN
    return [*lines[:CODE_LINES_SHOWN], *([f"… and {hidden} lines more"] if hidden > 0 else [])]


def _files(root: Root, plan: Plan) -> dict[str, bytes]:
    from muster.jobs.user_code.code_pack import opened

    if plan.work.code is None:
        return {}
    try:
        return dict(opened(root.pack(plan.work.code).read_bytes()).files)
    except (OSError, MusterError):
        return {}


def _layers(root: Root, names: list[str], plans: list[Plan]) -> dict[str, str]:
    before, after = ({layer.name: layer for layer in plan.layers} for plan in plans)
    found = {}
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            found[name] = f"only in {names[0] if name in before else names[1]}"
        else:
            found[name] = _layer(root, names, plans, before[name], after[name])
    return found


def _layer(root: Root, names: list[str], plans: list[Plan], old: Layer, new: Layer) -> str:
    from muster.coordinator.submission import reuse

    why = "the same"
    if old.digest != new.digest:
        why = "; ".join(reuse.layer_changes(plans[0], old, plans[1], new)) or "made by each job"
    return f"{why}; {_results(root, names, old)}"


def _results(root: Root, names: list[str], layer: Layer) -> str:
    """Whether the merged bytes are the same, where both are merged."""
    from muster.jobs.parts.manifest import read_manifest

    digests = []
    for name in names:
        try:
            manifest = read_manifest(root.job(name).result / layer.name)
        except MusterError:
            return f"no result in {name} yet"
        digests.append({file.file: file.digest for product in manifest.outputs for file in product.files})
    if digests[0] == digests[1]:
        return "the same bytes"
    odd = [name for name in dict.fromkeys([*digests[0], *digests[1]]) if digests[0].get(name) != digests[1].get(name)]
    return f"other bytes in {', '.join(odd)}"
