"""The daemon's answers to commands and drivers. Checks what was asked; the scheduler does it."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path

from muster.coordinator.api import driver, status
from muster.coordinator.api import requests as a
from muster.coordinator.daemon.engine import Engine, LiveJob
from muster.coordinator.daemon.jobs.drivers import Driving
from muster.coordinator.daemon.jobs.reuse import adopt
from muster.coordinator.daemon.views.explain import explain_agent, explain_job, explain_shard
from muster.coordinator.daemon.views.status import agents_of, commits, status_of
from muster.coordinator.farm_root import uploads
from muster.coordinator.farm_root.submission_folders import sweep
from muster.coordinator.protocol.values import Message
from muster.coordinator.scheduler import events as e
from muster.coordinator.scheduler.entities import Job
from muster.coordinator.scheduler.layers import reserved
from muster.jobs.common.durable import fsync_folder, is_full
from muster.jobs.common.errors import INTERNAL_EXIT, MusterError, NotFoundError, RefusedError, SpaceError
from muster.jobs.common.hashing import of_bytes
from muster.jobs.contract.plan import ITEMS_LIST, ItemsSource, Layer, MadeSource, Plan, Work, decode_plan
from muster.jobs.contract.states import LayerState

log = logging.getLogger("muster.daemon")

UPLOADS_SWEEP_SECONDS = 3600.0
QUESTIONS = (  # that change nothing
    a.StatusAsk, a.AgentsAsk, a.FailuresAsk, a.CommitsAsk, a.Usage, a.ExplainAgent, a.ExplainJob, a.ExplainShard,
    driver.DriveWait,
)  # fmt: skip
SWEEP_TICKS = 10  # between two looks for what killed submitters left
_AS_SUBMITTED = "\nits code is what was submitted; `coordinator submit job.yaml --from {}` takes what was edited since"
_STATUS = "`coordinator status {}` lists its layers and how many shards each has"


class Office:
    """One per daemon."""

    def __init__(self, engine: Engine, driving: Driving, stop: Callable[[], None]) -> None:
        self._engine = engine
        self._driving = driving
        self._stop = stop
        self._taking: set[str] = set()  # submissions being taken over
        self._submitting: list[Plan] = []

    async def answer(self, question: Message, connection: object) -> Message:
        """The answer to one question; an error of the asker's is an answer too."""
        reads = isinstance(question, QUESTIONS)
        try:
            with nullcontext() if reads else self._engine.changing(type(question).__name__):
                return await self._answer(question, connection)
        except MusterError as error:
            return a.problem_of(error)
        except OSError as error:
            log.error("a question was not answered: %s", error)
            return a.problem_of(_trouble(error))
        except Exception:
            if not reads:
                raise
            log.exception("a question was not answered")  # it changed nothing: no reason to stop
            return a.Problem("the coordinator cannot tell", "a bug: daemon.log has its traceback", INTERNAL_EXIT)

    async def _answer(self, question: Message, connection: object) -> Message:
        match question:
            case a.StatusAsk():
                return status_of(self._engine, self._known(question.job).id if question.job else None)
            case a.AgentsAsk():
                return agents_of(self._engine)
            case a.Submit():
                return a.Submitted(await self._take(question.folder, question.origin))
            case a.FailuresAsk():
                return await self._failures(question)
            case a.CommitsAsk():
                return await commits(self._engine, self._known(question.job), question)
            case a.ExplainAgent():
                return explain_agent(self._engine, question.agent)
            case a.ExplainJob():
                return explain_job(self._engine, self._known(question.job))
            case a.ExplainShard():
                return await explain_shard(self._engine, self._known(question.job), question.layer, question.number)
            case a.Usage():
                layers = self._engine.scheduler.state.open_layers.values()
                return status.Used(self._engine.free_bytes(), sum(reserved(layer) for layer in layers))
            case driver.DriveOpen():
                return self._driving.open(question, connection)
            case driver.DriveWait():
                return await self._driving.wait(question)
            case driver.DriveDamaged():
                return await self._driving.damaged(question, connection)
            case driver.DriveGivenUp():
                return self._driving.give_up(question, connection)
            case driver.Advance():
                return await self._driving.advance(question, connection)
            case a.Stop():
                asyncio.get_running_loop().call_later(0.05, self._stop)
                return a.Done("stopping; jobs go on when it is started again")
            case _:
                return await self._do(question)

    async def _do(self, question: Message) -> a.Done:
        """The questions that change a job or an agent."""
        match question:
            case a.Cancel():
                return self._cancel(self._known(question.job))
            case a.Pause():
                return self._pause(self._known(question.job))
            case a.Resume():
                return self._resume(self._known(question.job))
            case a.Priority():
                return self._priority(self._known(question.job), question.priority)
            case a.Retry():
                return self._retry(self._known(question.job), question.layers)
            case a.Remove() if question.job in self._engine.damaged:
                return await self._remove_damaged(question.job)
            case a.Remove():
                return await self._remove(self._known(question.job))
            case a.Drain():
                return self._drain(question.agent)
            case a.Kick():
                return self._kick(self._known(question.job), question.layer, question.number)
        raise RefusedError(f"nobody here answers {type(question).__name__}")

    def _known(self, job: str) -> Job:
        found = self._engine.scheduler.state.jobs.get(job)
        if job in self._engine.damaged:
            raise self._engine.damaged[job]
        if found is None:
            raise NotFoundError(f"there is no job {job}")
        return found

    # --- submitting --------------------------------------------------------------------------------------

    async def sweep_forever(self) -> None:
        """Delete what killed submitters left behind."""
        loop, uploads_due = asyncio.get_running_loop(), 0.0
        while True:
            try:
                left = sweep(self._engine.root.tmp, self._engine.tmp, self._taking)
                if loop.time() >= uploads_due and not self._engine.damaged:
                    uploads_due = loop.time() + UPLOADS_SWEEP_SECONDS
                    uploads.sweep(self._engine.root, self._needed_uploads())
            except OSError as error:
                log.warning("what killed submitters left is not swept: %s", error)
                left = []
            for folder in left:
                log.info("%s is deleted: its submitter is gone", folder.name)
                await asyncio.to_thread(shutil.rmtree, folder, True)
            await asyncio.sleep(SWEEP_TICKS * self._engine.scheduler.state.timing.tick)

    async def _take(self, folder: str, origin: str | None) -> str:
        self._taking.add(folder)
        try:
            return await self.submit(folder, self._known(origin).id if origin else None)
        finally:
            self._taking.discard(folder)

    async def submit(self, folder: str, origin: str | None = None) -> str:
        """Take a planned job over. Order: row, not ready → folder renamed and synced → ready → the scheduler."""
        source = self._engine.root.tmp / folder
        plan, digest = _submitted_plan(source / "plan.msgpack")
        self._refuse_twins(plan)
        if any(isinstance(layer.source, ItemsSource) for layer in plan.layers) and not (source / ITEMS_LIST).is_file():
            raise RefusedError("the submission has no list of items", "submit it again")
        self._submitting.append(plan)  # from here on no `rm` takes an upload of it away
        try:
            uploads.check_there(self._engine.root, uploads.needed_by(self._engine.root, plan))
            return await self._add(source, plan, digest, origin)
        finally:
            self._submitting.remove(plan)

    async def _add(self, source: Path, plan: Plan, digest: str, origin: str | None) -> str:
        engine = self._engine
        self._keep_code(source / "code.pack", plan)
        self._keep_model(source / "model", plan)
        self._keep_items(source / ITEMS_LIST, plan)
        created = time.time()
        digests = [(layer.digest, layer.out_bytes) for layer in plan.layers]
        job = await engine.ask(lambda store: store.add_job(plan.name, digests, plan.priority, created, digest))
        place = engine.root.job(job)
        (source / "bundles").mkdir(exist_ok=True)
        (source / "result").mkdir(exist_ok=True)
        adopted = await adopt(engine, job, plan, source / "result", origin) if origin else {}
        fsync_folder(source)
        source.rename(place.path)
        fsync_folder(engine.root.jobs)
        await engine.ask(lambda store: store.set_ready(job))
        engine.jobs[job] = LiveJob(plan, digest, created)
        engine.jobs[job].outputs.update(adopted)
        engine.handle(e.SpaceMeasured(engine.free_bytes()))
        engine.handle(added(job, plan, engine.boot, merged=adopted))
        log.info("%s submitted: %d layers, %d shards", job, len(plan.layers), sum(one.count for one in plan.layers))
        if plan.driven:
            engine.background(self._driving.keep(job))
        return job

    def _refuse_twins(self, plan: Plan) -> None:
        if len({layer.digest for layer in plan.layers}) != len(plan.layers):
            raise RefusedError("two layers of the plan are the same", "plan it again")

    def _keep_code(self, source: Path, plan: Plan) -> None:
        """The user's files lie under their digest, for as long as any job wants them."""
        if plan.work.code is None:
            return
        target = self._engine.root.pack(plan.work.code)
        if not source.is_file():
            raise RefusedError("the submission has no code.pack", "submit it again")
        source.replace(target)
        fsync_folder(target.parent)

    def _keep_model(self, source: Path, plan: Plan) -> None:
        """So does a model; one that is there already is in use, and stays."""
        if plan.work.model is None:
            return
        target = self._engine.root.model(plan.work.model.digest)
        if not source.is_file() or source.stat().st_size != plan.work.model.nbytes:
            raise RefusedError("the submission has no model", "submit it again")
        if target.exists():
            source.unlink()
            return
        source.replace(target)
        fsync_folder(target.parent)

    def _keep_items(self, source: Path, plan: Plan) -> None:
        """The list stays with the job; agents find it under its digest, whatever jobs of it come and go."""
        for digest in _lists_of(plan):
            target = self._engine.root.items(digest)
            if not target.exists():
                target.hardlink_to(source)
                fsync_folder(target.parent)

    # --- changing ----------------------------------------------------------------------------------------

    def _cancel(self, job: Job) -> a.Done:
        if job.ended:
            raise RefusedError(f"{job.id} is {job.state} already", "`coordinator rm` deletes it")
        self._engine.handle(e.Cancelled(job.id))
        return a.Done(f"{job.id} is cancelled; `coordinator retry {job.id}` would go on with it")

    def _pause(self, job: Job) -> a.Done:
        if job.state != "running":
            raise RefusedError(f"{job.id} is {job.state}", "only a running job can be paused")
        self._engine.handle(e.Paused(job.id))
        return a.Done(f"{job.id} is paused; what runs on agents ends and is kept")

    def _resume(self, job: Job) -> a.Done:
        if job.state != "paused":
            raise RefusedError(f"{job.id} is {job.state}", f"`coordinator retry {job.id}` goes on with a halted job")
        self._engine.handle(e.Resumed(job.id))
        return a.Done(f"{job.id} runs again")

    def _priority(self, job: Job, priority: int) -> a.Done:
        self._engine.handle(e.Prioritised(job.id, priority))
        self._engine.write(lambda store: store.set_priority(job.id, priority))
        return a.Done(f"{job.id} has priority {priority}")

    def _retry(self, job: Job, names: list[str] | None) -> a.Done:
        by_name = {layer.name: layer for layer in job.layers}
        for name in names or []:
            if name not in by_name:
                raise NotFoundError(f"{job.id} has no layer {name!r}", _STATUS.format(job.id))
        if not names and (job.state == "complete" or (job.state == "running" and not job.quarantined)):
            raise RefusedError(f"{job.id} is {job.state}: nothing of it failed", "name --layers to run them again")
        plan = self._engine.jobs[job.id].plan
        driven = plan.driven
        if names and driven:
            raise RefusedError(f"the shards of {job.id} were made one after the other", "submit it again to start over")
        again, halted = job.quarantined, job.state == "halted"
        self._engine.handle(e.Retried(job.id, tuple(by_name[name].digest for name in names or [])))
        if driven:
            self._engine.background(self._driving.keep(job.id))
        if names:
            return a.Done(f"{job.id}: {_counted(len(names), 'layer')} to be computed anew")
        same = _AS_SUBMITTED.format(job.id) if plan.work.code is not None else ""
        if again and not halted:
            return a.Done(f"{job.id}: {_counted(again, 'quarantined shard')} to be run again{same}")
        return a.Done(f"{job.id} runs again{same}")

    async def _remove(self, job: Job) -> a.Done:
        """Order: the scheduler forgets it → its rows go → its folder and its uploads go. A folder without a row is an
        orphan, an upload without a job is swept."""
        engine = self._engine
        if not job.ended:
            raise RefusedError(f"{job.id} is {job.state}", f"`coordinator cancel {job.id}` first")
        work, plan = engine.jobs[job.id].work, engine.jobs[job.id].plan
        engine.handle(e.Removed(job.id))
        del engine.jobs[job.id]
        await engine.ask(lambda store: store.remove_job(job.id))
        unneeded = set() if engine.damaged else uploads.needed_by(engine.root, plan) - self._needed_uploads()
        await self._remove_folder(job.id, unneeded)
        self._forget_files(work, plan)
        return a.Done(f"{job.id} is deleted")

    async def _remove_damaged(self, job: str) -> a.Done:
        """The same of one whose plan cannot be used: whatever state it was in, and without the files it shares."""
        del self._engine.damaged[job]
        await self._engine.ask(lambda store: store.remove_job(job))
        await self._remove_folder(job, set())
        return a.Done(f"{job} is deleted")

    async def _remove_folder(self, job: str, unneeded: set[str]) -> None:
        """With the uploads that no other job needs."""
        engine = self._engine
        place = engine.root.job(job).path
        doomed = engine.tmp / f"removed-{job}"
        if place.exists():
            place.rename(doomed)
            uploads.discard(engine.root, unneeded, doomed)
            await asyncio.to_thread(shutil.rmtree, doomed, True)

    def _forget_files(self, work: Work, plan: Plan) -> None:
        """Code, model and list of a job that is gone, unless another one wants them."""
        if self._taking or self._engine.damaged:  # those may want them; the files stay, which is the lesser evil
            return
        others = [live.work for live in self._engine.jobs.values()]
        if work.code and all(other.code != work.code for other in others):
            self._engine.root.pack(work.code).unlink(missing_ok=True)
        model = work.model
        if model and all(other.model is None or other.model.digest != model.digest for other in others):
            self._engine.root.model(model.digest).unlink(missing_ok=True)
        for digest in _lists_of(plan).difference(*(_lists_of(live.plan) for live in self._engine.jobs.values())):
            self._engine.root.items(digest).unlink(missing_ok=True)

    def _needed_uploads(self) -> set[str]:
        plans = [*(live.plan for live in self._engine.jobs.values()), *self._submitting]
        return set().union(*(uploads.needed_by(self._engine.root, plan) for plan in plans))

    def _drain(self, name: str) -> a.Done:
        agent = self._engine.scheduler.state.agents.get(name)
        if agent is None or not agent.present:
            raise NotFoundError(f"no agent called {name} is here now", "`coordinator agents` lists them")
        self._engine.handle(e.DrainAsked(name))
        return a.Done(f"{name} finishes what runs, hands back the rest and leaves")

    def _kick(self, job: Job, name: str, number: int) -> a.Done:
        layer = next((layer for layer in job.layers if layer.name == name), None)
        if layer is None:
            raise NotFoundError(f"{job.id} has no layer {name!r}", _STATUS.format(job.id))
        shard = f"{job.id}/{name}/{number}"
        agents = sorted({h.agent for h in layer.holdings.values() if number in h.open or number in h.finished})
        if not agents:
            raise RefusedError(f"{shard} is on no machine now", f"`coordinator explain {shard}` says where it is")
        self._engine.chronicle.note("kicked", layer.digest, "", [(number, number + 1)])
        self._engine.handle(e.Kicked(layer.digest, number))
        return a.Done(f"{shard} is taken from {', '.join(agents)}, and runs elsewhere if another machine can run it")

    # --- failures ----------------------------------------------------------------------------------------

    async def _failures(self, question: a.FailuresAsk) -> status.Failures:
        job = self._known(question.job)
        by_digest = {layer.digest: layer.name for layer in job.layers}
        digest = next((d for d, name in by_digest.items() if name == question.layer), None)
        if question.layer is not None and digest is None:
            raise NotFoundError(f"{job.id} has no layer {question.layer!r}", _STATUS.format(job.id))
        if digest and question.number is not None and question.number >= self._engine.jobs[job.id].layers[digest].count:
            raise NotFoundError(f"{job.id}/{question.layer} has no shard {question.number}", _STATUS.format(job.id))
        q = question
        total, rows = await self._engine.ask(
            lambda store: store.failures(job.id, digest, q.number, q.quarantined, q.limit)
        )
        return status.Failures(total, [_record(row, by_digest[row.layer]) for row in rows])


