"""`python -m jobsdk` is the command `jobsdk`."""

from __future__ import annotations

import sys

from jobsdk.cli import main

if __name__ == "__main__":
    sys.exit(main())
