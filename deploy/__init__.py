"""Puts agents onto machines over ssh, from the server, and keeps them there. Imports nothing."""
