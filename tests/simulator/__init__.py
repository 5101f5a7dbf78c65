"""The whole farm in one deterministic world: the real scheduler and the real agents' cores, all else made of a seed."""
