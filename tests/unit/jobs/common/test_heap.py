"""That a process which keeps what it freed computes on it next."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SECOND_ARRAY = """
import resource, sys
import numpy as np
from muster.jobs.common.heap import keep_freed

keep_freed()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(2):
    before = faults()
    np.ones(2 << 20, "u1")
    last = faults() - before
print(last)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone is told to")
def test_the_second_array_faults_no_page_in_again() -> None:
    done = subprocess.run([sys.executable, "-c", SECOND_ARRAY], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 50, "2 MiB have 512 pages"
