"""The tags that messages and stored plans go by: a closed table, each given in its class, so that names may change.

A tag is what other machines, the store's plans and people's streams know a value by. To rename a class, change its name
here; to change a tag is to change the protocol or the format of a plan.
"""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec

from muster.agent.pool import ray_words
from muster.coordinator.api import calls, driver, figures, requests, status
from muster.coordinator.protocol import control, transfer, values
from muster.coordinator.result_downloads import shard_stream
from muster.jobs.contract import plan

ROOT = Path(__file__).parents[2]
PRODUCT = ("jobs", "coordinator", "agent", "deploy")
MODULES = (values, control, transfer, requests, status, figures, driver, calls, shard_stream, plan, ray_words)

TAGS = {
    "Message": "message",
    "Greeting": "greeting",
    "Bye": "bye",
    "Rejected": "rejected",
    "Held": "held",
    "Failure": "failure",
    "Loss": "loss",
    "Finished": "finished",
    "Returned": "returned",
    "Hello": "hello",
    "Sync": "sync",
    "Leave": "leave",
    "LayerInfo": "layerinfo",
    "Grant": "grant",
    "Drop": "drop",
    "Committed": "committed",
    "Welcome": "welcome",
    "News": "news",
    "Offer": "offer",
    "Accepted": "accepted",
    "Settled": "settled",
    "Refused": "refused",
    "Fetch": "fetch",
    "FetchCode": "fetchcode",
    "Follow": "follow",
    "NotYet": "notyet",
    "Sheet": "sheet",
    "Laid": "laid",
    "Probe": "probe",
    "Sending": "sending",
    "Sent": "sent",
    "Attach": "attach",
    "Stored": "stored",
    "Failed": "failed",
    "Take": "take",
    "Readable": "readable",
    "ReadableItems": "readableitems",
    "Moved": "moved",
    "Submit": "submit",
    "StatusAsk": "statusask",
    "AgentsAsk": "agentsask",
    "Cancel": "cancel",
    "Pause": "pause",
    "Resume": "resume",
    "Priority": "priority",
    "Remove": "remove",
    "SetJob": "setjob",
    "Retry": "retry",
    "Drain": "drain",
    "DropAgent": "dropagent",
    "Kick": "kick",
    "ExplainAgent": "explainagent",
    "ExplainJob": "explainjob",
    "ExplainShard": "explainshard",
    "Look": "look",
    "Looked": "looked",
    "FailuresAsk": "failuresask",
    "Usage": "usage",
    "Stop": "stop",
    "CommitsAsk": "commitsask",
    "ManifestsAsk": "manifestsask",
    "FiguresAsk": "figuresask",
    "MapAsk": "mapask",
    "ShardMap": "shardmap",
    "Figures": "figures",
    "DriveOpen": "driveopen",
    "DriveWait": "drivewait",
    "DriveGivenUp": "drivegivenup",
    "DriveFailed": "drivefailed",
    "DriveDamaged": "drivedamaged",
    "Advance": "advance",
    "Problem": "problem",
    "Done": "done",
    "Submitted": "submitted",
    "Status": "status",
    "Agents": "agents",
    "Explained": "explained",
    "Failures": "failures",
    "Used": "used",
    "Commits": "commits",
    "Manifests": "manifests",
    "DriveState": "drivestate",
    "Advanced": "advanced",
    "OpenCalls": "opencalls",
    "Blob": "blob",
    "CallBatch": "callbatch",
    "Withdraw": "withdraw",
    "ForgetBlobs": "forgetblobs",
    "EndCalls": "endcalls",
    "CallsOpened": "callsopened",
    "SlotsNow": "slotsnow",
    "Answered": "answered",
    "BatchFailed": "batchfailed",
    "CallsOver": "callsover",
    "CallsTook": "callstook",
    "Record": "shard",
    "Beat": "beat",
    "Window": "rows",
    "ItemsWindow": "items",
    "ArraySource": "array",
    "MadeSource": "made",
    "ItemsSource": "items",
    "StartRay": "start-ray",
    "JoinRay": "join-ray",
    "StartSeat": "start-seat",
    "CallSeat": "call-seat",
    "AttendSeat": "attend-seat",
    "KillSeat": "kill-seat",
    "EndSeat": "end-seat",
    "RayUp": "ray-up",
    "RayDown": "ray-down",
    "NodeRefused": "node-refused",
    "SeatUp": "seat-up",
    "SeatSaid": "seat-said",
    "SeatGone": "seat-gone",
}


def given() -> dict[str, str]:
    """What classes anywhere say that their tag is."""
    sources = [path.read_text() for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    nodes = [node for source in sources if "tag=" in source for node in ast.parse(source).body]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    return {one.name: ast.literal_eval(word.value) for one in classes for word in one.keywords if word.arg == "tag"}


def test_each_tag_is_given_and_is_the_one_of_old() -> None:
    assert given() == TAGS


def test_no_class_has_a_tag_that_it_does_not_give() -> None:
    structs = [one for module in MODULES for one in vars(module).values() if _is_struct_of(one, module.__name__)]
    found = {one.__name__: one.__struct_config__.tag for one in structs if one.__struct_config__.tag is not None}
    assert found == TAGS


def _is_struct_of(one: object, module: str) -> bool:
    return isinstance(one, type) and issubclass(one, msgspec.Struct) and one.__module__ == module
