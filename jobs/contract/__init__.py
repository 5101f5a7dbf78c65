"""The values and classes that all of `jobs` agrees upon. Pure: no I/O, no clock, no numpy; imports little of ours."""
