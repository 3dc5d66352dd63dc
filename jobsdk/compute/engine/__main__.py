"""The driver process of a run: `python -m jobsdk.compute.engine RUN_FOLDER`."""

import sys

from jobsdk.compute.engine import lead

lead(sys.argv[1])