def _lists_of(plan: Plan) -> set[str]:
    return {layer.source.digest for layer in plan.layers if isinstance(layer.source, ItemsSource)}


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _submitted_plan(file: Path) -> tuple[Plan, str]:
    """With the digest it is held to from now on."""
    try:
        raw = file.read_bytes()
        return decode_plan(raw), of_bytes(raw)
    except FileNotFoundError:
        raise RefusedError("the submission has no plan", "submit the job again") from None


def _trouble(error: OSError) -> MusterError:
    """What the root's disk would not do."""
    why = f"{error.filename}: {error.strerror}"
    return SpaceError(why) if is_full(error) else RefusedError(why, "see what ails the root's disk, then ask again")


def _record(row: object, layer: str) -> status.FailureRecord:
    fields = {
        name: getattr(row, name) for name in status.FailureRecord.__struct_fields__ if name not in {"layer", "when"}
    }
    return status.FailureRecord(layer=layer, when=row.at, **fields)  # type: ignore[attr-defined]


def first_of(boot: int) -> int:
    """Where numbers of shards that live in memory alone begin in this life of the daemon. No two lives share any."""
    return boot << 32


def _seed(layer: Layer, boot: int, state: LayerState) -> e.LayerSeed:
    return e.LayerSeed(
        layer.digest,
        layer.name,
        layer.count,
        layer.in_bytes,
        layer.out_bytes,
        made=isinstance(layer.source, MadeSource),
        state=state,
        rounds=bool(layer.rounds),
        first=first_of(boot) if layer.rounds else 0,
    )


def added(job: str, plan: Plan, boot: int, merged: Collection[str] = (), **stored: object) -> e.JobAdded:
    """A plan as the scheduler takes it; `stored` is what the store adds after a restart. `merged`: digests of layers
    that are another job's, too, and done."""
    seeds = tuple(_seed(one, boot, "merged" if one.digest in merged else "waiting") for one in plan.layers)
    values: dict[str, object] = {"layers": seeds, "priority": plan.priority, **stored}
    return e.JobAdded(
        job=job,
        kind=plan.work.kind,
        kernel=plan.work.kernel,
        cpus=plan.work.cpus,
        memory=plan.work.memory,
        attempts=plan.attempts,
        max_failures=plan.max_failures,
        same_kernels=plan.same_kernels,
        needs=plan.work.needs,
        gpus=plan.work.gpus,
        env=plan.work.env,
        packages=plan.work.packages,
        model_bytes=plan.work.model.nbytes if plan.work.model else 0,
        **values,  # type: ignore[arg-type]
    )
