"""Training one model in rounds: numerics and decisions, pure. What carries them between machines is elsewhere."""
