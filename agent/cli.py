"""`agent`: finds the command and shows its errors. Imports a command only when it is called."""

from __future__ import annotations

from muster.jobs.common.program import Program

COMMANDS = {
    "join": "Work for a coordinator until told to leave.",
    "doctor": "Try each link of the way to a coordinator, and say what to put right.",
    "pause": "Stop an agent of this machine where it is; nothing is lost.",
    "resume": "Let a paused agent go on.",
    "set": "Change what an agent may use of this machine, at once.",
    "leave": "End an agent of this machine in good order.",
    "service": "Let systemd keep an agent at work, also after a restart of this machine.",
    "status": "Show this machine's agents.",
}
HELP = "Lend this machine's processors to a farm."

PROGRAM = Program("agent", HELP, COMMANDS, "muster.agent.commands", ("agent",))
main, group, load = PROGRAM.main, PROGRAM.group, PROGRAM.load
