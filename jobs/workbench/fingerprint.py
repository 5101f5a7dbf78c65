"""What decides the bits of our own numerics on this machine, as one short text. Computes nothing and never fails.

What else a job's numerics rest on follows it, see `muster.jobs.contract.requirements.rest_of`.
"""

from __future__ import annotations

import platform
from functools import cache


@cache
def fingerprint() -> str:
    """`numpy 2.4.6 AVX512_ICL, sklearn 1.9.1, openblas 0.3.31 Haswell, x86_64`: equal texts, equal bits.

    The interpreter is not in it, for it decides none; nor are threads, which a job's cpus fix on every machine.
    """
    simd, blas = _simd(), _blas()
    return f"numpy {_version('numpy')} {simd}, sklearn {_version('scikit-learn')}, {blas}, {platform.machine()}"


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"


def _simd() -> str:
    """The widest instructions numpy uses here: exp and its like differ between them."""
    import numpy as np

    shown = np.show_config(mode="dicts")
    found = shown.get("SIMD Extensions", {}).get("found", []) if shown else []
    return str(found[-1]) if found else "baseline"


def _blas() -> str:
    """numpy's BLAS: name, version and the core type it chose. numpy is loaded by now, so it is there to be seen."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return "blas unknown"
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    if not pools:
        return "blas unknown"
    pool = next((pool for pool in pools if "numpy" in pool["filepath"]), pools[0])
    return f"{pool['internal_api']} {pool['version']} {pool.get('architecture', 'any')}"
