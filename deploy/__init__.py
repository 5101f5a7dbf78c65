"""Putting agents onto machines over ssh. Not built yet; see deploy/README.md."""
