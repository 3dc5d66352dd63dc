"""Where the command `jobsdk` begins, also as `python -m jobsdk`."""

from __future__ import annotations

import sys


def main() -> int:
    """The command line; Ctrl-C while it is being imported ends it as quietly as later on."""
    try:
        from jobsdk import cli
    except KeyboardInterrupt:
        return 130
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
