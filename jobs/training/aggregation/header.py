"""What a shard of a round has to know beside the weights. Values only."""

from __future__ import annotations

import msgspec


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Goes down with each round. With a virtual worker's number it decides every bit of that worker's contribution."""

    round: int  # the version of the weights; in `async` the number of pushes they have seen
    redo: int  # how often this round had to be done again
    steps: int
    scale: float  # fixed-point units of 1.0, for the sum over a contribution's samples
    rate: float  # learning rate of local steps
    weights: str  # xxh3_128 of the weights, in hex
    buffer_scale: float = 1.0  # the same for a model's buffers
