"""The kind `train`: one model, trained in rounds. A shard is what one virtual worker gives for a round, or a score."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from muster.jobs.common.units import format_size
from muster.jobs.contract.kind import (
    Answers,
    Bench,
    JobPlace,
    Kind,
    KindForecast,
    KindReport,
    Prepared,
    Result,
    Runner,
    RunnerLost,
    Shape,
    Shard,
    Site,
)
from muster.jobs.contract.plan import Output
from muster.jobs.training.aggregation.contribution import RoundHeader
from muster.jobs.training.params import TORCH_MODELS, TrainParams, check

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from muster.jobs.training.steps.learner import Learner
    from muster.jobs.training.steps.torch_trainer import TrainerPlace

    Array = np.ndarray[Any, Any]

VALUES, TALLY = "values", "tally"
ROUND = "round"  # what is counted of a training
TALLIED = 7  # numbers: those of a `Tally`, or of a `Score` and then zeros
SHEETS_KEPT = 4  # mapped weights: as many versions may be in the same batch


class RoundOrder(msgspec.Struct, frozen=True, array_like=True):
    """What a shard is to do with the weights on its sheet."""

    worker: int  # the virtual one, or -1: the test set is to be scored
    header: RoundHeader | None = None


class Train(Kind[TrainParams]):
    """Nothing of a round is stored; the driver keeps checkpoints."""

    name = "train"
    kernel = 1
    Params = TrainParams
    driven = True
    takes_target = True
    sourceless = True
    may_have_code = True
    model_is = "data"

    def check(self, params: TrainParams, shape: Shape | None) -> None:
        check(params)

    def prepare(self, params: TrainParams, site: Site) -> Prepared[TrainParams]:
        from muster.jobs.training.plan_rounds import prepare

        check(params)
        return prepare(params, site)

    def rounds(self, params: TrainParams) -> Literal["", "whole", "each"]:
        return "each" if params.mode == "async" else "whole"

    def known_answers(self) -> Answers:
        from muster.jobs.kinds import known_answers

        return known_answers.train()

    def repeats(self, params: TrainParams, shape: Shape | None, threads: int, has_code: bool) -> bool:
        """Numpy's models do, in rounds; without rounds it counts in which order contributions came."""
        return not has_code and params.model not in TORCH_MODELS and params.mode != "async"

    def rests_on(self, params: TrainParams, has_code: bool) -> tuple[str, ...]:
        return ("torch",) if has_code or params.model in TORCH_MODELS else ()

    def forecast(self, params: TrainParams, entry: str | None) -> KindForecast:
        from muster.jobs.training.steps.models import open_model

        facts = params.facts
        assert facts is not None, "prepared"
        model = open_model(params, facts)
        nbytes = model.dim * params.bits // 8  # of a round, to each machine and from it, at most
        factors = [params.workers, *([params.steps] if params.steps > 1 else []), params.microbatch]
        rows = f"{' × '.join(f'{one:,}' for one in factors)} = {prod(factors):,} rows"
        return KindForecast(
            params.rounds,
            ROUND,
            head=f"{entry or params.model} with {model.stepped:,} parameters",
            lines=(
                f"data     {facts.rows:,} rows, {facts.test_rows:,} to test on",
                f"rounds   {params.rounds:,}, {params.mode}; each of {rows}",
                f"link     about {format_size(nbytes)} a round to each machine, and as much from it",
            ),
            numbers={
                "model": entry or params.model,
                "parameters": model.stepped,
                "rows": facts.rows,
                "test_rows": facts.test_rows,
                "mode": params.mode,
                "rounds": params.rounds,
                "workers": params.workers,
                "steps": params.steps,
                "microbatch": params.microbatch,
                "round_bytes": nbytes,
            },
        )

    def report(self, places: Mapping[str, JobPlace], target: float | None) -> KindReport:
        from muster.jobs.training.report import side_by_side

        return side_by_side({job: place.checkpoints for job, place in places.items()}, target)

    def patched(self, params: TrainParams, sheet: bytes, patch: bytes) -> bytes:
        from muster.jobs.training.aggregation import weights_delta as patches

        return patches.patched(sheet, patch)

    def declare(self, params: TrainParams, shape: Shape | None) -> tuple[Output, ...]:
        from muster.jobs.training.aggregation import fixed_point
        from muster.jobs.training.steps.models import open_model

        assert params.facts is not None, "prepared"
        dim = open_model(params, params.facts).dim
        dtype = fixed_point.DTYPES[params.bits].str
        return (Output(TALLY, "rows", "<i8", (TALLIED,)), Output(VALUES, "sum", dtype, (dim,), narrow=True))

    def open(self, bench: Bench) -> Runner:
        from muster.jobs.training.data import dataset
        from muster.jobs.training.steps.learner import Learner

        params: TrainParams = bench.params
        found = dataset.read(bench.model) if bench.model else dataset.load(params.data, bench.scratch, params.seed)
        return TrainRunner(Learner(params, found, bench.cpus, _place(bench)), params)


def _place(bench: Bench) -> TrainerPlace | None:
    """Where a torch module runs; it reads the data by itself."""
    from muster.jobs.training.steps.torch_trainer import TrainerPlace

    if bench.model is None:
        return None
    return TrainerPlace(
        data=bench.model,
        scratch=bench.scratch,
        python=bench.python,
        code=bench.code,
        entry=bench.entry,
        env=bench.env,
        timeout=bench.timeout,
        check_code=bench.check_code,
    )


class TrainRunner(Runner):
    """Keeps the model and the data open, and the weights of the last rounds mapped."""

    def __init__(self, learner: Learner, params: TrainParams) -> None:
        from muster.jobs.training.aggregation import fixed_point

        self._learner = learner
        self._dtype = fixed_point.DTYPES[params.bits]
        self._mapped: dict[Path, Array] = {}

    def run(self, shard: Shard) -> Result:
        import numpy as np

        order = msgspec.msgpack.decode(shard.payload, type=RoundOrder)
        assert shard.sheet is not None, "a round's weights are on a sheet"
        weights = self._weights(shard.sheet)
        if order.header is None:
            with np.errstate(all="ignore"):
                score = self._learner.evaluate(weights)
            row = (score.right, score.rows, score.loss, *([0] * (TALLIED - 3)))
            return {TALLY: np.array([row], "<i8"), VALUES: np.zeros(self._learner.dim, self._dtype)}
        with np.errstate(all="ignore"):  # what is not finite is told of in the tally
            found = self._learner.contribute(weights, order.header, order.worker)
        self.peak = self._learner.model.peak
        return {TALLY: np.array([msgspec.structs.astuple(found.tally)], "<i8"), VALUES: found.values}

    def close(self) -> None:
        self._learner.close()

    def _weights(self, sheet: Path) -> Array:
        """Mapped once, and checked against the digest that is the sheet's name."""
        import numpy as np

        from muster.jobs.training.steps.learner import digest_of

        if sheet not in self._mapped:
            try:
                weights = np.memmap(sheet, "<f4", "r")
            except (OSError, ValueError) as error:
                raise RunnerLost(f"the round's weights are not here: {error}") from None
            if digest_of(weights) != sheet.stem:
                raise RunnerLost("the round's weights are not those that were laid out")
            while len(self._mapped) >= SHEETS_KEPT:
                del self._mapped[next(iter(self._mapped))]
            self._mapped[sheet] = np.asarray(weights)
        return self._mapped[sheet]
