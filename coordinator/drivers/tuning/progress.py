"""What people are told of a search: how many trials, the best of them, and which run."""

from __future__ import annotations

from collections.abc import Collection

from muster.coordinator.api.status import Progress
from muster.jobs.common.units import format_duration
from muster.jobs.kinds.tune import TRIAL
from muster.jobs.tuning.params import stop_of
from muster.jobs.tuning.search import Search
from muster.jobs.tuning.space import differing
from muster.jobs.tuning.summary import config_text, number_text, state_of

SHOWN = 10  # trials, the best first
TEXT_MOST = 160  # characters of a configuration


def progress_of(search: Search, running: Collection[int], seconds: float) -> Progress:
    """So many trials of all, and the best."""
    table, params = search.table, search.params
    best = table.best
    values = f"{params.metric} {number_text(table.value(best))}" if best else ""
    facts = [f"best {values} (trial {best.number})"] if best else []
    reached = len(table.reached)
    stands = (f"{reached} reached the target", f"{table.failed} failed", f"{len(running)} running")
    counted = [part for part in stands if not part.startswith("0 ")]
    lines = [f"search    {', '.join([f'{table.iterations:,} iterations', *counted])}", *_ranking(search, running)]
    if ended := search.ending(seconds):
        lines.append(f"ended     {ended}{'; nobody reached the target' if _missed_all(search) else ''}")
    return Progress(
        sum(number not in running for number in table.trials),
        table.count,
        TRIAL,
        took=f"{format_duration(seconds)} of search",
        facts=facts,
        lines=lines,
        numbers={
            "best": table.value(best) if best else None,
            "best_trial": best.number if best else None,
            "iterations": table.iterations,
            "reached": reached,
            "failed": table.failed,
            "seconds": seconds,
        },
    )


def _missed_all(search: Search) -> bool:
    return bool(stop_of(search.params).aims) and not search.table.reached


def _ranking(search: Search, running: Collection[int]) -> list[str]:
    """A line for each of the best."""
    table = search.table
    best = table.ranked(SHOWN)
    configs = [search.config(trial.number) for trial in best]
    names = differing(configs) if len(configs) > 1 else [name for config in configs for name in config]
    lines = []
    for trial, config in zip(best, configs, strict=True):
        state = "running" if trial.number in running and not trial.ended else state_of(trial)
        text = config_text(config, names)[:TEXT_MOST]
        value = number_text(table.value(trial))
        lines.append(
            f"trial {trial.number:<4}{value}, {trial.iterations} iterations, {state} on {trial.machine}: {text}"
        )
    return lines
