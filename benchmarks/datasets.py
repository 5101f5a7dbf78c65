"""Data sets that benchmarks train on, which `muster.jobs.training.data.named_sets` fetches.

python -m benchmarks.datasets [NAME …] [--to FOLDER]

Each becomes x.npy, y.npy, test_x.npy and test_y.npy in FOLDER/NAME.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from muster.jobs.training.data.named_sets import DATASETS, NotFetched, default_folder, fetched


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.datasets", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DATASETS)}; all where none is given")
    parser.add_argument("--to", type=Path, default=default_folder())
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in DATASETS]:
        parser.error(f"there is no data set {unknown[0]!r}")
    failed = False
    for name in args.names or DATASETS:
        try:
            folder = fetched(name, args.to)
            x, test_x = (np.load(folder / f"{part}.npy", mmap_mode="r") for part in ("x", "test_x"))
            print(f"{name}: {len(x):,} rows of {x.shape[1:]} and {len(test_x):,} to test, in {folder}")
        except NotFetched as error:
            failed = True
            print(error, file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
