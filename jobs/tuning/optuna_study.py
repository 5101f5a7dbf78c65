"""Optuna's side of a search: its distributions for our space, its study of our trials, the configuration that it would
try next. The one importer of optuna; keeps nothing."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import Any

import msgspec

from muster.jobs.common.errors import UsageError
from muster.jobs.tuning.space import LISTS, LOG, WHOLE, Config, Domain, Space
from muster.jobs.tuning.stopping import LAST_RANKED
from muster.jobs.tuning.trials import Table

TOLD_BEST, TOLD_NEWEST = 200, 800  # trials that the sampler is told of: it slows down with each
DEVIATIONS = 4  # of a normal distribution, on either side of its mean
HINT = "python -m pip install optuna"


def is_there() -> bool:
    return importlib.util.find_spec("optuna") is not None


def suggested(table: Table, space: Space, number: int, running: Mapping[int, Config]) -> Config:
    """What a fresh sampler, seeded by the trial's number, asks for after all that was committed. `running`: trials of
    which nothing came yet, which it keeps away from."""
    optuna = _optuna()
    known = [(trial.config or {}, trial.why, _values(table, trial)) for trial in _told(table)]
    open_: list[tuple[Config, str, list[float]]] = [(config, "", []) for _, config in sorted(running.items())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=_seed(table.params.seed, number), multivariate=True, group=True, constant_liar=True
        )
        study = optuna.create_study(direction="minimize" if table.params.smaller else "maximize", sampler=sampler)
        study.add_trials([_frozen(optuna, space, *one) for one in (*known, *open_)])
        trial = study.ask()
        config: Config = {}
        for domain in space.domains:
            if domain.holds(config):
                config[domain.name] = _asked(optuna, trial, domain)
    return config


def study_of(name: str, space: Space, smaller: bool, trials: Iterable[tuple[Config, str, Sequence[float]]]) -> Any:
    """A study in memory, of each trial's configuration, state as its summary has it, and metric by iteration."""
    optuna = _optuna()
    study = optuna.create_study(direction="minimize" if smaller else "maximize", study_name=name)
    words = {"paused": "", "waiting": ""}
    study.add_trials([_frozen(optuna, space, config, words.get(why, why), values) for config, why, values in trials])
    return study


def _told(table: Table) -> list[Any]:
    """The best and the newest, in the order of their numbers."""
    every = list(table.trials.values())
    kept = {trial.number: trial for trial in (*nsmallest(TOLD_BEST, every, key=table.rank), *every[-TOLD_NEWEST:])}
    return [kept[number] for number in sorted(kept)]


def _values(table: Table, trial: Any) -> list[float]:
    return [metrics[table.params.metric] for metrics in trial.curve]


def _frozen(optuna: Any, space: Space, config: Config, why: str, values: Sequence[float]) -> Any:
    """A trial as optuna has it. Parameters that people gave beyond the space are left out."""
    params, distributions = {}, {}
    for domain in space.domains:
        if domain.form != "constant" and domain.name in config:
            distribution, value = _distribution(optuna, domain), _label(domain, config[domain.name])
            if _fits(distribution, value):
                params[domain.name], distributions[domain.name] = value, distribution
    states, finite = optuna.trial.TrialState, [value for value in values if math.isfinite(value)]
    if why in LAST_RANKED:
        state = states.FAIL
    elif why and finite:
        state = states.COMPLETE
    else:
        state = states.PRUNED if finite else states.RUNNING
    return optuna.trial.create_trial(
        state=state,
        value=values[-1] if state == states.COMPLETE else None,
        params=params,
        distributions=distributions,
        intermediate_values={at: value for at, value in enumerate(values, 1) if math.isfinite(value)},
    )


def _distribution(optuna: Any, domain: Domain) -> Any:
    found, step = optuna.distributions, domain.step
    if domain.form in LISTS:
        return found.CategoricalDistribution([_label(domain, value) for value in domain.values])
    log = domain.form in LOG and step is None  # optuna has no steps on a log scale
    if domain.form in WHOLE:
        return found.IntDistribution(int(domain.low), int(domain.high), log, int(step or 1))
    low, high = domain.low, domain.high
    if domain.form == "normal":
        low, high = domain.low - DEVIATIONS * domain.high, domain.low + DEVIATIONS * domain.high
    return found.FloatDistribution(low, high, log, step)


def _asked(optuna: Any, trial: Any, domain: Domain) -> Any:
    if domain.form == "constant":
        return domain.values[0]
    distribution = _distribution(optuna, domain)
    if domain.form in LISTS:
        label = trial.suggest_categorical(domain.name, distribution.choices)
        return domain.values[distribution.choices.index(label)]
    suggest = trial.suggest_int if domain.form in WHOLE else trial.suggest_float
    return suggest(domain.name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


def _label(domain: Domain, value: Any) -> Any:
    """A value of a list as optuna can have it."""
    return json.dumps(value) if isinstance(value, (list, tuple)) and domain.form in LISTS else value


def _fits(distribution: Any, value: Any) -> bool:
    try:
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except (TypeError, ValueError):
        return False


def _seed(seed: int, number: int) -> int:
    raw = hashlib.blake2b(msgspec.msgpack.encode((seed, number, "optuna")), digest_size=4).digest()
    return int.from_bytes(raw, "little")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UsageError("optuna is not installed here", HINT) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
