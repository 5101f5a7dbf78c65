"""Faults by the hundred against real farms, in parts with seeds of their own, whose lines add up."""
