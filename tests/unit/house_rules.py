"""Which room each module is in, and which rooms a room may import: the tables that `test_house` holds the tree to.

Rooms have the names that their packages are to have. While modules still have others, MODULES and MOVED say which is
which; both go once all have moved. No name here is that of a module of today but in these two.
"""

from __future__ import annotations

import re
from itertools import chain

# Modules whose names do not begin with their room's, as they are called today. The longest name counts, of these and of
# the rules' rooms.
MODULES = {
    "jobs.common": "checksum commit errors fields group names program ranges shellword ssh units where",
    "jobs.sources": "filetree items layout listing npy source window writer",
    "jobs.parts": "manifest written",
    "jobs.results": "bundle declared merge outputs products result survey",
    "jobs.user_code": "code environments pipes recorded sandbox strays template",
    "jobs.user_code.runner": "openers runner spawner",
    "jobs.clustering": "lloyd moves sklearn_rows sorted_rows starts",
    "jobs.inference": "mlp modelfile planned_model",
    "jobs.training": "train",
    "jobs.job_file": "digest jobfile plan yamltext",
    "jobs.workbench": "fingerprint mark work",
    "coordinator.api": "admin",
    "coordinator.farm_root": "ask plans printed root submissions uploads",
    "coordinator.connect": "confine receive send send_items sheets",
    "coordinator.daemon": "adoption alarms channels chronicle driving engine evidence explain figures history mailbox "
    "merging notify notifying office status store stragglers wire",
    "coordinator.daemon.merge.merge_process": "merger",
    "coordinator.submission": "forecast parcel planning progress reuse trial",
    "coordinator.result_downloads": "committed fetching piped",
    "coordinator.drivers": "crew drive logbook trained training",
    "coordinator.display": "render render_training",
    "agent.core": "desk disk floor holding inputs puller pusher reports rounds shelf slots space stock talk",
    "agent.core.orders": "orders",
    "agent.channels": "backoff bandwidth bulk control dialling following pull push",
    "agent.pool": "authentication hands lane seat surroundings sweep",
    "agent.host": "courtesy manners weigh",
    "agent.display": "line meter",
    "agent.process": "main",
}
# Modules that the tables below name one by one, by the names they are to have.
MOVED = {
    "agent.links.connection": "agent.links.paramiko_ssh.connection",
    "agent.links.keys": "agent.links.paramiko_ssh.keys",
    "agent.links.paramiko_link": "agent.links.paramiko_ssh.link",
    "agent.links.steady": "agent.links.paramiko_ssh.transport",
    "agent.pool": "agent.pool.ray_local",
    "coordinator.engine": "coordinator.daemon.engine",
    "coordinator.forecast": "coordinator.submission.forecast",
    "coordinator.merger": "coordinator.daemon.merge.merge_process",
    "coordinator.merging": "coordinator.daemon.merge.queue",
    "coordinator.progress": "coordinator.submission.eta",
    "jobs.group": "jobs.common.cli",
    "jobs.items": "jobs.sources.items",
    "jobs.program": "jobs.common.program",
    "jobs.train.pictures": "jobs.training.plots",
}
ROOM_OF = {f"{room.partition('.')[0]}.{word}": room for room, words in MODULES.items() for word in words.split()}
ROOM_OF["agent.ear"] = "coordinator.protocol"  # what may come from a coordinator: it belongs to the protocol

# What a room may import beside itself: other rooms, or single modules of them.
FLOORS = (
    ("jobs.common",),
    ("jobs.contract",),
    ("jobs.sources",),
    ("jobs.parts",),
    ("jobs.results",),
    ("jobs.user_code", "jobs.user_code.runner"),
    ("jobs.clustering", "jobs.inference", "jobs.training"),
    ("jobs.kinds",),
    ("jobs.job_file",),
    ("jobs.workbench",),
)
JOBS = frozenset(chain(*FLOORS))
VALUES = frozenset({"jobs.common", "jobs.contract"})
TALK = VALUES | {"coordinator.protocol"}  # what both ends know
LIBRARY = JOBS | {"coordinator.protocol", "coordinator.api", "coordinator.farm_root"}
CLIENT = LIBRARY | {"coordinator.submission", "coordinator.result_downloads", "coordinator.display"}
COMMANDS = CLIENT | {"coordinator.client", "coordinator.connect", "coordinator.drivers"}
SKIN = {"agent.channels", "agent.host", "agent.links", "agent.pool", "agent.spool"}  # of the agent's core
SAID = {"agent.core.orders", "agent.core.events", "agent.core.actions"}  # to the core, and by it
OF_SKIN = JOBS | SKIN | {"coordinator.protocol"}

