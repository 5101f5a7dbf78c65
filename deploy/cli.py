"""`deploy`: finds the command and shows its errors. Imports a command only when it is called."""

from __future__ import annotations

from muster.jobs.common.program import Program

COMMANDS = {
    "up": "Bring machines to what the inventory says; a second run changes nothing.",
    "add": "Put one more machine into the inventory, and bring it.",
    "status": "Compare the machines with what the inventory says.",
    "logs": "Show the log of a machine's agent.",
    "upgrade": "Bring all machines and the coordinator to the version installed here.",
    "wheels": "Fetch what machines without an index of packages need.",
    "remove": "Let machines finish, and take them out of the farm.",
    "down": "Take all machines out of the farm, and leave their homes as they were.",
}
HELP = """Put agents onto the machines of an inventory over ssh, from the server, and keep them at work.

The inventory is one yaml file, inventory.yaml in the farm's root by default.
"""

PROGRAM = Program("deploy", HELP, COMMANDS, "muster.deploy.commands", ("deploy",))
main, group, load = PROGRAM.main, PROGRAM.group, PROGRAM.load
