"""A whole training in this process, one virtual worker after the other: what all others are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from muster.jobs.training.aggregation.asynchronous import AsynchronousPushes, WorkerPush
from muster.jobs.training.aggregation.contribution import ContributionSum
from muster.jobs.training.aggregation.synchronous import Redo, Stepped, SynchronousRounds
from muster.jobs.training.data.dataset import Data
from muster.jobs.training.params import TrainParams
from muster.jobs.training.steps.learner import Learner
from muster.jobs.training.steps.torch_trainer import TrainerPlace


@dataclass
class Serial:
    """What became of it."""

    digest: str = ""  # of the final weights
    losses: list[float] = field(default_factory=list)
    accuracies: list[tuple[int, float]] = field(default_factory=list)
    redone: int = 0


def run_serially(
    params: TrainParams, data: Data, place: TrainerPlace | None = None, begun: SynchronousRounds | None = None
) -> Serial:
    """Every round to the end, or to the target. `begun`: what to go on from, in place of the start."""
    learner, found = Learner(params, data, place=place), Serial()
    outer = begun or SynchronousRounds(params, learner.start(), learner.model.stepped)
    total = ContributionSum(outer.dim, params.bits)
    while not outer.is_over:
        total.clear()
        for v in range(params.workers):
            total.add(learner.contribute(outer.weights, outer.header(), v))
        merged = outer.merge(total)
        if isinstance(merged, Redo):
            found.redone += 1
            continue
        found.losses.append(merged.loss)
        if outer.round % params.eval_every == 0 or outer.is_over:
            accuracy = learner.evaluate(outer.weights).accuracy
            found.accuracies.append((outer.round, accuracy))
            if params.target is not None and accuracy >= params.target:
                break
    learner.close()
    found.digest = outer.digest
    return found


def replay(params: TrainParams, data: Data, journal: Sequence[WorkerPush]) -> str:
    """The final weights' digest of an async training, from the journal of its arrivals alone."""
    learner = Learner(params, data)
    pushes = AsynchronousPushes(params, learner.start(), learner.model.stepped)
    last_use = {push.version: i for i, push in enumerate(journal)}
    seen = {0: (pushes.weights, 0, pushes.digest)}
    for i, push in enumerate(journal):
        weights, pushed, digest = seen[push.version]
        header, total = pushes.recall(push, pushed, digest), ContributionSum(pushes.dim, params.bits)
        for v in push.workers:
            total.add(learner.contribute(weights, header, v))
        taken = pushes.arrive(header, push.workers, total)
        assert isinstance(taken, Stepped), "it was, when the journal was written"
        seen[pushes.version] = (pushes.weights, pushes.pushed, pushes.digest)
        seen = {version: what for version, what in seen.items() if last_use.get(version, 0) > i or version == i + 1}
    return pushes.digest
