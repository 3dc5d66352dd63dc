"""Where the command `jobsdk` begins, also as `python -m jobsdk`."""

from __future__ import annotations

import sys


def main() -> int:
    """The command line; Ctrl-C while it is being imported or begins ends it as quietly as later on."""
    try:
        from jobsdk import cli

        return cli.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
