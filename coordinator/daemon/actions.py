"""Who carries out what the scheduler wants done: one table, a handler an action. Does nothing itself."""

from __future__ import annotations

from muster.coordinator.daemon import job_logs
from muster.coordinator.daemon.agents import control
from muster.coordinator.daemon.engine import Handlers
from muster.coordinator.daemon.jobs import lifecycle, sources
from muster.coordinator.daemon.merge import publish
from muster.coordinator.scheduler import actions as c

HANDLERS: Handlers = {
    c.SendGrant: control.send_grant,
    c.SendDrop: control.send_drop,
    c.SendCommitted: control.send_committed,
    c.SendGone: control.send_gone,
    c.SendDrain: control.send_drain,
    c.Reject: control.reject,
    c.LookAtSource: sources.look,
    c.NoteMissing: control.note_missing,
    c.StoreAgent: control.store_agent,
    c.SendDiffers: control.send_differs,
    c.StoreAnswers: control.store_answers,
    c.StoreJob: lifecycle.store_job,
    c.StoreSuccess: lifecycle.store_success,
    c.StoreLayer: lifecycle.store_layer,
    c.RaiseHighWater: lifecycle.raise_high_water,
    c.StoreFailure: job_logs.store_failure,
    c.StoreQuarantine: job_logs.store_quarantine,
    c.ForgetFailures: job_logs.forget_failures,
    c.StartMerge: publish.start_merge,
    c.DiscardLayer: publish.discard_layer,
}