RULES: dict[str, frozenset[str]] = {
    **{room: frozenset(chain(*FLOORS[:i])) for i, floor in enumerate(FLOORS) for room in floor},
    "jobs.user_code": frozenset(chain(*FLOORS[:6])),
    "jobs.user_code.runner": frozenset(),  # runs in interpreters that have nothing of ours
    "coordinator.protocol": VALUES,
    "coordinator.scheduler": TALK,
    "coordinator.api": TALK,
    "coordinator.farm_root": TALK | {"coordinator.api", "jobs.sources.items"},
    "coordinator.connect": TALK | {"coordinator.farm_root", "jobs.parts", "jobs.sources.items"},
    "coordinator.daemon": TALK | {"coordinator.scheduler", "coordinator.api", "coordinator.farm_root", "jobs.parts"},
    "coordinator.daemon.merge.merge_process": TALK | {"coordinator.api", "jobs.sources", "jobs.parts", "jobs.results"},
    "coordinator.submission": LIBRARY,
    "coordinator.result_downloads": LIBRARY,
    "coordinator.drivers": LIBRARY,
    "coordinator.display": LIBRARY - JOBS | VALUES | {"coordinator.submission.eta", "coordinator.submission.forecast"},
    "coordinator.client": CLIENT,
    "coordinator.commands": COMMANDS,
    "coordinator.commands.serve": COMMANDS | {"coordinator.commands", "coordinator.daemon", "coordinator.scheduler"},
    "coordinator.cli": JOBS | {"coordinator.commands"},
    "coordinator.version": frozenset(),
    "coordinator.__main__": frozenset({"coordinator.cli"}),
    "agent.core": TALK | SAID | {"jobs.workbench.batch"},
    **dict.fromkeys(SAID, TALK | SAID | {"jobs.workbench.batch"}),
    **dict.fromkeys(SKIN, OF_SKIN | SAID),
    "agent.logs": VALUES,
    "agent.display": TALK | SAID,
    "agent.doctor": OF_SKIN,
    "agent.process": OF_SKIN | SAID | {"agent.core", "agent.display", "agent.logs"},
    "agent.commands": OF_SKIN | {"agent.display", "agent.doctor", "agent.process"},
    "agent.cli": frozenset({"jobs.common", "agent.commands"}),
    "agent.__main__": frozenset({"agent.cli"}),
    "deploy": JOBS | {"coordinator.farm_root", "agent.links"},
}
ANYWHERE = {"coordinator.version"}

# What stands in these does no I/O, reads no clock and needs no numpy: a closed list.
PURE = ("coordinator.scheduler", "coordinator.protocol", "agent.core", "jobs.contract")
IMPURE = re.compile(
    r"(asyncio|fcntl|glob|importlib|io|logging|multiprocessing|numpy|os|pathlib(?!\.Pure)|psutil|random|select|shutil|signal"
    r"|socket|sqlite3|subprocess|sys|tempfile|threading|time|uuid)\b"
)
IMPURE_CALLS = ("open", "print", "input")
NO_NUMPY = (
    *PURE,
    "jobs.common",
    "jobs.parts",
    "coordinator.api",
    "coordinator.farm_root",
    "coordinator.connect",
    "coordinator.daemon",
    "coordinator.commands",
    "agent",
)

# Who may import a library that is dear to start or to be bound to: rooms, or single modules.
USERS = {
    "ray": {"agent.pool.ray_local"},
    "paramiko": {"agent.links.paramiko_ssh", "agent.links.ssh_config"},
    "matplotlib": {"jobs.training.plots"},
    "click": {
        "jobs.common.cli",
        "jobs.common.program",
        "coordinator.cli",
        "coordinator.commands",
        "agent.commands",
    },
}

# What the rules forbid and stands for now. Whoever mends one takes its line out; none is added.
FOR_NOW = {
    "coordinator.daemon.engine -> coordinator.daemon.merge.merge_process",
    "coordinator.daemon.merge.queue -> coordinator.daemon.merge.merge_process",
}
NAMED_FOR_NOW: set[str] = set()  # by `jobs`, in strings
