"""Which rooms there are, and which rooms a room may import: the tables that `test_house` holds the tree to.

Names are those below `muster`; `muster` is that package's own module, of which all may have VERSION.
"""

from __future__ import annotations

import re
from itertools import chain

# What a room may import beside itself: other rooms, or single modules of them.
FLOORS = (
    ("jobs.common",),
    ("jobs.contract",),
    ("jobs.sources",),
    ("jobs.parts",),
    ("jobs.results",),
    ("jobs.user_code", "jobs.user_code.runner"),
    ("jobs.clustering", "jobs.inference", "jobs.training"),
    ("jobs.tuning",),
    ("jobs.kinds",),
    ("jobs.job_file",),
    ("jobs.workbench",),
)
JOBS = frozenset(chain(*FLOORS))
VALUES = frozenset({"jobs.common", "jobs.contract"})
TALK = VALUES | {"coordinator.protocol"}  # what both ends know
LIBRARY = JOBS | {"coordinator.protocol", "coordinator.api", "coordinator.farm_root"}
CLIENT = LIBRARY | {"coordinator.submission", "coordinator.result_downloads", "coordinator.display"}
COMMANDS = CLIENT | {
    "coordinator.page", "coordinator.page.far", "coordinator.report", "coordinator.runs", "coordinator.client",
    "coordinator.connect", "coordinator.drivers"
}  # fmt: skip
SKIN = {"agent.channels", "agent.host", "agent.links", "agent.pool", "agent.spool"}  # of the agent's core
SAID = {"agent.core.events", "agent.core.actions"}  # to the core, and by it
# What the process knows of it
CORE_DOOR = {"agent.core.state_machine", "agent.core.pool_restarts", "agent.core.departure"}
OF_SKIN = JOBS | SKIN | {"coordinator.protocol"}

RULES: dict[str, frozenset[str]] = {
    **{room: frozenset(chain(*FLOORS[:i])) for i, floor in enumerate(FLOORS) for room in floor},
    "jobs.user_code": frozenset(chain(*FLOORS[:6])),
    "jobs.user_code.runner": frozenset(),  # runs in interpreters that have nothing of ours
    "coordinator.protocol": VALUES,
    "coordinator.scheduler": TALK,
    "coordinator.api": TALK,
    "coordinator.figures": VALUES,
    "coordinator.farm_root": TALK | {"coordinator.api", "jobs.sources.items"},
    "coordinator.connect": TALK | {"coordinator.farm_root", "coordinator.figures", "jobs.parts", "jobs.sources.items"},
    "coordinator.daemon": TALK
    | {"coordinator.scheduler", "coordinator.api", "coordinator.farm_root", "coordinator.figures", "jobs.parts"}
    | {"jobs.sources.as_planned"},
    "coordinator.daemon.merge.merge_process": TALK | {"coordinator.api", "jobs.sources", "jobs.parts", "jobs.results"},
    "coordinator.runs": frozenset({"jobs.common"}),
    "coordinator.calls": frozenset(),
    "coordinator.submission": LIBRARY
    | {"coordinator.runs", "coordinator.result_downloads.ended_items"},  # what became of earlier runs
    "coordinator.result_downloads": LIBRARY | {"coordinator.runs"},
    "coordinator.drivers": LIBRARY,
    "coordinator.display": LIBRARY - JOBS
    | VALUES
    | {"coordinator.runs"}
    | {f"coordinator.submission.{one}" for one in ("eta", "forecast", "makespan", "run_items")},
    "coordinator.report": CLIENT | {"coordinator.figures"},
    "coordinator.client": CLIENT | {"coordinator.report", "coordinator.calls", "coordinator.figures"},
    "coordinator.page": CLIENT | {"coordinator.report", "coordinator.figures"},
    "coordinator.page.far": CLIENT | {"coordinator.page", "coordinator.client.backends.ssh"},
    "coordinator.commands": COMMANDS,
    "coordinator.commands.serve": COMMANDS | {"coordinator.commands", "coordinator.daemon", "coordinator.scheduler"},
    "coordinator.commands.rebuild": COMMANDS | {"coordinator.commands", "coordinator.daemon"},
    "coordinator.cli": JOBS | {"coordinator.commands"},
    "coordinator.__main__": frozenset({"coordinator.cli", "muster.forget_current_folder"}),
    "agent.core": TALK | SAID | {"jobs.workbench.batch"},
    **dict.fromkeys(SAID, TALK | SAID | {"jobs.workbench.batch"}),
    **dict.fromkeys(SKIN, OF_SKIN | SAID),
    "agent.display": TALK | SAID,
    "agent.doctor": OF_SKIN | {"agent.core.events"},  # what a pool tells
    "agent.process": OF_SKIN | SAID | CORE_DOOR | {"agent.display"},
    "agent.commands": OF_SKIN | {"agent.display", "agent.doctor", "agent.process"},
    "agent.cli": frozenset({"jobs.common", "agent.commands"}),
    "agent.__main__": frozenset({"agent.cli", "muster.forget_current_folder"}),
    "deploy": JOBS
    | {"coordinator.farm_root", "coordinator.api", "agent.links"}
    | {"agent.host.memory", "agent.commands.join"},
    "deploy.commands": JOBS
    | {
        "deploy",
        "coordinator.api",
        "coordinator.farm_root",
        "coordinator.commands.options",
        "coordinator.display.tables",
        "coordinator.display.colours",
    },
    "deploy.cli": frozenset({"jobs.common", "deploy.commands"}),
    "deploy.__main__": frozenset({"deploy.cli", "muster.forget_current_folder"}),
    "muster": frozenset({"coordinator.client", "jobs.sources.layer_writer"}),  # for types; else by name, when asked
    "muster.__main__": frozenset(
        {"coordinator.cli", "agent.cli", "deploy.cli", "muster.forget_current_folder"}
    ),  # alone knows all programs
}

# What stands in these does no I/O, reads no clock and needs no numpy: a closed list.
PURE = (
    "coordinator.scheduler", "coordinator.runs", "coordinator.calls", "coordinator.protocol", "coordinator.figures",
    "agent.core", "jobs.contract",
)  # fmt: skip
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
    "coordinator.report",
    "coordinator.page",
    "coordinator.commands",
    "agent",
    "muster",
)

# Who may import a library that is dear to start or to be bound to: rooms, or single modules.
USERS = {
    "ray": {f"agent.pool.ray_{one}" for one in ("actor", "far_worker", "head", "host")},
    "paramiko": {"agent.links.paramiko_ssh", "agent.links.ssh_config"},
    "matplotlib": {"jobs.training.plots"},
    "h5py": {"jobs.sources.formats.hdf5"},
    "pandas": {"jobs.results.tables"},
    "pyarrow": {"jobs.results.export"},
    "pickle": {"jobs.user_code.runner.calls"},
    "cloudpickle": {"jobs.user_code.runner.calls", "coordinator.client.calls"},
    "joblib": {"coordinator.client.calls"},
    "starlette": {"coordinator.page.server"},
    "uvicorn": {"coordinator.page.server"},
    "jinja2": {"coordinator.page.markup"},
    "click": {
        "jobs.common.cli",
        "jobs.common.program",
        "coordinator.commands",
        "agent.commands",
        "deploy.commands",
        "deploy.join_options",
    },
}

# What the rules forbid and stands for now. Whoever mends one takes its line out; none is added.
FOR_NOW: set[str] = set()
NAMED_FOR_NOW: set[str] = set()  # by `jobs`, in strings
