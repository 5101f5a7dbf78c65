"""`python -m muster.deploy`."""

import sys

if __name__ == "__main__":
    from muster import forget_current_folder

    forget_current_folder()
    from muster.deploy.cli import main

    sys.exit(main())
