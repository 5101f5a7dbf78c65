"""A slot's worker as an actor of Ray's: a call runs a batch. Imports ray only to ask which GPUs it was given."""

from __future__ import annotations

import msgspec

from muster.agent.pool.worker import Ready, Worker, WorkerDone, decode
from muster.jobs.common.processes import identify
from muster.jobs.workbench.batch import Batch


class RayWorker(Worker):
    """Its calls run one after the other, on the process's main thread."""

    def hello(self) -> bytes:
        """The first word."""
        us = identify()
        return msgspec.msgpack.encode(Ready(self._seat, us.pid, us.started))

    def run(self, ticket: int, batch: bytes) -> bytes:
        """What came of a batch."""
        return msgspec.msgpack.encode(WorkerDone(ticket, *self.run_batch(lambda: _with_gpus(decode(batch)))))

    def attend(self, address: str) -> None:
        """Batches by a socket instead, until the agent hangs up: those of rounds, which a call would hold up."""
        self.serve_at(address)


def _with_gpus(batch: Batch) -> Batch:
    """The GPUs are those that Ray gave to this process."""
    return batch if batch.gpus is None else msgspec.structs.replace(batch, gpus=gpus_given())


def gpus_given() -> tuple[str, ...]:
    import ray

    return tuple(ray.get_runtime_context().get_accelerator_ids()["GPU"])
