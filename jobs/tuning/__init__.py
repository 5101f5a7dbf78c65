"""Hyper-parameter search: which configurations there are, how far each is trained, what came of them."""
