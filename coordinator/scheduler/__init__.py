"""Every decision about shards, as a pure state machine. `handle(event, now) -> commands`; no I/O, no clock.

events.py says what happened, commands.py what is to be done; state.py holds the state and its invariants; sessions.py,
grants.py, results.py and layers.py are its reactions, each a set of functions over the state; core.py dispatches.
"""
