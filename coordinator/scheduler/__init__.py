"""Every decision about shards, as a pure state machine. `handle(event, now) -> actions`; no I/O, no clock.

events.py says what happened, actions.py what is to be done; state.py and entities.py hold the state and its invariants;
sessions.py, grants.py, commits.py, failures.py, layers.py and jobs.py are its reactions, each a set of functions over
the state; state_machine.py dispatches.
"""
