"""What people are told of a search: how many trials, the best of them, and which run."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from muster.coordinator.api.status import Progress
from muster.jobs.common.units import format_duration
from muster.jobs.kinds.tune import TRIAL
from muster.jobs.tuning.search import Search
from muster.jobs.tuning.space import differing
from muster.jobs.tuning.summary import config_text, number_text, state_of

SHOWN = 10  # trials, the best first
TEXT_MOST = 160  # characters of a configuration
RIGHT = (True, False, True, True, True, False, False)  # which columns of the table are


def progress_of(search: Search, running: Collection[int], seconds: float) -> Progress:
    """So many trials of all, and the best."""
    table, params = search.table, search.params
    best = table.best
    values = f"{params.metric} {number_text(table.value(best))}" if best else ""
    facts = [f"best {values} (trial {best.number})"] if best else []
    reached = len(table.reached)
    lines = [_standing(search, running, seconds), *_ranking(search, running)]
    if outcome := search.outcome(seconds):
        lines.append(f"ended     {outcome}")
    return Progress(
        sum(trial.begun and number not in running for number, trial in table.trials.items()),
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


def _standing(search: Search, running: Collection[int], seconds: float) -> str:
    """How many trials there are of each sort, and what of the budget is spent."""
    table, budget = search.table, search.params.budget
    first = min((trial.reached_at for trial in table.reached if trial.reached_at is not None), default=0.0)
    waiting = table.count - len({number for number, trial in table.trials.items() if trial.begun} | set(running))
    stands = (
        (len(table.reached), f"reached the target, the first after {format_duration(first)}"),
        (table.failed, "failed"),
        (len(running), "running"),
        (waiting, "not begun"),
    )
    spent = [seconds / budget.seconds] if budget.seconds else []
    spent += [table.iterations / budget.iterations] if budget.iterations else []
    spent += [table.begun / budget.trials] if budget.trials else []
    counted = [f"{count:,} {what}" for count, what in stands if count]
    counted += [f"{min(1.0, max(spent)):.0%} of the budget"] if spent else []
    return f"search    {', '.join([f'{table.iterations:,} iterations', *counted])}"


def _ranking(search: Search, running: Collection[int]) -> list[str]:
    """The best trials as a table, the best of all on top; below them those that people added and that wait."""
    table = search.table
    best = [trial for trial in table.ranked(SHOWN) if trial.begun]
    best += list(islice((trial for trial in table.open.values() if not trial.begun), SHOWN))
    if not best:
        return []
    configs = [search.config(trial.number) for trial in best]
    names = differing(configs) if len(configs) > 1 else [name for config in configs for name in config]
    rows = [("trial", "state", "iterations", search.params.metric, "time", "machine", "parameters")]
    for trial, config in zip(best, configs, strict=True):
        state = "running" if trial.number in running and not trial.ended else state_of(trial)
        took = format_duration(sum(trial.seconds)) if trial.begun else ""
        value = number_text(table.value(trial)) if trial.begun else ""
        text = config_text(config, names)[:TEXT_MOST]
        rows.append((str(trial.number), state, f"{trial.iterations:,}", value, took, trial.machine, text))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(_cell(*cell) for cell in zip(row, widths, RIGHT, strict=True)).rstrip() for row in rows]


def _cell(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)
