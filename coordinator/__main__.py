"""`python -m muster.coordinator`."""

import os
import sys

if __name__ == "__main__":
    # `-m` put the current folder, which may be anybody's, before all others. It stays where we lie in it ourselves.
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    if sys.path[0] != home and not getattr(sys.flags, "safe_path", sys.flags.isolated):
        del sys.path[0]

    from muster.coordinator.cli import main

    sys.exit(main())
