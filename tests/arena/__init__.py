"""The same work and the same faults for Muster and its peers, counted from outside in the same way for all."""
