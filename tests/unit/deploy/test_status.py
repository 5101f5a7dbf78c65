"""`deploy status`: what is said of machines beside each other."""

from __future__ import annotations

from muster.deploy.commands.status import MachineStatus, _kernels


def test_kernels_are_named_where_they_differ() -> None:
    alike = [MachineStatus(name, True, fingerprint="numpy 2.4") for name in ("lab3", "gpu1")]
    never = MachineStatus("dmz", False)
    assert _kernels([*alike, never]) == []
    other = MachineStatus("old", True, fingerprint="numpy 1.26")
    assert _kernels([*alike, never, other]) == ["lab3, gpu1: numpy 2.4", "old: numpy 1.26"]
