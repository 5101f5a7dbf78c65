"""Rows through models: what a job says of one, finding it, and what runs it."""
